//! Delays the frames of one port: a forwarder between two packet sockets in the switch namespace.
//!
//! Test machines have no netem. Frames keep their order; jitter varies the time that each waits.
//! Frames travel with their `virtio_net_hdr`, so TCP's large segments and unfinished checksums
//! arrive as they were sent.

use std::{
    collections::VecDeque,
    io::Read,
    os::fd::AsFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use socket2::Socket;

use crate::{
    clock,
    namespace::Namespace,
    run::lock,
    syscall::{self, PacketOptions},
};

/// How long a frame waits, in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) delay: Duration,
    /// Up to this much more.
    pub(crate) jitter: Duration,
}

/// Frames that wait in one direction; more are dropped, as a real queue would.
const QUEUE: usize = 10_000;
/// The largest segment with its two headers.
const FRAME: usize = 66_000;
/// How soon the forwarder sees that it is to stop.
const IDLE: Duration = Duration::from_millis(20);

/// Forwards until it is dropped.
#[derive(Debug)]
pub(crate) struct Forwarder {
    timing: Arc<Mutex<Timing>>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Forwards between the links `left` and `right` of `switch`.
    pub(crate) fn start(
        switch: &Namespace,
        left: &str,
        right: &str,
        timing: Timing,
    ) -> Result<Self> {
        let open = |link| {
            let options = PacketOptions {
                promiscuous: true,
                offload_header: true,
                ..PacketOptions::default()
            };
            syscall::packet_socket(link, options)
                .with_context(|| format!("packet socket on {link}"))
        };
        let sides = switch.inside(|| Ok::<_, anyhow::Error>([open(left)?, open(right)?]))??;
        let timing = Arc::new(Mutex::new(timing));
        let stop = Arc::new(AtomicBool::new(false));
        let worker = thread::Builder::new().name("delay".to_owned()).spawn({
            let (timing, stop) = (Arc::clone(&timing), Arc::clone(&stop));
            move || forward(&sides, &timing, &stop)
        })?;
        Ok(Self {
            timing,
            stop,
            worker: Some(worker),
        })
    }

    /// For the frames that arrive from now on.
    pub(crate) fn set(&self, timing: Timing) {
        *lock(&self.timing) = timing;
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            // Its panic has been printed; the frames are lost either way.
            drop(worker.join());
        }
    }
}

/// The frames on their way in one direction, in the order of their arrival.
#[derive(Debug, Default)]
struct Queue(VecDeque<(Instant, Vec<u8>)>);

impl Queue {
    fn push(&mut self, frame: &[u8], due: Instant) {
        if self.0.len() < QUEUE {
            let due = self.0.back().map_or(due, |(last, _)| due.max(*last));
            self.0.push_back((due, frame.to_vec()));
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.front().map(|(due, _)| *due)
    }

    fn pop_due(&mut self, now: Instant) -> Option<Vec<u8>> {
        let due = self.next_due()?;
        if due > now {
            return None;
        }
        self.0.pop_front().map(|(_, frame)| frame)
    }
}

fn forward(sides: &[Socket; 2], timing: &Mutex<Timing>, stop: &AtomicBool) {
    let [left, right] = sides;
    let mut rightward = Queue::default();
    let mut leftward = Queue::default();
    let mut buffer = vec![0; FRAME];
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        let due = [&rightward, &leftward]
            .into_iter()
            .filter_map(Queue::next_due)
            .min();
        let patience = due.map_or(IDLE, |due| due.saturating_duration_since(now).min(IDLE));
        if syscall::wait_readable(&[left.as_fd(), right.as_fd()], patience).is_err() {
            return;
        }
        receive(left, &mut rightward, &mut buffer, *lock(timing));
        receive(right, &mut leftward, &mut buffer, *lock(timing));
        send(right, &mut rightward);
        send(left, &mut leftward);
    }
}

fn receive(mut from: &Socket, queue: &mut Queue, buffer: &mut [u8], timing: Timing) {
    // An error is an empty queue, or a link that is down: nothing to forward either way.
    while let Ok(length) = from.read(buffer) {
        let wait = timing.delay + timing.jitter.mul_f64(clock::random_fraction());
        if let Some(frame) = buffer.get(..length) {
            queue.push(frame, clock::now() + wait);
        }
    }
}

fn send(to: &Socket, queue: &mut Queue) {
    while let Some(frame) = queue.pop_due(clock::now()) {
        // A full queue or a link that is down loses the frame.
        drop(to.send(&frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_order_whatever_the_jitter() {
        let start = clock::now();
        let later = |millis| start + Duration::from_millis(millis);
        let mut queue = Queue::default();
        queue.push(b"first", later(20));
        queue.push(b"second", later(10));
        assert_eq!(queue.pop_due(later(19)), None);
        assert_eq!(queue.pop_due(later(20)).as_deref(), Some(&b"first"[..]));
        assert_eq!(queue.pop_due(later(20)).as_deref(), Some(&b"second"[..]));
    }
}
