//! The thread of a probe: paced by absolute deadlines, stopped and joined by its owner.

use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use socket2::Socket;

use crate::{clock, syscall};

/// A running thread; dropping it stops it.
#[derive(Debug)]
pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Worker {
    /// Starts `body`, which looks at the flag often and returns when it is set.
    pub(super) fn start(
        name: &str,
        body: impl FnOnce(&AtomicBool) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || body(&seen))
            .with_context(|| format!("thread {name}"))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the thread; an error is the probe's own, not that of what it measures.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // An error here has no one to tell it to; a panic has been printed.
            drop(thread.join());
        }
    }
}

/// Deadlines at a fixed period. Those that were slept through are skipped, not made up for.
#[derive(Debug)]
pub(super) struct Pace {
    period: Duration,
    next: Instant,
}

impl Pace {
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            next: clock::now(),
        }
    }

    /// The deadline after the one returned before.
    pub(super) fn advance(&mut self) -> Instant {
        self.next = (self.next + self.period).max(clock::now());
        self.next
    }
}

/// Hands `frames` what arrives on `socket` until `deadline`.
pub(super) fn receive_until(
    socket: &Socket,
    deadline: Instant,
    buffer: &mut [u8],
    mut frames: impl FnMut(&[u8]),
) -> Result<()> {
    use std::io::Read;
    loop {
        let mut reader = socket;
        // An error is an empty queue, or an ICMP error or downed link that the kernel reports
        // once; either way the next turn waits.
        while let Ok(length) = reader.read(buffer) {
            frames(buffer.get(..length).unwrap_or_default());
        }
        let patience = deadline.saturating_duration_since(clock::now());
        if patience.is_zero() {
            return Ok(());
        }
        syscall::wait_readable(&[socket.as_fd()], patience)?;
    }
}
