//! The one way a process is asked to stop.
//!
//! A [`Shutdown`] is handed to every task. The first SIGTERM or SIGINT, or the failure of a task,
//! requests it; tasks then withdraw what they hold and return. A second signal aborts.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Whether the process is to stop; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everything that holds this to stop. Asking twice is asking once.
    pub fn request(&self) {
        self.0.cancel();
    }

    pub fn is_requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// For what takes a token: cancelled when a stop is requested.
    pub fn token(&self) -> CancellationToken {
        self.0.child_token()
    }

    /// Returns once a stop is requested. Cancel safe.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }
}

/// SIGTERM and SIGINT, in the order they come.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over from their default action.
    pub fn install() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Another signal in the place of both.
    #[cfg(test)]
    pub(super) fn of(kind: SignalKind) -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(kind)?,
            interrupt: signal(kind)?,
        })
    }

    /// Waits for the next signal and names it. Cancel safe.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
