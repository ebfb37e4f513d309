//! What the EndpointSlices of a Service say about nodes: pure.
//!
//! All slices of a Service count together, and a condition that is not set means `true`, as the API
//! defines it. An endpoint that is not ready but still serves (it is terminating) counts only where
//! the whole cluster has no ready one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::selection::ServiceKey;
use crate::k8s::names;

/// The nodes of one slice's endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct SliceFacts {
    ready: BTreeSet<String>,
    serving: BTreeSet<String>,
    /// Endpoints without a node: they count for "any", for no node.
    ready_anywhere: bool,
    serving_anywhere: bool,
}

/// The nodes of all endpoints of one Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointFacts {
    ready: BTreeSet<String>,
    serving: BTreeSet<String>,
    any_ready: bool,
    any_serving: bool,
}

impl EndpointFacts {
    /// The Service has an endpoint that takes traffic, on whatever node.
    pub fn any(&self) -> bool {
        self.any_ready || self.any_serving
    }

    /// A node whose own endpoints take traffic: ready ones, or, where the cluster has no ready one,
    /// those that still serve while they terminate.
    pub fn on(&self, node: &str) -> bool {
        self.nodes().contains(node)
    }

    /// The nodes for which [`Self::on`] holds.
    pub fn nodes(&self) -> &BTreeSet<String> {
        if self.any_ready {
            &self.ready
        } else {
            &self.serving
        }
    }
}

/// Every slice that was seen, by Service.
#[derive(Debug, Default)]
pub struct Endpoints {
    slices: BTreeMap<ServiceKey, BTreeMap<String, SliceFacts>>,
    facts: BTreeMap<ServiceKey, EndpointFacts>,
}

impl Endpoints {
    /// Of a Service without slices: nothing.
    pub fn of(&self, service: &ServiceKey) -> &EndpointFacts {
        static NONE: EndpointFacts = EndpointFacts {
            ready: BTreeSet::new(),
            serving: BTreeSet::new(),
            any_ready: false,
            any_serving: false,
        };
        self.facts.get(service).unwrap_or(&NONE)
    }

    /// Takes a new or changed slice, and its former state, because a slice may move to another
    /// Service by its label. Returns whether any Service's facts changed.
    pub fn upsert(&mut self, old: Option<&EndpointSlice>, slice: &EndpointSlice) -> bool {
        let key = service_of(slice);
        let moved = old
            .filter(|old| service_of(old) != key)
            .is_some_and(|old| self.remove(old));
        let (Some(key), Some(name)) = (key, slice.metadata.name.clone()) else {
            return moved;
        };
        self.slices
            .entry(key.clone())
            .or_default()
            .insert(name, slice_facts(slice));
        self.refresh(&key) || moved
    }

    /// Forgets a slice. Returns whether its Service's facts changed.
    pub fn remove(&mut self, slice: &EndpointSlice) -> bool {
        let (Some(key), Some(name)) = (service_of(slice), &slice.metadata.name) else {
            return false;
        };
        if let Some(slices) = self.slices.get_mut(&key) {
            slices.remove(name);
            if slices.is_empty() {
                self.slices.remove(&key);
            }
        }
        self.refresh(&key)
    }

    fn refresh(&mut self, key: &ServiceKey) -> bool {
        let mut facts = EndpointFacts::default();
        for slice in self.slices.get(key).into_iter().flat_map(BTreeMap::values) {
            facts.ready.extend(slice.ready.iter().cloned());
            facts.serving.extend(slice.serving.iter().cloned());
            facts.any_ready |= slice.ready_anywhere;
            facts.any_serving |= slice.serving_anywhere;
        }
        let before = if self.slices.contains_key(key) {
            self.facts.insert(key.clone(), facts.clone())
        } else {
            self.facts.remove(key)
        };
        before.unwrap_or_default() != facts
    }
}

fn service_of(slice: &EndpointSlice) -> Option<ServiceKey> {
    let name = slice
        .metadata
        .labels
        .as_ref()?
        .get(names::label::SERVICE_NAME)?;
    Some(ServiceKey::new(slice.metadata.namespace.as_deref()?, name))
}

fn slice_facts(slice: &EndpointSlice) -> SliceFacts {
    let mut facts = SliceFacts::default();
    for endpoint in slice.endpoints.iter().filter(|e| !e.addresses.is_empty()) {
        let conditions = endpoint.conditions.as_ref();
        let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
        let serving = conditions.and_then(|c| c.serving).unwrap_or(ready);
        if ready {
            facts.ready_anywhere = true;
            facts.ready.extend(endpoint.node_name.clone());
        }
        if serving {
            facts.serving_anywhere = true;
            facts.serving.extend(endpoint.node_name.clone());
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::discovery::v1::{Endpoint, EndpointConditions},
        apimachinery::pkg::apis::meta::v1::ObjectMeta,
    };

    use super::*;

    type Conditions = (Option<bool>, Option<bool>, Option<bool>);

    fn slice(name: &str, service: &str, endpoints: &[(&str, Conditions)]) -> EndpointSlice {
        EndpointSlice {
            metadata: ObjectMeta {
                namespace: Some("shop".to_owned()),
                name: Some(name.to_owned()),
                labels: Some([(names::label::SERVICE_NAME.to_owned(), service.to_owned())].into()),
                ..ObjectMeta::default()
            },
            endpoints: endpoints
                .iter()
                .map(|(node, (ready, serving, terminating))| Endpoint {
                    addresses: vec!["10.244.0.9".to_owned()],
                    node_name: Some((*node).to_owned()),
                    conditions: Some(EndpointConditions {
                        ready: *ready,
                        serving: *serving,
                        terminating: *terminating,
                    }),
                    ..Endpoint::default()
                })
                .collect(),
            ..EndpointSlice::default()
        }
    }

    const READY: Conditions = (Some(true), Some(true), Some(false));
    const TERMINATING: Conditions = (Some(false), Some(true), Some(true));
    const UNREADY: Conditions = (Some(false), Some(false), Some(false));
    const UNSET: Conditions = (None, None, None);

    fn web() -> ServiceKey {
        ServiceKey::new("shop", "web")
    }

    fn nodes_of(slices: &[EndpointSlice]) -> Vec<String> {
        let mut endpoints = Endpoints::default();
        for slice in slices {
            endpoints.upsert(None, slice);
        }
        endpoints.of(&web()).nodes().iter().cloned().collect()
    }

    #[test]
    fn conditions_decide_which_nodes_count() {
        for (endpoints, expected) in [
            (vec![("a", READY), ("b", UNREADY)], vec!["a"]),
            (vec![("a", UNSET)], vec!["a"]),
            (vec![("a", TERMINATING)], vec!["a"]),
            (vec![("a", TERMINATING), ("b", READY)], vec!["b"]),
            (vec![("a", UNREADY)], vec![]),
        ] {
            assert_eq!(
                nodes_of(&[slice("s", "web", &endpoints)]),
                expected,
                "{endpoints:?}"
            );
        }
    }

    #[test]
    fn all_slices_of_a_service_count_together() {
        let both = [
            slice("one", "web", &[("a", READY)]),
            slice("two", "web", &[("b", READY)]),
        ];
        assert_eq!(nodes_of(&both), ["a", "b"]);
        let ready_elsewhere = [
            slice("one", "web", &[("a", TERMINATING)]),
            slice("two", "web", &[("b", READY)]),
        ];
        assert_eq!(nodes_of(&ready_elsewhere), ["b"]);
        assert_eq!(
            nodes_of(&[slice("one", "other", &[("a", READY)])]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_removed_slice_takes_only_its_own_endpoints() {
        let mut endpoints = Endpoints::default();
        let (one, two) = (
            slice("one", "web", &[("a", READY)]),
            slice("two", "web", &[("b", READY)]),
        );
        assert!(endpoints.upsert(None, &one));
        assert!(endpoints.upsert(None, &two));
        assert!(!endpoints.upsert(Some(&two), &two));
        assert!(endpoints.remove(&one));
        assert!(!endpoints.remove(&one));
        assert!(endpoints.of(&web()).on("b") && !endpoints.of(&web()).on("a"));
        assert!(endpoints.remove(&two));
        assert!(!endpoints.of(&web()).any());
    }

    #[test]
    fn a_slice_that_changes_its_service_leaves_the_old_one() {
        let mut endpoints = Endpoints::default();
        let before = slice("s", "web", &[("a", READY)]);
        endpoints.upsert(None, &before);
        assert!(endpoints.upsert(Some(&before), &slice("s", "other", &[("a", READY)])));
        assert!(!endpoints.of(&web()).any());
        assert!(endpoints.of(&ServiceKey::new("shop", "other")).on("a"));
    }

    #[test]
    fn an_endpoint_without_a_node_counts_for_the_service_only() {
        let mut one = slice("s", "web", &[("a", READY)]);
        for endpoint in &mut one.endpoints {
            endpoint.node_name = None;
        }
        let mut endpoints = Endpoints::default();
        endpoints.upsert(None, &one);
        let facts = endpoints.of(&web());
        assert!(facts.any() && facts.nodes().is_empty());
    }
}
