//! Which nodes count as back ends of load balancers: pure.
//!
//! The infrastructure cluster is told nothing about nodes, so all that is decided by them is whether
//! there is any. The predicates are the framework's stable ones: readiness does not count.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::k8s::names::{label, taint};

pub(super) fn is_eligible(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let leaving = taints.is_some_and(|taints| {
        let mut keys = taints.iter().map(|taint| taint.key.as_str());
        keys.any(|key| key == taint::TO_BE_DELETED_BY_AUTOSCALER)
    });
    node.metadata.deletion_timestamp.is_none() && !is_excluded(node) && !leaving
}

/// The label excludes unless its value is false, as Go parses booleans.
fn is_excluded(node: &Node) -> bool {
    let value = node.labels().get(label::EXCLUDE_FROM_LOAD_BALANCERS);
    value.is_some_and(|value| !["0", "f", "F", "false", "False", "FALSE"].contains(&value.as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn eligible(node: Value) -> bool {
        is_eligible(&serde_json::from_value(node).unwrap())
    }

    fn labelled(value: &str) -> Value {
        json!({"metadata": {"name": "n", "labels": {
            "node.kubernetes.io/exclude-from-external-load-balancers": value}}})
    }

    #[test]
    fn fw_s19_s21_s25_readiness_and_other_taints_do_not_matter() {
        for ready in ["True", "False", "Unknown"] {
            assert!(eligible(json!({
                "metadata": {"name": "n"},
                "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}], "unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            })));
        }
        assert!(eligible(json!({"metadata": {"name": "n"}})));
    }

    #[test]
    fn fw_s20_s86_a_node_that_the_autoscaler_removes_does_not_count() {
        for effect in ["NoSchedule", "PreferNoSchedule"] {
            let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": effect});
            assert!(!eligible(
                json!({"metadata": {"name": "n"}, "spec": {"taints": [taint]}})
            ));
        }
    }

    #[test]
    fn fw_s22_s81_to_s85_the_exclusion_label_excludes_unless_it_says_false() {
        for value in ["", "true", "foo", "FaLsE", "no"] {
            assert!(!eligible(labelled(value)), "{value:?}");
        }
        for value in ["false", "False", "FALSE", "f", "F", "0"] {
            assert!(eligible(labelled(value)), "{value:?}");
        }
        assert!(eligible(json!({"metadata": {"name": "n", "labels": {}}})));
    }

    #[test]
    fn fw_s24_a_node_that_is_being_deleted_does_not_count() {
        assert!(!eligible(json!({"metadata": {
            "name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"}})));
    }
}
