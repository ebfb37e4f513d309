//! What the EndpointSlices of a Service say about nodes: pure.
//!
//! All slices of a Service count together, and a condition that is not set means `true`, as the API
//! defines it. An endpoint that is not ready but still serves (it is terminating) counts only where
//! the whole cluster has no ready one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::selection::ServiceKey;
use crate::k8s::names;

/// A node's name, one allocation for a Service.
type NodeName = Arc<str>;

/// Endpoints of one condition in one slice.
#[derive(Debug, Default)]
struct Share {
    nodes: BTreeSet<NodeName>,
    /// There are some, if only without a node: they count for "any", for no node.
    anywhere: bool,
}

impl Share {
    fn add(&mut self, node: Option<&str>, known: &Tally) {
        self.anywhere = true;
        if let Some(node) = node.filter(|node| !self.nodes.contains(*node)) {
            self.nodes.insert(known.name(node));
        }
    }
}

/// Endpoints of one condition in all slices of a Service.
#[derive(Debug, Default)]
struct Tally {
    nodes: BTreeSet<NodeName>,
    /// In how many slices a node is named.
    slices_of: BTreeMap<NodeName, usize>,
    /// Slices with any endpoint.
    slices: usize,
    /// Names looked at, ever.
    #[cfg(test)]
    work: usize,
}

impl Tally {
    const NONE: Self = Self {
        nodes: BTreeSet::new(),
        slices_of: BTreeMap::new(),
        slices: 0,
        #[cfg(test)]
        work: 0,
    };

    fn name(&self, node: &str) -> NodeName {
        let known = self.nodes.get(node);
        known.map_or_else(|| node.into(), Arc::clone)
    }

    /// Puts what a slice says now in the place of what it said. Returns whether that shows: a node
    /// appears or goes, or the first endpoint or the last.
    fn replace(&mut self, old: &Share, new: &Share) -> bool {
        #[cfg(test)]
        {
            self.work += old.nodes.len() + new.nodes.len();
        }
        let mut changed = false;
        for node in new.nodes.difference(&old.nodes) {
            *self.slices_of.entry(Arc::clone(node)).or_default() += 1;
            changed |= self.nodes.insert(Arc::clone(node));
        }
        for node in old.nodes.difference(&new.nodes) {
            let Some(count) = self.slices_of.get_mut(node) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.slices_of.remove(node);
                changed |= self.nodes.remove(node);
            }
        }
        let before = self.slices > 0;
        self.slices = self.slices + usize::from(new.anywhere) - usize::from(old.anywhere);
        changed || before != (self.slices > 0)
    }
}

/// What one slice says.
#[derive(Debug, Default)]
struct SliceFacts {
    ready: Share,
    serving: Share,
}

impl SliceFacts {
    fn of(slice: &EndpointSlice, known: &EndpointFacts) -> Self {
        let mut facts = Self::default();
        for endpoint in slice.endpoints.iter().filter(|e| !e.addresses.is_empty()) {
            let conditions = endpoint.conditions.as_ref();
            let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
            let serving = conditions.and_then(|c| c.serving).unwrap_or(ready);
            let node = endpoint.node_name.as_deref();
            if ready {
                facts.ready.add(node, &known.ready);
            }
            if serving {
                facts.serving.add(node, &known.serving);
            }
        }
        facts
    }
}

/// The nodes of all endpoints of one Service.
#[derive(Debug, Default)]
pub struct EndpointFacts {
    ready: Tally,
    serving: Tally,
}

impl EndpointFacts {
    /// The Service has an endpoint that takes traffic, on whatever node.
    pub fn any(&self) -> bool {
        self.ready.slices > 0 || self.serving.slices > 0
    }

    /// A node whose own endpoints take traffic: ready ones, or, where the cluster has no ready one,
    /// those that still serve while they terminate.
    pub fn on(&self, node: &str) -> bool {
        self.nodes().contains(node)
    }

    /// The nodes for which [`Self::on`] holds.
    pub fn nodes(&self) -> &BTreeSet<Arc<str>> {
        if self.ready.slices > 0 {
            &self.ready.nodes
        } else {
            &self.serving.nodes
        }
    }

    fn replace(&mut self, old: &SliceFacts, new: &SliceFacts) -> bool {
        let ready = self.ready.replace(&old.ready, &new.ready);
        self.serving.replace(&old.serving, &new.serving) || ready
    }
}

/// The slices of one Service, and their sum.
#[derive(Debug, Default)]
struct ServiceEndpoints {
    slices: BTreeMap<String, SliceFacts>,
    facts: EndpointFacts,
}

/// Every slice that was seen, by Service. A change costs as much as the slice is long, however many
/// slices its Service has.
#[derive(Debug, Default)]
pub struct Endpoints {
    services: BTreeMap<ServiceKey, ServiceEndpoints>,
}

impl Endpoints {
    /// Of a Service without slices: nothing.
    pub fn of(&self, service: &ServiceKey) -> &EndpointFacts {
        static NONE: EndpointFacts = EndpointFacts {
            ready: Tally::NONE,
            serving: Tally::NONE,
        };
        self.services
            .get(service)
            .map_or(&NONE, |service| &service.facts)
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
        let service = self.services.entry(key).or_default();
        let said = service.slices.entry(name).or_default();
        let says = SliceFacts::of(slice, &service.facts);
        let changed = service.facts.replace(said, &says);
        *said = says;
        changed || moved
    }

    /// Forgets a slice. Returns whether its Service's facts changed.
    pub fn remove(&mut self, slice: &EndpointSlice) -> bool {
        let (Some(key), Some(name)) = (service_of(slice), &slice.metadata.name) else {
            return false;
        };
        let Some(service) = self.services.get_mut(&key) else {
            return false;
        };
        let Some(said) = service.slices.remove(name) else {
            return false;
        };
        let changed = service.facts.replace(&said, &SliceFacts::default());
        if service.slices.is_empty() {
            self.services.remove(&key);
        }
        changed
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
        let nodes = endpoints.of(&web()).nodes();
        nodes.iter().map(ToString::to_string).collect()
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

    #[test]
    fn a_change_costs_what_its_slice_is_long_however_many_slices_there_are() {
        const SLICES: usize = 3_000;
        let nodes: Vec<String> = (0..1_000).map(|n| format!("node{n}")).collect();
        let endpoints_of = |n: usize| {
            let node = |offset: usize| (nodes[(n * 100 + offset) % 1_000].as_str(), READY);
            (0..100).map(node).collect::<Vec<_>>()
        };
        let mut endpoints = Endpoints::default();
        let slices: Vec<_> = (0..SLICES)
            .map(|n| slice(&format!("s{n}"), "web", &endpoints_of(n)))
            .collect();
        let changes = slices.iter().map(|slice| endpoints.upsert(None, slice));
        assert_eq!(changes.filter(|changed| *changed).count(), 10);

        let work = |endpoints: &Endpoints| endpoints.of(&web()).ready.work;
        let before = work(&endpoints);
        let mut fewer = slices[7].clone();
        fewer.endpoints.truncate(99);
        assert!(!endpoints.upsert(Some(&slices[7]), &fewer));
        assert_eq!(work(&endpoints) - before, 199);
        let before = work(&endpoints);
        assert!(!endpoints.remove(&fewer));
        assert_eq!(work(&endpoints) - before, 99);

        // Each node's name exists once for all slices.
        let name = endpoints.of(&web()).nodes().first().unwrap();
        assert!(Arc::strong_count(name) > SLICES / 20);
        for slice in &slices {
            endpoints.remove(slice);
        }
        assert!(!endpoints.of(&web()).any() && endpoints.services.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn counting_differences_says_the_same_as_adding_up_all_slices(
            steps in proptest::collection::vec(
                (0..4_usize, proptest::option::of(proptest::collection::vec((0..3_usize, 0..4_usize), 0..4))),
                0..40,
            )
        ) {
            let mut endpoints = Endpoints::default();
            let mut slices: BTreeMap<usize, EndpointSlice> = BTreeMap::new();
            let show = |endpoints: &Endpoints| {
                let facts = endpoints.of(&web());
                (
                    [&facts.ready, &facts.serving].map(|t| (t.nodes.clone(), t.slices > 0)),
                    facts.any(),
                )
            };
            for (number, content) in steps {
                let before = show(&endpoints);
                let old = slices.remove(&number);
                let changed = match content {
                    Some(content) => {
                        let listed: Vec<_> = content
                            .into_iter()
                            .map(|(node, kind)| {
                                (["a", "b", "c"][node], [READY, TERMINATING, UNREADY, UNSET][kind])
                            })
                            .collect();
                        let new = slice(&format!("s{number}"), "web", &listed);
                        let changed = endpoints.upsert(old.as_ref(), &new);
                        slices.insert(number, new);
                        changed
                    }
                    None => old.is_some_and(|old| endpoints.remove(&old)),
                };
                let after = show(&endpoints);
                proptest::prop_assert_eq!(changed, before != after);
                let mut afresh = Endpoints::default();
                for slice in slices.values() {
                    afresh.upsert(None, slice);
                }
                proptest::prop_assert_eq!(after, show(&afresh));
            }
        }
    }
}
