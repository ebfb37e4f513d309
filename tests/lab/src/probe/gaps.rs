//! From single requests to gaps; pure.

use std::time::{Duration, Instant};

/// A time in which nothing was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// When the first request was sent that was not answered in time.
    pub start: Instant,
    /// Until the next answer arrived, or the probe's end.
    pub length: Duration,
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) sent: Instant,
    pub(super) outcome: Outcome,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing yet.
    Pending,
    Answered(Instant),
    /// There will be no answer.
    Failed,
}

impl Sample {
    pub(super) fn answered(&self) -> Option<Instant> {
        match self.outcome {
            Outcome::Answered(at) => Some(at),
            Outcome::Pending | Outcome::Failed => None,
        }
    }

    /// How long the answer took.
    pub(super) fn trip(&self) -> Option<Duration> {
        self.answered()
            .map(|at| at.saturating_duration_since(self.sent))
    }

    /// When the answer came, if it took no longer than `patience`.
    fn in_time(&self, patience: Duration) -> Option<Instant> {
        self.answered().filter(|_| self.trip() <= Some(patience))
    }

    /// It is too early to say whether it is lost.
    fn is_open(&self, patience: Duration, end: Instant) -> bool {
        self.outcome == Outcome::Pending && end.saturating_duration_since(self.sent) <= patience
    }
}

/// The gaps in `samples`, which are in the order of sending. A request that is answered later than
/// `patience` belongs to a gap as a lost one does: the answer was held up in some queue. A request
/// younger than `patience` at `end` has not been lost yet.
pub(super) fn gaps(samples: &[Sample], patience: Duration, end: Instant) -> Vec<Gap> {
    let mut found = Vec::new();
    let mut open: Option<Instant> = None;
    for sample in samples {
        match (sample.in_time(patience), open) {
            (Some(at), Some(start)) => {
                found.push(Gap {
                    start,
                    length: at.saturating_duration_since(start),
                });
                open = None;
            }
            (None, None) if !sample.is_open(patience, end) => open = Some(sample.sent),
            _ => {}
        }
    }
    found.extend(open.map(|start| Gap {
        start,
        length: end.saturating_duration_since(start),
    }));
    found
}

/// The longest of them, zero if there is none.
pub(super) fn longest(gaps: &[Gap]) -> Duration {
    gaps.iter().map(|gap| gap.length).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const PATIENCE: Duration = Duration::from_millis(50);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Requests by (sent, answered) milliseconds; gaps as (start, length).
    fn run(rows: &[(u64, Option<u64>)], end: u64) -> Vec<(Duration, Duration)> {
        let zero = clock::now();
        let samples: Vec<Sample> = rows
            .iter()
            .map(|(sent, answered)| Sample {
                sent: zero + ms(*sent),
                outcome: answered.map_or(Outcome::Pending, |at| Outcome::Answered(zero + ms(at))),
            })
            .collect();
        let found = gaps(&samples, PATIENCE, zero + ms(end));
        found
            .iter()
            .map(|gap| (gap.start - zero, gap.length))
            .collect()
    }

    #[test]
    fn answered_requests_have_no_gap() {
        assert_eq!(run(&[(0, Some(1)), (1, Some(1)), (2, Some(3))], 100), []);
    }

    #[test]
    fn a_gap_lasts_from_the_first_unanswered_request_to_the_next_answer() {
        let rows = [
            (0, Some(0)),
            (1, None),
            (2, None),
            (300, Some(301)),
            (301, Some(302)),
        ];
        assert_eq!(run(&rows, 400), [(ms(1), ms(300))]);
    }

    #[test]
    fn answers_from_a_queue_do_not_hide_the_outage() {
        let rows = [
            (0, Some(0)),
            (1, Some(200)),
            (100, Some(200)),
            (180, Some(200)),
        ];
        assert_eq!(run(&rows, 300), [(ms(1), ms(199))]);
    }

    #[test]
    fn a_failure_opens_a_gap_at_once() {
        let zero = clock::now();
        let failed = Sample {
            sent: zero,
            outcome: Outcome::Failed,
        };
        let found = gaps(&[failed], PATIENCE, zero + ms(5));
        assert_eq!(
            found,
            [Gap {
                start: zero,
                length: ms(5)
            }]
        );
    }

    #[test]
    fn an_outage_at_the_end_lasts_until_the_end_and_young_requests_are_not_lost() {
        assert_eq!(run(&[(0, Some(0)), (1, None)], 101), [(ms(1), ms(100))]);
        assert_eq!(run(&[(0, Some(0)), (1, None)], 51), []);
    }
}
