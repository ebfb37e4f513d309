//! What was said about each Service that is not as it should be, so that nothing is said twice. No I/O.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use crate::ccm::cache::ObjectKey;

/// Events expire; what still holds is said again.
pub(super) const REPEAT: Duration = Duration::from_secs(600);
/// Between two writes of the same object that are to have the host complete it.
pub(super) const RESEND: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Notes {
    unsettled: HashMap<ObjectKey, Note>,
    without_nodes: HashSet<ObjectKey>,
    /// When the objects were written last of those that are not settled.
    sent: HashMap<ObjectKey, Instant>,
}

#[derive(Debug)]
struct Note {
    since: Instant,
    told: Option<(String, Instant)>,
}

/// What to do about a Service that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Advice {
    pub tell: bool,
    /// When to look again if nothing happens.
    pub again: Duration,
}

impl Notes {
    /// The Service is not settled, for the reason `text`, which is worth telling after `patience`.
    pub(super) fn unsettled(
        &mut self,
        key: &ObjectKey,
        text: &str,
        patience: Duration,
        now: Instant,
    ) -> Advice {
        let note = self.unsettled.entry(key.clone()).or_insert(Note {
            since: now,
            told: None,
        });
        let due = note.since + patience;
        if now < due {
            let again = due.saturating_duration_since(now);
            return Advice { tell: false, again };
        }
        let old = note.told.as_ref().filter(|(told, _)| told == text);
        let repeat = old.map(|(_, at)| *at + REPEAT).filter(|at| now < *at);
        if let Some(repeat) = repeat {
            let again = repeat.saturating_duration_since(now);
            return Advice { tell: false, again };
        }
        note.told = Some((text.to_owned(), now));
        Advice {
            tell: true,
            again: REPEAT,
        }
    }

    pub(super) fn settled(&mut self, key: &ObjectKey) {
        self.unsettled.remove(key);
        self.sent.remove(key);
    }

    /// The Service's object was written.
    pub(super) fn sent(&mut self, key: &ObjectKey, now: Instant) {
        self.sent.insert(key.clone(), now);
    }

    /// Whether the object was written so lately that the same again is not worth a try.
    pub(super) fn is_just_sent(&self, key: &ObjectKey, now: Instant) -> bool {
        self.sent.get(key).is_some_and(|&at| now < at + RESEND)
    }

    /// Whether it is news that the Service has no node behind it.
    pub(super) fn nodes(&mut self, key: &ObjectKey, any: bool) -> bool {
        if any {
            self.without_nodes.remove(key);
            return false;
        }
        self.without_nodes.insert(key.clone())
    }

    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.unsettled.remove(key);
        self.without_nodes.remove(key);
        self.sent.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_passes_in_time_is_not_told_and_the_rest_is_told_once_until_it_is_old() {
        let mut notes = Notes::default();
        let key = ObjectKey::new("a", "s");
        let start = clock::now();
        let mut at = |seconds: u32, text: &str| {
            let advice = notes.unsettled(&key, text, SECOND * 10, start + SECOND * seconds);
            (advice.tell, advice.again.as_secs())
        };
        assert_eq!(at(0, "x"), (false, 10));
        assert_eq!(at(4, "y"), (false, 6));
        assert_eq!(at(10, "y"), (true, 600));
        assert_eq!(at(11, "y"), (false, 599));
        assert_eq!(at(12, "z"), (true, 600));
        assert_eq!(at(612, "z"), (true, 600));
    }

    #[test]
    fn what_was_settled_begins_anew() {
        let mut notes = Notes::default();
        let key = ObjectKey::new("a", "s");
        let now = clock::now();
        assert!(notes.unsettled(&key, "x", Duration::ZERO, now).tell);
        assert!(!notes.unsettled(&key, "x", Duration::ZERO, now).tell);
        notes.settled(&key);
        assert!(notes.unsettled(&key, "x", Duration::ZERO, now).tell);
    }

    #[test]
    fn an_object_is_sent_again_after_a_pause() {
        let mut notes = Notes::default();
        let key = ObjectKey::new("a", "s");
        let now = clock::now();
        assert!(!notes.is_just_sent(&key, now));
        notes.sent(&key, now);
        assert!(notes.is_just_sent(&key, now + RESEND / 2));
        assert!(!notes.is_just_sent(&key, now + RESEND));
    }

    #[test]
    fn missing_nodes_are_news_once() {
        let mut notes = Notes::default();
        let key = ObjectKey::new("a", "s");
        let told: Vec<bool> = [true, false, false, true, false]
            .into_iter()
            .map(|any| notes.nodes(&key, any))
            .collect();
        assert_eq!(told, [false, true, false, false, true]);
    }
}
