//! One sync at a time for Services that depend on each other. No I/O.
//!
//! The work queue keeps two workers from one Service; a secondary also needs its primary to hold
//! still, or the primary could give its address back, or a sibling take the same port, between the
//! decision and the write. Who finds a Service taken does not wait, which would cost a worker, but is
//! named when it is free.

use std::collections::{BTreeSet, HashMap};

use crate::ccm::cache::ObjectKey;

#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Those taken, with who asked for them meanwhile.
    taken: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl Turns {
    /// Takes all of `keys` or none.
    pub(super) fn take(&mut self, keys: &BTreeSet<ObjectKey>, asker: &ObjectKey) -> bool {
        for key in keys {
            if let Some(waiting) = self.taken.get_mut(key) {
                waiting.insert(asker.clone());
                return false;
            }
        }
        for key in keys {
            self.taken.insert(key.clone(), BTreeSet::new());
        }
        true
    }

    /// Frees `keys` and names those who asked.
    pub(super) fn free(&mut self, keys: &BTreeSet<ObjectKey>) -> BTreeSet<ObjectKey> {
        let waiting = keys.iter().filter_map(|key| self.taken.remove(key));
        waiting.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[&str]) -> BTreeSet<ObjectKey> {
        names
            .iter()
            .map(|name| ObjectKey::new("a", *name))
            .collect()
    }

    #[test]
    fn who_finds_a_service_taken_is_named_when_it_is_free() {
        let mut turns = Turns::default();
        let key = |name| ObjectKey::new("a", name);
        assert!(turns.take(&keys(&["p", "s1"]), &key("s1")));
        assert!(!turns.take(&keys(&["p", "s2"]), &key("s2")));
        assert!(!turns.take(&keys(&["p"]), &key("p")));
        assert!(
            turns.take(&keys(&["s2"]), &key("s2")),
            "a refusal takes nothing"
        );
        assert_eq!(turns.free(&keys(&["p", "s1"])), keys(&["p", "s2"]));
        assert!(turns.take(&keys(&["p"]), &key("p")));
        assert_eq!(turns.free(&keys(&["p"])), keys(&[]));
    }
}
