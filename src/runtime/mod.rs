//! Process plumbing: clocks, shutdown, supervised tasks, logging, metrics, health, HTTP servers,
//! informers and work queues. It knows no Service, Node or VIP.
//!
//! A [`Process`] is what a part of the program needs of its process; [`run`] is the life of one.

use std::time::Duration;

pub mod auth;
pub mod backoff;
pub mod clock;
pub mod endpoints;
pub mod health;
pub mod informer;
pub mod logging;
pub mod metrics;
pub mod ports;
pub mod realtime;
pub mod server;
pub mod shutdown;
pub mod tasks;
pub mod tls;
pub mod workqueue;

use health::Health;
use metrics::Metrics;
use ports::Ports;
use shutdown::{Shutdown, Signals};
use tasks::{Failure, Failures, Tasks};

/// Everything must be withdrawn within this of the first signal.
pub const STOP_BUDGET: Duration = Duration::from_secs(2);

/// The runtime's own watchdog: how often it must run, and how late it may be.
const PULSE: Duration = Duration::from_secs(1);
const PULSE_LIMIT: Duration = Duration::from_secs(10);

/// What every part of the program is given of its process; cheap to clone.
#[derive(Debug, Clone)]
pub struct Process {
    /// Asked for once; then withdraw, and return.
    pub shutdown: Shutdown,
    /// The only way to spawn.
    pub tasks: Tasks,
    pub metrics: Metrics,
    pub health: Health,
}

/// Why the process ends with an error, `E` being that of its work.
#[derive(Debug, thiserror::Error)]
pub enum Error<E> {
    #[error(transparent)]
    Work(E),
    #[error("the work ended although nothing asked it to")]
    Ended,
    #[error(transparent)]
    Task(#[from] Failure),
    #[error(transparent)]
    Ports(#[from] ports::Error),
    #[error("not everything was withdrawn within {}s", STOP_BUDGET.as_secs())]
    Overdue,
    #[error("a second signal cut the stop short")]
    Aborted,
}

impl Process {
    /// A process without signals and ports, and the other end of its tasks.
    pub fn new() -> (Self, Failures) {
        let shutdown = Shutdown::new();
        let (tasks, failures) = Tasks::new(shutdown.clone());
        let health = Health::new();
        let metrics = Metrics::new(&health);
        metrics.with(workqueue::meter::register);
        let process = Self {
            shutdown,
            tasks,
            metrics,
            health,
        };
        (process, failures)
    }
}

/// Serves the ports and runs `work` until it fails, a task fails, or a signal asks for an orderly stop: readiness goes
/// first, then the work and all tasks withdraw within [`STOP_BUDGET`], then the ports close.
pub async fn run<E>(
    process: Process,
    mut failures: Failures,
    mut signals: Signals,
    ports: Ports,
    work: impl Future<Output = Result<(), E>>,
) -> Result<(), Error<E>> {
    let mut served = tokio::select! {
        served = ports.serve(&process) => served?,
        signal = signals.next() => {
            tracing::info!(signal, "stopping before the start was over");
            return Ok(());
        }
    };
    process.tasks.spawn("pulse", pulse(process.clone()));
    tokio::pin!(work);
    let first = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping");
            Ok(())
        }
        ended = &mut work => Err(match ended {
            Ok(()) => Error::Ended,
            Err(error) => Error::Work(error),
        }),
        failure = failures.first() => Err(failure.into()),
        error = served.failed() => Err(error.into()),
    };
    process.health.stopping();
    process.shutdown.request();
    let work_is_over = matches!(first, Err(Error::Ended | Error::Work(_)));
    let withdrawn = async {
        let ended = if work_is_over { Ok(()) } else { work.await };
        process.tasks.finished().await;
        ended
    };
    let stopped = tokio::select! {
        ended = tokio::time::timeout(STOP_BUDGET, withdrawn) => if let Ok(ended) = ended {
            ended.map_err(Error::Work)
        } else {
            let tasks = process.tasks.running().join(", ");
            tracing::error!(tasks, "these tasks did not return in time");
            Err(Error::Overdue)
        },
        signal = signals.next() => {
            tracing::warn!(signal, "stopping at once");
            Err(Error::Aborted)
        }
    };
    served.stop().await;
    // What ended the process matters more than what its end met.
    first.and(stopped)
}

/// Proves that the runtime still runs tasks.
async fn pulse(process: Process) {
    let beat = process.health.watchdog("runtime", PULSE_LIMIT);
    while !process.shutdown.is_requested() {
        tokio::select! {
            () = process.shutdown.requested() => {}
            () = clock::sleep(PULSE) => beat.touch(),
        }
    }
    // The drain has its own budget.
    beat.retire();
}

#[cfg(test)]
mod tests;
