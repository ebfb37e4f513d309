//! Supervised tasks: one that ends or panics before a stop is requested ends the process, under its
//! name.
//!
//! [`Tasks`] is given to whoever spawns, [`Failures`] stays with the process's root, which waits for the
//! first failure. There is no other spawn in the program, with one exception: a task that needs many
//! short ones (connections, calls of the API, announcers of links) owns them in a `JoinSet` of its own.
//! They end with their owner, and it looks at how each ended.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    error::Error,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::shutdown::Shutdown;

/// Spawns tasks; cheap to clone.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: Shutdown,
    failures: mpsc::Sender<Failure>,
    running: Running,
}

/// How many tasks of each name run, to name those that do not end.
#[derive(Debug, Clone, Default)]
struct Running(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Running {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, name: &'static str) {
        *self.locked().entry(name).or_default() += 1;
    }

    fn leave(&self, name: &'static str) {
        let mut running = self.locked();
        if let Some(count) = running.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                running.remove(name);
            }
        }
    }
}

/// The task that ended the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("task {task} {cause}")]
pub struct Failure {
    pub task: &'static str,
    pub cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    #[error("ended although nothing asked it to")]
    Ended,
    #[error("failed")]
    Failed,
    #[error("panicked")]
    Panicked,
}

/// Where failures arrive.
#[derive(Debug)]
pub struct Failures(mpsc::Receiver<Failure>);

impl Failures {
    /// Waits for a task to fail. Never returns while all is well. Cancel safe.
    pub async fn first(&mut self) -> Failure {
        match self.0.recv().await {
            Some(failure) => failure,
            // Every `Tasks` is gone, and with them everything that could fail.
            None => std::future::pending().await,
        }
    }
}

impl Tasks {
    pub fn new(shutdown: Shutdown) -> (Self, Failures) {
        // The first failure decides; later ones are logged where they happen.
        let (failures, receiver) = mpsc::channel(1);
        let tasks = Self {
            tracker: TaskTracker::new(),
            shutdown,
            failures,
            running: Running::default(),
        };
        (tasks, Failures(receiver))
    }

    /// Spawns a task that returns only after a stop was requested.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.try_spawn(name, task.map(Ok::<(), Infallible>));
    }

    /// Spawns a task that may fail; its error is logged with everything below it.
    pub fn try_spawn<E>(
        &self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) where
        E: Error + Send + Sync + 'static,
    {
        let (shutdown, failures) = (self.shutdown.clone(), self.failures.clone());
        let running = self.running.clone();
        running.enter(name);
        self.tracker.spawn(async move {
            let outcome = AssertUnwindSafe(task).catch_unwind().await;
            running.leave(name);
            let cause = match outcome {
                Ok(Ok(())) if shutdown.is_requested() => return,
                Ok(Ok(())) => Cause::Ended,
                Ok(Err(error)) => {
                    let error: &(dyn Error + 'static) = &error;
                    tracing::error!(task = name, error, "task failed");
                    Cause::Failed
                }
                Err(_) => Cause::Panicked,
            };
            // A full channel already holds the failure that ends the process.
            let _ = failures.try_send(Failure { task: name, cause });
        });
    }

    /// Names of the tasks that have not returned.
    pub fn running(&self) -> Vec<&'static str> {
        self.running.locked().keys().copied().collect()
    }

    /// Waits until every task has returned. Call it after a stop was requested.
    pub async fn finished(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("broken")]
    struct Broken;

    #[tokio::test]
    async fn a_task_that_ends_early_is_a_failure_with_its_name() {
        let (tasks, mut failures) = Tasks::new(Shutdown::new());
        tasks.spawn("early", async {});
        let expected = Failure {
            task: "early",
            cause: Cause::Ended,
        };
        assert_eq!(failures.first().await, expected);
    }

    #[tokio::test]
    async fn errors_and_panics_are_failures() {
        let (tasks, mut failures) = Tasks::new(Shutdown::new());
        tasks.try_spawn("erring", async { Err(Broken) });
        assert_eq!(failures.first().await.cause, Cause::Failed);
        tasks.spawn("panicking", async { panic!("on purpose") });
        assert_eq!(failures.first().await.cause, Cause::Panicked);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_after_the_request_is_no_failure() {
        let shutdown = Shutdown::new();
        let (tasks, mut failures) = Tasks::new(shutdown.clone());
        let stop = shutdown.clone();
        assert_eq!(tasks.running(), [""; 0]);
        tasks.spawn("orderly", async move { stop.requested().await });
        assert_eq!(tasks.running(), ["orderly"]);
        shutdown.request();
        tasks.finished().await;
        assert_eq!(tasks.running(), [""; 0]);
        assert!(failures.first().now_or_never().is_none());
    }
}
