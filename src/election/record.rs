//! What a Lease says, as client-go's `LeaderElectionRecord` reads and writes it. Pure.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};

/// `leaseDurationSeconds` of a released Lease, as client-go writes it.
const RELEASED_DURATION: Duration = Duration::from_secs(1);

/// The election's part of a Lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// `None` when released; absent and empty mean the same.
    pub holder: Option<String>,
    /// `None` when missing or not positive.
    pub duration: Option<Duration>,
    pub acquire_time: Option<Timestamp>,
    pub renew_time: Option<Timestamp>,
    pub transitions: i32,
}

impl LeaseRecord {
    /// The record with which `holder` takes or renews the Lease that says `before`: who held it
    /// already keeps `acquireTime` and `leaseTransitions`, a new holder counts one transition,
    /// a Lease that did not exist starts at zero.
    pub fn held(before: Option<&Self>, holder: &str, duration: Duration, wall: Timestamp) -> Self {
        let kept = before.filter(|record| record.holder.as_deref() == Some(holder));
        let transitions = match (kept, before) {
            (Some(record), _) => record.transitions,
            (None, Some(record)) => record.transitions.saturating_add(1),
            (None, None) => 0,
        };
        Self {
            holder: Some(holder.to_owned()),
            duration: Some(duration),
            acquire_time: kept.and_then(|record| record.acquire_time).or(Some(wall)),
            renew_time: Some(wall),
            transitions,
        }
    }

    /// The record with which the holder of the Lease that says `self` lets it go.
    #[must_use]
    pub fn released(&self, wall: Timestamp) -> Self {
        Self {
            holder: None,
            duration: Some(RELEASED_DURATION),
            acquire_time: Some(wall),
            renew_time: Some(wall),
            transitions: self.transitions,
        }
    }

    /// Whether a holder let the Lease go with this record, as [`Self::released`] and client-go write
    /// it. A holder field that somebody else emptied leaves the other fields as they were.
    pub fn is_release(&self) -> bool {
        self.holder.is_none() && self.duration == Some(RELEASED_DURATION)
    }

    /// Writes the record into `spec` and leaves the other fields alone.
    pub fn write_to(&self, spec: &mut LeaseSpec) {
        // An empty string, not an absent field: that is what client-go writes and expects.
        spec.holder_identity = Some(self.holder.clone().unwrap_or_default());
        spec.lease_duration_seconds = self
            .duration
            .map(|duration| i32::try_from(duration.as_secs()).unwrap_or(i32::MAX));
        spec.acquire_time = self.acquire_time.map(MicroTime);
        spec.renew_time = self.renew_time.map(MicroTime);
        spec.lease_transitions = Some(self.transitions);
    }
}

impl From<&Lease> for LeaseRecord {
    fn from(lease: &Lease) -> Self {
        let Some(spec) = &lease.spec else {
            return Self::default();
        };
        Self {
            holder: spec
                .holder_identity
                .clone()
                .filter(|holder| !holder.is_empty()),
            duration: spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
            acquire_time: spec.acquire_time.as_ref().map(|time| time.0),
            renew_time: spec.renew_time.as_ref().map(|time| time.0),
            transitions: spec.lease_transitions.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(15);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_new_lease_starts_without_transitions() {
        let record = LeaseRecord::held(None, "a", DURATION, at(10));
        assert_eq!((record.transitions, record.acquire_time), (0, Some(at(10))));
    }

    #[test]
    fn a_renewal_keeps_acquire_time_and_transitions() {
        let first = LeaseRecord {
            transitions: 4,
            ..LeaseRecord::held(None, "a", DURATION, at(10))
        };
        let renewed = LeaseRecord::held(Some(&first), "a", DURATION, at(12));
        assert_eq!(
            (renewed.transitions, renewed.acquire_time),
            (4, Some(at(10)))
        );
        assert_eq!(renewed.renew_time, Some(at(12)));
    }

    #[test]
    fn another_holder_and_a_released_lease_count_a_transition() {
        let first = LeaseRecord::held(None, "a", DURATION, at(10));
        let taken = LeaseRecord::held(Some(&first), "b", DURATION, at(30));
        assert_eq!((taken.transitions, taken.acquire_time), (1, Some(at(30))));
        let back = LeaseRecord::held(Some(&taken.released(at(40))), "b", DURATION, at(41));
        assert_eq!((back.transitions, back.acquire_time), (2, Some(at(41))));
    }

    #[test]
    fn the_wire_form_is_client_gos() {
        let mut lease = Lease {
            spec: Some(LeaseSpec {
                strategy: Some("kept".to_owned()),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        let time = Timestamp::new(10, 123_456_789).unwrap();
        let record = LeaseRecord::held(None, "n1_speaker", DURATION, time);
        record.write_to(lease.spec.as_mut().unwrap());
        let spec = serde_json::to_value(lease.spec.as_ref().unwrap()).unwrap();
        assert_eq!(
            spec,
            serde_json::json!({
                "holderIdentity": "n1_speaker", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                "acquireTime": "1970-01-01T00:00:10.123456Z",
                "renewTime": "1970-01-01T00:00:10.123456Z", "strategy": "kept",
            })
        );
        record.released(time).write_to(lease.spec.as_mut().unwrap());
        let released = LeaseRecord::from(&lease);
        assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
        assert_eq!(
            (released.holder, released.duration),
            (None, Some(RELEASED_DURATION))
        );
    }

    #[test]
    fn nonsense_in_a_lease_reads_as_missing() {
        let lease = Lease {
            spec: Some(LeaseSpec {
                lease_duration_seconds: Some(-3),
                holder_identity: Some(String::new()),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        assert_eq!(LeaseRecord::from(&lease), LeaseRecord::default());
        assert_eq!(LeaseRecord::from(&Lease::default()), LeaseRecord::default());
    }
}
