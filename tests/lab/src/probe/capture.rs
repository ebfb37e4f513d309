//! Captures frames into memory and into a pcap file.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant, UNIX_EPOCH},
};

use anyhow::{Context, Result};

use super::worker::{Worker, receive_until};
use crate::{
    clock,
    namespace::Namespace,
    run::lock,
    syscall::{self, PacketOptions},
};

/// The largest frame kept: a segment that no wire would carry in one piece.
const SNAPLEN: u32 = 262_144;
/// How soon a capture sees that it is to stop.
const IDLE: Duration = Duration::from_millis(20);

/// A running capture. Dropping it completes the file too.
#[derive(Debug)]
pub struct Capture {
    frames: Arc<Mutex<Vec<Frame>>>,
    worker: Worker,
}

/// A captured frame, from its Ethernet header on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// When it was read.
    pub at: Instant,
    /// All of it.
    pub bytes: Vec<u8>,
}

impl Capture {
    pub(crate) fn start(namespace: &Namespace, link: &str, file: &Path) -> Result<Self> {
        let options = PacketOptions {
            outgoing: true,
            promiscuous: true,
            ..PacketOptions::default()
        };
        let socket = namespace.inside(|| syscall::packet_socket(link, options))?;
        let socket = socket.with_context(|| format!("packet socket on {link}"))?;
        let file = File::create(file).with_context(|| format!("make {}", file.display()))?;
        let mut file = BufWriter::new(file);
        file.write_all(&header())?;
        let frames = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&frames);
        let worker = Worker::start("capture", move |stop| {
            let mut buffer = vec![0; usize::try_from(SNAPLEN)?];
            let mut written = Ok(());
            while !stop.load(Ordering::Relaxed) {
                receive_until(&socket, clock::now() + IDLE, &mut buffer, |bytes| {
                    lock(&shared).push(Frame {
                        at: clock::now(),
                        bytes: bytes.to_vec(),
                    });
                    if written.is_ok() {
                        written = file.write_all(&record(bytes));
                    }
                })?;
            }
            written.and_then(|()| file.flush()).context("capture file")
        })?;
        Ok(Self { frames, worker })
    }

    /// The frames so far.
    pub fn frames(&self) -> Vec<Frame> {
        lock(&self.frames).clone()
    }

    /// Ends it and completes the file.
    pub fn stop(mut self) -> Result<Vec<Frame>> {
        self.worker.stop()?;
        Ok(self.frames())
    }
}

/// The file's header, in this machine's byte order, which its magic number tells: microseconds,
/// version 2.4, Ethernet.
fn header() -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&0xa1b2_c3d4_u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&2_u16.to_ne_bytes());
    bytes[6..8].copy_from_slice(&4_u16.to_ne_bytes());
    bytes[16..20].copy_from_slice(&SNAPLEN.to_ne_bytes());
    bytes[20..].copy_from_slice(&1_u32.to_ne_bytes());
    bytes
}

fn record(frame: &[u8]) -> Vec<u8> {
    let time = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The format has 32 bits for the seconds, and no frame is longer than the buffer.
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let length = u32::try_from(frame.len()).unwrap_or(SNAPLEN);
    let fields = [seconds, time.subsec_micros(), length, length];
    fields
        .iter()
        .flat_map(|field| field.to_ne_bytes())
        .chain(frame.iter().copied())
        .collect()
}
