//! What the Node objects say: addresses that are no VIPs, labels, and the soft conditions that keep
//! VIPs off a node. Pure.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::Node;

use crate::k8s::names;

/// One Node, as far as the speaker cares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    /// `InternalIP` and `ExternalIP`.
    pub addresses: Vec<IpAddr>,
    pub labels: BTreeMap<String, String>,
    /// The first soft condition that the node fails, in words; `None` when it passes all.
    pub impediment: Option<&'static str>,
}

impl NodeFacts {
    /// Facts of a node that has no Node object.
    pub fn unknown() -> Self {
        Self {
            impediment: Some("has no Node object"),
            ..Self::default()
        }
    }

    /// Cordon is deliberately no condition: peers that took it for one caused outages.
    pub fn of(node: &Node) -> Self {
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let addresses = node
            .status
            .iter()
            .flat_map(|status| status.addresses.iter().flatten())
            .filter(|address| matches!(address.type_.as_str(), "InternalIP" | "ExternalIP"))
            .filter_map(|address| address.address.parse().ok())
            .collect();
        Self {
            addresses,
            impediment: impediment(node, &labels),
            labels,
        }
    }
}

fn impediment(node: &Node, labels: &BTreeMap<String, String>) -> Option<&'static str> {
    let condition = |kind: &str| {
        node.status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .find(|condition| condition.type_ == kind)
            .map(|condition| condition.status.as_str())
    };
    let tainted = |key: &str| {
        let mut taints = node
            .spec
            .iter()
            .flat_map(|spec| spec.taints.iter().flatten());
        taints.any(|taint| taint.key == key)
    };
    if node.metadata.deletion_timestamp.is_some() {
        Some("is being deleted")
    } else if condition("Ready") != Some("True") {
        Some("is not Ready")
    } else if condition("NetworkUnavailable") == Some("True") {
        Some("has no network")
    } else if labels.contains_key(names::label::EXCLUDE_FROM_LOAD_BALANCERS) {
        Some("is labelled node.kubernetes.io/exclude-from-external-load-balancers")
    } else if tainted(names::taint::TO_BE_DELETED_BY_AUTOSCALER) {
        Some("is to be deleted by the cluster autoscaler")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{NodeAddress, NodeCondition, NodeSpec, NodeStatus, Taint},
        apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
        jiff::Timestamp,
    };

    use super::*;

    fn ready_node() -> Node {
        Node {
            metadata: ObjectMeta {
                name: Some("a".to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec::default()),
            status: Some(NodeStatus {
                conditions: Some(vec![condition("Ready", "True")]),
                ..NodeStatus::default()
            }),
        }
    }

    fn condition(kind: &str, status: &str) -> NodeCondition {
        NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            ..NodeCondition::default()
        }
    }

    #[test]
    fn a_ready_node_passes_and_each_condition_counts() {
        assert_eq!(NodeFacts::of(&ready_node()).impediment, None);
        let with = |change: fn(&mut Node)| {
            let mut node = ready_node();
            change(&mut node);
            NodeFacts::of(&node).impediment.is_some()
        };
        assert!(with(|n| n.status.as_mut().unwrap().conditions = None));
        assert!(with(
            |n| n.status.as_mut().unwrap().conditions = Some(vec![condition("Ready", "Unknown")])
        ));
        assert!(with(|n| n
            .status
            .as_mut()
            .unwrap()
            .conditions
            .as_mut()
            .unwrap()
            .push(condition("NetworkUnavailable", "True"))));
        assert!(with(
            |n| n.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH))
        ));
        assert!(with(|n| n.metadata.labels = Some(
            [(
                names::label::EXCLUDE_FROM_LOAD_BALANCERS.to_owned(),
                String::new()
            )]
            .into()
        )));
        assert!(with(|n| n.spec.as_mut().unwrap().taints =
            Some(vec![Taint {
                key: names::taint::TO_BE_DELETED_BY_AUTOSCALER.to_owned(),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            }])));
    }

    #[test]
    fn cordon_is_no_condition() {
        let mut node = ready_node();
        node.spec.as_mut().unwrap().unschedulable = Some(true);
        assert_eq!(NodeFacts::of(&node).impediment, None);
    }

    #[test]
    fn addresses_are_those_the_node_answers_for() {
        let mut node = ready_node();
        let address = |kind: &str, address: &str| NodeAddress {
            type_: kind.to_owned(),
            address: address.to_owned(),
        };
        node.status.as_mut().unwrap().addresses = Some(vec![
            address("InternalIP", "10.0.0.1"),
            address("ExternalIP", "fd00::1"),
            address("Hostname", "a"),
            address("InternalIP", "nonsense"),
        ]);
        let expected: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(NodeFacts::of(&node).addresses, expected);
    }
}
