//! May this node announce a group, as far as the API's objects decide it? Pure.
//!
//! *Hard* conditions: the node selector and the endpoint gate of each Service. A group goes to the
//! nodes that serve most of its Services; nobody qualifies, nobody announces. *Soft* conditions
//! ([`NodeFacts::impediment`]) only choose among the qualified, and are ignored where nobody passes.
//! Every speaker computes the same from the same objects. Links are judged elsewhere: only a node
//! itself knows them.

use std::collections::BTreeMap;

use super::{
    endpoints::{EndpointFacts, Endpoints},
    facts::{Fact, Reason},
    groups::Group,
    nodes::NodeFacts,
    selection::{EndpointGate, ServiceKey, VipRequest},
};

/// How this node stands for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A hard condition fails here.
    No,
    /// A soft condition fails here and another qualified node passes: only if nobody else comes.
    Reluctant,
    Yes,
}

/// The verdict about a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidacy {
    pub standing: Standing,
    pub facts: Vec<(ServiceKey, Fact)>,
}

/// The objects that decide.
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a> {
    pub requests: &'a BTreeMap<ServiceKey, &'a VipRequest>,
    pub endpoints: &'a Endpoints,
    pub nodes: &'a BTreeMap<String, NodeFacts>,
    /// Name of this node.
    pub here: &'a str,
    someone_passes: bool,
}

impl<'a> Cluster<'a> {
    pub fn new(
        requests: &'a BTreeMap<ServiceKey, &'a VipRequest>,
        endpoints: &'a Endpoints,
        nodes: &'a BTreeMap<String, NodeFacts>,
        here: &'a str,
    ) -> Self {
        let someone_passes = nodes.values().any(|node| node.impediment.is_none());
        Self {
            requests,
            endpoints,
            nodes,
            here,
            someone_passes,
        }
    }

    /// Every node serves these Services alike, so only the soft conditions choose, and some node passes
    /// them: the case of nearly all groups, judged without looking at each node.
    fn is_plain(&self, group: &Group) -> bool {
        self.someone_passes
            && !group.global
            && group.services.iter().all(|service| {
                self.requests.get(service).is_some_and(|request| {
                    let gate = match request.gate {
                        EndpointGate::None => true,
                        EndpointGate::Any => self.endpoints.of(service).any(),
                        EndpointGate::Local => false,
                    };
                    gate && request.node_selector.is_none()
                })
            })
    }

    fn passes_here(&self) -> bool {
        self.nodes
            .get(self.here)
            .is_some_and(|node| node.impediment.is_none())
    }

    /// A Service's VIPs may be announced from this node.
    pub fn serves_here(&self, service: &ServiceKey) -> bool {
        let unknown = NodeFacts::unknown();
        let here = self.nodes.get(self.here).unwrap_or(&unknown);
        self.requests
            .get(service)
            .is_some_and(|request| serves(request, self.endpoints.of(service), self.here, here))
    }
}

fn serves(request: &VipRequest, endpoints: &EndpointFacts, name: &str, node: &NodeFacts) -> bool {
    let gate = match request.gate {
        EndpointGate::None => true,
        EndpointGate::Any => endpoints.any(),
        EndpointGate::Local => endpoints.on(name),
    };
    gate && request
        .node_selector
        .as_ref()
        .is_none_or(|s| s.matches(&node.labels))
}

/// Judges this node for one group.
pub fn candidacy(group: &Group, cluster: Cluster<'_>) -> Candidacy {
    if cluster.is_plain(group) {
        let standing = if cluster.passes_here() {
            Standing::Yes
        } else {
            Standing::Reluctant
        };
        return Candidacy {
            standing,
            facts: Vec::new(),
        };
    }
    let unknown = NodeFacts::unknown();
    let mut nodes: BTreeMap<&str, &NodeFacts> = cluster
        .nodes
        .iter()
        .map(|(name, facts)| (name.as_str(), facts))
        .collect();
    nodes.entry(cluster.here).or_insert(&unknown);

    let mut scores: BTreeMap<&str, usize> = nodes.keys().map(|name| (*name, 0)).collect();
    let mut servable = 0;
    let mut facts = Vec::new();
    for service in &group.services {
        let Some(request) = cluster.requests.get(service) else {
            continue;
        };
        let endpoints = cluster.endpoints.of(service);
        let mut anywhere = false;
        for (name, node) in &nodes {
            if serves(request, endpoints, name, node) {
                anywhere = true;
                *scores.entry(name).or_default() += 1;
            }
        }
        if anywhere {
            servable += 1;
        } else {
            facts.push((service.clone(), nobody(request, endpoints)));
        }
        if group.global && request.gate == EndpointGate::Local {
            facts.push((service.clone(), global_local()));
        }
    }
    let best = scores.values().copied().max().unwrap_or_default();
    if best == 0 {
        // The owner of everything stays owner of nothing, as kube-vip's does.
        let standing = if group.global {
            soft(&nodes, &nodes, cluster.here)
        } else {
            Standing::No
        };
        return Candidacy { standing, facts };
    }
    if group.global {
        return Candidacy {
            standing: soft(&nodes, &nodes, cluster.here),
            facts,
        };
    }
    if best < servable {
        facts.extend(
            group
                .services
                .iter()
                .map(|service| (service.clone(), partially())),
        );
    }
    let qualified: BTreeMap<&str, &NodeFacts> = nodes
        .iter()
        .filter(|(name, _)| scores.get(*name) == Some(&best))
        .map(|(n, f)| (*n, *f))
        .collect();
    if qualified.values().all(|node| node.impediment.is_some()) {
        let message = ignored(&qualified);
        facts.extend(
            group
                .services
                .iter()
                .map(|service| (service.clone(), message.clone())),
        );
    }
    Candidacy {
        standing: soft(&qualified, &nodes, cluster.here),
        facts,
    }
}

/// Applies the soft conditions among the qualified nodes.
fn soft(
    qualified: &BTreeMap<&str, &NodeFacts>,
    nodes: &BTreeMap<&str, &NodeFacts>,
    here: &str,
) -> Standing {
    if !qualified.contains_key(here) {
        return Standing::No;
    }
    let passes = nodes
        .get(here)
        .is_some_and(|node| node.impediment.is_none());
    if passes || qualified.values().all(|node| node.impediment.is_some()) {
        Standing::Yes
    } else {
        Standing::Reluctant
    }
}

fn nobody(request: &VipRequest, endpoints: &EndpointFacts) -> Fact {
    let listed = || {
        endpoints
            .nodes()
            .iter()
            .cloned()
            .collect::<Vec<_>>()
            .join(", ")
    };
    let why = match request.gate {
        EndpointGate::Local if endpoints.nodes().is_empty() => {
            "externalTrafficPolicy is Local and no node has a ready endpoint".to_owned()
        }
        EndpointGate::Local => format!(
            "externalTrafficPolicy is Local, the nodes with endpoints are {}, and none of them is in \
             the cluster and fits the node selector",
            listed()
        ),
        EndpointGate::Any if !endpoints.any() => "the Service has no endpoints".to_owned(),
        EndpointGate::Any | EndpointGate::None => "no node fits the node selector".to_owned(),
    };
    Fact::warning(
        Reason::NoCandidate,
        format!("no node announces the VIP: {why}"),
    )
    .once_settled()
}

fn global_local() -> Fact {
    Fact::warning(
        Reason::GlobalElection,
        "one node announces all VIPs (global election), so this Service with \
         externalTrafficPolicy: Local is announced only while that node has an endpoint of it; \
         use the election for each Service"
            .to_owned(),
    )
}

fn partially() -> Fact {
    Fact::warning(
        Reason::PartiallyServed,
        "Services that share addresses have one owner, and no node has endpoints of all of them; \
         the node that has most announces them"
            .to_owned(),
    )
    .once_settled()
}

fn ignored(qualified: &BTreeMap<&str, &NodeFacts>) -> Fact {
    let listed: Vec<String> = qualified
        .iter()
        .take(5)
        .map(|(name, node)| format!("{name} {}", node.impediment.unwrap_or_default()))
        .collect();
    let more = if qualified.len() > listed.len() {
        ", …"
    } else {
        ""
    };
    Fact::warning(
        Reason::ConditionsIgnored,
        format!(
            "no node passes the conditions for VIPs, so they are ignored: {}{more}",
            listed.join(", ")
        ),
    )
    .once_settled()
}

#[cfg(test)]
mod tests;
