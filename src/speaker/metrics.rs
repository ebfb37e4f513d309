//! The speaker's metrics: kube-vip's names where they still make sense, and what it lacks.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{model::Model, observed::Phase};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Namespace {
    namespace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLease {
    node: String,
    lease_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: String,
    build: String,
    node: String,
}

/// Gauges and counters, updated after each decision.
#[derive(Debug, Clone, Default)]
pub struct SpeakerMetrics {
    active_services: Family<Namespace, Gauge>,
    is_leader: Family<NodeLease, Gauge>,
    transitions: Family<NodeLease, Counter>,
    announced: Gauge,
    held: Gauge,
    failing: Gauge,
    decisions: Counter<u64, AtomicU64>,
    /// Leases held at the last decision, to count acquisitions.
    leading: Vec<NodeLease>,
}

impl SpeakerMetrics {
    pub fn register(registry: &mut Registry, node: &str) -> Self {
        let metrics = Self::default();
        registry.register(
            "kube_vip_active_services",
            "Services that this speaker serves or stands ready for",
            metrics.active_services.clone(),
        );
        registry.register(
            "kube_vip_is_leader",
            "1 while this node holds the Lease",
            metrics.is_leader.clone(),
        );
        registry.register(
            "kube_vip_leader_election_transitions",
            "Acquisitions of the Lease by this node",
            metrics.transitions.clone(),
        );
        registry.register(
            "speaker_vips_announced",
            "VIPs announced by this node",
            metrics.announced.clone(),
        );
        registry.register(
            "speaker_leases_held",
            "Leases held by this node",
            metrics.held.clone(),
        );
        registry.register(
            "speaker_addresses_failing",
            "VIPs that the kernel refused at the last try",
            metrics.failing.clone(),
        );
        registry.register(
            "speaker_decisions",
            "Rounds of desired state and plan",
            metrics.decisions.clone(),
        );
        let build = Family::<BuildLabels, Gauge>::default();
        let labels = BuildLabels {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: "harvester-cloud-provider".to_owned(),
            node: node.to_owned(),
        };
        build.get_or_create(&labels).set(1);
        registry.register("kube_vip_build_info", "Version of the speaker", build);
        metrics
    }

    /// Follows the model after a decision.
    pub fn observe(&mut self, model: &Model) {
        self.decisions.inc();
        let node = &model.config.node_name;
        self.active_services.clear();
        for (service, _) in model
            .services
            .iter()
            .filter(|(_, s)| s.selection.request.is_some())
        {
            let namespace = service.namespace.to_string();
            self.active_services
                .get_or_create(&Namespace { namespace })
                .inc();
        }
        let leading: Vec<NodeLease> = model
            .observed
            .contests
            .iter()
            .filter(|(_, contest)| matches!(contest.phase, Phase::Held { .. }))
            .map(|(lease, _)| NodeLease {
                node: node.clone(),
                lease_name: lease.to_string(),
            })
            .collect();
        self.is_leader.clear();
        for lease in &leading {
            self.is_leader.get_or_create(lease).set(1);
            if self
                .leading
                .binary_search_by(|l| l.lease_name.cmp(&lease.lease_name))
                .is_err()
            {
                self.transitions.get_or_create(lease).inc();
            }
        }
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.held.set(count(leading.len()));
        self.announced.set(count(model.observed.announcing.len()));
        self.failing.set(count(model.observed.failures.len()));
        self.leading = leading;
        self.leading.sort_by(|a, b| a.lease_name.cmp(&b.lease_name));
    }
}
