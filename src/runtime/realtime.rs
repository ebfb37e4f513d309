//! Real-time scheduling of the runtime's threads, so that a node whose processors are all busy still
//! hears its VIPs' questions, renews its Leases and answers.
//!
//! [`Realtime::claim`] puts the threads that the process has at that moment under `SCHED_RR` at the lowest
//! real-time priority. What they start later (blocking calls, the thread of the ports) begins as
//! `SCHED_OTHER`, because their policy has the flag `SCHED_RESET_ON_FORK`.
//!
//! A thread under `SCHED_RR` runs before all ordinary work of the machine, so one that computes without
//! end must lose that. The kernel counts the processor time of each such thread since it slept last
//! (`RLIMIT_RTTIME`, setrlimit(2)); after [`BUDGET`] it sends the thread SIGXCPU, whose handler makes it an
//! ordinary thread. [`Realtime::keep`] gives it another chance every [`PENALTY`]. A thread that computes
//! beyond the budget for good reason (a first list of many objects) so becomes slower, and nothing worse:
//! only the soft limit is set, and at the hard one, which kills, there is no real-time scheduling.
//!
//! Beside `net::packet_socket` this is the only file with `unsafe`.
#![expect(unsafe_code, reason = "system calls that no crate in use wraps")]

use std::{
    ffi::c_int,
    fs, io, mem, ptr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{clock, shutdown::Shutdown};

/// So long a thread may compute at a stretch.
const BUDGET: Duration = Duration::from_millis(200);
/// How often threads that used it up become real-time threads again: at most 2 % of a processor's time is
/// lost to one that never stops.
const PENALTY: Duration = Duration::from_secs(10);

/// The lowest real-time priority, sched(7).
const PRIORITY: c_int = 1;

/// A thread was made an ordinary one since this was last looked at.
static EXHAUSTED: AtomicBool = AtomicBool::new(false);

/// Why there is no real-time scheduling.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "not permitted: the capability SYS_NICE is missing, or the control group has no real-time share"
    )]
    NotPermitted,
    #[error("the hard limit RTTIME would end the process")]
    HardLimit,
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::NotPermitted,
            _ => Self::Io(error),
        }
    }
}

/// Threads under real-time scheduling.
#[derive(Debug)]
pub struct Realtime {
    threads: Vec<libc::pid_t>,
}

impl Realtime {
    /// Puts all threads that the process has now under real-time scheduling, or none. It is for the start,
    /// when these are the threads of the runtime.
    pub fn claim() -> Result<Self, Error> {
        Self::of(threads()?)
    }

    fn of(threads: Vec<libc::pid_t>) -> Result<Self, Error> {
        handle_exhaustion()?;
        limit()?;
        let claimed = Self { threads };
        if let Err(error) = claimed.promote() {
            claimed.demote();
            return Err(error.into());
        }
        Ok(claimed)
    }

    /// Gives threads that used up their budget another one, until the stop.
    pub async fn keep(self, shutdown: Shutdown) {
        while !shutdown.is_requested() {
            tokio::select! {
                () = shutdown.requested() => {}
                () = clock::sleep(PENALTY) => self.restore(),
            }
        }
    }

    fn restore(&self) {
        if !EXHAUSTED.swap(false, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(
            budget = ?BUDGET,
            "a thread computed without a pause, and had no real-time scheduling for a while"
        );
        if let Err(error) = self.promote() {
            tracing::info!(%error, "no real-time scheduling any more");
        }
    }

    fn promote(&self) -> io::Result<()> {
        self.threads
            .iter()
            .try_for_each(|thread| schedule(*thread, libc::SCHED_RR, PRIORITY))
    }

    fn demote(&self) {
        for thread in &self.threads {
            // It takes no permission, and a thread that is gone needs none.
            let _ = schedule(*thread, libc::SCHED_OTHER, 0);
        }
    }
}

/// Tries it, on a thread that does nothing else.
pub fn probe() -> Result<(), Error> {
    let tried = std::thread::Builder::new()
        .name("realtime".to_owned())
        .spawn(|| {
            limit()?;
            Ok(schedule(0, libc::SCHED_RR, PRIORITY)?)
        })?;
    match tried.join() {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Io(io::Error::other("the trying thread panicked"))),
    }
}

fn threads() -> io::Result<Vec<libc::pid_t>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        threads.extend(name.to_str().and_then(|id| id.parse::<libc::pid_t>().ok()));
    }
    Ok(threads)
}

/// Sets the policy of a thread, 0 being the calling one; never to be inherited. It is the bare system call
/// because musl has no other.
fn schedule(thread: libc::pid_t, policy: c_int, priority: c_int) -> io::Result<()> {
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the kernel's `struct sched_param` is one int, which `priority` is until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread,
            policy,
            ptr::from_ref(&priority),
        )
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets the soft limit of the process. The kernel itself raises it by a second with each signal.
fn limit() -> Result<(), Error> {
    let budget = libc::rlim_t::try_from(BUDGET.as_micros()).unwrap_or(libc::RLIM_INFINITY);
    let mut limits = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limits` is a `struct rlimit` that outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_RTTIME, &raw mut limits) } == -1 {
        return Err(io::Error::last_os_error().into());
    }
    if limits.rlim_max != libc::RLIM_INFINITY {
        return Err(Error::HardLimit);
    }
    limits.rlim_cur = budget;
    // SAFETY: as above.
    if unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limits) } == -1 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(())
}

fn handle_exhaustion() -> io::Result<()> {
    let handler: extern "C" fn(c_int) = exhausted;
    // SAFETY: all zeroes are a `struct sigaction`, with an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: `action` outlives the call, nothing is asked back, and the handler makes only system calls
    // and a store to an atomic, which any thread may do at any point.
    if unsafe { libc::sigaction(libc::SIGXCPU, &raw const action, ptr::null_mut()) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Handles SIGXCPU, which the kernel sends to the very thread that used up its budget.
extern "C" fn exhausted(_signal: c_int) {
    // SAFETY: the address of the calling thread's `errno` is valid as long as that thread is.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. What the thread was about to read there must be what it finds.
    let before = unsafe { errno.read() };
    // Neither can fail: nothing is gained by them that would take a permission.
    let _ = schedule(0, libc::SCHED_OTHER, 0);
    let _ = limit();
    EXHAUSTED.store(true, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

#[cfg(test)]
mod tests {
    use std::{hint, thread};

    use super::*;

    fn this_thread() -> libc::pid_t {
        let link = fs::read_link("/proc/thread-self").unwrap();
        link.file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    /// The policy of the calling thread: field 41 of `proc_pid_stat(5)`.
    fn policy() -> c_int {
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The name, the second field, may contain anything.
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let policy = fields.split_whitespace().nth(41 - 3).unwrap();
        policy.parse().unwrap()
    }

    /// Runs on a thread of its own, which ends and takes its policy with it.
    fn claimed(test: impl FnOnce(&Realtime) + Send + 'static) {
        let run = || match Realtime::of(vec![this_thread()]) {
            Ok(realtime) => test(&realtime),
            Err(error) => eprintln!("skipped: no real-time scheduling: {error}"),
        };
        thread::spawn(run).join().unwrap();
    }

    #[test]
    fn a_claimed_thread_is_a_real_time_thread_and_those_it_starts_are_not() {
        claimed(|realtime| {
            assert_eq!(policy(), libc::SCHED_RR);
            assert_eq!(thread::spawn(policy).join().unwrap(), libc::SCHED_OTHER);
            realtime.demote();
            assert_eq!(policy(), libc::SCHED_OTHER);
        });
    }

    #[test]
    fn a_thread_that_computes_without_a_pause_becomes_ordinary_until_it_gets_another_chance() {
        claimed(|realtime| {
            for _ in 0..2 {
                let end = clock::now() + Duration::from_secs(10);
                while !EXHAUSTED.load(Ordering::Relaxed) {
                    assert!(clock::now() < end, "nothing stops it");
                    hint::spin_loop();
                }
                assert_eq!(policy(), libc::SCHED_OTHER);
                realtime.restore();
                assert_eq!(policy(), libc::SCHED_RR);
            }
        });
    }

    #[test]
    fn a_thread_that_does_not_exist_leaves_nothing_claimed() {
        claimed(|_| {
            // Ids are positive.
            let claim = Realtime::of(vec![this_thread(), -1]);
            assert!(matches!(claim, Err(Error::Io(_))), "{claim:?}");
            assert_eq!(policy(), libc::SCHED_OTHER);
        });
    }
}
