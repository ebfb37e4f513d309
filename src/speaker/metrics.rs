//! The speaker's metrics: kube-vip's names where they still make sense, and what it lacks.
//!
//! They are read by another thread at any time, so a series is only touched where it changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::AtomicU64,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{model::Model, observed::Phase};
use crate::election::LeaseKey;

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
struct LeaseName {
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
    transitions: Family<LeaseName, Counter>,
    announced: Gauge,
    held: Gauge,
    failing: Gauge,
    decisions: Counter<u64, AtomicU64>,
    /// Namespaces with Services at the last decision.
    namespaces: BTreeSet<String>,
    /// Leases held at the last decision, to count acquisitions.
    leading: BTreeSet<LeaseKey>,
    /// Leases whose acquisitions were counted.
    counted: BTreeSet<LeaseKey>,
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
        let mut services = BTreeMap::<&str, i64>::new();
        for (service, state) in &model.services {
            if state.selection.request.is_some() {
                *services.entry(&service.namespace).or_default() += 1;
            }
        }
        self.follow_services(&services);
        let seen = &model.observed;
        let leading: BTreeSet<&LeaseKey> = seen
            .contests
            .iter()
            .filter(|(_, contest)| matches!(contest.phase, Phase::Held { .. }))
            .map(|(lease, _)| lease)
            .collect();
        self.follow_leases(&model.config.node_name, &leading, |lease| {
            seen.contests.contains_key(lease) || seen.holders.contains_key(lease)
        });
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.held.set(count(leading.len()));
        self.announced.set(count(seen.announcing.len()));
        self.failing.set(count(seen.failures.len()));
    }

    fn follow_services(&mut self, services: &BTreeMap<&str, i64>) {
        let series = &self.active_services;
        self.namespaces.retain(|namespace| {
            let stays = services.contains_key(namespace.as_str());
            if !stays {
                series.remove(&Namespace {
                    namespace: namespace.clone(),
                });
            }
            stays
        });
        for (namespace, count) in services {
            let namespace = (*namespace).to_owned();
            self.namespaces.insert(namespace.clone());
            let labels = Namespace { namespace };
            series.get_or_create(&labels).set(*count);
        }
    }

    fn follow_leases(
        &mut self,
        node: &str,
        leading: &BTreeSet<&LeaseKey>,
        exists: impl Fn(&LeaseKey) -> bool,
    ) {
        let of_this_node = |lease: &LeaseKey| NodeLease {
            node: node.to_owned(),
            lease_name: lease.to_string(),
        };
        let of_all = |lease: &LeaseKey| LeaseName {
            lease_name: lease.to_string(),
        };
        let is_leader = &self.is_leader;
        self.leading.retain(|lease| {
            let stays = leading.contains(lease);
            if !stays {
                is_leader.remove(&of_this_node(lease));
            }
            stays
        });
        let transitions = &self.transitions;
        self.counted.retain(|lease| {
            let stays = leading.contains(lease) || exists(lease);
            if !stays {
                transitions.remove(&of_all(lease));
            }
            stays
        });
        for lease in leading {
            if self.leading.contains(*lease) {
                continue;
            }
            is_leader.get_or_create(&of_this_node(lease)).set(1);
            transitions.get_or_create(&of_all(lease)).inc();
            self.leading.insert((*lease).clone());
            self.counted.insert((*lease).clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn lease(name: &str) -> LeaseKey {
        LeaseKey {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        }
    }

    /// The lines of one metric, without its common prefix.
    fn lines(registry: &Registry, name: &str) -> Vec<String> {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let mut lines: Vec<String> = lines
            .filter(|line| line.starts_with('{'))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn acquisitions_are_counted_by_lease_until_it_is_gone() {
        let mut registry = Registry::default();
        let mut metrics = SpeakerMetrics::register(&mut registry, "n");
        let (a, b) = (lease("a"), lease("b"));
        let both = BTreeSet::from([&a, &b]);
        metrics.follow_leases("n", &both, |_| true);
        metrics.follow_leases("n", &BTreeSet::from([&b]), |_| true);
        let transitions = "kube_vip_leader_election_transitions_total";
        let leader = "kube_vip_is_leader";
        assert_eq!(
            lines(&registry, transitions),
            [r#"{lease_name="ns/a"} 1"#, r#"{lease_name="ns/b"} 1"#]
        );
        let held = [r#"{node="n",lease_name="ns/b"} 1"#];
        assert_eq!(lines(&registry, leader), held);
        metrics.follow_leases("n", &both, |_| true);
        metrics.follow_leases("n", &BTreeSet::from([&a]), |lease| *lease != b);
        let left = [r#"{lease_name="ns/a"} 2"#];
        assert_eq!(lines(&registry, transitions), left);
    }

    #[test]
    fn namespaces_without_services_have_no_series() {
        let mut registry = Registry::default();
        let mut metrics = SpeakerMetrics::register(&mut registry, "n");
        metrics.follow_services(&BTreeMap::from([("x", 2), ("y", 1)]));
        metrics.follow_services(&BTreeMap::from([("x", 3)]));
        let left = [r#"{namespace="x"} 3"#];
        assert_eq!(lines(&registry, "kube_vip_active_services"), left);
    }
}
