//! A process of the lab: signals, its log, its end.
//!
//! Dropping a [`Process`] leaves it running; it ends with its host's power or with the lab.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};

use crate::{run::lock, syscall, wait::poll_until};

/// A started process, in a process group of its own.
#[derive(Debug, Clone)]
pub struct Process {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    pid: u32,
    log: PathBuf,
    child: Mutex<Child>,
}

impl Process {
    pub(crate) fn start(name: &str, mut command: Command, log: PathBuf) -> Result<Self> {
        let output = File::options().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("log {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        // Ctrl-C in the terminal is for the lab, which then ends this in its own order.
        command.process_group(0);
        let child = command.spawn().with_context(|| {
            format!(
                "{name} does not start ({})",
                command.get_program().display()
            )
        })?;
        let inner = Inner {
            name: name.to_owned(),
            pid: child.id(),
            log,
            child: Mutex::new(child),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.inner.pid
    }

    /// Where its output goes.
    pub fn log_file(&self) -> &Path {
        &self.inner.log
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(&self.inner.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// SIGKILL to the whole group; returns when the process is gone.
    pub fn kill9(&self) -> Result<()> {
        self.signal(libc::SIGKILL)?;
        lock(&self.inner.child)
            .wait()
            .map(drop)
            .context("wait after SIGKILL")
    }

    /// SIGTERM, to the process alone, as a kubelet sends it.
    pub fn terminate(&self) -> Result<()> {
        let mut child = lock(&self.inner.child);
        if child.try_wait()?.is_none() {
            syscall::signal(i32::try_from(self.inner.pid)?, libc::SIGTERM)?;
        }
        Ok(())
    }

    /// SIGSTOP to the group.
    pub fn pause(&self) -> Result<()> {
        self.signal(libc::SIGSTOP)
    }

    /// SIGCONT to the group.
    pub fn resume(&self) -> Result<()> {
        self.signal(libc::SIGCONT)
    }

    /// Sends a signal to the group, if the process has not ended.
    pub fn signal(&self, signal: libc::c_int) -> Result<()> {
        let mut child = lock(&self.inner.child);
        // An id that has not been waited for cannot belong to another process.
        if child.try_wait()?.is_none() {
            syscall::signal(-i32::try_from(self.inner.pid)?, signal)
                .with_context(|| format!("signal {signal} to {}", self.inner.name))?;
        }
        Ok(())
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        Ok(lock(&self.inner.child).try_wait()?)
    }

    /// Waits for its end.
    pub async fn wait(&self, within: Duration) -> Result<ExitStatus> {
        let what = format!("end of {}", self.inner.name);
        poll_until(within, &what, async || self.ended()).await
    }

    /// Waits until its output contains `text`; an end without it is an error at once.
    pub async fn wait_for_log(&self, text: &str, within: Duration) -> Result<()> {
        let what = format!("{text:?} in the log of {}", self.inner.name);
        let found = poll_until(within, &what, async || {
            // Asked first: what it wrote before its end is then in the log.
            let ended = self.ended()?;
            let log = self.log();
            if log.contains(text) {
                return Ok(Some(Ok(())));
            }
            Ok(ended.map(|status| {
                Err(anyhow!(
                    "{} ended with {status}; its log:\n{log}",
                    self.inner.name
                ))
            }))
        });
        found.await?
    }
}
