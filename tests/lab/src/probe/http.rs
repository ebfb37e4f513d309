//! A client that makes one HTTP request after the other, each on a TCP connection of its own.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use tokio::net::TcpStream;

use super::{
    gaps::{self, Gap, Outcome, Sample},
    worker::{Pace, Worker},
};
use crate::{clock, host::Host, http_client, run::lock, wait::poll_until};

/// One GET from `host`; `url` is `10.7.0.100:80/path`, `http://` may be before it. The answer's body,
/// if its status is a success.
pub async fn http_get(host: &Host, url: &str, within: Duration) -> Result<String> {
    let target: Target = url.parse()?;
    let answer = async { get(host.tcp_connect(target.address).await?, &target).await };
    let answer = tokio::time::timeout(within, answer).await;
    answer
        .with_context(|| format!("{url} within {within:?}"))?
        .with_context(|| url.to_owned())
}

/// A running HTTP client.
#[derive(Debug)]
pub struct HttpProbe {
    started: Instant,
    patience: Duration,
    seen: Arc<Mutex<Seen>>,
    worker: Worker,
}

/// What an HTTP client saw.
#[derive(Debug, Clone)]
pub struct HttpReport {
    /// When it started.
    pub started: Instant,
    /// Requests with a successful answer.
    pub answers: usize,
    /// Requests without: refused, reset, timed out, another status.
    pub errors: usize,
    /// From the probe's start to its first answer.
    pub first_ok: Option<Duration>,
    /// How often each body came: which pod answered.
    pub bodies: BTreeMap<String, usize>,
    /// How often each kind of error came.
    pub failures: BTreeMap<String, usize>,
    /// Every time without an answer.
    pub gaps: Vec<Gap>,
    /// The longest of them, zero if there is none.
    pub longest_gap: Duration,
}

#[derive(Debug, Default)]
struct Seen {
    samples: Vec<Sample>,
    bodies: BTreeMap<String, usize>,
    failures: BTreeMap<String, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    address: SocketAddr,
    path: String,
}

impl HttpProbe {
    /// Starts to GET `url` (as for [`http_get`]) every `period`, or as soon after as the request
    /// before has ended, which it does after `timeout` at the latest.
    pub fn start(host: &Host, url: &str, period: Duration, timeout: Duration) -> Result<Self> {
        let target: Target = url.parse()?;
        let namespace = host.namespace()?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        let started = clock::now();
        let worker = Worker::start("http", move |stop| {
            namespace.enter()?;
            // Not held for longer than the host has power.
            drop(namespace);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let mut pace = Pace::new(period);
            while !stop.load(Ordering::Relaxed) {
                let sent = clock::now();
                let answer = runtime.block_on(ask(&target, timeout));
                lock(&shared).note(sent, answer);
                let rest = pace.advance().saturating_duration_since(clock::now());
                std::thread::sleep(rest);
            }
            Ok(())
        })?;
        Ok(Self {
            started,
            patience: timeout,
            seen,
            worker,
        })
    }

    /// What it has seen so far.
    pub fn snapshot(&self) -> HttpReport {
        let seen = lock(&self.seen);
        let gaps = gaps::gaps(&seen.samples, self.patience, clock::now());
        let first = seen.samples.iter().find_map(Sample::answered);
        let answers = seen
            .samples
            .iter()
            .filter(|sample| sample.answered().is_some())
            .count();
        HttpReport {
            started: self.started,
            answers,
            errors: seen.samples.len() - answers,
            first_ok: first.map(|at| at.saturating_duration_since(self.started)),
            bodies: seen.bodies.clone(),
            failures: seen.failures.clone(),
            longest_gap: gaps::longest(&gaps),
            gaps,
        }
    }

    /// Waits for the first answer.
    pub async fn wait_first(&self, within: Duration) -> Result<Duration> {
        poll_until(within, "HTTP answer", async || Ok(self.snapshot().first_ok)).await
    }

    /// Ends it, after the request under way.
    pub fn stop(mut self) -> Result<HttpReport> {
        self.worker.stop()?;
        Ok(self.snapshot())
    }
}

impl Seen {
    fn note(&mut self, sent: Instant, answer: Result<String>) {
        let outcome = match answer {
            Ok(_) => Outcome::Answered(clock::now()),
            Err(_) => Outcome::Failed,
        };
        self.samples.push(Sample { sent, outcome });
        let count = match answer {
            Ok(body) => self.bodies.entry(body).or_default(),
            Err(error) => self.failures.entry(format!("{error:#}")).or_default(),
        };
        *count += 1;
    }
}

/// One GET from the calling thread's namespace.
async fn ask(target: &Target, within: Duration) -> Result<String> {
    let answer = async { get(TcpStream::connect(target.address).await?, target).await };
    tokio::time::timeout(within, answer)
        .await
        .context("no answer in time")?
}

/// The body of a successful answer.
async fn get(stream: TcpStream, target: &Target) -> Result<String> {
    let answer = http_client::exchange(stream, target.address, &target.path).await?;
    ensure!(
        answer.status.is_success(),
        "{}: {}",
        answer.status,
        answer.body
    );
    Ok(answer.body)
}

impl std::str::FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
        let address = address
            .parse()
            .with_context(|| format!("{url:?} does not start with an address and a port"))?;
        Ok(Self {
            address,
            path: format!("/{path}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_an_address_a_port_and_maybe_a_path() {
        let target: Target = "http://[fd07::1]:80/a/b".parse().unwrap();
        let address = "[fd07::1]:80".parse().unwrap();
        assert_eq!(
            target,
            Target {
                address,
                path: "/a/b".to_owned()
            }
        );
        let target: Target = "10.7.0.1:8080".parse().unwrap();
        assert_eq!(target.path, "/");
        assert!("10.7.0.1".parse::<Target>().is_err());
    }
}
