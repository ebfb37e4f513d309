//! A client that sends ICMP or `ICMPv6` echo requests at 1 kHz.
//!
//! It is an ordinary client of its host's kernel, neighbour cache included. Such a client hides a
//! beginning: while the neighbour is unresolved, the kernel queues some hundred requests and then
//! waits a second before it asks again. Measure first answers with an
//! [`Asker`](super::Asker).

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use super::{
    gaps::{self, Gap, Outcome, Sample},
    worker::{Pace, Worker, receive_until},
};
use crate::{clock, frame, host::Host, run::lock, wait::poll_until};

const PERIOD: Duration = Duration::from_millis(1);
/// How late an answer may be. Links with a delay need more; see [`EchoProbe::start_patient`].
const PATIENCE: Duration = Duration::from_millis(50);

/// A running echo client.
#[derive(Debug)]
pub struct EchoProbe {
    started: Instant,
    patience: Duration,
    samples: Arc<Mutex<Vec<Sample>>>,
    worker: Worker,
}

/// What an echo client saw.
#[derive(Debug, Clone)]
pub struct Report {
    /// When it started.
    pub started: Instant,
    /// Requests sent, those of the last moment left out, whose answers may be under way.
    pub sent: usize,
    /// Requests never answered.
    pub lost: usize,
    /// Requests answered, but later than the probe's patience.
    pub late: usize,
    /// The median time from a request to its answer.
    pub round_trip: Option<Duration>,
    /// Every time without an answer in time, even of one request.
    pub gaps: Vec<Gap>,
    /// The longest of them, zero if there is none.
    pub longest_gap: Duration,
}

impl EchoProbe {
    /// Starts to send to `to` every millisecond.
    pub fn start(host: &Host, to: IpAddr) -> Result<Self> {
        Self::start_patient(host, to, PATIENCE)
    }

    /// As [`Self::start`], with answers allowed to take `patience`.
    pub fn start_patient(host: &Host, to: IpAddr, patience: Duration) -> Result<Self> {
        let (domain, protocol) = match to {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = host.inside(|| Socket::new(domain, Type::RAW, Some(protocol)))?;
        let socket = socket.context("raw ICMP socket")?;
        socket.set_nonblocking(true)?;
        let samples = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&samples);
        let started = clock::now();
        let worker = Worker::start("echo", move |stop| {
            let mut pace = Pace::new(PERIOD);
            // Other probes of this host see the same replies; the identifier tells them apart.
            let [.., high, low] = (clock::random_fraction().to_bits() >> 8).to_be_bytes();
            let identifier = u16::from_be_bytes([high, low]);
            let mut buffer = [0; 2048];
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                send(&socket, to, identifier, &shared);
                receive_until(&socket, pace.advance(), &mut buffer, |packet| {
                    note(packet, to, identifier, &shared);
                })?;
            }
            Ok(())
        })?;
        Ok(Self {
            started,
            patience,
            samples,
            worker,
        })
    }

    /// What it has seen so far.
    pub fn snapshot(&self) -> Report {
        let end = clock::now();
        let samples = lock(&self.samples);
        let old = samples
            .partition_point(|sample| end.saturating_duration_since(sample.sent) > self.patience);
        let gaps = gaps::gaps(&samples, self.patience, end);
        let (old, _) = samples.split_at(old);
        let late = |sample: &&Sample| sample.trip() > Some(self.patience);
        Report {
            started: self.started,
            sent: old.len(),
            lost: old
                .iter()
                .filter(|sample| sample.answered().is_none())
                .count(),
            late: old.iter().filter(late).count(),
            round_trip: median(old),
            longest_gap: gaps::longest(&gaps),
            gaps,
        }
    }

    /// Waits for the first answer.
    pub async fn wait_first(&self, within: Duration) -> Result<Instant> {
        self.wait_after(self.started, within).await
    }

    /// Waits for the answer to a request that was sent after `from`.
    pub async fn wait_after(&self, from: Instant, within: Duration) -> Result<Instant> {
        poll_until(within, "echo reply", async || {
            let samples = lock(&self.samples);
            let first = samples.partition_point(|sample| sample.sent < from);
            Ok(samples.iter().skip(first).find_map(Sample::answered))
        })
        .await
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<Report> {
        self.worker.stop()?;
        Ok(self.snapshot())
    }
}

fn median(samples: &[Sample]) -> Option<Duration> {
    let mut trips: Vec<Duration> = samples.iter().filter_map(Sample::trip).collect();
    trips.sort_unstable();
    trips.get(trips.len() / 2).copied()
}

fn send(socket: &Socket, to: IpAddr, identifier: u16, samples: &Mutex<Vec<Sample>>) {
    let mut samples = lock(samples);
    let sequence = samples.len() as u64;
    samples.push(Sample {
        sent: clock::now(),
        outcome: Outcome::Pending,
    });
    drop(samples);
    let request = frame::echo_request(to, identifier, sequence);
    // No route, or a neighbour that failed to resolve: a lost request like any other.
    drop(socket.send_to(&request, &SocketAddr::new(to, 0).into()));
}

fn note(packet: &[u8], to: IpAddr, identifier: u16, samples: &Mutex<Vec<Sample>>) {
    let now = clock::now();
    let sequence = frame::echo_reply(packet, to.is_ipv4(), identifier);
    let index = sequence.and_then(|sequence| usize::try_from(sequence).ok());
    if let Some(index) = index
        && let Some(sample) = lock(samples).get_mut(index)
        && sample.outcome == Outcome::Pending
    {
        sample.outcome = Outcome::Answered(now);
    }
}
