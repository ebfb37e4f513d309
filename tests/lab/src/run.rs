//! One run of the lab: its names, its directory, and its certain end.
//!
//! A run ends with [`Lab::stop`], with the drop of the [`Lab`] (a panic included), or with the
//! process in whatever way that ends: a small shell, the reaper, holds the other end of a pipe and
//! cleans up when the pipe closes. All these ways are one script. If the reaper itself was killed
//! (a machine's out-of-memory, say), the next run sweeps what it finds of dead ones.
//!
//! Invariants: nothing of a run is in the root namespace but processes marked with `HARVESTER_LAB_RUN`;
//! the namespaces of a run are named `<run>-<host>`, and `<run>` is `hl<pid>-<n>`.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, Ordering},
    },
};

use anyhow::{Context, Result, bail, ensure};

use crate::{host::Host, iproute, namespace::Namespace, network::Network, process::Process, sweep};

/// The environment variable that marks each process of a run, and what it starts.
pub(crate) const RUN_MARK: &str = "HARVESTER_LAB_RUN";

const REAPER: &str = include_str!("reaper.sh");

/// Several labs may live in one process.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// A scenario's ground: networks, hosts and processes, gone when this is dropped.
#[derive(Debug)]
pub struct Lab {
    run: Arc<Run>,
}

/// What the parts of one run share.
#[derive(Debug)]
pub(crate) struct Run {
    prefix: String,
    directory: PathBuf,
    switch: Namespace,
    reaper: Mutex<Option<Child>>,
    processes: Mutex<Vec<Process>>,
    networks: AtomicU8,
    hosts: AtomicU8,
    ports: AtomicU32,
}

impl Lab {
    /// Makes an empty lab. `name` says what it is for, in messages.
    pub fn new(name: &str) -> Result<Self> {
        if let Some(reason) = iproute::unavailable() {
            bail!("no lab {name:?} on this machine: {reason}");
        }
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("hl{}-{number}", std::process::id());
        let directory = sweep::claim(number)?;
        // From here on something has to be cleaned up, so the reaper is first.
        let mut reaper = start_reaper(&prefix, &directory)?;
        let switch = match make_switch(&prefix) {
            Ok(switch) => switch,
            Err(error) => {
                drop(reaper.stdin.take());
                reaper.wait()?;
                return Err(error.context(format!("lab {name:?}")));
            }
        };
        let run = Run {
            prefix,
            directory,
            switch,
            reaper: Mutex::new(Some(reaper)),
            processes: Mutex::default(),
            networks: AtomicU8::new(0),
            hosts: AtomicU8::new(0),
            ports: AtomicU32::new(0),
        };
        Ok(Self { run: Arc::new(run) })
    }

    /// Makes a network: a learning bridge that forwards at once.
    pub fn network(&self, name: &str) -> Result<Network> {
        Network::create(Arc::clone(&self.run), name)
    }

    /// Makes a host: a network namespace, so far without links.
    pub fn host(&self, name: &str) -> Result<Host> {
        Host::create(Arc::clone(&self.run), name)
    }

    /// Starts a process outside all hosts, such as a control plane's. It ends with the lab.
    pub fn spawn(&self, name: &str, command: impl Into<Command>) -> Result<Process> {
        self.run.spawn(name, command.into())
    }

    /// Where logs, captures and other files of this run belong; it goes with the lab.
    pub fn directory(&self) -> &Path {
        &self.run.directory
    }

    /// The names of this run's namespaces start with this.
    pub fn prefix(&self) -> &str {
        &self.run.prefix
    }

    /// Ends all of it, and says what would not go.
    pub fn stop(self) -> Result<()> {
        self.run.stop()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.run.show_logs();
        }
        if let Err(error) = self.run.stop() {
            eprintln!("lab {} is not gone: {error:#}", self.run.prefix);
        }
    }
}

impl Run {
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The namespace of the bridges and of their ports.
    pub(crate) fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// The next network's number, from 0.
    pub(crate) fn number_network(&self) -> u8 {
        self.networks.fetch_add(1, Ordering::Relaxed)
    }

    /// The next host's number, from 1.
    pub(crate) fn number_host(&self) -> u8 {
        self.hosts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The next port's number, from 0, over all networks.
    pub(crate) fn number_port(&self) -> u32 {
        self.ports.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts `command` marked as this run's, its output going to a log of its own.
    pub(crate) fn spawn(&self, name: &str, mut command: Command) -> Result<Process> {
        command.env(RUN_MARK, &self.prefix);
        let mut processes = lock(&self.processes);
        let log = self
            .directory
            .join(format!("{name}-{}.log", processes.len()));
        let process = Process::start(name, command, log)?;
        processes.push(process.clone());
        Ok(process)
    }

    fn stop(&self) -> Result<()> {
        let Some(mut reaper) = lock(&self.reaper).take() else {
            return Ok(());
        };
        drop(reaper.stdin.take());
        let status = reaper.wait().context("the reaper")?;
        // All are killed; they stay as zombies until someone asks.
        for process in lock(&self.processes).drain(..) {
            process.kill9()?;
        }
        ensure!(status.success(), "the reaper ended with {status}");
        let left = sweep::namespaces(&self.prefix)?;
        ensure!(left.is_empty(), "namespaces stay: {left:?}");
        ensure!(
            !self.directory.exists(),
            "{} stays",
            self.directory.display()
        );
        Ok(())
    }

    /// For whoever reads why a test failed: the run's directory will be gone.
    fn show_logs(&self) {
        const LINES: usize = 20;
        for process in lock(&self.processes).iter() {
            let log = process.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(LINES)..];
            eprintln!(
                "--- end of the log of {}\n{}",
                process.name(),
                tail.join("\n")
            );
        }
    }
}

/// A panic elsewhere while a lock was held leaves lists of the lab usable, and clean-up needs them.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the namespace of the bridges.
fn make_switch(prefix: &str) -> Result<Namespace> {
    let switch = Namespace::create(format!("{prefix}-switch"))?;
    // The switch forwards frames and is no station: it must not answer or solicit.
    switch.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
    switch.sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
    Ok(switch)
}

fn start_reaper(prefix: &str, directory: &Path) -> Result<Child> {
    reaper_command(prefix, directory)
        // std marks the pipe's write end close-on-exec, so no other child keeps it open.
        .stdin(Stdio::piped())
        .spawn()
        .context("the reaper does not start")
}

/// Cleans up after a run whose process is gone.
pub(crate) fn reap_now(prefix: &str, directory: &Path) -> Result<()> {
    let mut command = reaper_command(prefix, directory);
    let status = command.arg("now").stdin(Stdio::null()).status()?;
    ensure!(status.success(), "sweeping {prefix} ended with {status}");
    Ok(())
}

fn reaper_command(prefix: &str, directory: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", REAPER, "reaper", prefix])
        .arg(directory);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // A group of its own: Ctrl-C in the terminal is for the lab's process, not for its reaper.
    command.process_group(0).current_dir("/");
    command
}
