//! The speaker's loop: events in, decisions, actions out.
//!
//! ```text
//! informers ─┐                                  ┌─▶ kernel task
//! monitor ───┤                                  ├─▶ announcers
//! election ──┼─▶ events ─▶ Model ─▶ desired ─▶ plan ─▶ Executor
//! announcers ┤             ▲                    ├─▶ election
//! outcomes ──┘             └── started ─────────┴─▶ status writers, recorder
//! ```
//!
//! All events that are waiting are taken before one decision is made, so a burst costs one decision.
//! The loop never waits for anybody: it is what the kernel's address lifetimes and the health check
//! watch. A loop that stood still (a stopped process, a paused machine) does nothing before the
//! election has said what was lost meanwhile: else it would put back what the kernel has ended.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::{
    announcer::Proof,
    desired::{Desired, desired},
    event::Event,
    executor::Executor,
    metrics::SpeakerMetrics,
    model::Model,
    plan::plan,
};
use crate::runtime::{
    clock,
    health::{Beat, Check},
    shutdown::Shutdown,
};

/// Lifetimes are renewed this often, and the loop proves that it lives.
const REFRESH: Duration = Duration::from_secs(1);
/// Elections whose loop was silent for so long may have lost every Lease without saying so. With the
/// addresses' lifetime it is less than the time for which others respect our last renewal.
const FENCE: Duration = Duration::from_secs(4);
/// Everything must be withdrawn within this time after the stop.
const STOP_BUDGET: Duration = Duration::from_millis(1_800);
/// The loop turns every second; after so long it stood still.
const STANDSTILL: Duration = Duration::from_secs(2);
/// Without an answer of the kernel for so long, the loop proves its life no more.
const KERNEL_LIMIT: Duration = Duration::from_secs(5);
/// Events taken before a decision, at most: a flood must not keep the loop from deciding.
const BURST: usize = 4_096;
/// Steps that lead to further steps at once; more in one round would be a plan that never settles.
const ROUNDS: usize = 8;

/// What the loop works with.
#[derive(Debug)]
pub(super) struct Loop {
    pub model: Model,
    pub executor: Executor,
    pub events: mpsc::Receiver<Event>,
    pub proof: Proof,
    pub beat: Beat,
    /// When the elections' loop last turned.
    pub elections: watch::Receiver<Instant>,
    pub metrics: SpeakerMetrics,
    pub ready: Check,
}

/// The last turn of the loop, and its questions after standstills.
#[derive(Debug)]
struct Turn {
    last: Instant,
    round: u64,
    asked: bool,
}

impl Loop {
    /// Runs until `stop`, then withdraws everything within the budget.
    pub(super) async fn run(mut self, stop: Shutdown) {
        let mut desired = self.decide();
        let mut refresh_at = clock::now() + REFRESH;
        let mut deadline = None;
        let mut turn = Turn {
            last: clock::now(),
            round: 0,
            asked: false,
        };
        loop {
            let wake = desired.as_ref().and_then(|d| d.wake);
            let next = wake.map_or(refresh_at, |wake| wake.min(refresh_at));
            let changed = tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = clock::sleep_until(Some(deadline.map_or(next, |d: Instant| d.min(next)))) => true,
                () = stop.requested(), if !self.model.stopping => {
                    self.model.stopping = true;
                    deadline = Some(clock::now() + STOP_BUDGET);
                    true
                }
            };
            let now = clock::now();
            self.note_turn(&mut turn, now);
            if changed || wake.is_some_and(|wake| wake <= now) {
                desired = self.decide();
            }
            if now >= refresh_at {
                refresh_at = now + REFRESH;
                self.heartbeat(desired.as_ref());
            }
            if self.model.stopping && self.is_over(deadline, now) {
                return;
            }
        }
    }

    /// Notices a standstill and asks what it cost; otherwise proves that there was none.
    fn note_turn(&mut self, turn: &mut Turn, now: Instant) {
        let pause = now.saturating_duration_since(turn.last);
        turn.last = now;
        if pause > STANDSTILL {
            tracing::warn!(
                ?pause,
                "stood still; asking the election what is still held"
            );
            turn.round += 1;
            turn.asked = false;
            self.model.doubt = Some(turn.round);
        }
        if self.model.doubt.is_none() {
            self.proof.renew(now);
        } else if !turn.asked {
            turn.asked = self.executor.confirm(turn.round);
        }
    }

    /// Takes this event and all that wait behind it.
    fn take(&mut self, first: Event) -> bool {
        let now = clock::now();
        let mut changed = self.model.apply(first, now);
        for _ in 0..BURST {
            let Ok(event) = self.events.try_recv() else {
                break;
            };
            changed |= self.model.apply(event, now);
        }
        changed
    }

    /// Decides and starts what follows; once more where a step started makes room for the next.
    fn decide(&mut self) -> Option<Desired> {
        let mut last = None;
        for _ in 0..ROUNDS {
            let now = clock::now();
            let wanted = desired(&self.model, now)?;
            self.model.remember(&wanted, now);
            let actions = plan(&self.model, &wanted, now);
            let idle = actions.is_empty();
            for action in self.executor.execute(actions) {
                tracing::debug!(?action);
                self.model.observed.started(&action, now);
            }
            last = Some(wanted);
            if idle {
                break;
            }
        }
        if last.is_some() {
            self.ready.pass();
            self.metrics.observe(&self.model);
        }
        last
    }

    fn heartbeat(&mut self, desired: Option<&Desired>) {
        // VIPs live by what the kernel task does: a speaker without it is as good as hung.
        let silence = self.executor.kernel_silence(clock::now());
        if silence > KERNEL_LIMIT {
            tracing::error!(?silence, "the kernel does not answer");
        } else {
            self.beat.touch();
        }
        self.executor.reap();
        let Some(desired) = desired else { return };
        let silent = clock::now().saturating_duration_since(*self.elections.borrow());
        if silent > FENCE {
            // Who does not hear that it lost its Leases must not go on as if it had them.
            tracing::error!(
                ?silent,
                "the elections do not turn; VIPs are left to their lifetimes"
            );
            return;
        }
        let addresses = self.model.refreshable(desired);
        if !addresses.is_empty() && self.model.config.address_lifetime.is_some() {
            self.executor.refresh(addresses);
        }
    }

    fn is_over(&self, deadline: Option<Instant>, now: Instant) -> bool {
        let withdrawn = self.model.is_withdrawn();
        let late = deadline.is_some_and(|deadline| now >= deadline);
        if late && !withdrawn {
            tracing::error!(
                "not everything could be withdrawn in time; the kernel will end what is left"
            );
        }
        withdrawn || late
    }
}
