//! Counters of all announcers of this process. Labels are small enums, never addresses.

use std::{net::IpAddr, sync::LazyLock};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family as MetricFamily},
    registry::Registry,
};

/// The address family of a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Family {
    #[expect(non_camel_case_types, reason = "the label's text")]
    ipv4,
    #[expect(non_camel_case_types, reason = "the label's text")]
    ipv6,
}

impl From<IpAddr> for Family {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::ipv4,
            IpAddr::V6(_) => Self::ipv6,
        }
    }
}

/// What a frame was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Kind {
    #[expect(non_camel_case_types, reason = "the label's text")]
    announcement,
    #[expect(non_camel_case_types, reason = "the label's text")]
    question,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FrameLabels {
    pub(super) family: Family,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FamilyLabels {
    pub(super) family: Family,
}

/// Counted since the start of the process.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) frames: MetricFamily<FrameLabels, Counter>,
    pub(super) failures: MetricFamily<FrameLabels, Counter>,
    pub(super) answers: MetricFamily<FamilyLabels, Counter>,
    pub(super) conflicts: MetricFamily<FamilyLabels, Counter>,
    pub(super) defences: MetricFamily<FamilyLabels, Counter>,
}

pub(super) static COUNTERS: LazyLock<Counters> = LazyLock::new(Counters::default);

/// Makes the counters part of a registry.
pub fn register(registry: &mut Registry) {
    let registry = registry.sub_registry_with_prefix("vip_announcer");
    registry.register(
        "frames_sent",
        "Neighbour resolution frames sent",
        COUNTERS.frames.clone(),
    );
    registry.register(
        "frames_failed",
        "Neighbour resolution frames that could not be sent",
        COUNTERS.failures.clone(),
    );
    registry.register(
        "answers",
        "Answers to questions about VIPs",
        COUNTERS.answers.clone(),
    );
    registry.register(
        "rival_claims",
        "Claims of announced VIPs by other hosts",
        COUNTERS.conflicts.clone(),
    );
    registry.register(
        "defences",
        "Announcements in reply to the claims of other hosts",
        COUNTERS.defences.clone(),
    );
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn counters_are_exposed_by_family_and_kind() {
        let mut registry = Registry::default();
        register(&mut registry);
        let labels = FrameLabels {
            family: Family::ipv6,
            kind: Kind::question,
        };
        COUNTERS.frames.get_or_create(&labels).inc();
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let line = r#"vip_announcer_frames_sent_total{family="ipv6",kind="question"}"#;
        assert!(text.contains(line), "{text}");
    }
}
