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

mod turn;

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
use turn::{Turn, fence};

/// Everything must be withdrawn within this time after the stop.
const STOP_BUDGET: Duration = Duration::from_millis(1_800);
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

impl Loop {
    /// Runs until `stop`, then withdraws everything within the budget.
    pub(super) async fn run(mut self, stop: Shutdown) {
        let mut desired = self.decide();
        let mut deadline = None;
        let config = &self.model.config;
        let fence = fence(&config.lease, config.address_lifetime);
        let mut turn = Turn::new(clock::now(), fence);
        loop {
            let wake = desired.as_ref().and_then(|d| d.wake);
            let next = turn.refresh_at();
            let next = wake.map_or(next, |wake| wake.min(next));
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
            // What was decided before a standstill holds no longer, whatever woke the loop.
            let stood_still = self.note_turn(&mut turn, now);
            if changed || stood_still || wake.is_some_and(|wake| wake <= now) {
                desired = self.decide();
            }
            // Only now: an announcer that sees the proof has been told what was lost.
            if self.model.doubt.is_none() {
                self.proof.renew(now);
            }
            if turn.is_refresh_due(now) {
                self.heartbeat(&mut turn, desired.as_ref());
            }
            if self.model.stopping && self.is_over(deadline, now) {
                return;
            }
        }
    }

    /// Notices a standstill and asks what it cost. Returns whether there was one.
    fn note_turn(&mut self, turn: &mut Turn, now: Instant) -> bool {
        let pause = turn.note(&mut self.model, now);
        if let Some(pause) = pause {
            tracing::warn!(
                ?pause,
                "stood still; asking the election what is still held"
            );
        }
        turn.question(&self.model, |round| self.executor.confirm(round));
        pause.is_some()
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

    fn heartbeat(&mut self, turn: &mut Turn, desired: Option<&Desired>) {
        // VIPs live by what the kernel task does: a speaker without it is as good as hung.
        let silence = self.executor.kernel_silence(clock::now());
        if silence > KERNEL_LIMIT {
            tracing::error!(?silence, "the kernel does not answer");
        } else {
            self.beat.touch();
        }
        self.executor.reap();
        let elections = *self.elections.borrow();
        let addresses = turn.renewals(&self.model, desired, elections, clock::now());
        if !addresses.is_empty() {
            self.executor.refresh(addresses);
        }
    }

    fn is_over(&self, deadline: Option<Instant>, now: Instant) -> bool {
        let withdrawn = self.model.is_withdrawn();
        let late = deadline.is_some_and(|deadline| now >= deadline);
        if late && !withdrawn {
            tracing::error!(
                "not everything could be withdrawn in time; the kernel will end what is left, and the \
                 Leases that protect it are left to their time"
            );
        }
        withdrawn || late
    }
}
