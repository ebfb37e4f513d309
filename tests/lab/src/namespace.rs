//! One named network namespace: entering it, running programs in it, finding who is in it.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{clock, iproute, syscall};

/// Where iproute2 keeps named namespaces.
pub(crate) const FOLDER: &str = "/run/netns";

/// A network namespace that `ip netns exec <name>` can enter too.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
    handle: Arc<File>,
}

impl Namespace {
    /// Makes the namespace, its loopback link up.
    pub(crate) fn create(name: String) -> Result<Self> {
        iproute::ip(None, &format!("netns add {name}\n"))?;
        let handle =
            File::open(format!("{FOLDER}/{name}")).with_context(|| format!("namespace {name}"))?;
        let namespace = Self {
            name,
            handle: Arc::new(handle),
        };
        iproute::ip(Some(&namespace), "link set lo up\n")?;
        Ok(namespace)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Takes the name away; the namespace ends with its last process, thread and socket.
    pub(crate) fn delete(&self) -> Result<()> {
        iproute::ip(None, &format!("netns del {}\n", self.name))
    }

    /// A program that will run inside.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        syscall::enter_on_exec(&mut command, Arc::clone(&self.handle));
        command
    }

    /// Runs `closure` on a thread inside; sockets that it makes stay inside wherever they go.
    pub(crate) fn inside<T: Send>(&self, closure: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                self.enter()?;
                Ok(closure())
            });
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread inside, for good.
    pub(crate) fn enter(&self) -> Result<()> {
        syscall::enter_namespace(&self.handle).with_context(|| format!("enter {}", self.name))
    }

    /// Sets a sysctl of this namespace, such as `net.ipv4.ip_forward`.
    pub(crate) fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        // /proc/sys/net shows the namespace of the thread that opens it.
        self.inside(|| fs::write(&path, value))?
            .with_context(|| format!("sysctl {key}={value}"))
    }

    /// The processes inside, except this one (whose threads may be inside, but not its first).
    pub(crate) fn processes(&self) -> Result<Vec<i32>> {
        let wanted = self.handle.metadata()?;
        let own = i32::try_from(std::process::id())?;
        let entries = fs::read_dir("/proc")?.flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(ids
            .filter(|id| *id != own)
            .filter(|id| {
                // Unreadable for a zombie and for one that has just ended.
                fs::metadata(format!("/proc/{id}/ns/net"))
                    .is_ok_and(|found| found.ino() == wanted.ino() && found.dev() == wanted.dev())
            })
            .collect())
    }

    /// Signals every process inside, whatever group or session it is in.
    pub(crate) fn signal_all(&self, signal: libc::c_int) -> Result<()> {
        for id in self.processes()? {
            // It may have ended since it was listed, and that is fine.
            drop(syscall::signal(id, signal));
        }
        Ok(())
    }

    /// Kills until nobody is left: a process may have forked while the others were killed.
    pub(crate) fn kill_all(&self) -> Result<()> {
        let deadline = clock::now() + Duration::from_secs(5);
        while !self.processes()?.is_empty() {
            if clock::now() > deadline {
                bail!(
                    "processes in {} survive SIGKILL: {:?}",
                    self.name,
                    self.processes()?
                );
            }
            self.signal_all(libc::SIGKILL)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
