//! What to write to a Node: its initialisation, its labels, its addresses. Pure.
//!
//! In: the Node as last read, and what the host says of it. Out: merge patches, `None` where nothing
//! is to be written. The changes are the framework's node controller's; the order is the caller's.

use k8s_openapi::api::core::v1::{Node, NodeAddress, Taint};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::addresses;
use crate::{
    ccm::instance::Metadata,
    k8s::names::{label, taint},
};

/// Each label with its former name, which counts more where it is present.
const PAIRS: [(&str, &str); 3] = [
    (label::BETA_ZONE, label::ZONE),
    (label::BETA_REGION, label::REGION),
    (label::BETA_INSTANCE_TYPE, label::INSTANCE_TYPE),
];

/// Whether the node waits for its cloud provider.
pub(in crate::ccm) fn is_uninitialized(node: &Node) -> bool {
    taints(node)
        .iter()
        .any(|taint| taint.key == taint::UNINITIALIZED)
}

/// Provider ID, labels and the taint's removal in one; `None` if the node does not wait.
pub(super) fn initialisation(node: &Node, metadata: &Metadata) -> Option<Value> {
    if !is_uninitialized(node) {
        return None;
    }
    let kept: Vec<&Taint> = taints(node)
        .iter()
        .filter(|taint| taint.key != taint::UNINITIALIZED)
        .collect();
    let mut spec = json!({"taints": if kept.is_empty() { Value::Null } else { json!(kept) }});
    let has_id = node
        .spec
        .as_ref()
        .and_then(|spec| spec.provider_id.as_deref())
        .is_some_and(|id| !id.is_empty());
    if !has_id && let Value::Object(spec) = &mut spec {
        spec.insert("providerID".to_owned(), metadata.provider_id.clone().into());
    }
    let mut labels = Map::new();
    for (value, keys) in [
        (&metadata.zone, [label::BETA_ZONE, label::ZONE]),
        (&metadata.region, [label::BETA_REGION, label::REGION]),
    ] {
        if let Some(value) = value {
            set_missing(&mut labels, node, &keys, value);
        }
    }
    let mut patch = json!({"spec": spec});
    if let Value::Object(patch) = &mut patch
        && !labels.is_empty()
    {
        patch.insert("metadata".to_owned(), json!({"labels": labels}));
    }
    Some(patch)
}

/// Makes labels equal to those of their former names.
pub(super) fn label_reconciliation(node: &Node) -> Option<Value> {
    let mut labels = Map::new();
    for (beta, stable) in PAIRS {
        if let Some(value) = node.labels().get(beta) {
            set_missing(&mut labels, node, &[stable], value);
        }
    }
    (!labels.is_empty()).then(|| json!({"metadata": {"labels": labels}}))
}

/// The whole list of addresses, if it is not what the node has, in order.
pub(super) fn address_update(node: &Node, desired: &[NodeAddress]) -> Option<Value> {
    let differs = addresses::listed(node) != desired;
    differs.then(|| json!({"status": {"addresses": desired}}))
}

fn taints(node: &Node) -> &[Taint] {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

fn set_missing(labels: &mut Map<String, Value>, node: &Node, keys: &[&str], value: &str) {
    for key in keys {
        if node.labels().get(*key).is_none_or(|found| found != value) {
            labels.insert((*key).to_owned(), value.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ccm::instance::Silence;

    const TAINT: &str = taint::UNINITIALIZED;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn tainted(metadata: &Value, provider_id: Option<&str>, others: &[Value]) -> Node {
        let mut taints = others.to_vec();
        taints.insert(
            0,
            json!({"key": TAINT, "value": "true", "effect": "NoSchedule"}),
        );
        node(json!({
            "metadata": metadata, "spec": {"providerID": provider_id, "taints": taints},
        }))
    }

    fn metadata(zone: Option<&str>, region: Option<&str>) -> Metadata {
        Metadata {
            provider_id: "harvester://u1".to_owned(),
            zone: zone.map(str::to_owned),
            region: region.map(str::to_owned),
            addresses: Err(Silence::NoAddress),
        }
    }

    #[test]
    fn fw_n16_other_taints_are_kept_and_only_the_clouds_goes() {
        let other = json!({"key": "ImproveCoverageTaint", "value": "true", "effect": "NoSchedule"});
        let node = tainted(&json!({"name": "n1"}), None, std::slice::from_ref(&other));
        let patch = initialisation(&node, &metadata(None, None));
        let expected = json!({"spec": {"providerID": "harvester://u1", "taints": [other]}});
        assert_eq!(patch, Some(expected));
    }

    #[test]
    fn the_taint_goes_whatever_its_value_and_effect() {
        let node = node(json!({"metadata": {"name": "n1"}, "spec": {"taints": [
            {"key": TAINT, "value": "true", "effect": "PreferNoSchedule"},
            {"key": TAINT, "effect": "NoExecute"}]}}));
        let patch = initialisation(&node, &metadata(None, None)).unwrap();
        assert_eq!(patch["spec"]["taints"], Value::Null);
    }

    #[test]
    fn fw_n15_zone_and_region_are_set_under_both_names_and_overwrite() {
        let present = json!({"name": "n1", "labels": {
            "topology.kubernetes.io/zone": "old", "topology.kubernetes.io/region": "r1"}});
        let node = tainted(&present, None, &[]);
        let patch = initialisation(&node, &metadata(Some("z1"), Some("r1"))).unwrap();
        let expected = json!({
            "failure-domain.beta.kubernetes.io/zone": "z1",
            "topology.kubernetes.io/zone": "z1",
            "failure-domain.beta.kubernetes.io/region": "r1",
        });
        assert_eq!(patch["metadata"]["labels"], expected);
    }

    #[test]
    fn fw_n13_fw_n20_a_provider_id_that_is_set_is_never_rewritten() {
        for id in ["harvester://u0", "k3s://n1"] {
            let node = tainted(&json!({"name": "n1"}), Some(id), &[]);
            let patch = initialisation(&node, &metadata(None, None)).unwrap();
            assert_eq!(patch, json!({"spec": {"taints": null}}), "{id}");
        }
    }

    #[test]
    fn fw_n14_a_node_that_does_not_wait_is_left_alone() {
        let node = node(json!({"metadata": {"name": "n1"}, "spec": {}}));
        assert_eq!(initialisation(&node, &metadata(Some("z"), None)), None);
    }

    #[test]
    fn fw_n23_to_n25_former_names_of_labels_decide() {
        let beta = |value: &str| {
            json!({
                "failure-domain.beta.kubernetes.io/zone": value,
                "failure-domain.beta.kubernetes.io/region": value,
                "beta.kubernetes.io/instance-type": value,
            })
        };
        let stable = |value: &str| {
            json!({
                "topology.kubernetes.io/zone": value,
                "topology.kubernetes.io/region": value,
                "node.kubernetes.io/instance-type": value,
            })
        };
        let both = |a: Value, b: Value| -> Value {
            let mut all = a.as_object().unwrap().clone();
            all.extend(b.as_object().unwrap().clone());
            all.into()
        };
        for (what, labels, expected) in [
            ("N23", beta("a"), Some(stable("a"))),
            ("N24", both(beta("a"), stable("a")), None),
            ("N25", both(beta("a"), stable("b")), Some(stable("a"))),
            ("stable only", stable("b"), None),
        ] {
            let node = node(json!({"metadata": {"name": "n1", "labels": labels}}));
            let expected = expected.map(|labels| json!({"metadata": {"labels": labels}}));
            assert_eq!(label_reconciliation(&node), expected, "{what}");
        }
    }

    #[test]
    fn fw_n26_to_n30_addresses_are_compared_as_ordered_lists() {
        let list = |entries: &[(&str, &str)]| -> Vec<NodeAddress> {
            let entries = entries.iter().map(|(kind, address)| NodeAddress {
                address: (*address).to_owned(),
                type_: (*kind).to_owned(),
            });
            entries.collect()
        };
        let (host, inner) = (("Hostname", "n1"), ("InternalIP", "10.0.0.5"));
        let second = ("InternalIP", "fd00::5");
        for (what, old, new, changed) in [
            ("N26", vec![host, inner], vec![host, inner], false),
            (
                "N27",
                vec![host, inner],
                vec![host, ("InternalIP", "10.0.0.6")],
                true,
            ),
            ("N28", vec![host, inner, second], vec![host, inner], true),
            ("N29", vec![host], vec![host, inner], true),
            (
                "N30",
                vec![("Hostname", "a"), ("InternalIP", "b")],
                vec![("Hostname", "b"), ("InternalIP", "a")],
                true,
            ),
            (
                "two of a type",
                vec![inner, second, host],
                vec![inner, second, host],
                false,
            ),
            (
                "another order",
                vec![inner, second],
                vec![second, inner],
                true,
            ),
        ] {
            let status = json!({"addresses": list(&old)});
            let node = node(json!({"metadata": {"name": "n1"}, "status": status}));
            let expected = changed.then(|| json!({"status": {"addresses": list(&new)}}));
            assert_eq!(address_update(&node, &list(&new)), expected, "{what}");
        }
    }
}
