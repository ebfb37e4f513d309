//! One watch for all controllers that want a kind: a cache, and its changes for each of them.
//!
//! In: a watch over one kind. Out: a [`Cache`] that anybody may read, and a [`Feed`] for each
//! subscriber, whose deltas are complete and in order. Invariant: a delta is in the cache before a
//! subscriber hears of it, so who handles a key always finds what made it due, or something later; and
//! a cache calls itself synced only once the whole first list is in it, which is later than its delivery.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use kube::{Api, Resource, ResourceExt, core::DeserializeGuard};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use crate::runtime::{
    clock,
    informer::{self, Delta, InformerStatus, Selection},
};

/// Deltas that wait for one subscriber before the watch has to. Subscribers only put keys into their
/// queues, so more than a burst never waits.
const DELTAS: usize = 1024;

/// Namespace (empty where there is none) and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn of<K: ResourceExt>(object: &K) -> Self {
        Self::new(object.namespace().unwrap_or_default(), object.name_any())
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The objects of a kind as last seen.
#[derive(Debug)]
pub struct Cache<K> {
    objects: RwLock<HashMap<ObjectKey, Arc<K>>>,
    status: watch::Receiver<InformerStatus>,
    /// The first full list is in `objects`.
    filled: watch::Sender<bool>,
}

impl<K> Cache<K> {
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(key).cloned()
    }

    /// In no order.
    pub fn all(&self) -> Vec<Arc<K>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.values().cloned().collect()
    }

    /// Whether the view can be trusted now.
    pub fn status(&self) -> InformerStatus {
        let status = *self.status.borrow();
        InformerStatus {
            synced: *self.filled.borrow(),
            ..status
        }
    }

    /// Waits for the first full list.
    pub async fn synced(&self) {
        let mut filled = self.filled.subscribe();
        // The sender lives in `self`.
        let _ = filled.wait_for(|&filled| filled).await;
    }

    fn apply(&self, delta: &Delta<K>)
    where
        K: ResourceExt,
    {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        match delta {
            Delta::Upsert { new, .. } => {
                objects.insert(ObjectKey::of(&**new), Arc::clone(new));
            }
            Delta::Delete(old) => {
                objects.remove(&ObjectKey::of(&**old));
            }
            Delta::Synced => {
                self.filled.send_replace(true);
            }
        }
    }
}

/// What one subscriber gets.
#[derive(Debug)]
pub struct Feed<K> {
    pub cache: Arc<Cache<K>>,
    pub deltas: mpsc::Receiver<Delta<K>>,
}

/// A watch before it runs; subscribe first.
#[derive(Debug)]
pub struct Source<K> {
    cache: Arc<Cache<K>>,
    status: watch::Sender<InformerStatus>,
    subscribers: Vec<mpsc::Sender<Delta<K>>>,
}

impl<K> Default for Source<K> {
    fn default() -> Self {
        let (status, receiver) = watch::channel(InformerStatus::new(clock::now()));
        Self {
            cache: Arc::new(Cache {
                objects: RwLock::default(),
                status: receiver,
                filled: watch::Sender::new(false),
            }),
            status,
            subscribers: Vec::new(),
        }
    }
}

impl<K> Source<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    pub fn cache(&self) -> Arc<Cache<K>> {
        Arc::clone(&self.cache)
    }

    pub fn subscribe(&mut self) -> Feed<K> {
        let (sender, deltas) = mpsc::channel(DELTAS);
        self.subscribers.push(sender);
        Feed {
            cache: self.cache(),
            deltas,
        }
    }

    /// Feeds cache and subscribers; ends only by being dropped. A subscriber that is gone is forgotten. What
    /// nobody has subscribed to is not watched.
    pub async fn run(self, api: Api<DeserializeGuard<K>>, selection: Selection, prune: fn(&mut K)) {
        let Self {
            cache,
            status,
            mut subscribers,
        } = self;
        if subscribers.is_empty() {
            return std::future::pending().await;
        }
        let (sender, mut deltas) = mpsc::channel(DELTAS);
        let watch = informer::run(api, selection, prune, sender, |delta| delta, status);
        let spread = async {
            while let Some(delta) = deltas.recv().await {
                cache.apply(&delta);
                let mut living = Vec::with_capacity(subscribers.len());
                for subscriber in subscribers.drain(..) {
                    if subscriber.send(delta.clone()).await.is_ok() {
                        living.push(subscriber);
                    }
                }
                subscribers = living;
            }
        };
        tokio::join!(watch, spread);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use k8s_openapi::api::core::v1::Service;

    use super::*;

    #[test]
    fn a_cache_is_synced_when_the_first_list_is_in_it_and_not_when_it_was_delivered() {
        let source = Source::<Service>::default();
        let cache = source.cache();
        source.status.send_modify(|status| status.synced = true);
        assert!(!cache.status().synced);
        assert!(cache.synced().now_or_never().is_none());
        cache.apply(&Delta::Synced);
        assert!(cache.status().synced);
        assert!(cache.synced().now_or_never().is_some());
    }
}
