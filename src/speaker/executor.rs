//! Actions become effects; outcomes come back as events.
//!
//! ```text
//!                     ┌─▶ kernel task (one: keeps the order of address operations) ─▶ Outcome
//! run ─▶ Executor ────┼─▶ announcer task of each link ─▶ AnnouncerEvent
//!                     ├─▶ election task ─▶ Notice
//!                     ├─▶ one task a status write, bounded ─▶ Outcome
//!                     └─▶ event recorder
//! ```
//!
//! Nothing here waits: a full channel leaves the action undone, and as the model never notes it as
//! started, it is planned again. No business condition is decided here.

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::Client;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::{
    announcer::{self, LinkFacts},
    event::{Event, Outcome},
    facts::{Fact, FactKey, Scope},
    plan::Action,
    selection::ServiceKey,
    status::Patch,
};
use crate::{
    election,
    k8s::{
        self,
        events::{self, ObjectRef, Recorder},
        service as service_api,
    },
    net::{
        self,
        link::{AddressKey, LinkIndex, VipAddress},
        netlink::Netlink,
    },
    runtime::clock,
};

/// Status writes at one time.
const WRITERS: usize = 16;
/// Commands waiting for one announcer, the election or the kernel.
const QUEUE: usize = 4096;
/// Pause before a lost netlink connection is opened again.
const RECONNECT: Duration = Duration::from_millis(100);

/// Additions and renewals are made within this time or not at all: after a standstill they would put
/// on the link what others have taken over meanwhile.
const CURRENT: Duration = Duration::from_secs(2);

/// Address operations, in order: removals first.
#[derive(Debug)]
pub struct KernelBatch {
    pub remove: Vec<AddressKey>,
    pub add: Vec<VipAddress>,
    pub renew: Vec<VipAddress>,
    pub handed_over: Instant,
}

impl KernelBatch {
    fn new(now: Instant) -> Self {
        Self {
            remove: Vec::new(),
            add: Vec::new(),
            renew: Vec::new(),
            handed_over: now,
        }
    }

    /// Drops what comes too late, and tells of the additions that are not made.
    fn drop_overdue(&mut self, now: Instant) -> Option<Outcome> {
        if now.saturating_duration_since(self.handed_over) <= CURRENT {
            return None;
        }
        self.renew.clear();
        let dropped = std::mem::take(&mut self.add);
        let results = dropped
            .into_iter()
            .map(|address| (address.key, Err(net::netlink::Error::Deadline)));
        let results: Vec<_> = results.collect();
        (!results.is_empty()).then_some(Outcome::Added(results))
    }
}

/// Hands actions to whoever performs them.
pub struct Executor {
    client: Client,
    events: mpsc::Sender<Event>,
    election: mpsc::Sender<election::Command>,
    kernel: mpsc::Sender<KernelBatch>,
    recorder: Recorder,
    announcer: announcer::Settings,
    announcers: BTreeMap<LinkIndex, mpsc::Sender<announcer::Command>>,
    announcer_tasks: JoinSet<()>,
    writers: JoinSet<()>,
    permits: Arc<Semaphore>,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("announcers", &self.announcers.keys())
            .finish_non_exhaustive()
    }
}

impl Executor {
    pub fn new(
        client: Client,
        events: mpsc::Sender<Event>,
        election: mpsc::Sender<election::Command>,
        kernel: mpsc::Sender<KernelBatch>,
        recorder: Recorder,
        announcer: announcer::Settings,
    ) -> Self {
        Self {
            client,
            events,
            election,
            kernel,
            recorder,
            announcer,
            announcers: BTreeMap::new(),
            announcer_tasks: JoinSet::new(),
            writers: JoinSet::new(),
            permits: Arc::new(Semaphore::new(WRITERS)),
        }
    }

    /// Starts the actions, in order. Returns those that were handed over.
    pub fn execute(&mut self, actions: Vec<Action>) -> Vec<Action> {
        let mut batch = KernelBatch::new(clock::now());
        let mut started = Vec::with_capacity(actions.len());
        let mut kernel_actions = Vec::new();
        for action in actions {
            match &action {
                Action::Remove(key) => batch.remove.push(*key),
                Action::Add(address, _) => batch.add.push(*address),
                _ => {
                    if self.start(&action) {
                        started.push(action);
                    }
                    continue;
                }
            }
            kernel_actions.push(action);
        }
        if !kernel_actions.is_empty() && self.kernel.try_send(batch).is_ok() {
            started.append(&mut kernel_actions);
        }
        started
    }

    /// Asks the election what is still held. Returns whether the question was handed over.
    pub fn confirm(&self, round: u64) -> bool {
        let question = election::Command::Confirm { round };
        self.election.try_send(question).is_ok()
    }

    /// Renews the lifetime of addresses that stand.
    pub fn refresh(&mut self, addresses: Vec<VipAddress>) {
        let batch = KernelBatch {
            renew: addresses,
            ..KernelBatch::new(clock::now())
        };
        if self.kernel.try_send(batch).is_err() {
            tracing::error!("the kernel task does not keep up; VIP lifetimes were not renewed");
        }
    }

    /// Forgets tasks that have ended.
    pub fn reap(&mut self) {
        while self.writers.try_join_next().is_some() {}
        while self.announcer_tasks.try_join_next().is_some() {}
    }

    fn start(&mut self, action: &Action) -> bool {
        use announcer::Command;
        match action {
            Action::Silence { link, vip } => {
                self.tell_or_gone(*link, Command::Silence { vip: *vip })
            }
            Action::Forget { link, vip } => self.tell_or_gone(*link, Command::Forget { vip: *vip }),
            Action::Ask {
                link,
                vip,
                question,
            } => self.tell(
                *link,
                Command::Ask {
                    vip: *vip,
                    question: *question,
                },
            ),
            Action::Announce { link, vip, rival } => self.tell(
                *link,
                Command::Announce {
                    vip: *vip,
                    predecessor_may_answer: *rival,
                },
            ),
            Action::Attend(facts) => self.attend(facts),
            Action::Leave(link) => {
                self.announcers.remove(link);
                true
            }
            Action::Contend {
                lease, hesitation, ..
            } => self
                .election
                .try_send(election::Command::Contend {
                    lease: lease.clone(),
                    hesitation: *hesitation,
                })
                .is_ok(),
            Action::Retire { lease, delete } => self
                .election
                .try_send(election::Command::Retire {
                    lease: lease.clone(),
                    delete: *delete,
                })
                .is_ok(),
            Action::Write {
                service,
                uid,
                patch,
                ..
            } => {
                self.write(service.clone(), uid.clone(), patch.clone());
                true
            }
            Action::Tell { key, uid, fact } => {
                self.publish(key, uid, fact);
                true
            }
            Action::Remove(_) | Action::Add(..) => false,
        }
    }

    fn tell(&self, link: LinkIndex, command: announcer::Command) -> bool {
        self.announcers
            .get(&link)
            .is_some_and(|commands| commands.try_send(command).is_ok())
    }

    /// What no announcer says is silent already.
    fn tell_or_gone(&self, link: LinkIndex, command: announcer::Command) -> bool {
        self.announcers.get(&link).is_none_or(|commands| {
            !matches!(
                commands.try_send(command),
                Err(mpsc::error::TrySendError::Full(_))
            )
        })
    }

    fn attend(&mut self, facts: &LinkFacts) -> bool {
        let known = self
            .announcers
            .get(&facts.index)
            .filter(|commands| !commands.is_closed());
        if let Some(commands) = known {
            return commands
                .try_send(announcer::Command::Facts(facts.clone()))
                .is_ok();
        }
        let (commands, received) = mpsc::channel(QUEUE);
        let (events, mut announced) = mpsc::channel(QUEUE);
        let task = announcer::run(facts.clone(), self.announcer.clone(), received, events);
        let out = self.events.clone();
        self.announcer_tasks.spawn(async move {
            let forward = async {
                while let Some(event) = announced.recv().await {
                    if out.send(Event::Announcer(event)).await.is_err() {
                        break;
                    }
                }
            };
            tokio::join!(task, forward);
        });
        self.announcers.insert(facts.index, commands);
        true
    }

    fn write(&mut self, service: ServiceKey, uid: String, patch: Patch) {
        let client = self.client.clone();
        let events = self.events.clone();
        let permits = self.permits.clone();
        self.writers.spawn(async move {
            let _permit = permits.acquire().await;
            let result = write(&client, &service, &uid, patch).await;
            // The loop that would hear it has ended: nothing is left to tell.
            let _ = events
                .send(Event::Outcome(Outcome::Written {
                    service,
                    uid,
                    result,
                }))
                .await;
        });
    }

    fn publish(&self, (service, reason, _): &FactKey, uid: &str, fact: &Fact) {
        if fact.warning {
            tracing::warn!(%service, reason = reason.as_str(), "{}", fact.message);
        } else {
            tracing::info!(%service, reason = reason.as_str(), "{}", fact.message);
        }
        self.recorder.publish(events::Event {
            regarding: ObjectRef {
                api_version: "v1".to_owned(),
                kind: "Service".to_owned(),
                namespace: service.namespace.to_string(),
                name: service.name.to_string(),
                uid: uid.to_owned(),
            },
            kind: if fact.warning {
                events::Kind::Warning
            } else {
                events::Kind::Normal
            },
            reason: reason.as_str(),
            message: fact.message.clone(),
            shared: fact.scope == Scope::Cluster,
        });
    }
}

/// Annotations first: who sees the status may already want to know whose it is; last where the status
/// is cleared. Both patches name the object's UID, so that they never reach a Service that was made
/// anew under the same name.
async fn write(
    client: &Client,
    service: &ServiceKey,
    uid: &str,
    patch: Patch,
) -> Result<(), k8s::Error> {
    let (namespace, name) = (&service.namespace, &service.name);
    let annotate = async |body: Option<Value>| match body {
        Some(body) => {
            let body = of_this_object(body, uid);
            service_api::patch_annotations(client, namespace, name, body, None).await
        }
        None => Ok(()),
    };
    let (first, last) = if patch.clears {
        (None, patch.metadata)
    } else {
        (patch.metadata, None)
    };
    annotate(first).await?;
    if let Some(body) = patch.status {
        let body = of_this_object(body, uid);
        service_api::patch_status(client, namespace, name, body, None).await?;
    }
    annotate(last).await
}

fn of_this_object(mut patch: Value, uid: &str) -> Value {
    if let Some(metadata) = patch
        .as_object_mut()
        .map(|p| p.entry("metadata").or_insert_with(|| json!({})))
        && let Some(metadata) = metadata.as_object_mut()
    {
        metadata.insert("uid".to_owned(), uid.into());
    }
    patch
}

/// Performs address operations one batch after the other, and tells how each ended. Opens the netlink
/// connection again when it was lost; ends when nobody asks any more.
pub async fn kernel(mut batches: mpsc::Receiver<KernelBatch>, events: mpsc::Sender<Event>) {
    let mut connection = None;
    let mut tasks = JoinSet::new();
    while let Some(mut batch) = batches.recv().await {
        let netlink = match connection.take() {
            Some(netlink) => netlink,
            None => connect(&mut tasks).await,
        };
        let overdue = batch.drop_overdue(clock::now());
        let (mut outcomes, alive) = perform(&netlink, batch).await;
        outcomes.extend(overdue);
        for outcome in outcomes {
            if events.send(Event::Outcome(outcome)).await.is_err() {
                return;
            }
        }
        connection = alive.then_some(netlink);
    }
}

/// Opens netlink, however long that takes.
async fn connect(tasks: &mut JoinSet<()>) -> Netlink {
    loop {
        match Netlink::connect() {
            Ok((netlink, connection)) => {
                while tasks.try_join_next().is_some() {}
                tasks.spawn(connection);
                return netlink;
            }
            Err(error) => {
                tracing::error!(%error, "cannot open netlink");
                clock::sleep(RECONNECT).await;
            }
        }
    }
}

async fn perform(netlink: &Netlink, batch: KernelBatch) -> (Vec<Outcome>, bool) {
    let mut outcomes = Vec::new();
    let mut alive = true;
    let mut note = |results: &[Result<(), net::netlink::Error>]| {
        alive &= !results
            .iter()
            .any(|r| matches!(r, Err(net::netlink::Error::Disconnected)));
    };
    if !batch.remove.is_empty() {
        let results = netlink.remove_addresses(&batch.remove).await;
        note(&results);
        outcomes.push(Outcome::Removed(
            batch.remove.into_iter().zip(results).collect(),
        ));
    }
    let mut ensure = batch.add;
    ensure.extend(batch.renew);
    if !ensure.is_empty() {
        let results = netlink.ensure_addresses(&ensure).await;
        note(&results);
        let keys = ensure.into_iter().map(|address| address.key);
        outcomes.push(Outcome::Added(keys.zip(results).collect()));
    }
    (outcomes, alive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speaker::testing::ip;

    fn vip(address: &str) -> VipAddress {
        VipAddress {
            key: AddressKey {
                link: LinkIndex(2),
                address: ip(address),
                prefix_len: 32,
            },
            lifetime: None,
        }
    }

    #[test]
    fn a_batch_from_before_a_standstill_only_removes() {
        let start = clock::now();
        let batch = || KernelBatch {
            remove: vec![vip("10.0.0.100").key],
            add: vec![vip("10.0.0.101")],
            renew: vec![vip("10.0.0.102")],
            handed_over: start,
        };
        let mut fresh = batch();
        assert!(fresh.drop_overdue(start + CURRENT).is_none());
        assert_eq!((fresh.add.len(), fresh.renew.len()), (1, 1));

        let mut late = batch();
        let outcome = late.drop_overdue(start + CURRENT * 2);
        let Some(Outcome::Added(results)) = outcome else {
            panic!("{outcome:?} does not tell of the addition");
        };
        assert_eq!(results.len(), 1);
        assert!(results[0].1.is_err() && results[0].0 == vip("10.0.0.101").key);
        assert_eq!(late.remove.len(), 1);
        assert!(late.add.is_empty() && late.renew.is_empty());

        let mut renewal = KernelBatch {
            renew: vec![vip("10.0.0.102")],
            ..KernelBatch::new(start)
        };
        assert!(renewal.drop_overdue(start + CURRENT * 2).is_none());
        assert!(renewal.renew.is_empty());
    }
}
