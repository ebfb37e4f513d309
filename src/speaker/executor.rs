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
    kernel::{KernelBatch, KernelLine},
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
    net::link::{LinkIndex, VipAddress},
    runtime::clock,
};

/// Status writes at one time.
const WRITERS: usize = 16;
/// Commands waiting for one announcer, and its events.
const QUEUE: usize = 4096;

/// Hands actions to whoever performs them.
pub struct Executor {
    client: Client,
    events: mpsc::Sender<Event>,
    election: mpsc::Sender<election::Command>,
    kernel: KernelLine,
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
        kernel: KernelLine,
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
        if !kernel_actions.is_empty() && self.kernel.hand_over(batch) {
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
        if !self.kernel.hand_over(batch) {
            tracing::error!("the kernel task does not keep up; VIP lifetimes were not renewed");
        }
    }

    /// For how long the kernel has answered nothing of what it was asked.
    pub fn kernel_silence(&mut self, now: Instant) -> Duration {
        self.kernel.silence(now)
    }

    /// Forgets tasks that have ended. (A release build does not outlive a panic.)
    pub fn reap(&mut self) {
        for (tasks, what) in [
            (&mut self.writers, "a status writer"),
            (&mut self.announcer_tasks, "an announcer"),
        ] {
            while let Some(ended) = tasks.try_join_next() {
                if let Err(error) = ended
                    && error.is_panic()
                {
                    tracing::error!(%error, "{what} panicked");
                }
            }
        }
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
