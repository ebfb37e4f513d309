//! May a VIP that we own go on the link yet? What the link answered decides. Pure.
//!
//! ```text
//!                    ┌── clear ──▶ Clear ── 1 s ──▶ (settled: the entry ends)
//! (no entry) ─▶ Asking                │ an answer that still comes counts
//!                    └── answered ──▶ Answered ── retry ──▶ Asking
//! ```
//!
//! A VIP is asked for before it is put on the link (RFC 5227 in short form, see the announcer's
//! witness), unless its last owner was one of us and gave it up in good order. Answers from nodes of
//! the cluster are either kube-vip, which is respected, or kube-proxy in IPVS mode without strict
//! ARP, which is no conflict. A node that answers late is an owner of before that has not noticed its
//! loss yet: to give the VIP up for it would leave it without anybody, so it is only announced more
//! often for a while.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use super::announcer::Question;
use crate::{
    config::ConflictPolicy,
    net::link::{LinkIndex, MacAddress},
};

/// For this long a clear verdict lets a VIP go on the link, and late answers still count.
pub const CLEAR_FOR: Duration = Duration::from_secs(1);
/// kube-vip releases its Lease before it removes the address; it is waited for at most this long.
pub const KUBE_VIP_LIMIT: Duration = Duration::from_secs(2);
/// Pause before asking again where a node's kube-vip answers.
const KUBE_VIP_RETRY: Duration = Duration::from_secs(1);
/// Pauses before asking again where a foreign host answers: doubling between these.
const CONFLICT_RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Who answered for a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub by: MacAddress,
    /// The node of this cluster that the MAC belongs to.
    pub node: Option<IpAddr>,
}

/// What is known of one VIP on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wire {
    pub link: LinkIndex,
    state: State,
    /// Answered verdicts in a row, for the retry pause.
    answers: u32,
    /// The last of them.
    last: Option<Answer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Asking(Question),
    Clear {
        at: Instant,
        /// A node that answered late.
        rival: Option<Answer>,
    },
    Answered {
        answer: Answer,
        at: Instant,
        after_waiting: bool,
    },
}

/// What to do about a VIP that this node is to announce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Put it on the link. `rival`: somebody answers for it all the same.
    Go { rival: Option<Answer> },
    /// Ask the link (or go on asking).
    Ask(Question),
    /// Not now; judge again at `until`.
    Wait { until: Instant, answer: Answer },
}

impl Wire {
    pub fn asking(link: LinkIndex, question: Question) -> Self {
        Self {
            link,
            state: State::Asking(question),
            answers: 0,
            last: None,
        }
    }

    /// The question that is open, late answers included.
    pub fn question(&self, now: Instant) -> Option<Question> {
        match &self.state {
            State::Asking(question) => Some(*question),
            State::Clear { at, rival: None } if now.saturating_duration_since(*at) < CLEAR_FOR => {
                Some(Question::New)
            }
            State::Clear { .. } | State::Answered { .. } => None,
        }
    }

    /// The next moment at which [`Self::question`] or [`Self::verdict`] changes by itself.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Clear { at, .. } => Some(*at + CLEAR_FOR),
            State::Asking(_) | State::Answered { .. } => None,
        }
    }

    /// Who answered last, until the address is found clear.
    pub fn last_answer(&self) -> Option<Answer> {
        self.last
    }

    /// No verdict yet.
    pub fn is_asking(&self) -> bool {
        matches!(self.state, State::Asking(_))
    }

    /// Clear, and the time for late answers is over.
    pub fn is_settled(&self, now: Instant) -> bool {
        matches!(&self.state, State::Clear { at, .. } if now.saturating_duration_since(*at) >= CLEAR_FOR)
    }

    pub fn handle_clear(&mut self, now: Instant) {
        if matches!(self.state, State::Asking(_)) {
            self.state = State::Clear {
                at: now,
                rival: None,
            };
            self.answers = 0;
            self.last = None;
        }
    }

    pub fn handle_answer(&mut self, answer: Answer, now: Instant) {
        let after_waiting = matches!(self.state, State::Asking(Question::UntilSilent { .. }));
        if answer.node.is_some() && matches!(self.state, State::Clear { .. }) {
            self.state = State::Clear {
                at: now,
                rival: Some(answer),
            };
            return;
        }
        if !matches!(self.state, State::Answered { .. }) {
            self.answers = self.answers.saturating_add(1);
            self.last = Some(answer);
            self.state = State::Answered {
                answer,
                at: now,
                after_waiting,
            };
        }
    }

    /// Judges the VIP; may start the next question.
    pub fn verdict(&mut self, judge: Judge, now: Instant) -> Verdict {
        let (answer, at, after_waiting) = match &self.state {
            State::Asking(question) => return Verdict::Ask(*question),
            State::Clear {
                at,
                rival: Some(answer),
            } if judge.kube_vip_serves => {
                return self.retry(*answer, *at + KUBE_VIP_RETRY, now);
            }
            State::Clear { rival, .. } => return Verdict::Go { rival: *rival },
            State::Answered {
                answer,
                at,
                after_waiting,
            } => (*answer, *at, *after_waiting),
        };
        match answer.node {
            Some(_) if judge.kube_vip_serves => self.retry(answer, at + KUBE_VIP_RETRY, now),
            Some(_) if after_waiting => Verdict::Go {
                rival: Some(answer),
            },
            Some(_) => self.ask(Question::UntilSilent {
                limit: KUBE_VIP_LIMIT,
            }),
            None if judge.policy == ConflictPolicy::Warn => Verdict::Go {
                rival: Some(answer),
            },
            None => self.retry(answer, at + self.conflict_pause(), now),
        }
    }

    fn retry(&mut self, answer: Answer, until: Instant, now: Instant) -> Verdict {
        if now < until {
            Verdict::Wait { until, answer }
        } else {
            self.ask(Question::New)
        }
    }

    fn ask(&mut self, question: Question) -> Verdict {
        self.state = State::Asking(question);
        Verdict::Ask(question)
    }

    fn conflict_pause(&self) -> Duration {
        let (first, most) = CONFLICT_RETRY;
        first
            .saturating_mul(1 << self.answers.saturating_sub(1).min(8))
            .min(most)
    }
}

/// What beside the wire decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judge {
    /// A live Lease says that kube-vip serves Services from one of the nodes.
    pub kube_vip_serves: bool,
    pub policy: ConflictPolicy,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkIndex = LinkIndex(2);
    const FOREIGN: Answer = Answer {
        by: MacAddress([2, 0, 0, 0, 0, 9]),
        node: None,
    };
    const ALONE: Judge = Judge {
        kube_vip_serves: false,
        policy: ConflictPolicy::Refuse,
    };

    fn node() -> Answer {
        Answer {
            node: "10.0.0.2".parse().ok(),
            ..FOREIGN
        }
    }

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    fn start() -> Instant {
        crate::runtime::clock::now()
    }

    #[test]
    fn a_silent_link_lets_the_vip_go_and_still_listens_for_a_second() {
        let t = start();
        let mut wire = Wire::asking(LINK, Question::New);
        assert_eq!(wire.verdict(ALONE, t), Verdict::Ask(Question::New));
        wire.handle_clear(at(t, 10));
        assert_eq!(wire.verdict(ALONE, at(t, 10)), Verdict::Go { rival: None });
        assert_eq!(wire.question(at(t, 900)), Some(Question::New));
        assert_eq!(wire.question(at(t, 1_010)), None);
        assert!(wire.is_settled(at(t, 1_010)));
    }

    #[test]
    fn a_late_answer_still_counts() {
        let t = start();
        let mut wire = Wire::asking(LINK, Question::New);
        wire.handle_clear(at(t, 10));
        wire.handle_answer(FOREIGN, at(t, 500));
        let Verdict::Wait { until, answer } = wire.verdict(ALONE, at(t, 500)) else {
            panic!("a foreign answer must hold the VIP back");
        };
        assert_eq!((until, answer), (at(t, 5_500), FOREIGN));
    }

    #[test]
    fn a_node_that_answers_late_is_a_rival_for_a_while_and_takes_nothing() {
        let t = start();
        let mut wire = Wire::asking(LINK, Question::New);
        wire.handle_clear(at(t, 10));
        wire.handle_answer(node(), at(t, 40));
        let go = Verdict::Go {
            rival: Some(node()),
        };
        assert_eq!(wire.verdict(ALONE, at(t, 40)), go);
        assert_eq!(wire.question(at(t, 40)), None);
        assert!(!wire.is_settled(at(t, 1_039)));
        assert!(wire.is_settled(at(t, 1_040)));
    }

    #[test]
    fn a_foreign_answer_is_asked_about_again_with_growing_pauses() {
        let t = start();
        let mut wire = Wire::asking(LINK, Question::New);
        let mut pauses = Vec::new();
        let mut now = t;
        for _ in 0..6 {
            wire.handle_answer(FOREIGN, now);
            let Verdict::Wait { until, .. } = wire.verdict(ALONE, now) else {
                panic!("no wait")
            };
            pauses.push((until - now).as_secs());
            now = until;
            assert_eq!(wire.verdict(ALONE, now), Verdict::Ask(Question::New));
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
    }

    #[test]
    fn with_the_warn_policy_a_foreign_answer_stops_nothing() {
        let t = start();
        let mut wire = Wire::asking(LINK, Question::New);
        wire.handle_answer(FOREIGN, t);
        let judge = Judge {
            policy: ConflictPolicy::Warn,
            ..ALONE
        };
        assert_eq!(
            wire.verdict(judge, t),
            Verdict::Go {
                rival: Some(FOREIGN)
            }
        );
    }

    #[test]
    fn a_node_that_answers_is_waited_for_and_then_no_conflict() {
        let t = start();
        let mut wire = Wire::asking(LINK, Question::New);
        wire.handle_answer(node(), t);
        let waiting = Question::UntilSilent {
            limit: KUBE_VIP_LIMIT,
        };
        assert_eq!(wire.verdict(ALONE, t), Verdict::Ask(waiting));
        wire.handle_answer(node(), at(t, 2_000));
        assert_eq!(
            wire.verdict(ALONE, at(t, 2_000)),
            Verdict::Go {
                rival: Some(node())
            }
        );
    }

    #[test]
    fn a_kube_vip_that_serves_is_respected_until_it_stops() {
        let t = start();
        let mut wire = Wire::asking(LINK, Question::New);
        let judge = Judge {
            kube_vip_serves: true,
            ..ALONE
        };
        wire.handle_answer(node(), t);
        assert_eq!(
            wire.verdict(judge, t),
            Verdict::Wait {
                until: at(t, 1_000),
                answer: node()
            }
        );
        assert_eq!(
            wire.verdict(judge, at(t, 1_000)),
            Verdict::Ask(Question::New)
        );
        wire.handle_clear(at(t, 1_010));
        assert_eq!(
            wire.verdict(judge, at(t, 1_010)),
            Verdict::Go { rival: None }
        );
    }
}
