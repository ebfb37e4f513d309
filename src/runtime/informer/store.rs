//! What an informer has delivered, to tell what is new, the same, or gone. No I/O.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::Delta;

/// Namespace and name; the namespace is empty for cluster-scoped kinds.
pub(super) type Key = (Box<str>, Box<str>);

pub(super) fn key(meta: &ObjectMeta) -> Key {
    (
        meta.namespace.as_deref().unwrap_or_default().into(),
        meta.name.as_deref().unwrap_or_default().into(),
    )
}

/// The objects as delivered.
#[derive(Debug)]
pub(super) struct Store<K> {
    objects: HashMap<Key, Entry<K>>,
    /// Number of the latest list.
    list: u64,
}

#[derive(Debug)]
struct Entry<K> {
    object: Arc<K>,
    /// The latest list that had it.
    list: u64,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            list: 0,
        }
    }
}

impl<K: Resource> Store<K> {
    /// A full list begins.
    pub(super) fn begin(&mut self) {
        self.list += 1;
    }

    /// The list is complete: what it did not have is gone.
    pub(super) fn end(&mut self) -> Vec<Arc<K>> {
        let list = self.list;
        self.objects
            .extract_if(|_, entry| entry.list != list)
            .map(|(_, entry)| entry.object)
            .collect()
    }

    pub(super) fn upsert(&mut self, new: K) -> Vec<Delta<K>> {
        let key = key(new.meta());
        let list = self.list;
        let new = Arc::new(new);
        let Some(entry) = self.objects.get_mut(&key) else {
            let object = Arc::clone(&new);
            self.objects.insert(key, Entry { object, list });
            return vec![Delta::Upsert { old: None, new }];
        };
        entry.list = list;
        let same_object = entry.object.meta().uid == new.meta().uid;
        if same_object && entry.object.meta().resource_version == new.meta().resource_version {
            return Vec::new();
        }
        let old = std::mem::replace(&mut entry.object, Arc::clone(&new));
        if same_object {
            let old = Some(old);
            return vec![Delta::Upsert { old, new }];
        }
        vec![Delta::Delete(old), Delta::Upsert { old: None, new }]
    }

    /// The list has the object, in a form that does not parse.
    pub(super) fn keep(&mut self, key: &Key) {
        if let Some(entry) = self.objects.get_mut(key) {
            entry.list = self.list;
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        self.objects.remove(key).map(|entry| entry.object)
    }
}
