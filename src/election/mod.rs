//! Leader election over `coordination.k8s.io/v1` Leases with client-go's algorithm and record, so
//! that this program, kube-vip and any client-go program can stand in the same election.
//!
//! * [`record`]: what a Lease says. Pure.
//! * [`view`]: one Lease as last observed here. Pure.
//! * [`call`]: what an elector asks of the API server.
//! * [`elector`]: one Lease's election as a machine without I/O.
//! * [`driver`]: one task for all Leases of the process: watch × electors × API calls × clock.

pub mod call;
pub mod driver;
pub mod elector;
pub mod record;
pub mod view;

use std::{fmt, time::Duration};

pub use driver::{Election, Scope, run};

/// Which Lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// client-go's three times; `duration` > `renew_deadline` > 1.2 × `retry_period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// How long others wait after the last renewal they saw.
    pub duration: Duration,
    /// How long after the start of the last successful renewal the holder goes on.
    pub renew_deadline: Duration,
    /// Between renewals.
    pub retry_period: Duration,
}

impl Timings {
    /// The longest an API call may take.
    pub fn call_deadline(&self) -> Duration {
        (self.renew_deadline / 2).min(Duration::from_secs(5))
    }
}

/// What the owner of the election wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Try to hold this Lease, until it is retired.
    ///
    /// `hesitation`: how long it must have been free (absent, released or expired, as seen here)
    /// before it is taken; zero is at once. It may be changed by contending again.
    Contend {
        lease: LeaseKey,
        hesitation: Duration,
    },
    /// Stop contending; a held Lease is released. The caller has already withdrawn what the Lease
    /// protects.
    Retire {
        lease: LeaseKey,
        /// Also delete the object if we hold it: what it protected is gone for good.
        delete: bool,
    },
    /// Say what is lost by now, then [`Notice::Confirmed`]: the owner has stood still for a while.
    Confirm { round: u64 },
}

/// What the election tells its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// We hold it.
    Acquired { lease: LeaseKey, how: Acquisition },
    /// We do not hold it any more: stop at once. It is contended for again by itself.
    Lost { lease: LeaseKey, why: Loss },
    /// What was acquired and not lost before this notice was held when the question came.
    Confirmed { round: u64 },
    /// The release has been written, or given up.
    Retired { lease: LeaseKey },
    /// Who holds the Lease has changed, or whether that one lives; also for Leases nobody here
    /// contends for. Mere renewals are not told.
    Seen {
        lease: LeaseKey,
        holder: Option<Holder>,
    },
}

/// How a Lease came to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquisition {
    /// It did not exist, or was deleted and its holder's time had passed.
    Created,
    /// Our own identity held it: a restart, or a loss that nobody made use of.
    Resumed,
    /// Its holder, where known, had let it go.
    Released { by: Option<String> },
    /// Its holder had not renewed it in time.
    Expired { by: String },
}

/// How a Lease was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// Not renewed within the renew deadline.
    Deadline,
    /// Another holder was seen.
    Taken { by: String },
    /// This process or its machine stood still for too long.
    Paused,
}

/// Who holds a Lease, as seen here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub identity: String,
    /// The record changed less than its `leaseDurationSeconds` ago on our clock.
    pub live: bool,
    /// It was seen to change, so its holder lives or has lived while we watched.
    pub renewed: bool,
}
