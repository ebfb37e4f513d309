//! Where a node's machine runs, as labels of the node. Pure.
//!
//! In: the Node and its instance. Out: a merge patch of labels. The host annotates an instance with
//! zone and region of the host node that it runs on, anew after each migration; only for instances
//! that Rancher's machine driver made.
//!
//! The Go program taints the node so that it is initialised again; this patches the labels. Labels
//! are removed too, but only those that a cloud provider set: it writes them under their former name
//! as well, which people do not.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::{
    ccm::{instance, node::plan},
    harvester::kubevirt::{CREATOR_LABEL, MACHINE_DRIVER, VirtualMachineInstance},
    k8s::names::label,
};

/// Whether the instance is one whose annotations tell where it runs now.
pub(super) fn is_settled(instance: &VirtualMachineInstance) -> bool {
    let creator = instance.labels().get(CREATOR_LABEL);
    creator.is_some_and(|creator| creator == MACHINE_DRIVER)
        && instance.metadata.deletion_timestamp.is_none()
        && !instance.annotations().is_empty()
        && !instance.is_migrating()
}

/// Whether the host has annotated the instance at all; a new one runs for a moment without.
pub(super) fn is_annotated(instance: &VirtualMachineInstance) -> bool {
    instance::topology(instance) != instance::Topology::default()
}

/// The labels that differ. `may_remove`: an annotation that is missing is so on purpose.
pub(super) fn labels(
    node: &Node,
    instance: &VirtualMachineInstance,
    may_remove: bool,
) -> Option<Value> {
    // Initialisation sets them.
    if plan::is_uninitialized(node) || !is_settled(instance) {
        return None;
    }
    let topology = instance::topology(instance);
    let mut changed = Map::new();
    for (wanted, stable, beta) in [
        (topology.zone, label::ZONE, label::BETA_ZONE),
        (topology.region, label::REGION, label::BETA_REGION),
    ] {
        let is_ours = node.labels().contains_key(beta);
        for key in [stable, beta] {
            let found = node.labels().get(key);
            match &wanted {
                Some(wanted) if found != Some(wanted) => {
                    changed.insert(key.to_owned(), wanted.as_str().into());
                }
                None if found.is_some() && is_ours && may_remove => {
                    changed.insert(key.to_owned(), Value::Null);
                }
                _ => {}
            }
        }
    }
    (!changed.is_empty()).then(|| json!({"metadata": {"labels": changed}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(annotations: &Value, creator: &str, migrating: bool) -> VirtualMachineInstance {
        let value = json!({
            "metadata": {"name": "n1", "annotations": annotations,
                         "labels": {CREATOR_LABEL: creator}},
            "status": {"migrationState": migrating.then(|| json!({"completed": false}))},
        });
        serde_json::from_value(value).unwrap()
    }

    fn node(labels: &Value, taint: Option<&str>) -> Node {
        let taints = taint.map(|key| json!([{"key": key, "effect": "NoSchedule"}]));
        let node =
            json!({"metadata": {"name": "n1", "labels": labels}, "spec": {"taints": taints}});
        serde_json::from_value(node).unwrap()
    }

    fn here(zone: &str, region: &str) -> Value {
        json!({"kubevirt.io/x": "y", label::ZONE: zone, label::REGION: region})
    }

    fn set(zone: &str, region: &str) -> Value {
        json!({
            label::ZONE: zone, label::BETA_ZONE: zone,
            label::REGION: region, label::BETA_REGION: region,
        })
    }

    #[test]
    fn labels_follow_the_host_node() {
        let unannotated = json!({"kubevirt.io/x": "y"});
        let gone = json!({
            label::ZONE: null, label::BETA_ZONE: null,
            label::REGION: null, label::BETA_REGION: null,
        });
        let by_hand = json!({label::ZONE: "mine"});
        for (what, labels_now, annotations, may_remove, expected) in [
            ("the same", set("z1", "r1"), here("z1", "r1"), true, None),
            (
                "another zone",
                set("z1", "r1"),
                here("z2", "r1"),
                true,
                Some(json!({label::ZONE: "z2", label::BETA_ZONE: "z2"})),
            ),
            (
                "none yet",
                json!({}),
                here("z1", "r1"),
                true,
                Some(set("z1", "r1")),
            ),
            (
                "set by hand, but the host knows better",
                by_hand.clone(),
                here("z1", "r1"),
                true,
                Some(set("z1", "r1")),
            ),
            (
                "no longer annotated",
                set("z1", "r1"),
                unannotated.clone(),
                true,
                Some(gone),
            ),
            (
                "perhaps not yet annotated",
                set("z1", "r1"),
                unannotated.clone(),
                false,
                None,
            ),
            (
                "set by hand, and the host knows nothing",
                by_hand,
                unannotated,
                true,
                None,
            ),
            (
                "what can be no label counts as missing",
                set("z1", "r1"),
                here("no label", "r1"),
                true,
                Some(json!({label::ZONE: null, label::BETA_ZONE: null})),
            ),
        ] {
            let instance = instance(&annotations, MACHINE_DRIVER, false);
            let patch = labels(&node(&labels_now, None), &instance, may_remove);
            let expected = expected.map(|labels| json!({"metadata": {"labels": labels}}));
            assert_eq!(patch, expected, "{what}");
        }
    }

    #[test]
    fn nothing_is_said_of_machines_on_their_way_or_of_others_making() {
        let old = node(&set("z1", "r1"), None);
        let there = here("z2", "r2");
        for silent in [
            instance(&there, MACHINE_DRIVER, true),
            instance(&there, "somebody", false),
            instance(&json!({}), MACHINE_DRIVER, false),
        ] {
            assert_eq!(labels(&old, &silent, true), None);
        }
        let waiting = node(
            &json!({}),
            Some("node.cloudprovider.kubernetes.io/uninitialized"),
        );
        let moved = instance(&there, MACHINE_DRIVER, false);
        assert_eq!(labels(&waiting, &moved, true), None);
        assert!(labels(&old, &moved, true).is_some());
    }
}
