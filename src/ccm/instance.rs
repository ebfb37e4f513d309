//! Which machine of the host a node is, and what machine and instance say of the node. Pure.
//!
//! In: a Node, the machines of the namespace, host names that guests told. Out: the machine with the
//! proof that it is the node's, and its [`Metadata`] (the framework's `InstanceMetadata`).
//!
//! A machine is identified by the UID in the node's provider ID. Only a node that has none yet, or
//! whose machine was replaced, is looked for by name and then by what the guest calls itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::{
    harvester::kubevirt::{
        CLUSTER_LABEL, CREATOR_LABEL, MACHINE_DRIVER, VirtualMachine, VirtualMachineInstance,
    },
    k8s::names::label,
};

const SCHEME: &str = "harvester://";
/// What a cluster is called when nobody named it; as good as no name.
const UNNAMED: &str = "kubernetes";
/// Longest value of a label.
const LABEL_LIMIT: usize = 63;

/// The machines of the namespace, in whatever form.
pub trait Machines {
    fn named(&self, name: &str) -> Option<Arc<VirtualMachine>>;
    fn all(&self) -> Vec<Arc<VirtualMachine>>;
}

impl Machines for [Arc<VirtualMachine>] {
    fn named(&self, name: &str) -> Option<Arc<VirtualMachine>> {
        let found = self.iter().find(|machine| machine.name_any() == name);
        found.cloned()
    }

    fn all(&self) -> Vec<Arc<VirtualMachine>> {
        self.to_vec()
    }
}

/// Why a machine is taken for a node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The node's provider ID names it.
    Uid,
    Name,
    Hostname,
}

/// A node's machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub machine: Arc<VirtualMachine>,
    pub proof: Proof,
}

/// The UID in a provider ID of ours.
pub fn machine_uid(node: &Node) -> Option<&str> {
    let id = node.spec.as_ref()?.provider_id.as_deref()?;
    id.strip_prefix(SCHEME).filter(|uid| !uid.is_empty())
}

/// The cluster's name where it can tell this cluster's machines from others': quotes and blanks
/// around it come from templates and never belonged to it.
pub fn cluster_label(name: &str) -> Option<&str> {
    let name = name.trim_matches([' ', '\t', '\r', '\n', '"', '\'', '`']);
    Some(name).filter(|name| !name.is_empty() && *name != UNNAMED)
}

/// The node's machine. `hostnames` are what guests call themselves, by the name of their machine.
pub fn find(
    node: &Node,
    machines: &(impl Machines + ?Sized),
    cluster: Option<&str>,
    hostnames: &BTreeMap<String, String>,
) -> Option<Found> {
    let name = node.name_any();
    let uid = machine_uid(node);
    let has_uid =
        |machine: &VirtualMachine| uid.is_some() && machine.metadata.uid.as_deref() == uid;
    let found = |machine, proof| Some(Found { machine, proof });
    let namesake = machines.named(&name);
    // Nearly always the namesake, and then nothing has to be searched.
    if let Some(machine) = namesake.as_ref().filter(|machine| has_uid(machine)) {
        return found(Arc::clone(machine), Proof::Uid);
    }
    if uid.is_some()
        && let Some(machine) = machines.all().into_iter().find(|machine| has_uid(machine))
    {
        return found(machine, Proof::Uid);
    }
    if let Some(machine) = namesake.filter(|machine| !is_foreign(machine, machines, cluster)) {
        return found(machine, Proof::Name);
    }
    let mut called = hostnames
        .iter()
        .filter(|(_, hostname)| is_called(&name, hostname))
        .filter_map(|(machine, _)| machines.named(machine));
    // Two that say the same prove nothing.
    match (called.next(), called.next()) {
        (Some(machine), None) => found(machine, Proof::Hostname),
        _ => None,
    }
}

/// Labelled as another cluster's, where labels are in use: at least one machine has ours.
fn is_foreign(
    machine: &VirtualMachine,
    machines: &(impl Machines + ?Sized),
    cluster: Option<&str>,
) -> bool {
    let Some(cluster) = cluster else {
        return false;
    };
    let label = |machine: &VirtualMachine| machine.labels().get(CLUSTER_LABEL).cloned();
    let is_ours = |machine: &Arc<VirtualMachine>| label(machine).as_deref() == Some(cluster);
    label(machine).is_some_and(|other| other != cluster) && machines.all().iter().any(is_ours)
}

/// Guests tell a short name or a full one, in any case; node names are lower-case.
fn is_called(node: &str, hostname: &str) -> bool {
    let hostname = hostname.trim().to_ascii_lowercase();
    let short = hostname.split('.').next().unwrap_or_default();
    !short.is_empty() && (hostname == node || short == node)
}

/// Instances whose guests may be asked for their name on behalf of a node without a machine: those
/// of this cluster that no other node is known to run on.
pub fn may_be_asked(
    instance: &VirtualMachineInstance,
    cluster: Option<&str>,
    taken: &BTreeSet<&str>,
) -> bool {
    let labels = instance.labels();
    let is_ours = match cluster {
        Some(cluster) => labels
            .get(CLUSTER_LABEL)
            .is_some_and(|name| name == cluster),
        None => labels
            .get(CREATOR_LABEL)
            .is_some_and(|creator| creator == MACHINE_DRIVER),
    };
    let is_taken = instance
        .machine_uid()
        .is_some_and(|uid| taken.contains(uid));
    is_ours && !is_taken && is_live(instance)
}

fn is_live(instance: &VirtualMachineInstance) -> bool {
    instance.metadata.deletion_timestamp.is_none()
        && !matches!(instance.phase(), "Succeeded" | "Failed")
}

/// The live instance of a machine, of what is found under its name: not its predecessor's, and
/// none that has ended.
pub fn of_machine<'a>(
    instance: Option<&'a VirtualMachineInstance>,
    machine: &VirtualMachine,
) -> Option<&'a VirtualMachineInstance> {
    instance.filter(|instance| {
        let owner = instance.machine_uid();
        is_live(instance) && (owner.is_none() || owner == machine.metadata.uid.as_deref())
    })
}

/// Why nothing is known of a node's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    #[error("the VM has no running instance")]
    NoInstance,
    #[error("the VM is not on the management network")]
    NoNetwork,
    #[error("the guest agent has reported no usable address")]
    NoAddress,
}

/// What the host says of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    pub provider_id: String,
    pub zone: Option<String>,
    pub region: Option<String>,
    /// Usable ones, in the host's order, each once.
    pub addresses: Result<Vec<IpAddr>, Silence>,
}

/// What a machine and its instance say. `management` is the network of the node's addresses; the
/// first one where none is named.
pub fn metadata(
    machine: &VirtualMachine,
    instance: Option<&VirtualMachineInstance>,
    management: Option<&str>,
) -> Metadata {
    let instance = of_machine(instance, machine);
    let topology = instance.map(topology).unwrap_or_default();
    Metadata {
        provider_id: format!("{SCHEME}{}", machine.uid().unwrap_or_default()),
        zone: topology.zone,
        region: topology.region,
        addresses: instance
            .ok_or(Silence::NoInstance)
            .and_then(|instance| addresses(instance, management)),
    }
}

/// Where an instance runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    pub zone: Option<String>,
    pub region: Option<String>,
}

/// What the host annotated; what could be no label of a Node counts as absent.
pub fn topology(instance: &VirtualMachineInstance) -> Topology {
    let value = |key| {
        let value = instance.annotations().get(key);
        value.filter(|value| is_label_value(value)).cloned()
    };
    Topology {
        zone: value(label::ZONE),
        region: value(label::REGION),
    }
}

fn is_label_value(text: &str) -> bool {
    let alphanumeric = |character: char| character.is_ascii_alphanumeric();
    let allowed = |character: char| alphanumeric(character) || "-_.".contains(character);
    text.len() <= LABEL_LIMIT
        && text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(allowed)
}

fn addresses(
    instance: &VirtualMachineInstance,
    management: Option<&str>,
) -> Result<Vec<IpAddr>, Silence> {
    let is_management = |attached: &str| management.is_none_or(|wanted| wanted == attached);
    let network = instance
        .networks()
        .iter()
        .find(|network| {
            let multus = network.multus.as_ref();
            multus.is_some_and(|multus| is_management(&multus.network_name))
        })
        .ok_or(Silence::NoNetwork)?;
    let interface = instance
        .interfaces()
        .iter()
        .find(|interface| interface.name == network.name)
        .ok_or(Silence::NoAddress)?;
    let listed = interface.ip_addresses.as_deref().unwrap_or_default();
    let texts = if listed.is_empty() {
        std::slice::from_ref(&interface.ip_address)
    } else {
        listed
    };
    let mut usable = Vec::with_capacity(texts.len());
    for address in texts.iter().filter_map(|text| text.parse().ok()) {
        if is_usable(address) && !usable.contains(&address) {
            usable.push(address);
        }
    }
    if usable.is_empty() {
        Err(Silence::NoAddress)
    } else {
        Ok(usable)
    }
}

fn is_usable(address: IpAddr) -> bool {
    let of_no_use = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(of_no_use || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

#[cfg(test)]
mod tests;
