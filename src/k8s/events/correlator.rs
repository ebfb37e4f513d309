//! Which events become objects: client-go's event correlation. Pure; time is passed in.
//!
//! In this order, as there:
//! 1. Events that differ only in their message: from the eleventh different message within ten
//!    minutes on they are folded into one, marked as combined.
//! 2. An identical event counts up the object of the earlier one.
//! 3. A bucket of 25 for each object and type, refilled by one each five minutes, so that many
//!    Normal events cannot silence a Warning; what exceeds it is dropped.
//!
//! State is bounded: the entry not used for the longest time makes room.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;

use super::{Event, Kind, MESSAGE_LIMIT, ObjectRef};

const MOST_ENTRIES: usize = 4096;
const MOST_DIFFERENT: usize = 10;
const SIMILARITY_WINDOW: Duration = Duration::from_secs(10 * 60);
const BURST: f64 = 25.0;
const REFILL_PERIOD: Duration = Duration::from_secs(5 * 60);
const COMBINED: &str = "(combined from similar events): ";
/// Longest name of an object, and of the time in hexadecimal with its dot.
const NAME_LIMIT: usize = 253;
const TIME_LENGTH: usize = 17;

/// What to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Create(Written),
    /// Count, last time and message of an object written before.
    Update(Written),
}

/// The changing part of an event's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub name: String,
    pub count: i32,
    pub first: Timestamp,
    pub last: Timestamp,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Similar {
    regarding: ObjectRef,
    kind: Kind,
    reason: &'static str,
}

/// `None` as message: the combined one.
type Same = (Similar, Option<String>);

#[derive(Debug)]
struct Different {
    messages: HashSet<String>,
    last: Instant,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    last: Instant,
}

#[derive(Debug)]
struct Known {
    written: Written,
    last: Instant,
}

/// The state of correlation.
#[derive(Debug, Default)]
pub struct Correlator {
    different: HashMap<Similar, Different>,
    known: HashMap<Same, Known>,
    buckets: HashMap<(ObjectRef, Kind), Bucket>,
}

impl Correlator {
    /// What becomes of `event`; `None` drops it.
    pub fn observe(&mut self, event: &Event, now: Instant, wall: Timestamp) -> Option<Verdict> {
        let combined = self.is_one_of_many(event, now);
        if !self.spend(event, now) {
            return None;
        }
        let message = shown(&event.message, combined);
        let key = same(event, combined);
        if let Some(known) = self.known.get_mut(&key) {
            known.last = now;
            known.written.count = known.written.count.saturating_add(1);
            known.written.last = wall;
            known.written.message = message;
            return Some(Verdict::Update(known.written.clone()));
        }
        let written = Written {
            name: name(event, wall),
            count: 1,
            first: wall,
            last: wall,
            message,
        };
        make_room(&mut self.known, |known| known.last);
        let known = Known {
            written: written.clone(),
            last: now,
        };
        self.known.insert(key, known);
        Some(Verdict::Create(written))
    }

    /// The object of `event` is gone from the server: what to create in its place.
    pub fn rename(&mut self, event: &Event, wall: Timestamp) -> Written {
        let fresh = Written {
            name: name(event, wall),
            count: 1,
            first: wall,
            last: wall,
            message: shown(&event.message, false),
        };
        let combined = same(event, true);
        let exact = same(event, false);
        // The combined one has taken over wherever both exist.
        let key = if self.known.contains_key(&combined) {
            combined
        } else {
            exact
        };
        match self.known.get_mut(&key) {
            Some(known) => {
                known.written = Written {
                    message: known.written.message.clone(),
                    ..fresh
                };
                known.written.clone()
            }
            None => fresh,
        }
    }

    fn is_one_of_many(&mut self, event: &Event, now: Instant) -> bool {
        let key = similar(event);
        if !self.different.contains_key(&key) {
            make_room(&mut self.different, |different| different.last);
        }
        let different = self.different.entry(key).or_insert_with(|| Different {
            messages: HashSet::new(),
            last: now,
        });
        if now.saturating_duration_since(different.last) > SIMILARITY_WINDOW {
            different.messages.clear();
        }
        different.last = now;
        if different.messages.len() < MOST_DIFFERENT || different.messages.contains(&event.message)
        {
            different.messages.insert(event.message.clone());
            return false;
        }
        true
    }

    fn spend(&mut self, event: &Event, now: Instant) -> bool {
        let key = (event.regarding.clone(), event.kind);
        if !self.buckets.contains_key(&key) {
            make_room(&mut self.buckets, |bucket| bucket.last);
        }
        let bucket = self.buckets.entry(key).or_insert(Bucket {
            tokens: BURST,
            last: now,
        });
        let passed = now.saturating_duration_since(bucket.last);
        let refill = passed.as_secs_f64() / REFILL_PERIOD.as_secs_f64();
        bucket.tokens = (bucket.tokens + refill).min(BURST);
        bucket.last = now;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }
}

fn similar(event: &Event) -> Similar {
    Similar {
        regarding: event.regarding.clone(),
        kind: event.kind,
        reason: event.reason,
    }
}

fn same(event: &Event, combined: bool) -> Same {
    let message = (!combined).then(|| event.message.clone());
    (similar(event), message)
}

fn shown(message: &str, combined: bool) -> String {
    let mut shown = if combined {
        format!("{COMBINED}{message}")
    } else {
        message.to_owned()
    };
    shown.truncate(cut(&shown, MESSAGE_LIMIT));
    shown
}

/// The last character boundary up to `limit`.
fn cut(text: &str, limit: usize) -> usize {
    (0..=limit.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or_default()
}

/// The object's name and the time in hexadecimal nanoseconds.
/// Unique by its time; what every instance says has one name for all of them.
fn name(event: &Event, wall: Timestamp) -> String {
    let regarding = &event.regarding;
    let mut stem = regarding.name.clone();
    stem.truncate(cut(&stem, NAME_LIMIT - TIME_LENGTH));
    let stem = stem.trim_end_matches(['-', '.']);
    if event.shared {
        let mut hasher = DefaultHasher::new();
        (regarding, event.kind, event.reason, &event.message).hash(&mut hasher);
        return format!("{stem}.{:016x}", hasher.finish());
    }
    format!("{stem}.{:x}", wall.as_nanosecond())
}

fn make_room<K: Clone + Eq + Hash, V>(map: &mut HashMap<K, V>, last: impl Fn(&V) -> Instant) {
    if map.len() < MOST_ENTRIES {
        return;
    }
    let oldest = map
        .iter()
        .min_by_key(|(_, value)| last(value))
        .map(|(key, _)| key.clone());
    if let Some(key) = oldest {
        map.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock;

    fn event(message: &str) -> Event {
        Event {
            regarding: ObjectRef {
                api_version: "v1".to_owned(),
                kind: "Service".to_owned(),
                namespace: "a".to_owned(),
                name: "s".to_owned(),
                uid: "u".to_owned(),
            },
            kind: Kind::Warning,
            reason: "Trouble",
            message: message.to_owned(),
            shared: false,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn an_identical_event_counts_up_the_first() {
        let mut correlator = Correlator::default();
        let now = clock::now();
        let first = correlator.observe(&event("x"), now, at(1)).unwrap();
        let Verdict::Create(created) = first else {
            panic!("{first:?}");
        };
        assert_eq!((created.name.as_str(), created.count), ("s.3b9aca00", 1));
        let second = correlator.observe(&event("x"), now, at(5)).unwrap();
        let expected = Written {
            count: 2,
            last: at(5),
            ..created
        };
        assert_eq!(second, Verdict::Update(expected));
    }

    #[test]
    fn the_eleventh_different_message_is_folded_and_later_ones_count_it_up() {
        let mut correlator = Correlator::default();
        let now = clock::now();
        for number in 0..10 {
            let verdict = correlator.observe(&event(&number.to_string()), now, at(number));
            assert!(matches!(verdict, Some(Verdict::Create(_))), "{number}");
        }
        let Some(Verdict::Create(folded)) = correlator.observe(&event("10"), now, at(10)) else {
            panic!("the folded one is created");
        };
        assert_eq!(folded.message, "(combined from similar events): 10");
        let Some(Verdict::Update(folded)) = correlator.observe(&event("11"), now, at(11)) else {
            panic!("the folded one is counted up");
        };
        assert_eq!((folded.count, folded.message.ends_with("11")), (2, true));
        // A message known from before stays itself.
        let known = correlator.observe(&event("3"), now, at(12));
        assert!(matches!(known, Some(Verdict::Update(w)) if w.message == "3"));
        // After a quiet window all is forgotten.
        let later = now + SIMILARITY_WINDOW + Duration::from_secs(1);
        let fresh = correlator.observe(&event("12"), later, at(900));
        assert!(matches!(fresh, Some(Verdict::Create(w)) if w.message == "12"));
    }

    #[test]
    fn twenty_five_pass_and_then_one_each_five_minutes() {
        let mut correlator = Correlator::default();
        let now = clock::now();
        let mut passes = |after: u64| {
            let at_ = now + Duration::from_secs(after);
            correlator.observe(&event("x"), at_, at(1)).is_some()
        };
        assert_eq!((0..40).filter(|_| passes(0)).count(), 25);
        assert!(!passes(299));
        assert!(passes(301));
        assert!(!passes(302));
        // Another type, another object: buckets of their own.
        let mut normal = event("x");
        normal.kind = Kind::Normal;
        assert!(correlator.observe(&normal, now, at(1)).is_some());
    }

    #[test]
    fn an_object_that_expired_is_written_under_a_new_name() {
        let mut correlator = Correlator::default();
        let now = clock::now();
        correlator.observe(&event("x"), now, at(1));
        correlator.observe(&event("x"), now, at(2));
        let fresh = correlator.rename(&event("x"), at(3));
        assert_eq!((fresh.name.as_str(), fresh.count), ("s.b2d05e00", 1));
        let next = correlator.observe(&event("x"), now, at(4));
        assert!(matches!(next, Some(Verdict::Update(w)) if w.count == 2 && w.name == fresh.name));
    }

    #[test]
    fn long_names_and_messages_are_cut_to_what_the_server_takes() {
        let mut long = event(&"ä".repeat(2000));
        long.regarding.name = format!("{}-.{}", "n".repeat(234), "x".repeat(60));
        let mut correlator = Correlator::default();
        let verdict = correlator.observe(&long, clock::now(), at(1_900_000_000));
        let Some(Verdict::Create(written)) = verdict else {
            panic!("{verdict:?}");
        };
        assert!(written.message.len() <= MESSAGE_LIMIT);
        assert!(written.name.len() <= NAME_LIMIT && written.name.starts_with("nnn"));
        assert!(!written.name.contains("-.") && !written.name.contains(".."));
    }

    #[test]
    fn state_is_bounded() {
        let mut correlator = Correlator::default();
        let now = clock::now();
        for number in 0..MOST_ENTRIES + 100 {
            let mut event = event("x");
            event.regarding.name = number.to_string();
            correlator.observe(&event, now, at(1));
        }
        assert_eq!(correlator.known.len(), MOST_ENTRIES);
        assert_eq!(correlator.buckets.len(), MOST_ENTRIES);
        assert_eq!(correlator.different.len(), MOST_ENTRIES);
    }
}
