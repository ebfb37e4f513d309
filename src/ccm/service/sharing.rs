//! Services that share the address of another one, their primary: pure.
//!
//! A Service asks for it with an annotation and is attached once it bears the primary's label value.
//! An address can be shared across namespaces, but not by way of a third Service, and each protocol
//! and port has one holder. A primary stays until nobody shares its address.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube::ResourceExt;
use serde_json::{Map, Value};

use super::{
    due::{has_finalizer, is_terminating, wants},
    loadbalancer::{annotation, crc32, ingress, is_ours},
    plan::{
        Balancer, Complaint, Facts, Next, Pending, Publish, Step, delete, is_announced,
        metadata_patch,
    },
};
use crate::{
    ccm::cache::ObjectKey,
    harvester::loadbalancer::LoadBalancer,
    k8s::names::{harvester, kube_vip},
};

const LABEL_LENGTH: usize = 63;

/// The Service whose address another one asks to share, as found.
#[derive(Debug)]
pub(super) struct Primary<'a> {
    pub key: Result<ObjectKey, Complaint>,
    pub service: Option<&'a Service>,
    pub balancer: Option<&'a LoadBalancer>,
    /// The others that are attached to it.
    pub siblings: Vec<&'a Service>,
}

/// Whose address the Service asks to share, if anybody's.
pub(super) fn target(service: &Service) -> Option<Result<ObjectKey, Complaint>> {
    let text = service.annotations().get(harvester::PRIMARY_SERVICE)?;
    Some(match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(ObjectKey::new(namespace, name))
        }
        _ => Err(Complaint::PrimaryName(text.clone())),
    })
}

/// What those attached to `primary` bear as a label. Longer than a label may be, it ends in a checksum.
pub(super) fn label_value(primary: &ObjectKey) -> String {
    let value = format!("{}.{}", primary.namespace, primary.name);
    if value.len() <= LABEL_LENGTH {
        return value;
    }
    let sum = crc32(value.bytes());
    let start: String = value.chars().take(LABEL_LENGTH - 9).collect();
    format!("{start}-{sum:08x}")
}

/// The primary that a label value names, where the value tells.
pub(super) fn labelled(value: &str) -> Option<ObjectKey> {
    let (namespace, name) = value.split_once('.')?;
    Some(ObjectKey::new(namespace, name))
}

/// Whether the Service has the address of the primary with this label value.
pub(super) fn is_attached(service: &Service, value: &str) -> bool {
    let label = service.labels().get(harvester::PRIMARY_SERVICE);
    label.is_some_and(|label| label == value) && (wants(service) || has_finalizer(service))
}

/// The label values of all primaries that the Service has to do with.
fn values(service: &Service) -> BTreeSet<String> {
    let label = service.labels().get(harvester::PRIMARY_SERVICE);
    let label = label.filter(|label| !label.is_empty()).cloned();
    let wished = target(service).and_then(Result::ok);
    label
        .into_iter()
        .chain(wished.map(|key| label_value(&key)))
        .collect()
}

/// Who has to do with which primary, by label value.
#[derive(Debug, Default)]
pub(super) struct Groups {
    members: HashMap<String, BTreeSet<ObjectKey>>,
    of: HashMap<ObjectKey, BTreeSet<String>>,
}

impl Groups {
    /// The Service as it is now; `None` is that it is gone.
    pub(super) fn set(&mut self, key: &ObjectKey, service: Option<&Service>) {
        let new = service.map(values).unwrap_or_default();
        let old = if new.is_empty() {
            self.of.remove(key)
        } else {
            self.of.insert(key.clone(), new.clone())
        };
        for value in old.unwrap_or_default().difference(&new) {
            if let Some(members) = self.members.get_mut(value) {
                members.remove(key);
                if members.is_empty() {
                    self.members.remove(value);
                }
            }
        }
        for value in new {
            self.members.entry(value).or_default().insert(key.clone());
        }
    }

    pub(super) fn members(&self, value: &str) -> impl Iterator<Item = &ObjectKey> {
        self.members.get(value).into_iter().flatten()
    }

    /// Everybody for whom a change of this Service can matter.
    pub(super) fn related(&self, key: &ObjectKey) -> BTreeSet<ObjectKey> {
        let mut related: BTreeSet<ObjectKey> = self.members(&label_value(key)).cloned().collect();
        for value in self.of.get(key).into_iter().flatten() {
            related.extend(labelled(value));
            related.extend(self.members(value).cloned());
        }
        related.remove(key);
        related
    }
}

/// What is next for a Service that asks to share an address.
pub(super) fn share(facts: &Facts<'_>, primary: &Primary<'_>) -> Next {
    let service = facts.service;
    let key = match &primary.key {
        Ok(key) => key,
        Err(complaint) => return Next::Refused(complaint.clone()),
    };
    if let Some(complaint) = obstacle(facts, primary, key) {
        return Next::Refused(complaint);
    }
    let Some(target) = primary.service else {
        return Next::Refused(Complaint::PrimaryMissing(key.clone()));
    };
    let Some(address) = ingress(target).next() else {
        return Next::Wait(Pending::NoPrimaryAddress(key.clone()));
    };
    let network = network_of(target, primary.balancer);
    if let Some(publish) = attach(service, target, &label_value(key), address, network) {
        return Next::Step(Step::Publish(publish));
    }
    // The reservation of an address of its own, from before it shared one.
    match facts.balancer {
        Balancer::Present(object)
            if is_ours(facts.settings, object) && !object.is_terminating() =>
        {
            if is_announced(service, object) {
                Next::Wait(Pending::StillAnnounced(object.name_any()))
            } else {
                Next::Step(delete(object))
            }
        }
        _ => Next::Settled,
    }
}

/// Why the Service cannot have the primary's address.
fn obstacle(facts: &Facts<'_>, primary: &Primary<'_>, key: &ObjectKey) -> Option<Complaint> {
    let service = facts.service;
    let Some(target) = primary.service else {
        return Some(Complaint::PrimaryMissing(key.clone()));
    };
    let value = label_value(key);
    if is_terminating(target) && !is_attached(service, &value) {
        return Some(Complaint::PrimaryTerminating(key.clone()));
    }
    let is_secondary = !annotation(target, harvester::PRIMARY_SERVICE).is_empty();
    if is_secondary || !wants(target) || *key == ObjectKey::of(service) {
        return Some(Complaint::PrimaryUnfit(key.clone()));
    }
    if !facts.sharers.is_empty() {
        return Some(Complaint::Shared(facts.sharers.to_vec()));
    }
    let holders = primary.siblings.iter().copied().chain([target]);
    taken_port(service, holders).or_else(|| network_conflict(service, target, primary.balancer))
}

fn taken_port<'a>(
    service: &Service,
    holders: impl Iterator<Item = &'a Service>,
) -> Option<Complaint> {
    for holder in holders {
        for theirs in ports(holder) {
            let same = |ours: &&ServicePort| {
                ours.port == theirs.port && protocol(ours) == protocol(theirs)
            };
            if let Some(port) = ports(service).iter().find(same) {
                return Some(Complaint::PortTaken {
                    port: port.port,
                    protocol: protocol(port).to_owned(),
                    holder: ObjectKey::of(holder),
                });
            }
        }
    }
    None
}

fn ports(service: &Service) -> &[ServicePort] {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    ports.map(Vec::as_slice).unwrap_or_default()
}

fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

fn network_conflict(
    service: &Service,
    primary: &Service,
    balancer: Option<&LoadBalancer>,
) -> Option<Complaint> {
    let wished = annotation(service, harvester::NETWORK);
    let network = network_of(primary, Some(balancer?));
    (!wished.is_empty() && wished != network).then(|| Complaint::SharedNetwork {
        network: network.to_owned(),
        wished: wished.to_owned(),
    })
}

/// The network that the primary's address is in, by the record made at its creation.
fn network_of<'a>(primary: &'a Service, balancer: Option<&'a LoadBalancer>) -> &'a str {
    let recorded = balancer.and_then(|object| object.annotation(harvester::LB_NETWORK));
    recorded.unwrap_or_else(|| annotation(primary, harvester::NETWORK))
}

/// The metadata of a Service with the primary's address, put right.
fn attach(
    service: &Service,
    primary: &Service,
    value: &str,
    address: &str,
    network: &str,
) -> Option<Publish> {
    let mut annotations = Map::new();
    let mut set = |key: &str, wished: Option<&str>| {
        let shown = service.annotations().get(key).map(String::as_str);
        if shown != wished {
            let wished = wished.map_or(Value::Null, Value::from);
            annotations.insert(key.to_owned(), wished);
        }
    };
    let interface = annotation(primary, kube_vip::SERVICE_INTERFACE);
    set(kube_vip::LOADBALANCER_IPS, Some(address));
    set(
        kube_vip::SERVICE_INTERFACE,
        Some(interface).filter(|name| !name.is_empty()),
    );
    set(harvester::IPAM, None);
    if !network.is_empty() {
        set(harvester::NETWORK, Some(network));
    }
    let mut labels = Map::new();
    let attached = is_attached(service, value);
    if !attached {
        labels.insert(harvester::PRIMARY_SERVICE.to_owned(), value.into());
    }
    // While it is served at the primary's address, another one in the annotation is nobody's.
    let shown = annotation(service, kube_vip::LOADBALANCER_IPS);
    let is_wrong = attached
        && !shown.is_empty()
        && shown != address
        && ingress(service).any(|ip| ip == address);
    let wrong = is_wrong.then(|| shown.to_owned());
    metadata_patch(service, annotations, labels).map(|patch| Publish { patch, wrong })
}

#[cfg(test)]
mod tests;
