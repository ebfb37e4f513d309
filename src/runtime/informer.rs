//! List and watch of one kind, as ordered deltas.
//!
//! In: the API and a selection. Out: [`Delta`]s on a bounded channel, and an [`InformerStatus`]
//! that tells whether the view behind them can be trusted. Invariants:
//!
//! * The deltas of an object are a gapless history: after a re-list, what is missing is deleted,
//!   and an object with another UID is deleted before its successor appears.
//! * An unchanged `resourceVersion` yields no delta.
//! * [`Delta::Synced`] comes once, after the first full list.
//! * An object that does not parse is skipped with a warning; its last good state stays.
//!
//! This is kube's `watcher` done by hand, because `watcher` hides what ownership logic must know:
//! it emits nothing when a watch is opened again or a bookmark arrives, so a quiet connection and
//! a dead one look alike.
//!
//! The first state comes from paginated lists without a `resourceVersion` (never older than what
//! was already seen) and not from streaming lists: servers before 1.32, and 1.33, have `WatchList`
//! off by default, and plain lists work alike on all.
//!
//! Dead connections: the server is asked to end each watch after about [`WATCH_PERIOD`], so one
//! that lasts longer is dead, whatever lies between; TCP keepalive (`k8s::client`) is faster where
//! the network itself is gone.

mod contact;
mod store;

pub use contact::report;

use std::{
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
    core::DeserializeGuard,
};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use store::{Store, key};

use super::{backoff::Backoff, clock};

/// How long the server keeps a watch; each is up to a fifth shorter, to spread the renewals.
pub const WATCH_PERIOD: Duration = Duration::from_secs(30);
/// How much later than asked the end of a watch may arrive.
const WATCH_MARGIN: Duration = Duration::from_secs(3);
/// For a page of a list and for the answer that opens a watch.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// How long the change from one watch to the next may take and still count as connected.
const REOPEN_GRACE: Duration = Duration::from_secs(1);
const PAGE_SIZE: u32 = 500;
/// A watch that ended sooner, without an event, has failed.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// After as many failed watches in a row the position itself is in doubt: list again.
const RELIST_AFTER: u32 = 3;
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2), 0.5);

/// A change of the objects in view.
#[derive(Debug, Clone)]
pub enum Delta<K> {
    Upsert {
        old: Option<Arc<K>>,
        new: Arc<K>,
    },
    /// The last known state of an object that is gone.
    Delete(Arc<K>),
    /// The first full list has been delivered.
    Synced,
}

/// Whether the view can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InformerStatus {
    /// The first full list has been delivered.
    pub synced: bool,
    /// A watch is open. Only then does silence mean that nothing has changed.
    pub connected: bool,
    /// When `connected` last changed.
    pub since: Instant,
    /// When the server last sent something. Changes of this field alone wake nobody.
    pub contact: Instant,
}

impl InformerStatus {
    /// The status before the first contact.
    pub const fn new(now: Instant) -> Self {
        Self {
            synced: false,
            connected: false,
            since: now,
            contact: now,
        }
    }
}

/// Which objects of the kind; the default is all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    pub labels: Option<String>,
    pub fields: Option<String>,
}

impl Selection {
    pub fn fields(selector: impl Into<String>) -> Self {
        Self {
            labels: None,
            fields: Some(selector.into()),
        }
    }

    pub fn labels(selector: impl Into<String>) -> Self {
        Self {
            labels: Some(selector.into()),
            fields: None,
        }
    }
}

/// Delivers the deltas of `api` to `out` until its receiver is gone. Stop it by dropping the
/// future.
///
/// `prune` removes what nobody reads before an object is stored; `managedFields` go anyway.
pub async fn run<K, E, W>(
    api: Api<DeserializeGuard<K>>,
    selection: Selection,
    prune: fn(&mut K),
    out: mpsc::Sender<E>,
    wrap: W,
    status: watch::Sender<InformerStatus>,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    W: Fn(Delta<K>) -> E,
{
    let mut informer = Informer {
        api,
        selection,
        prune,
        out,
        wrap,
        status,
        store: Store::default(),
        position: None,
        failures: 0,
    };
    loop {
        match informer.list_and_watch().await {
            Ok(()) => {}
            Err(Fault::Closed) => return,
            Err(fault) => informer.back_off(&fault).await,
        }
    }
}

/// Why a list or a watch ended before its time.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the receiver is gone")]
    Closed,
    #[error("no answer within {ANSWER_DEADLINE:?}")]
    NoAnswer,
    #[error("the watch outlived its period: dead connection")]
    Silent,
    #[error("the watch ended at once")]
    EndedEarly,
    #[error("a list without resourceVersion")]
    NoPosition,
    #[error(transparent)]
    Api(Box<kube::Error>),
}

impl From<kube::Error> for Fault {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl Fault {
    /// The position to watch from is no longer, or was never, known to the server.
    fn spoils_position(&self) -> bool {
        match self {
            Self::Api(error) => match error.as_ref() {
                kube::Error::Api(status) => matches!(status.code, 400..=428 | 430..=499),
                _ => false,
            },
            _ => false,
        }
    }
}

struct Informer<K, E, W> {
    api: Api<DeserializeGuard<K>>,
    selection: Selection,
    prune: fn(&mut K),
    out: mpsc::Sender<E>,
    wrap: W,
    status: watch::Sender<InformerStatus>,
    store: Store<K>,
    /// The `resourceVersion` to watch from; `None` asks for a list.
    position: Option<String>,
    failures: u32,
}

impl<K, E, W> Informer<K, E, W>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    W: Fn(Delta<K>) -> E,
{
    async fn list_and_watch(&mut self) -> Result<(), Fault> {
        let position = match self.position.clone() {
            Some(position) => position,
            None => self.list().await?,
        };
        self.watch(position).await
    }

    async fn list(&mut self) -> Result<String, Fault> {
        self.store.begin();
        let mut params = ListParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            limit: Some(PAGE_SIZE),
            ..ListParams::default()
        };
        let position = loop {
            let page = answered(self.api.list(&params)).await?;
            self.contact();
            for object in page.items {
                self.apply(object).await?;
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break page.metadata.resource_version,
            }
        };
        let position = position
            .filter(|version| !version.is_empty())
            .ok_or(Fault::NoPosition)?;
        for gone in self.store.end() {
            self.send(Delta::Delete(gone)).await?;
        }
        self.position = Some(position.clone());
        if !self.status.borrow().synced {
            self.send(Delta::Synced).await?;
            self.status.send_modify(|status| status.synced = true);
        }
        Ok(position)
    }

    async fn watch(&mut self, position: String) -> Result<(), Fault> {
        let period = WATCH_PERIOD.mul_f64(1.0 - 0.2 * clock::random_fraction());
        let params = WatchParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            timeout: u32::try_from(period.as_secs()).ok(),
            ..WatchParams::default()
        };
        let opened = clock::now();
        let stream = {
            let mut answer = std::pin::pin!(answered(self.api.watch(&params, &position)));
            if let Ok(answer) = tokio::time::timeout(REOPEN_GRACE, &mut answer).await {
                answer?
            } else {
                self.connected(false);
                answer.await?
            }
        };
        self.contact();
        self.connected(true);
        let quiet = self.follow(stream, opened + period + WATCH_MARGIN).await?;
        if quiet && clock::now().saturating_duration_since(opened) < SHORTEST_WATCH {
            return Err(Fault::EndedEarly);
        }
        self.failures = 0;
        Ok(())
    }

    /// Delivers a watch to its regular end, and tells whether nothing came.
    async fn follow<S>(&mut self, stream: S, dead: Instant) -> Result<bool, Fault>
    where
        S: Stream<Item = kube::Result<WatchEvent<DeserializeGuard<K>>>>,
    {
        let mut stream = std::pin::pin!(stream);
        let mut quiet = true;
        loop {
            let event = tokio::select! {
                biased;
                event = stream.next() => event,
                () = clock::sleep_until(Some(dead)) => return Err(Fault::Silent),
            };
            let Some(event) = event else {
                return Ok(quiet);
            };
            match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let version = object.resource_version();
                    self.apply(object).await?;
                    self.advance(version);
                }
                WatchEvent::Deleted(object) => {
                    let version = object.resource_version();
                    self.delete(object).await?;
                    self.advance(version);
                }
                WatchEvent::Bookmark(mark) => self.advance(Some(mark.metadata.resource_version)),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
            }
            quiet = false;
            self.failures = 0;
            self.contact();
        }
    }

    async fn apply(&mut self, object: DeserializeGuard<K>) -> Result<(), Fault> {
        let deltas = match object.0 {
            Ok(mut new) => {
                self.prune(&mut new);
                self.store.upsert(new)
            }
            Err(invalid) => {
                warn!(
                    kind = %K::kind(&()),
                    namespace = invalid.metadata.namespace.as_deref(),
                    name = invalid.metadata.name.as_deref(),
                    error = %invalid.error,
                    "skipping an object that does not parse"
                );
                self.store.keep(&key(&invalid.metadata));
                Vec::new()
            }
        };
        for delta in deltas {
            self.send(delta).await?;
        }
        Ok(())
    }

    async fn delete(&mut self, object: DeserializeGuard<K>) -> Result<(), Fault> {
        let Some(old) = self.store.remove(&key(object.meta())) else {
            return Ok(());
        };
        let last = match object.0 {
            Ok(mut last) => {
                self.prune(&mut last);
                Arc::new(last)
            }
            Err(_) => old,
        };
        self.send(Delta::Delete(last)).await
    }

    fn prune(&self, object: &mut K) {
        object.meta_mut().managed_fields = None;
        (self.prune)(object);
    }

    async fn send(&self, delta: Delta<K>) -> Result<(), Fault> {
        self.out
            .send((self.wrap)(delta))
            .await
            .map_err(|_| Fault::Closed)
    }

    fn advance(&mut self, version: Option<String>) {
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            self.position = Some(version);
        }
    }

    fn contact(&self) {
        self.status.send_if_modified(|status| {
            status.contact = clock::now();
            false
        });
    }

    fn connected(&self, connected: bool) {
        self.status.send_if_modified(|status| {
            let changed = status.connected != connected;
            if changed {
                status.connected = connected;
                status.since = clock::now();
            }
            changed
        });
    }

    async fn back_off(&mut self, fault: &Fault) {
        self.connected(false);
        self.failures = self.failures.saturating_add(1);
        if fault.spoils_position() || self.failures.is_multiple_of(RELIST_AFTER) {
            self.position = None;
        }
        let kind = K::kind(&());
        // A long outage is one line at its start and one a minute, not one for each attempt.
        match self.failures {
            1 => info!(%kind, error = %fault, "watch interrupted"),
            n if n % 40 == 5 => {
                warn!(%kind, attempts = n, error = %fault, "still no watch");
            }
            n => debug!(%kind, attempts = n, error = %fault, "no watch"),
        }
        clock::sleep(BACKOFF.delay(self.failures, clock::random_fraction())).await;
    }
}

async fn answered<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_DEADLINE, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Fault::NoAnswer),
    }
}

#[cfg(test)]
mod tests;
