//! What this controller wrote and its watch has not shown yet. No I/O.
//!
//! A sync that starts before the watch has caught up with the previous one's writes would decide on
//! the past: create twice, or put back what it changed itself. So the server's answers count until the
//! watch shows them or something later. Versions are compared as numbers, which API servers guarantee
//! for objects of one kind; one that is no number never hides an answer.
//!
//! The watch may also be faster than an answer and show the end of an object first: such an answer
//! comes too late to count. One that the watch never shows, because the object went while there was no
//! watch, is forgotten after [`LIFE`]; who decided by it looks again then ([`Recent::is_ahead`]).

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{Resource, ResourceExt};

use crate::ccm::cache::ObjectKey;

/// Longer than a watch that works is ever late.
pub(super) const LIFE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Recent<K> {
    answers: HashMap<ObjectKey, Entry<K>>,
    /// UIDs of objects whose end the watch has shown, for as long as an answer may be late.
    ended: HashMap<ObjectKey, (String, Instant)>,
}

#[derive(Debug)]
struct Entry<K> {
    answer: Answer<K>,
    until: Instant,
}

#[derive(Debug)]
enum Answer<K> {
    Stored(Arc<K>),
    /// The object with this UID is gone.
    Gone(String),
}

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Self {
            answers: HashMap::new(),
            ended: HashMap::new(),
        }
    }
}

impl<K: Resource<DynamicType = ()>> Recent<K> {
    /// Says whether the answer counts.
    pub(super) fn stored(&mut self, object: Arc<K>, now: Instant) -> bool {
        let key = ObjectKey::of(&*object);
        let ended = self.ended.get(&key);
        if ended.is_some_and(|(uid, _)| object.uid().as_ref() == Some(uid)) {
            return false;
        }
        self.put(key, Answer::Stored(object), now);
        true
    }

    pub(super) fn gone(&mut self, key: ObjectKey, uid: String, now: Instant) {
        self.put(key, Answer::Gone(uid), now);
    }

    fn put(&mut self, key: ObjectKey, answer: Answer<K>, now: Instant) {
        let until = now + LIFE;
        self.answers.insert(key, Entry { answer, until });
    }

    /// The watch showed the end of an object.
    pub(super) fn deleted(&mut self, object: &K, now: Instant) {
        let key = ObjectKey::of(object);
        let same = self
            .answers
            .get(&key)
            .is_some_and(|entry| match &entry.answer {
                Answer::Stored(stored) => stored.uid() == object.uid(),
                Answer::Gone(uid) => object.uid().as_ref() == Some(uid),
            });
        if same {
            self.answers.remove(&key);
        }
        self.ended.retain(|_, (_, until)| now < *until);
        let uid = object.uid().unwrap_or_default();
        self.ended.insert(key, (uid, now + LIFE));
    }

    /// Whether an answer stood for the object when [`Self::latest`] was last asked.
    pub(super) fn is_ahead(&self, key: &ObjectKey) -> bool {
        self.answers.contains_key(key)
    }

    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.answers.remove(key);
    }

    /// The latest state of the object, `cached` being what the watch shows.
    pub(super) fn latest(
        &mut self,
        key: &ObjectKey,
        cached: Option<Arc<K>>,
        now: Instant,
    ) -> Option<Arc<K>> {
        let Some(entry) = self.answers.get(key) else {
            return cached;
        };
        if now < entry.until {
            match (&entry.answer, &cached) {
                (Answer::Stored(stored), None) => return Some(Arc::clone(stored)),
                (Answer::Stored(stored), Some(cached)) if is_newer(&**stored, &**cached) => {
                    return Some(Arc::clone(stored));
                }
                (Answer::Gone(uid), Some(cached)) if cached.uid().as_ref() == Some(uid) => {
                    return None;
                }
                _ => {}
            }
        }
        self.answers.remove(key);
        cached
    }
}

fn is_newer<K: Resource>(stored: &K, cached: &K) -> bool {
    let version = |object: &K| {
        object
            .resource_version()
            .and_then(|text| text.parse::<u64>().ok())
    };
    match (version(stored), version(cached)) {
        (Some(stored), Some(cached)) => stored > cached,
        _ => stored.resource_version() != cached.resource_version(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;

    use super::*;
    use crate::runtime::clock;

    fn object(uid: &str, version: &str) -> Arc<Service> {
        let mut service = Service::default();
        service.metadata.namespace = Some("a".to_owned());
        service.metadata.name = Some("s".to_owned());
        service.metadata.uid = Some(uid.to_owned());
        service.metadata.resource_version = Some(version.to_owned());
        Arc::new(service)
    }

    fn version(found: Option<Arc<Service>>) -> Option<String> {
        found.and_then(|object| object.resource_version())
    }

    fn key() -> ObjectKey {
        ObjectKey::new("a", "s")
    }

    #[test]
    fn an_answer_counts_until_the_watch_has_it_or_something_later() {
        for (cached, expected) in [
            (None, "10"),
            (Some("9"), "10"),
            (Some("10"), "10"),
            (Some("11"), "11"),
            (Some("x"), "10"),
        ] {
            let mut recent = Recent::default();
            let now = clock::now();
            recent.stored(object("u", "10"), now);
            let found = recent.latest(&key(), cached.map(|v| object("u", v)), now);
            assert_eq!(version(found).as_deref(), Some(expected), "{cached:?}");
        }
    }

    #[test]
    fn what_the_watch_overtook_never_comes_back() {
        let mut recent = Recent::default();
        let now = clock::now();
        recent.stored(object("u", "10"), now);
        recent.latest(&key(), Some(object("u", "10")), now);
        assert_eq!(version(recent.latest(&key(), None, now)), None);
    }

    #[test]
    fn the_end_of_an_object_ends_its_answers_and_no_others() {
        let mut recent = Recent::default();
        let now = clock::now();
        recent.stored(object("u", "10"), now);
        recent.deleted(&object("old", "9"), now);
        assert_eq!(
            version(recent.latest(&key(), None, now)).as_deref(),
            Some("10")
        );
        recent.deleted(&object("u", "12"), now);
        assert_eq!(version(recent.latest(&key(), None, now)), None);
    }

    #[test]
    fn an_answer_that_comes_after_the_end_of_its_object_does_not_count() {
        let mut recent = Recent::<Service>::default();
        let now = clock::now();
        recent.deleted(&object("u", "12"), now);
        assert!(!recent.stored(object("u", "11"), now));
        assert_eq!(version(recent.latest(&key(), None, now)), None);
        assert!(!recent.is_ahead(&key()));
        assert!(recent.stored(object("v", "13"), now), "a successor");
        assert_eq!(
            version(recent.latest(&key(), None, now)).as_deref(),
            Some("13")
        );
        assert!(recent.is_ahead(&key()));
    }

    #[test]
    fn ends_are_remembered_only_while_an_answer_may_be_late() {
        let mut recent = Recent::<Service>::default();
        let now = clock::now();
        recent.deleted(&object("u", "12"), now);
        let mut other = Service::default();
        other.metadata.name = Some("other".to_owned());
        recent.deleted(&other, now + LIFE);
        assert_eq!(recent.ended.len(), 1);
    }

    #[test]
    fn a_deleted_object_is_not_seen_again_but_its_successor_is() {
        let mut recent = Recent::default();
        let now = clock::now();
        recent.gone(key(), "u".to_owned(), now);
        assert_eq!(
            version(recent.latest(&key(), Some(object("u", "9")), now)),
            None
        );
        let successor = recent.latest(&key(), Some(object("v", "12")), now);
        assert_eq!(version(successor).as_deref(), Some("12"));
    }

    #[test]
    fn an_answer_that_the_watch_never_shows_is_forgotten() {
        let mut recent = Recent::default();
        let now = clock::now();
        recent.stored(object("u", "10"), now);
        assert_eq!(version(recent.latest(&key(), None, now + LIFE)), None);
    }
}
