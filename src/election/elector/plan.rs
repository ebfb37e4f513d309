//! Which call an elector makes next, and when. Decides, changes nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;

use super::{Call, Elector, RELEASE_RETRY, Role};
use crate::election::{Acquisition, record::LeaseRecord};

/// What a call is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    Read,
    Hold(Acquisition),
    Release,
    Delete,
}

/// A call and when it is due.
type Planned = (Instant, Purpose);

impl Elector {
    /// When a call becomes due.
    pub fn next_call(&self) -> Option<Instant> {
        self.plan().map(|(due, _)| due)
    }

    /// When time alone changes what this elector says: the renew deadline, the end of a release's
    /// budget, the end of a holder's time.
    pub fn next_change(&self) -> Option<Instant> {
        let own = match self.role {
            Role::Releasing { until, .. } => Some(until),
            Role::Idle => self.view.remembered().filter(|_| self.pending.is_none()),
            Role::Following { .. } | Role::Leading { .. } => self.held_until(),
        };
        let told_live = matches!(&self.told, Some(Some(holder)) if holder.live);
        let foreign = self.view.expiry().filter(|_| told_live);
        own.into_iter().chain(foreign).min()
    }

    /// How long a call that starts now may take.
    pub fn call_deadline(&self, now: Instant) -> Duration {
        let deadline = self.timings.call_deadline();
        match self.role {
            Role::Releasing { until, .. } => deadline
                .min(until.saturating_duration_since(now))
                .max(RELEASE_RETRY),
            _ => deadline,
        }
    }

    /// Which call is next, and when.
    pub(super) fn plan(&self) -> Option<Planned> {
        if self.pending.is_some() {
            return None;
        }
        match self.role {
            Role::Idle => None,
            Role::Leading { .. } => Some(self.plan_renewal()),
            Role::Following { hesitation } => Some(self.plan_take(hesitation)),
            Role::Releasing { delete, .. } => self.plan_release(delete),
        }
    }

    fn plan_renewal(&self) -> Planned {
        if self.outdated || self.view.is_unknown() {
            return (self.next_read, Purpose::Read);
        }
        (self.next_write, Purpose::Hold(Acquisition::Resumed))
    }

    fn plan_take(&self, hesitation: Duration) -> Planned {
        let read = (self.next_read, Purpose::Read);
        let Some((free, how)) = self.view.free() else {
            return read;
        };
        if self.outdated {
            return read;
        }
        let hesitation = match how {
            Acquisition::Resumed => Duration::ZERO,
            _ => hesitation,
        };
        let take = ((free + hesitation).max(self.next_write), Purpose::Hold(how));
        if self.watching {
            return take;
        }
        // Without the watch: write only what was free at the latest read, and go on reading.
        match self.confirmed {
            Some(confirmed) if free + hesitation <= confirmed => take,
            _ => read,
        }
    }

    fn plan_release(&self, delete: bool) -> Option<Planned> {
        if self.outdated || self.view.is_unknown() {
            return Some((self.next_read, Purpose::Read));
        }
        if self.view.is_held_by_us() {
            return Some((self.next_write, Purpose::Release));
        }
        (delete && self.view.is_released_by_us()).then_some((self.next_write, Purpose::Delete))
    }

    pub(super) fn call(&self, purpose: &Purpose, wall: Timestamp) -> Option<Call> {
        let seen = self.view.present();
        let base = seen.map(|seen| Arc::clone(&seen.object));
        Some(match purpose {
            Purpose::Read => Call::Get,
            Purpose::Hold(_) => {
                let before = seen.map(|seen| &seen.record);
                let record = LeaseRecord::held(before, &self.identity, self.timings.duration, wall);
                match base {
                    Some(base) => Call::Replace { base, record },
                    None => Call::Create { record },
                }
            }
            Purpose::Release => Call::Replace {
                base: base?,
                record: seen?.record.released(wall),
            },
            Purpose::Delete => Call::Delete { base: base? },
        })
    }
}
