//! What the speaker's informers need not keep of an object: most of it. Pure.
//!
//! A cluster's Nodes, Services and EndpointSlices are kept for as long as they exist; what nothing
//! here reads would be most of the process's memory.

use k8s_openapi::api::{
    core::v1::{Node, NodeStatus, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};

/// As long as the object itself, and only kubectl reads it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Keeps everything but what kubectl remembers.
pub(super) fn service(service: &mut Service) {
    if let Some(annotations) = &mut service.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// Keeps metadata, taints, addresses and conditions.
pub(super) fn node(node: &mut Node) {
    node.metadata.annotations = None;
    node.status = node.status.take().map(|status| NodeStatus {
        addresses: status.addresses,
        conditions: status.conditions,
        ..NodeStatus::default()
    });
}

/// Keeps metadata, and of each endpoint its node, its conditions and that it has an address.
pub(super) fn slice(slice: &mut EndpointSlice) {
    slice.metadata.annotations = None;
    slice.ports = None;
    for endpoint in &mut slice.endpoints {
        let whole = std::mem::take(endpoint);
        let mut addresses = whole.addresses;
        addresses.truncate(1);
        *endpoint = Endpoint {
            addresses,
            conditions: whole.conditions,
            node_name: whole.node_name,
            ..Endpoint::default()
        };
    }
    slice.endpoints.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::speaker::{endpoints::Endpoints, nodes::NodeFacts, selection::ServiceKey};

    fn pruned<K>(object: Value, prune: fn(&mut K)) -> (K, K)
    where
        K: serde::de::DeserializeOwned + Clone,
    {
        let whole: K = serde_json::from_value(object).unwrap();
        let mut kept = whole.clone();
        prune(&mut kept);
        (whole, kept)
    }

    #[test]
    fn a_node_says_the_same_and_takes_less() {
        let (whole, kept) = pruned(
            json!({
                "metadata": {
                    "name": "a", "labels": {"zone": "z"}, "annotations": {"long": "text"},
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
                "status": {
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "images": [{"names": ["image"], "sizeBytes": 1}],
                    "volumesInUse": ["volume"], "capacity": {"cpu": "2"},
                },
            }),
            node,
        );
        assert_eq!(NodeFacts::of(&whole), NodeFacts::of(&kept));
        assert_eq!(
            (&whole.spec, &whole.metadata.labels),
            (&kept.spec, &kept.metadata.labels)
        );
        let text = serde_json::to_string(&kept).unwrap();
        for gone in ["image", "volume", "cpu", "long"] {
            assert!(!text.contains(gone), "{gone} in {text}");
        }
    }

    #[test]
    fn a_slice_says_the_same_and_takes_less() {
        let (whole, kept) = pruned(
            json!({
                "metadata": {
                    "namespace": "shop", "name": "s", "annotations": {"long": "text"},
                    "labels": {"kubernetes.io/service-name": "web"},
                },
                "addressType": "IPv4",
                "ports": [{"port": 8080}],
                "endpoints": [
                    {
                        "addresses": ["10.244.0.9", "10.244.0.10"], "nodeName": "a", "zone": "z",
                        "conditions": {"ready": false, "serving": true, "terminating": true},
                        "targetRef": {"kind": "Pod", "name": "pod"}, "hostname": "host",
                        "hints": {"forZones": [{"name": "hinted"}]},
                    },
                    {"addresses": ["10.244.0.11"], "nodeName": "b", "conditions": {"ready": false}},
                ],
            }),
            slice,
        );
        let facts = |slice: &EndpointSlice| {
            let mut endpoints = Endpoints::default();
            endpoints.upsert(None, slice);
            let facts = endpoints.of(&ServiceKey::new("shop", "web"));
            (facts.any(), facts.nodes().clone())
        };
        assert_eq!(facts(&whole), facts(&kept));
        assert!(facts(&kept).1.contains("a"));
        let text = serde_json::to_string(&kept).unwrap();
        for gone in [
            "pod",
            "host",
            "hinted",
            "8080",
            "10.244.0.10",
            "long",
            "zone",
        ] {
            assert!(!text.contains(&format!("\"{gone}")), "{gone} in {text}");
        }
    }

    #[test]
    fn a_service_loses_only_what_kubectl_remembers() {
        let (whole, kept) = pruned(
            json!({
                "metadata": {"name": "web", "annotations": {LAST_APPLIED: "{}", "kept": "yes"}},
                "spec": {"type": "LoadBalancer"},
            }),
            service,
        );
        let annotations = kept.metadata.annotations.unwrap();
        assert_eq!(annotations.into_keys().collect::<Vec<_>>(), ["kept"]);
        assert_eq!(whole.spec, kept.spec);
    }
}
