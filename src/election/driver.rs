//! One task for all Leases of the process: watch × electors × API calls × clock.
//!
//! In: commands, a watch over Leases, the outcomes of calls, time. Out: notices and API calls.
//!
//! * Deadlines come before every other input, so an oversleeping task first says what it lost.
//! * Nothing here waits for the API or for the receiver of the notices: calls run beside the loop,
//!   at most [`CALLS`] at once, those of holders first; notices wait in an outbox. While that is
//!   full, commands and the watch wait, deadlines and renewals do not.
//! * The watch covers all namespaces but `kube-node-lease` (a Lease for each node, renewed every
//!   ten seconds). Where it is refused, the electors poll the Leases they contend for, as client-go
//!   does; there is then no [`Notice::Seen`] for other Leases.
//! * A pause that the monotonic clock does not show is noticed by wall time running ahead of it.

mod call;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client, core::DeserializeGuard};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{
    Command, LeaseKey, Notice, Timings,
    elector::{Elector, Event, RELEASE_BUDGET},
    view::{Origin, is_older},
};
use crate::runtime::{
    clock,
    informer::{self, Delta, InformerStatus, Selection},
};

use call::{Done, perform};

/// API calls in flight.
const CALLS: usize = 64;
/// Notices that wait before commands and the watch have to.
const OUTBOX: usize = 4096;
const DELTAS: usize = 256;
/// The clocks are compared at least so often.
const TICK: Duration = Duration::from_secs(1);
/// How long the last notices may take after the releases.
const FLUSH_BUDGET: Duration = Duration::from_millis(500);
/// Refused calls are reported so often, whatever their number.
const REFUSAL_PERIOD: Duration = Duration::from_secs(60);

/// Which Leases are watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All but those of `kube-node-lease`.
    All,
    /// One, the only one that may be contended for.
    One(LeaseKey),
}

impl Scope {
    fn selection(&self) -> Selection {
        Selection::fields(match self {
            Self::All => "metadata.namespace!=kube-node-lease".to_owned(),
            Self::One(key) => format!("metadata.name={}", key.name),
        })
    }

    fn api(&self, client: Client) -> Api<DeserializeGuard<Lease>> {
        match self {
            Self::All => Api::all(client),
            Self::One(key) => Api::namespaced(client, &key.namespace),
        }
    }
}

/// Who stands for election where, and how.
pub struct Election {
    pub client: Client,
    pub scope: Scope,
    /// The holder's name in the Leases.
    pub identity: String,
    pub timings: Timings,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election")
            .field("scope", &self.scope)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// Runs elections until `shutdown` or the end of the commands.
///
/// * `shutdown` releases what is held, within [`RELEASE_BUDGET`]: what the Leases protect must have
///   been withdrawn before.
/// * The end of the commands, or of those who receive notices, releases only what was retired.
///   Nobody has said that the rest was withdrawn, so it is left to its time, as after a crash.
///
/// `turned` is called on each turn of the loop, at least once a second: who relies on the notices
/// can tell by it that no [`Notice::Lost`] is overdue.
pub async fn run(
    election: Election,
    mut commands: mpsc::Receiver<Command>,
    notices: mpsc::Sender<Notice>,
    shutdown: CancellationToken,
    mut turned: impl FnMut(),
) {
    let Election {
        client,
        scope,
        identity,
        timings,
    } = election;
    let (delta_sender, mut deltas) = mpsc::channel(DELTAS);
    let (status_sender, mut status) = watch::channel(InformerStatus::new(clock::now()));
    // A task of its own, so that neither a busy loop nor the parsing of lists delays the other.
    let mut watch = JoinSet::new();
    watch.spawn(informer::run(
        scope.api(client.clone()),
        scope.selection(),
        |_: &mut Lease| {},
        delta_sender,
        |delta| delta,
        status_sender,
    ));
    let mut driver = Driver::new(client, identity.into(), timings);
    while !driver.is_finished(clock::now()) {
        turned();
        let next = driver.next_deadline();
        let has_room = driver.outbox.len() < OUTBOX;
        let input = tokio::select! {
            biased;
            permit = notices.reserve(), if !driver.outbox.is_empty() => match permit {
                Ok(permit) => {
                    if let Some(notice) = driver.outbox.pop_front() {
                        permit.send(notice);
                    }
                    continue;
                }
                Err(_) => {
                    // What was retired by then is released still.
                    while let Ok(command) = commands.try_recv() {
                        if matches!(command, Command::Retire { .. }) {
                            driver.handle(Input::Command(command), clock::now());
                        }
                    }
                    Input::Deaf
                }
            },
            () = clock::sleep_until(Some(next)) => Input::Time,
            Some(done) = driver.calls.join_next(), if !driver.calls.is_empty() => match done {
                Ok(done) => Input::Done(done),
                Err(error) => {
                    error!(%error, "an API call of the election ended without an outcome");
                    Input::Time
                }
            },
            () = shutdown.cancelled(), if !driver.is_stopping() => Input::Stop,
            Ok(()) = status.changed() => Input::Connected(status.borrow_and_update().connected),
            Some(delta) = deltas.recv(), if has_room => Input::Delta(delta),
            command = commands.recv(), if has_room && !driver.is_stopping() => match command {
                Some(command) => Input::Command(command),
                None => Input::Orphaned,
            },
            Some(end) = watch.join_next() => {
                error!(?end, "the watch over Leases has ended; wanted ones are polled");
                Input::Connected(false)
            }
        };
        driver.handle(input, clock::now());
    }
}

enum Input {
    Time,
    Command(Command),
    Delta(Delta<Lease>),
    Connected(bool),
    Done(Done),
    Stop,
    /// Nobody gives commands any more.
    Orphaned,
    /// Nobody receives notices any more.
    Deaf,
}

/// Where a Lease waits for a free call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queued {
    No,
    Patient,
    Urgent,
}

#[derive(Debug)]
struct Entry {
    elector: Elector,
    queued: Queued,
    /// As in `deadlines`.
    deadline: Option<Instant>,
}

struct Driver {
    client: Client,
    identity: Arc<str>,
    timings: Timings,
    entries: HashMap<LeaseKey, Entry>,
    deadlines: BTreeSet<(Instant, LeaseKey)>,
    urgent: VecDeque<LeaseKey>,
    patient: VecDeque<LeaseKey>,
    calls: JoinSet<Done>,
    outbox: VecDeque<Notice>,
    /// The first full list is in.
    synced: bool,
    connected: bool,
    /// When the loop last ran, on both clocks.
    last: (Instant, Timestamp),
    /// When a refused call was last reported.
    refusal_reported: Option<Instant>,
    /// Set once we are stopping: when to give up.
    stop_by: Option<Instant>,
}

impl Driver {
    fn new(client: Client, identity: Arc<str>, timings: Timings) -> Self {
        Self {
            client,
            identity,
            timings,
            entries: HashMap::new(),
            deadlines: BTreeSet::new(),
            urgent: VecDeque::new(),
            patient: VecDeque::new(),
            calls: JoinSet::new(),
            outbox: VecDeque::new(),
            synced: false,
            connected: false,
            last: (clock::now(), clock::wall()),
            refusal_reported: None,
            stop_by: None,
        }
    }

    fn handle(&mut self, input: Input, now: Instant) {
        self.pass_time(now, clock::wall());
        match input {
            Input::Time => {}
            Input::Command(Command::Contend { lease, hesitation }) => {
                self.touch(lease, now, |elector| {
                    elector.handle_contend(hesitation, now);
                });
            }
            Input::Command(Command::Retire { lease, delete }) => {
                self.touch(lease, now, |elector| elector.handle_retire(delete, now));
            }
            Input::Command(Command::Confirm { round }) => {
                self.outbox.push_back(Notice::Confirmed { round });
            }
            Input::Delta(delta) => self.handle_delta(delta, now),
            Input::Connected(connected) => {
                self.connected = connected;
                self.spread_watching(now);
            }
            Input::Done(done) => self.handle_done(done, now),
            Input::Stop => self.stop(now, |elector| elector.handle_retire(false, now)),
            Input::Orphaned => self.stop(now, |elector| elector.handle_abandon(now)),
            Input::Deaf => {
                self.outbox.clear();
                self.stop(now, |elector| elector.handle_abandon(now));
            }
        }
        self.dispatch(now);
    }

    fn handle_done(&mut self, done: Done, now: Instant) {
        let report_due = self
            .refusal_reported
            .is_none_or(|last| now.saturating_duration_since(last) >= REFUSAL_PERIOD);
        if let Some(error) = done.refusal.filter(|_| report_due) {
            warn!(lease = %done.key, %error, "the API server refuses an election call");
            self.refusal_reported = Some(now);
        }
        let jitter = clock::random_fraction();
        self.touch(done.key, now, |elector| {
            elector.handle_outcome(&done.outcome, now, jitter);
        });
    }

    /// What time has decided, before anything else is looked at.
    fn pass_time(&mut self, now: Instant, wall: Timestamp) {
        let (last, last_wall) = std::mem::replace(&mut self.last, (now, wall));
        let slept = now.saturating_duration_since(last);
        // Negative when wall time was set back: no sign of a pause.
        let ahead = wall.duration_since(last_wall).as_secs_f64() - slept.as_secs_f64();
        // A hold may be as old as the renew deadline, and others wait for the rest only.
        let margin = self
            .timings
            .duration
            .saturating_sub(self.timings.renew_deadline);
        if ahead > margin.as_secs_f64() {
            warn!(
                seconds = ahead,
                "wall time ran ahead: paused, or the clock was set"
            );
            self.touch_all(now, |elector| elector.handle_pause(now));
        }
        while let Some((due, key)) = self.deadlines.first().cloned() {
            if due > now {
                break;
            }
            self.touch(key, now, |elector| elector.handle_deadline(now));
        }
    }

    fn handle_delta(&mut self, delta: Delta<Lease>, now: Instant) {
        match delta {
            Delta::Upsert { old, new } => {
                // The informer's history of an object goes back only with the server's.
                let restored = old.is_some_and(|old| is_older(&new, &old));
                let origin = if restored { Origin::Later } else { Origin::Any };
                if let Some(key) = key(&new) {
                    self.touch(key, now, |elector| elector.handle_object(&new, origin, now));
                }
            }
            Delta::Delete(old) => {
                if let Some(key) = key(&old) {
                    let uid = old.metadata.uid.as_deref();
                    self.touch(key, now, |elector| elector.handle_gone(uid, now));
                }
            }
            Delta::Synced => {
                self.synced = true;
                self.touch_all(now, |elector| {
                    if elector.is_blind() {
                        elector.handle_gone(None, now);
                    }
                });
                self.spread_watching(now);
            }
        }
    }

    fn is_watching(&self) -> bool {
        self.synced && self.connected
    }

    fn spread_watching(&mut self, now: Instant) {
        let watching = self.is_watching();
        self.touch_all(now, |elector| elector.handle_watching(watching, now));
    }

    /// Takes no more commands, and ends every elector's part in its election with `end`.
    fn stop(&mut self, now: Instant, end: impl Fn(&mut Elector)) {
        if self.stop_by.is_none() {
            self.stop_by = Some(now + RELEASE_BUDGET + FLUSH_BUDGET);
            self.touch_all(now, |elector| {
                if !elector.is_idle() {
                    end(elector);
                }
            });
        }
    }

    fn is_stopping(&self) -> bool {
        self.stop_by.is_some()
    }

    fn is_finished(&self, now: Instant) -> bool {
        self.stop_by.is_some_and(|stop_by| {
            let idle = self.entries.values().all(|entry| entry.elector.is_idle());
            now >= stop_by || (idle && self.outbox.is_empty())
        })
    }

    fn next_deadline(&self) -> Instant {
        let tick = self.last.0 + TICK;
        self.deadlines
            .first()
            .map_or(tick, |(due, _)| tick.min(*due))
    }

    fn touch_all(&mut self, now: Instant, mut act: impl FnMut(&mut Elector)) {
        let keys: Vec<LeaseKey> = self.entries.keys().cloned().collect();
        for key in keys {
            self.touch(key, now, &mut act);
        }
    }

    /// Lets `act` change an elector, then publishes, queues and schedules what follows.
    fn touch(&mut self, key: LeaseKey, now: Instant, act: impl FnOnce(&mut Elector)) {
        let watching = self.is_watching();
        let (identity, timings, synced) = (&self.identity, self.timings, self.synced);
        let entry = self.entries.entry(key.clone()).or_insert_with(|| {
            let mut elector = Elector::new(Arc::clone(identity), timings, watching, now);
            if synced {
                // The watch would have shown it.
                elector.handle_gone(None, now);
            }
            Entry {
                elector,
                queued: Queued::No,
                deadline: None,
            }
        });
        act(&mut entry.elector);
        while let Some(event) = entry.elector.poll_event() {
            self.outbox.push_back(notice(&key, event));
        }
        if let Some(due) = entry.deadline.take() {
            self.deadlines.remove(&(due, key.clone()));
        }
        if entry.elector.is_spent(now) {
            self.entries.remove(&key);
            return;
        }
        let call = entry.elector.next_call();
        if call.is_some_and(|due| due <= now) {
            match (entry.elector.is_urgent(), entry.queued) {
                (true, Queued::No | Queued::Patient) => {
                    entry.queued = Queued::Urgent;
                    self.urgent.push_back(key.clone());
                }
                (false, Queued::No) => {
                    entry.queued = Queued::Patient;
                    self.patient.push_back(key.clone());
                }
                _ => {}
            }
        }
        // A call that waits for its turn needs no alarm.
        let call = call.filter(|due| *due > now);
        entry.deadline = call.into_iter().chain(entry.elector.next_change()).min();
        if let Some(due) = entry.deadline {
            self.deadlines.insert((due, key));
        }
    }

    /// Starts calls while there is room.
    fn dispatch(&mut self, now: Instant) {
        while self.calls.len() < CALLS {
            let Some(key) = self.urgent.pop_front().or_else(|| self.patient.pop_front()) else {
                return;
            };
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            entry.queued = Queued::No;
            let deadline = entry.elector.call_deadline(now);
            if let Some(call) = entry.elector.poll_call(now, clock::wall()) {
                let client = self.client.clone();
                self.calls
                    .spawn(perform(client, key.clone(), call, deadline));
            }
            self.touch(key, now, |_| {});
        }
    }
}

fn key(lease: &Lease) -> Option<LeaseKey> {
    Some(LeaseKey {
        namespace: lease.metadata.namespace.clone()?,
        name: lease.metadata.name.clone()?,
    })
}

/// The one place where an election's transitions are logged.
fn notice(key: &LeaseKey, event: Event) -> Notice {
    let lease = key.clone();
    match event {
        Event::Acquired(how) => {
            info!(%lease, ?how, "lease acquired");
            Notice::Acquired { lease, how }
        }
        Event::Lost(why) => {
            warn!(%lease, ?why, "lease lost");
            Notice::Lost { lease, why }
        }
        Event::Retired => {
            info!(%lease, "lease retired");
            Notice::Retired { lease }
        }
        Event::Seen(holder) => {
            debug!(%lease, ?holder, "lease seen");
            Notice::Seen { lease, holder }
        }
    }
}

#[cfg(test)]
mod tests;
