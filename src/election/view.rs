//! One Lease as last observed, and what follows from it. Pure.
//!
//! A foreign record is judged only by when it changed *here*; no time written in it is compared
//! with anything.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::coordination::v1::Lease;

use super::{Acquisition, Holder, record::LeaseRecord};

/// The view of an elector.
#[derive(Debug, Clone)]
pub struct View {
    identity: Arc<str>,
    /// Counts where a record names no `leaseDurationSeconds`; client-go takes zero then.
    default_duration: Duration,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Unknown,
    /// Free since then, which lies ahead while the last holder's time is not over.
    Absent {
        free: Instant,
    },
    Present(Observed),
}

/// An object that exists.
#[derive(Debug, Clone)]
pub struct Observed {
    pub object: Arc<Lease>,
    pub record: LeaseRecord,
    /// When the record was seen to change.
    changed: Instant,
    /// It has changed under our eyes.
    renewed: bool,
    /// Whose release this is, where seen.
    released_by: Option<String>,
    /// Without a holder: since when it is, or will be, free.
    free: Instant,
}

/// What is known of the moment at which the server said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Nothing: it may be an echo from before what is known.
    Any,
    /// It is later than what is known, even with a lower version: the server's state was restored
    /// from a backup.
    Later,
}

/// What an observation was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// An echo from before what is known.
    Stale,
    /// The version that is known.
    None,
    /// A new version.
    Version,
}

impl View {
    pub fn new(identity: Arc<str>, default_duration: Duration) -> Self {
        Self {
            identity,
            default_duration,
            state: State::Unknown,
        }
    }

    pub fn observe(&mut self, object: &Arc<Lease>, origin: Origin, now: Instant) -> Change {
        let record = LeaseRecord::from(object.as_ref());
        let taken_until = self.taken_until();
        let (change, renewed, before) = match &mut self.state {
            State::Present(seen) if origin == Origin::Any && is_older(object, &seen.object) => {
                return Change::Stale;
            }
            State::Present(seen) if seen.record == record => {
                let same = same_version(object, &seen.object);
                seen.object = Arc::clone(object);
                return if same { Change::None } else { Change::Version };
            }
            State::Present(seen) => {
                let by = seen
                    .record
                    .holder
                    .take()
                    .or_else(|| seen.released_by.take());
                (Change::Version, true, by)
            }
            State::Absent { .. } => (Change::Version, true, None),
            State::Unknown => (Change::Version, false, None),
        };
        // Only the holder itself releases in this form. Whoever else empties the field does not stop
        // the holder, which goes on until it notices.
        let orderly = record.is_release();
        let free = taken_until.filter(|_| !orderly).unwrap_or(now).max(now);
        self.state = State::Present(Observed {
            object: Arc::clone(object),
            released_by: before.filter(|_| orderly),
            record,
            changed: now,
            renewed,
            free,
        });
        change
    }

    /// The object is gone. A foreign holder goes on until it notices, so its time still counts; a
    /// released or own record protects nobody.
    pub fn vanish(&mut self, now: Instant) {
        let free = self.taken_until().unwrap_or(now);
        let free = match self.state {
            State::Absent { .. } => free,
            State::Present(_) | State::Unknown => free.max(now),
        };
        self.state = State::Absent { free };
    }

    pub fn present(&self) -> Option<&Observed> {
        match &self.state {
            State::Present(seen) => Some(seen),
            State::Unknown | State::Absent { .. } => None,
        }
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self.state, State::Unknown)
    }

    /// Until when the time of a holder must be remembered whose object is gone.
    pub fn remembered(&self) -> Option<Instant> {
        match self.state {
            State::Absent { free } => Some(free),
            State::Unknown | State::Present(_) => None,
        }
    }

    /// What a write is conditional on is still what we see; `None` is the absence of an object.
    pub fn is_still(&self, base: Option<&Lease>) -> bool {
        match (self.present(), base) {
            (Some(seen), Some(base)) => same_version(&seen.object, base),
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    pub fn has_uid(&self, uid: &str) -> bool {
        self.present()
            .is_some_and(|seen| seen.object.metadata.uid.as_deref() == Some(uid))
    }

    /// Our identity is on record.
    pub fn is_held_by_us(&self) -> bool {
        self.present().is_some_and(|seen| self.is_ours(seen))
    }

    pub fn is_released(&self) -> bool {
        self.present()
            .is_some_and(|seen| seen.record.holder.is_none())
    }

    pub fn is_released_by_us(&self) -> bool {
        self.present().is_some_and(|seen| {
            seen.record.holder.is_none() && seen.released_by.as_deref() == Some(&*self.identity)
        })
    }

    /// Who else is on record, live or not.
    pub fn rival(&self) -> Option<&str> {
        let holder = self.present()?.record.holder.as_deref()?;
        (holder != &*self.identity).then_some(holder)
    }

    /// Since when the Lease is, or will be, free for us, and how we would come by it.
    pub fn free(&self) -> Option<(Instant, Acquisition)> {
        let seen = match &self.state {
            State::Unknown => return None,
            State::Absent { free } => return Some((*free, Acquisition::Created)),
            State::Present(seen) => seen,
        };
        Some(match &seen.record.holder {
            None => {
                let by = seen.released_by.clone();
                (seen.free, Acquisition::Released { by })
            }
            Some(_) if self.is_ours(seen) => (seen.changed, Acquisition::Resumed),
            Some(by) => (self.expiry()?, Acquisition::Expired { by: by.clone() }),
        })
    }

    /// When the time of the holder on record is over.
    pub fn expiry(&self) -> Option<Instant> {
        let seen = self.present()?;
        seen.record.holder.as_ref()?;
        Some(seen.changed + seen.record.duration.unwrap_or(self.default_duration))
    }

    /// Who holds it; the outer `None` is "not known".
    pub fn holder(&self, now: Instant) -> Option<Option<Holder>> {
        if self.is_unknown() {
            return None;
        }
        Some(self.present().and_then(|seen| {
            Some(Holder {
                identity: seen.record.holder.clone()?,
                live: self.expiry().is_some_and(|expiry| now < expiry),
                renewed: seen.renewed,
            })
        }))
    }

    /// Until when a foreign holder, on record or not any more, may still believe that it holds.
    fn taken_until(&self) -> Option<Instant> {
        match &self.state {
            State::Unknown => None,
            State::Absent { free } => Some(*free),
            State::Present(seen) if self.is_ours(seen) => None,
            State::Present(seen) if seen.record.holder.is_none() => Some(seen.free),
            State::Present(_) => self.expiry(),
        }
    }

    fn is_ours(&self, seen: &Observed) -> bool {
        seen.record.holder.as_deref() == Some(&*self.identity)
    }
}

/// `new` is an echo from before `known`. Versions of one server are numbers that grow, across
/// objects too; where they are not, what comes later counts as newer.
pub fn is_older(new: &Lease, known: &Lease) -> bool {
    let number = |lease: &Lease| {
        lease
            .metadata
            .resource_version
            .as_ref()?
            .parse::<u64>()
            .ok()
    };
    matches!((number(new), number(known)), (Some(new), Some(known)) if new < known)
}

/// Both are the same state of the same object.
pub fn same_version(one: &Lease, other: &Lease) -> bool {
    one.metadata.uid == other.metadata.uid
        && one.metadata.resource_version == other.metadata.resource_version
}
