//! Which Services share one owner, and the Lease that elects it: pure.
//!
//! Services that share an address, or name the same Lease, are a group: one node announces all of
//! it. The names are kube-vip's, so that both programs take part in one election: a group's Lease is
//! the one that a member names by `kube-vip.io/leaseName`, else `kubevip-<service>` of its oldest
//! Service; with the global scope, one Lease elects the owner of everything.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use super::selection::{ServiceKey, VipRequest};
use crate::{
    config::{ElectionScope, SpeakerConfig},
    election::LeaseKey,
    k8s::names,
};

/// Services with one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub lease: LeaseKey,
    /// Oldest first.
    pub services: Vec<ServiceKey>,
    /// Elected by the Lease for all, not by one of its own.
    pub global: bool,
}

/// The Lease that elects one owner for all Services.
pub fn global_lease(config: &SpeakerConfig) -> LeaseKey {
    LeaseKey {
        namespace: config.lease.namespace.clone(),
        name: config.lease.name.clone(),
    }
}

/// The Lease that kube-vip uses for this one Service.
pub fn service_lease(service: &ServiceKey) -> LeaseKey {
    LeaseKey {
        namespace: service.namespace.to_string(),
        name: format!("{}{}", names::kube_vip::LEASE_PREFIX, service.name),
    }
}

/// Groups all requests. Each Service is in exactly one group; groups have distinct Leases.
pub fn groups(requests: &BTreeMap<ServiceKey, &VipRequest>, config: &SpeakerConfig) -> Vec<Group> {
    let keys: Vec<&ServiceKey> = requests.keys().collect();
    let mut sets = DisjointSets::new(keys.len());
    let mut by_address: HashMap<IpAddr, usize> = HashMap::new();
    let mut by_lease: HashMap<LeaseKey, usize> = HashMap::new();
    let global = global_lease(config);
    let mut global_member = None;
    for (index, (key, request)) in requests.iter().enumerate() {
        for address in &request.addresses {
            sets.join(index, *by_address.entry(*address).or_insert(index));
        }
        if let Some(lease) = named_lease(request) {
            sets.join(index, *by_lease.entry(lease).or_insert(index));
        }
        if in_global_election(request, config) {
            sets.join(index, *by_lease.entry(global.clone()).or_insert(index));
            global_member = Some(index);
        }
        // A Lease that somebody names may be the one that elects another Service.
        sets.join(index, *by_lease.entry(service_lease(key)).or_insert(index));
    }
    let global_root = global_member.map(|member| sets.root(member));
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in 0..keys.len() {
        members.entry(sets.root(index)).or_default().push(index);
    }
    members
        .into_iter()
        .map(|(root, members)| {
            let mut services: Vec<(&ServiceKey, &VipRequest)> = members
                .iter()
                .filter_map(|&i| keys.get(i))
                .filter_map(|&key| requests.get(key).map(|request| (key, *request)))
                .collect();
            services.sort_by_key(|(key, request)| (request.created, *key));
            let is_global = global_root == Some(root);
            let lease = if is_global {
                global.clone()
            } else {
                own_lease(&services)
            };
            let services = services.into_iter().map(|(key, _)| key.clone()).collect();
            Group {
                lease,
                services,
                global: is_global,
            }
        })
        .collect()
}

fn in_global_election(request: &VipRequest, config: &SpeakerConfig) -> bool {
    config.election_scope == ElectionScope::Global
        && !(config.election_on_demand && request.own_election)
}

/// The Lease that a Service names by `kube-vip.io/leaseName`.
pub fn named_lease(request: &VipRequest) -> Option<LeaseKey> {
    request.lease.as_ref().map(|lease| LeaseKey {
        namespace: lease.namespace.clone(),
        name: lease.name.clone(),
    })
}

fn own_lease(oldest_first: &[(&ServiceKey, &VipRequest)]) -> LeaseKey {
    oldest_first
        .iter()
        .find_map(|(_, request)| named_lease(request))
        .or_else(|| oldest_first.first().map(|(key, _)| service_lease(key)))
        .expect("a group has at least one Service")
}

/// Union-find over indices.
struct DisjointSets {
    parent: Vec<usize>,
}

impl DisjointSets {
    fn new(len: usize) -> Self {
        Self {
            parent: (0..len).collect(),
        }
    }

    fn root(&mut self, mut index: usize) -> usize {
        while let Some(&parent) = self.parent.get(index).filter(|&&p| p != index) {
            let grandparent = self.parent.get(parent).copied().unwrap_or(parent);
            if let Some(slot) = self.parent.get_mut(index) {
                *slot = grandparent;
            }
            index = grandparent;
        }
        index
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if let Some(slot) = self.parent.get_mut(a.max(b)) {
            *slot = a.min(b);
        }
    }
}

#[cfg(test)]
mod tests;
