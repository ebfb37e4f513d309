//! What each turn of the speaker's loop may renew: no I/O.
//!
//! Addresses live only while somebody renews them, so that a VIP ends with its holder. Nothing is
//! renewed
//!
//! * from the moment a standstill is noticed until the election has said what is still held: what
//!   was decided before may be lost, and its addresses may have ended already;
//! * while the elections do not turn: then a loss would not be heard. How long that is borne is
//!   [`fence`]; a hold is at most a renew deadline old when the elections turn last.

use std::time::{Duration, Instant};

use crate::{
    config::LeaseConfig,
    net::link::VipAddress,
    speaker::{desired::Desired, model::Model},
};

/// Lifetimes are renewed this often, and the loop proves that it lives.
pub(super) const REFRESH: Duration = Duration::from_secs(1);
/// The loop turns every second; after so long it stood still.
const STANDSTILL: Duration = Duration::from_secs(2);
/// The elections turn every second too, and a busy machine is no reason to let VIPs go.
const SHORTEST_FENCE: Duration = Duration::from_millis(1_500);

/// How long the elections may be silent while addresses are still renewed: together with the
/// lifetime of an address, no longer than others respect the oldest hold there can be. Where the
/// timings leave no room for that, the shortest that tells silence from a busy machine.
pub(super) fn fence(lease: &LeaseConfig, lifetime: Option<Duration>) -> Duration {
    lease
        .duration
        .saturating_sub(lease.renew_deadline)
        .saturating_sub(lifetime.unwrap_or_default())
        .max(SHORTEST_FENCE)
}

/// The turns of the loop, and its questions after standstills.
#[derive(Debug)]
pub(super) struct Turn {
    last: Instant,
    refresh_at: Instant,
    fence: Duration,
    round: u64,
    asked: bool,
    /// Renewals are withheld because of the elections' silence.
    withheld: bool,
}

impl Turn {
    pub(super) fn new(now: Instant, fence: Duration) -> Self {
        Self {
            last: now,
            refresh_at: now + REFRESH,
            fence,
            round: 0,
            asked: false,
            withheld: false,
        }
    }

    pub(super) fn refresh_at(&self) -> Instant {
        self.refresh_at
    }

    /// Takes the time. Returns for how long the loop stood still, if it did: everything is then in
    /// doubt until the election has answered [`Self::question`].
    pub(super) fn note(&mut self, model: &mut Model, now: Instant) -> Option<Duration> {
        let pause = now.saturating_duration_since(self.last);
        self.last = now;
        if pause <= STANDSTILL {
            return None;
        }
        self.round += 1;
        self.asked = false;
        model.doubt = Some(self.round);
        Some(pause)
    }

    /// The question that must still be put to the election; `ask` returns whether it was.
    pub(super) fn question(&mut self, model: &Model, ask: impl FnOnce(u64) -> bool) {
        if model.doubt.is_some() && !self.asked {
            self.asked = ask(self.round);
        }
    }

    /// Whether it is time to renew; once each period.
    pub(super) fn is_refresh_due(&mut self, now: Instant) -> bool {
        let due = now >= self.refresh_at;
        if due {
            self.refresh_at = now + REFRESH;
        }
        due
    }

    /// The addresses whose lifetime may be renewed now; `elections` is when those last turned.
    pub(super) fn renewals(
        &mut self,
        model: &Model,
        desired: Option<&Desired>,
        elections: Instant,
        now: Instant,
    ) -> Vec<VipAddress> {
        let silent = now.saturating_duration_since(elections);
        let withheld = std::mem::replace(&mut self.withheld, silent > self.fence);
        match (withheld, self.withheld) {
            (false, true) => tracing::error!(
                ?silent,
                "the elections do not turn; VIPs are left to their lifetimes"
            ),
            (true, false) => tracing::warn!("the elections turn again"),
            _ => {}
        }
        let desired = desired.filter(|_| {
            !self.withheld && model.doubt.is_none() && model.config.address_lifetime.is_some()
        });
        desired.map_or_else(Vec::new, |desired| model.refreshable(desired))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        election::Notice,
        speaker::{
            desired::desired,
            event::Event,
            testing::{self, World},
        },
    };

    const FENCE: Duration = Duration::from_secs(4);

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_standstill_refreshes_nothing_before_the_election_has_answered() {
        let mut world = World::new();
        world.serve("web", "10.0.0.100");
        let wanted = desired(&world.model, world.now);
        let mut turn = Turn::new(world.now, FENCE);
        let mut now = world.now + REFRESH;
        assert_eq!(turn.note(&mut world.model, now), None);
        let renewed = turn.renewals(&world.model, wanted.as_ref(), now, now);
        assert_eq!(renewed.len(), 1);

        now += seconds(5.5);
        assert_eq!(turn.note(&mut world.model, now), Some(seconds(5.5)));
        let stale = turn.renewals(&world.model, wanted.as_ref(), now, now);
        assert_eq!(stale, []);
        assert!(desired(&world.model, now).is_none());

        // A question that could not be handed over is put again, and each only once.
        let mut rounds = Vec::new();
        for taken in [false, true, true] {
            turn.question(&world.model, |round| {
                rounds.push(round);
                taken
            });
        }
        assert_eq!(rounds, [1, 1]);
        world.apply(Event::Election(Notice::Confirmed { round: 1 }));
        let wanted = desired(&world.model, now);
        let renewed = turn.renewals(&world.model, wanted.as_ref(), now, now);
        assert_eq!(renewed.len(), 1);
    }

    #[test]
    fn an_answer_to_an_earlier_standstill_does_not_end_the_doubt_of_a_later_one() {
        let mut world = World::new();
        let mut turn = Turn::new(world.now, FENCE);
        turn.note(&mut world.model, world.now + seconds(3.0));
        turn.note(&mut world.model, world.now + seconds(6.0));
        world.apply(Event::Election(Notice::Confirmed { round: 1 }));
        assert_eq!(world.model.doubt, Some(2));
        world.apply(Event::Election(Notice::Confirmed { round: 2 }));
        assert_eq!(world.model.doubt, None);
    }

    #[test]
    fn nothing_is_renewed_while_the_elections_are_silent_for_longer_than_the_fence() {
        let mut world = World::new();
        world.serve("web", "10.0.0.100");
        let wanted = desired(&world.model, world.now);
        let mut turn = Turn::new(world.now, FENCE);
        let turned = world.now;
        for (after, renewed) in [(4.0, 1), (4.1, 0), (60.0, 0)] {
            let now = turned + seconds(after);
            let addresses = turn.renewals(&world.model, wanted.as_ref(), turned, now);
            assert_eq!(addresses.len(), renewed, "{after}");
        }
        let now = turned + seconds(61.0);
        let addresses = turn.renewals(&world.model, wanted.as_ref(), now, now);
        assert_eq!(addresses.len(), 1);
    }

    #[test]
    fn fence_lifetime_and_the_oldest_hold_fit_into_the_lease() {
        let fence_of = |duration, renew_deadline, lifetime: Option<f64>| {
            let lease = LeaseConfig {
                duration: seconds(duration),
                renew_deadline: seconds(renew_deadline),
                ..testing::config().lease
            };
            fence(&lease, lifetime.map(seconds))
        };
        assert_eq!(fence_of(30.0, 15.0, Some(5.0)), seconds(10.0));
        assert_eq!(fence_of(15.0, 8.0, Some(5.0)), seconds(2.0));
        assert_eq!(fence_of(15.0, 10.0, Some(5.0)), SHORTEST_FENCE);
        assert_eq!(fence_of(5.0, 4.0, Some(60.0)), SHORTEST_FENCE);
        assert_eq!(fence_of(15.0, 10.0, None), seconds(5.0));
    }
}
