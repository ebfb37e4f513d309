//! One Lease's election, without I/O: client-go's algorithm, fed by a watch instead of polling.
//!
//! ```text
//!             contend               write succeeded
//!      Idle ──────────▶ Following ──────────────────▶ Leading
//!        ▲                  ▲  │                       │   │
//!        │                  │  │ retire                │   │ retire
//!        │                  └──┼─── deadline, taken, ──┘   │
//!        │                     │    pause: Lost            │
//!        └──── Releasing ◀─────┴───────────────────────────┘
//!     written, given up, or not ours: Retired
//! ```
//!
//! Abandoned, it is idle at once and writes nothing.
//!
//! In: observed objects, outcomes of calls, commands, time. Out: at most one [`Call`] in flight,
//! and events. What it holds to:
//!
//! * A foreign record is judged only by when it changed *here*: held until unchanged for its own
//!   `leaseDurationSeconds`. No time inside the record is compared with anything.
//! * Validity of our own hold counts from the *start* of the write, so the holder gives up
//!   `duration - renew_deadline` before anyone may take over, however slow the write was.
//! * Every write is a compare-and-swap on the object last observed.
//!
//! Deviations from client-go, all deliberate:
//!
//! * Followers do not poll while the watch is up. While it is down they poll like client-go, and
//!   take over only on a read made after the watch was lost.
//! * The renew deadline runs from the last success, not from one retry period after it.
//! * A Lease that vanishes under a live foreign holder stays taken until that holder's time is
//!   over; its holder recreates it at once. client-go's followers take it, beside the holder.
//! * A holder field emptied under us is taken back at once; a missing duration counts as ours.
//! * A loss is not the end of the process; the elector follows again.

mod plan;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};

use plan::Purpose;

pub use super::call::{Call, Outcome};
use super::{
    Acquisition, Holder, Loss, Timings,
    view::{Change, Origin, View},
};

/// How long a release may be tried. Short enough for an orderly stop within two seconds when the server does not answer, on a busy
/// machine too.
pub const RELEASE_BUDGET: Duration = Duration::from_millis(1_200);
const RELEASE_RETRY: Duration = Duration::from_millis(100);
/// Conflicts in a row that are looked into without a pause; races of two or three end sooner.
const QUICK_CONFLICTS: u32 = 3;

/// What the driver passes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Acquired(Acquisition),
    Lost(Loss),
    Retired,
    Seen(Option<Holder>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Role {
    Idle,
    Following {
        hesitation: Duration,
    },
    Leading {
        hesitation: Duration,
        /// Start of the last successful write.
        renewed: Instant,
    },
    Releasing {
        until: Instant,
        delete: bool,
        /// Contend again afterwards, with this hesitation.
        again: Option<Duration>,
    },
}

/// The call in flight.
#[derive(Debug, Clone)]
struct Pending {
    started: Instant,
    purpose: Purpose,
    /// What the view showed when the call began; a write is conditional on it.
    base: Option<Arc<Lease>>,
}

/// The machine. Contract as all machines of this program: see the module's documentation.
#[derive(Debug)]
pub struct Elector {
    identity: Arc<str>,
    timings: Timings,
    view: View,
    role: Role,
    pending: Option<Pending>,
    /// The watch is up, so silence means no change.
    watching: bool,
    /// When the view was last confirmed by a read made without the watch.
    confirmed: Option<Instant>,
    /// The last write lost against a state that we have not seen yet.
    outdated: bool,
    /// Writes that lost since the last that succeeded.
    conflicts: u32,
    next_write: Instant,
    next_read: Instant,
    /// What was last told, if anything: nobody, or who.
    #[expect(
        clippy::option_option,
        reason = "untold, nobody and somebody are three things"
    )]
    told: Option<Option<Holder>>,
    events: VecDeque<Event>,
}

impl Elector {
    pub fn new(identity: Arc<str>, timings: Timings, watching: bool, now: Instant) -> Self {
        Self {
            view: View::new(Arc::clone(&identity), timings.duration),
            identity,
            timings,
            role: Role::Idle,
            pending: None,
            watching,
            confirmed: None,
            outdated: false,
            conflicts: 0,
            next_write: now,
            next_read: now,
            told: None,
            events: VecDeque::new(),
        }
    }

    /// Neither wanted nor busy, and nothing is known of the object: may be dropped.
    pub fn is_spent(&self, now: Instant) -> bool {
        let remembered = self.view.remembered().is_some_and(|until| now < until);
        self.is_idle()
            && self.view.present().is_none()
            && !remembered
            && self.pending.is_none()
            && self.events.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.role == Role::Idle
    }

    /// Nothing is known of the object yet.
    pub fn is_blind(&self) -> bool {
        self.view.is_unknown()
    }

    /// Until when we hold the Lease, if nothing further succeeds.
    pub fn held_until(&self) -> Option<Instant> {
        match self.role {
            Role::Leading { renewed, .. } => Some(renewed + self.timings.renew_deadline),
            _ => None,
        }
    }

    fn is_leading(&self) -> bool {
        matches!(self.role, Role::Leading { .. })
    }

    /// A call of this elector must not wait behind those of followers.
    pub fn is_urgent(&self) -> bool {
        matches!(self.role, Role::Leading { .. } | Role::Releasing { .. })
    }

    /// The command to contend, or to change the hesitation.
    pub fn handle_contend(&mut self, wanted: Duration, now: Instant) {
        match &mut self.role {
            Role::Idle => self.follow(wanted, now),
            Role::Following { hesitation } | Role::Leading { hesitation, .. } => {
                *hesitation = wanted;
            }
            Role::Releasing { again, .. } => *again = Some(wanted),
        }
        self.settle(now);
    }

    /// The command to retire; `delete` counts only if we hold the Lease.
    pub fn handle_retire(&mut self, delete: bool, now: Instant) {
        if let Role::Releasing {
            delete: deleting,
            again,
            ..
        } = &mut self.role
        {
            *deleting |= delete;
            *again = None;
        } else {
            self.role = Role::Releasing {
                until: now + RELEASE_BUDGET,
                delete,
                again: None,
            };
            self.next_write = now;
            self.next_read = now;
        }
        self.settle(now);
    }

    /// Nobody will say any more that what the Lease protects was withdrawn: a hold is left to its
    /// time, without a write. A release that was ordered goes on, and nothing follows it.
    pub fn handle_abandon(&mut self, now: Instant) {
        match &mut self.role {
            Role::Releasing { again, .. } => *again = None,
            Role::Idle | Role::Following { .. } | Role::Leading { .. } => self.role = Role::Idle,
        }
        self.settle(now);
    }

    /// The watch came up or went down.
    pub fn handle_watching(&mut self, watching: bool, now: Instant) {
        if self.watching != watching {
            self.watching = watching;
            self.confirmed = None;
            self.next_read = now;
        }
    }

    /// The watch delivered this object.
    pub fn handle_object(&mut self, object: &Arc<Lease>, origin: Origin, now: Instant) {
        self.observe(object, origin, now);
        self.settle(now);
    }

    /// The watch, or its first full list, says there is no such object, or that the one with this
    /// UID is gone.
    pub fn handle_gone(&mut self, uid: Option<&str>, now: Instant) {
        let stale = self.view.present().is_some() && uid.is_some_and(|uid| !self.view.has_uid(uid));
        if !stale {
            self.vanish(now);
        }
        self.settle(now);
    }

    /// This process, or its machine, stood still longer than it could know of.
    pub fn handle_pause(&mut self, now: Instant) {
        // The answer of a write from before the pause says nothing about how long it holds.
        if let Some(pending) = &mut self.pending
            && matches!(pending.purpose, Purpose::Hold(_))
        {
            pending.purpose = Purpose::Read;
        }
        self.lose(Loss::Paused, now);
        self.settle(now);
    }

    /// Time passed; may be called at any time.
    pub fn handle_deadline(&mut self, now: Instant) {
        self.settle(now);
    }

    /// The outcome of the call in flight. `jitter` in [0, 1) spreads what follows.
    pub fn handle_outcome(&mut self, outcome: &Outcome, now: Instant, jitter: f64) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        // Before anything is made of an answer that comes too late.
        self.expire(now);
        match outcome {
            Outcome::Object(object) => self.handle_answer(&pending, object, now, jitter),
            Outcome::Gone => {
                self.vanish(now);
                self.handle_read(&pending, now, jitter);
            }
            Outcome::Conflict => self.handle_conflict(&pending, now, jitter),
            Outcome::Failed { after } => self.handle_failure(&pending, *after, now, jitter),
            // Nobody waits for a release that is not allowed; its time runs out by itself.
            Outcome::Refused if matches!(self.role, Role::Releasing { .. }) => self.retired(now),
            Outcome::Refused => self.handle_failure(&pending, None, now, jitter),
        }
        self.settle(now);
    }

    /// The call that is due, if any; it is then in flight until its outcome is handled.
    pub fn poll_call(&mut self, now: Instant, wall: Timestamp) -> Option<Call> {
        let (due, purpose) = self.plan()?;
        if due > now {
            return None;
        }
        let call = self.call(&purpose, wall)?;
        let seen = self.view.present();
        let base = seen.map(|seen| Arc::clone(&seen.object));
        self.pending = Some(Pending {
            started: now,
            purpose,
            base,
        });
        Some(call)
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

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

    fn follow(&mut self, hesitation: Duration, now: Instant) {
        self.role = Role::Following { hesitation };
        self.next_write = now;
        self.next_read = now;
    }

    fn handle_answer(&mut self, pending: &Pending, object: &Arc<Lease>, now: Instant, jitter: f64) {
        // A read that began with what is known still is later than it.
        let later = pending.purpose == Purpose::Read && self.view.is_still(pending.base.as_deref());
        let origin = if later { Origin::Later } else { Origin::Any };
        self.observe(object, origin, now);
        self.handle_read(pending, now, jitter);
        if pending.purpose != Purpose::Read {
            self.conflicts = 0;
        }
        let Purpose::Hold(how) = &pending.purpose else {
            return;
        };
        let fresh = now < pending.started + self.timings.renew_deadline;
        if !fresh || !self.view.is_held_by_us() {
            return;
        }
        match &mut self.role {
            Role::Following { hesitation } => {
                self.role = Role::Leading {
                    hesitation: *hesitation,
                    renewed: pending.started,
                };
                self.events.push_back(Event::Acquired(how.clone()));
            }
            Role::Leading { renewed, .. } => *renewed = pending.started,
            Role::Idle | Role::Releasing { .. } => return,
        }
        // A tenth to either side, so that renewals of many Leases spread out and stay so.
        let period = self.timings.retry_period.mul_f64(0.9 + 0.2 * jitter);
        self.next_write = pending.started + period;
    }

    /// A read, or a write's answer, tells how things stand, watch or not.
    fn handle_read(&mut self, pending: &Pending, now: Instant, jitter: f64) {
        if pending.purpose == Purpose::Read {
            self.outdated = false;
        }
        self.confirmed = Some(now);
        // client-go's polling: one to 2.2 retry periods.
        self.next_read = now + self.timings.retry_period.mul_f64(1.0 + 1.2 * jitter);
    }

    fn handle_conflict(&mut self, pending: &Pending, now: Instant, jitter: f64) {
        self.conflicts = self.conflicts.saturating_add(1);
        let least = if self.conflicts <= QUICK_CONFLICTS {
            Duration::ZERO
        } else if matches!(self.role, Role::Releasing { .. }) {
            RELEASE_RETRY
        } else {
            self.timings.retry_period
        };
        if !self.view.is_still(pending.base.as_deref()) {
            // The watch was faster: the winner's state is what we see.
            self.next_write = now + least;
            return;
        }
        self.outdated = true;
        self.confirmed = None;
        // A follower waits for the watch to tell who won; the others have no time for that.
        let patience = if self.watching && !self.is_urgent() {
            self.timings.retry_period.mul_f64(1.0 + jitter)
        } else {
            least
        };
        self.next_read = now + patience;
    }

    fn handle_failure(
        &mut self,
        pending: &Pending,
        after: Option<Duration>,
        now: Instant,
        jitter: f64,
    ) {
        // The write may have been carried out. A holder tries again and finds out by conflict.
        if matches!(pending.purpose, Purpose::Hold(_)) && !self.is_leading() {
            self.outdated = true;
        }
        self.confirmed = None;
        let pause = match self.role {
            Role::Releasing { .. } => RELEASE_RETRY,
            // A holder has five tries or more in its renew deadline even so.
            Role::Leading { .. } => self.timings.retry_period.mul_f64(0.25 + 0.25 * jitter),
            Role::Idle | Role::Following { .. } => {
                self.timings.retry_period.mul_f64(1.0 + 1.2 * jitter)
            }
        };
        let asked = after.unwrap_or_default().min(self.timings.retry_period);
        self.next_write = now + pause.max(asked);
        self.next_read = self.next_write;
    }

    fn observe(&mut self, object: &Arc<Lease>, origin: Origin, now: Instant) {
        match self.view.observe(object, origin, now) {
            Change::Stale => return,
            Change::None => {}
            Change::Version => self.outdated = false,
        }
        if let Some(by) = self.view.rival() {
            let by = by.to_owned();
            self.lose(Loss::Taken { by }, now);
        } else if self.view.is_released() && self.is_leading() {
            self.next_write = now;
        }
    }

    fn vanish(&mut self, now: Instant) {
        self.outdated = false;
        self.view.vanish(now);
        if self.is_leading() {
            self.next_write = now;
        }
    }

    fn lose(&mut self, why: Loss, now: Instant) {
        if let Role::Leading { hesitation, .. } = self.role {
            self.follow(hesitation, now);
            self.events.push_back(Event::Lost(why));
        }
    }

    /// Applies what time alone decides.
    fn expire(&mut self, now: Instant) {
        if self.held_until().is_some_and(|until| now >= until) {
            self.lose(Loss::Deadline, now);
        }
        if matches!(self.role, Role::Releasing { until, .. } if now >= until) {
            self.retired(now);
        }
    }

    fn settle(&mut self, now: Instant) {
        self.expire(now);
        if matches!(self.role, Role::Releasing { .. })
            && self.pending.is_none()
            && self.plan().is_none()
        {
            self.retired(now);
        }
        let Some(seen) = self.view.holder(now) else {
            return;
        };
        if self.told.as_ref() != Some(&seen) {
            self.told = Some(seen.clone());
            self.events.push_back(Event::Seen(seen));
        }
    }

    fn retired(&mut self, now: Instant) {
        let Role::Releasing { again, .. } = self.role else {
            return;
        };
        self.role = Role::Idle;
        self.events.push_back(Event::Retired);
        if let Some(hesitation) = again {
            self.follow(hesitation, now);
        }
    }
}

#[cfg(test)]
mod tests;
