//! What is due when: one instant per key, the earliest at hand. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    time::Instant,
};

#[derive(Debug)]
pub(super) struct Agenda<K> {
    by_time: BTreeSet<(Instant, K)>,
    by_key: HashMap<K, Instant>,
}

impl<K: Copy + Ord + Hash> Agenda<K> {
    pub(super) fn new() -> Self {
        Self {
            by_time: BTreeSet::new(),
            by_key: HashMap::new(),
        }
    }

    /// Replaces what the key was due at.
    pub(super) fn set(&mut self, key: K, at: Instant) {
        self.cancel(key);
        self.by_key.insert(key, at);
        self.by_time.insert((at, key));
    }

    pub(super) fn cancel(&mut self, key: K) {
        if let Some(at) = self.by_key.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    pub(super) fn contains(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    /// When the first key is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes the first key if it is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<K> {
        let (at, key) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.cancel(key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::runtime::clock;

    #[test]
    fn keys_come_out_in_the_order_of_their_time_and_only_when_due() {
        let t = clock::now();
        let ms = Duration::from_millis;
        let mut agenda = Agenda::new();
        for (key, at) in [(1, 30), (2, 10), (3, 20), (4, 5)] {
            agenda.set(key, t + ms(at));
        }
        agenda.set(1, t + ms(1));
        agenda.cancel(4);
        assert!(!agenda.contains(4));
        assert_eq!(agenda.next(), Some(t + ms(1)));
        let due: Vec<i32> = std::iter::from_fn(|| agenda.pop_due(t + ms(15))).collect();
        assert_eq!(due, [1, 2]);
        assert_eq!(agenda.pop_due(t + ms(20)), Some(3));
        assert_eq!(agenda.next(), None);
    }

    proptest! {
        /// Against a plain list: each key has one time, and due keys come out in order.
        #[test]
        fn it_behaves_as_a_list_that_is_searched(
            changes in prop::collection::vec((0..8_u8, prop::option::of(0..100_u64)), 0..60),
            until in 0..100_u64,
        ) {
            let zero = clock::now();
            let at = |millis| zero + Duration::from_millis(millis);
            let mut agenda = Agenda::new();
            let mut list: Vec<(u64, u8)> = Vec::new();
            for (key, time) in changes {
                list.retain(|(_, known)| *known != key);
                match time {
                    Some(time) => {
                        agenda.set(key, at(time));
                        list.push((time, key));
                    }
                    None => agenda.cancel(key),
                }
                prop_assert_eq!(agenda.next(), list.iter().min().map(|(time, _)| at(*time)));
            }
            list.sort_unstable();
            let due: Vec<u8> = std::iter::from_fn(|| agenda.pop_due(at(until))).collect();
            let expected: Vec<u8> =
                list.iter().filter(|(time, _)| *time <= until).map(|(_, key)| *key).collect();
            prop_assert_eq!(due, expected);
        }
    }
}
