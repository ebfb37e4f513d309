//! Events (core/v1) that cannot hold up or fail whoever publishes them.
//!
//! [`Recorder::publish`] puts an event on a bounded queue, or counts it as dropped. [`Writer`] is
//! the task behind it: it passes each event through the [`correlator`] and writes what comes out
//! with `create` and `patch` only, retrying nothing but transport errors, as client-go does.

mod correlator;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Event as Object, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use correlator::{Correlator, Verdict, Written};

use super::{Class, Error, within};
use crate::runtime::clock;

const QUEUE: usize = 1000;
const DEADLINE: Duration = Duration::from_secs(5);
const TRIES: u32 = 12;
const RETRY_PERIOD: Duration = Duration::from_secs(10);
/// Longest message the API server takes.
const MESSAGE_LIMIT: usize = 1024;
/// Where events of cluster-scoped objects live.
const DEFAULT_NAMESPACE: &str = "default";

/// The object an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    pub api_version: String,
    pub kind: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl ObjectRef {
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
        }
    }

    fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() {
            DEFAULT_NAMESPACE
        } else {
            &self.namespace
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Normal,
    Warning,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Something worth telling those who look at the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub regarding: ObjectRef,
    pub kind: Kind,
    pub reason: &'static str,
    pub message: String,
    /// Every instance of the program says the same: one object for all, written by the first.
    pub shared: bool,
}

/// Publishes events; clones share a queue.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Event>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// A recorder and the task that must run for it. `component` and `host` become the source.
    pub fn new(
        client: Client,
        component: impl Into<String>,
        host: impl Into<String>,
    ) -> (Self, Writer) {
        let (queue, events) = mpsc::channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            client,
            component: component.into(),
            host: host.into(),
            events,
            dropped: Arc::clone(&dropped),
            correlator: Correlator::default(),
        };
        (Self { queue, dropped }, writer)
    }

    /// Never blocks and never fails; a full queue counts.
    pub fn publish(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many events were lost: queue full, too many of one source, or not written.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The task behind a [`Recorder`].
pub struct Writer {
    client: Client,
    component: String,
    host: String,
    events: mpsc::Receiver<Event>,
    dropped: Arc<AtomicU64>,
    correlator: Correlator,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("component", &self.component)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// Writes until `shutdown` or the last recorder's end; then what is queued, without retries.
    /// Ends at most `budget` after `shutdown`, whatever the server does.
    pub async fn run(mut self, shutdown: CancellationToken, budget: Duration) {
        let over = async {
            shutdown.cancelled().await;
            clock::sleep(budget).await;
        };
        tokio::select! {
            () = self.write_all(&shutdown) => return,
            () = over => {}
        }
        // And the one that was being written.
        let left = u64::try_from(self.events.len()).unwrap_or(u64::MAX);
        self.dropped
            .fetch_add(left.saturating_add(1), Ordering::Relaxed);
    }

    async fn write_all(&mut self, shutdown: &CancellationToken) {
        while let Some(Some(event)) = shutdown.run_until_cancelled(self.events.recv()).await {
            self.write(&event, shutdown).await;
        }
        self.events.close();
        while let Some(event) = self.events.recv().await {
            self.write(&event, shutdown).await;
        }
    }

    async fn write(&mut self, event: &Event, shutdown: &CancellationToken) {
        let verdict = self.correlator.observe(event, clock::now(), clock::wall());
        let Some(first) = verdict else {
            self.drop_one(event, "too many events of this object");
            return;
        };
        let mut verdict = first;
        for attempt in 1..=TRIES {
            let error = match self.call(event, &verdict).await {
                Ok(()) => return,
                Err(error) => error,
            };
            match (error.class(), &verdict) {
                // The one to count up has expired: begin anew.
                (Class::NotFound, Verdict::Update(_)) => {
                    verdict = Verdict::Create(self.correlator.rename(event, clock::wall()));
                    continue;
                }
                // Written by a try whose answer was lost, or by another instance.
                (Class::AlreadyExists, Verdict::Create(_)) if attempt > 1 || event.shared => return,
                (Class::Transport | Class::Timeout, _) => {}
                _ => return self.drop_one(event, &error.to_string()),
            }
            let pause = clock::sleep(RETRY_PERIOD.mul_f64(0.5 + clock::random_fraction()));
            if attempt == TRIES || shutdown.run_until_cancelled(pause).await.is_none() {
                return self.drop_one(event, &error.to_string());
            }
        }
    }

    fn drop_one(&self, event: &Event, why: &str) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        debug!(
            reason = event.reason,
            object = event.regarding.name,
            why,
            "event dropped"
        );
    }

    async fn call(&self, event: &Event, verdict: &Verdict) -> Result<(), Error> {
        let namespace = event.regarding.event_namespace();
        match verdict {
            Verdict::Create(written) => {
                let api: Api<Object> = Api::namespaced(self.client.clone(), namespace);
                let object = self.object(event, written);
                within(DEADLINE, api.create(&PostParams::default(), &object)).await?;
            }
            Verdict::Update(written) => {
                let api: Api<PartialObjectMeta<Object>> =
                    Api::namespaced(self.client.clone(), namespace);
                let patch = Patch::Merge(json!({
                    "count": written.count,
                    "lastTimestamp": Time(written.last),
                    "message": written.message,
                }));
                let params = PatchParams::default();
                within(DEADLINE, api.patch(&written.name, &params, &patch)).await?;
            }
        }
        Ok(())
    }

    fn object(&self, event: &Event, written: &Written) -> Object {
        let regarding = &event.regarding;
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Object {
            metadata: ObjectMeta {
                namespace: Some(regarding.event_namespace().to_owned()),
                name: Some(written.name.clone()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: some(&regarding.api_version),
                kind: some(&regarding.kind),
                namespace: some(&regarding.namespace),
                name: some(&regarding.name),
                uid: some(&regarding.uid),
                ..ObjectReference::default()
            },
            type_: Some(event.kind.as_str().to_owned()),
            reason: Some(event.reason.to_owned()),
            message: Some(written.message.clone()),
            count: Some(written.count),
            first_timestamp: Some(Time(written.first)),
            last_timestamp: Some(Time(written.last)),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: some(&self.host),
            }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.host.clone()),
            ..Object::default()
        }
    }
}

#[cfg(test)]
mod tests;
