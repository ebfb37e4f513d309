//! What a VM is, and what KubeVirt and Harvester make of it in the API; pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::harvester::{DEFAULT_NETWORK, agent::GuestAgent, names};

/// Where a VM runs: a machine of the host, and what the host says of that machine's place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    pub(super) machine: String,
    pub(super) region: Option<String>,
    pub(super) zone: Option<String>,
}

impl Place {
    pub fn on(machine: &str) -> Self {
        Self {
            machine: machine.to_owned(),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn region(mut self, region: &str) -> Self {
        self.region = Some(region.to_owned());
        self
    }

    #[must_use]
    pub fn zone(mut self, zone: &str) -> Self {
        self.zone = Some(zone.to_owned());
        self
    }
}

/// A link of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    network: Option<String>,
    device: Option<String>,
    addresses: Vec<String>,
}

impl Interface {
    /// On a network of VMs, `<namespace>/<name>`.
    pub fn on(network: &str) -> Self {
        Self {
            network: Some(network.to_owned()),
            device: None,
            addresses: Vec::new(),
        }
    }

    /// On the network of the host's pods.
    pub fn pod() -> Self {
        Self {
            network: None,
            ..Self::on("")
        }
    }

    /// Its name in the guest, instead of `enp1s0`, `enp2s0`, ….
    #[must_use]
    pub fn device(mut self, device: &str) -> Self {
        self.device = Some(device.to_owned());
        self
    }

    #[must_use]
    pub fn addresses(mut self, addresses: &[&str]) -> Self {
        self.addresses = owned(addresses);
        self
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&it| it.to_owned()).collect()
}

/// Everything about a VM that its objects are made from.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) name: String,
    pub(super) cluster: String,
    /// Made by a node driver, and so labelled by it.
    pub(super) made_by_driver: bool,
    pub(super) place: Place,
    pub(super) interfaces: Vec<Interface>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) agent: GuestAgent,
}

impl Shape {
    pub(super) fn new(name: &str, cluster: &str) -> Self {
        Self {
            name: name.to_owned(),
            cluster: cluster.to_owned(),
            made_by_driver: true,
            place: Place::on("host-a"),
            interfaces: vec![Interface::on(DEFAULT_NETWORK)],
            labels: BTreeMap::new(),
            agent: GuestAgent::Connected {
                hostname: name.to_owned(),
            },
        }
    }

    /// Gives the first link these addresses.
    pub(super) fn set_addresses(&mut self, addresses: &[&str]) {
        if let Some(first) = self.interfaces.first_mut() {
            first.addresses = owned(addresses);
        }
    }

    pub(super) fn machine(&self) -> Value {
        let template = json!({
            "metadata": { "labels": self.labels() },
            "spec": { "networks": self.networks() },
        });
        json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": { "name": self.name, "labels": self.labels() },
            "spec": { "runStrategy": "RerunOnFailure", "template": template },
        })
    }

    pub(super) fn instance(&self, machine_uid: &str) -> Value {
        let owner = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "name": self.name,
            "uid": machine_uid,
            "controller": true,
            "blockOwnerDeletion": true,
        });
        json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {
                "name": self.name,
                "labels": self.instance_labels(),
                "annotations": self.topology(),
                "ownerReferences": [owner],
            },
            "spec": { "networks": self.networks() },
            "status": {
                "phase": "Running",
                "nodeName": self.place.machine,
                "interfaces": self.reported(),
                "conditions": self.conditions(),
            },
        })
    }

    /// A merge patch of a running instance's status.
    pub(super) fn status_patch(&self) -> Value {
        json!({ "status": {
            "interfaces": self.reported(), "conditions": self.conditions(),
        } })
    }

    /// A merge patch for a VM that has arrived somewhere else.
    pub(super) fn arrival_patch(&self) -> Value {
        json!({
            "metadata": {
                "labels": { "kubevirt.io/nodeName": self.place.machine },
                // Absent ones are removed.
                "annotations": {
                    names::REGION: self.topology_value(self.place.region.as_ref()),
                    names::ZONE: self.topology_value(self.place.zone.as_ref()),
                },
            },
            "status": { "nodeName": self.place.machine },
        })
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        if self.made_by_driver {
            for (key, value) in [
                (names::CREATOR, names::NODE_DRIVER),
                (names::GUEST_CLUSTER, &self.cluster),
            ] {
                labels.insert(key.to_owned(), value.to_owned());
            }
        }
        labels.insert(names::VM_NAME.to_owned(), self.name.clone());
        labels
    }

    fn instance_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels();
        let machine = self.place.machine.clone();
        labels.insert("kubevirt.io/nodeName".to_owned(), machine);
        labels
    }

    fn topology(&self) -> Map<String, Value> {
        // One that an instance always has, whatever Harvester adds.
        let version = ("kubevirt.io/latest-observed-api-version", json!("v1"));
        let region = self.topology_value(self.place.region.as_ref());
        let zone = self.topology_value(self.place.zone.as_ref());
        let all = [version, (names::REGION, region), (names::ZONE, zone)];
        let given = all.into_iter().filter(|(_, value)| !value.is_null());
        given.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Harvester tells only the VMs of node drivers where they are.
    fn topology_value(&self, value: Option<&String>) -> Value {
        json!(value.filter(|_| self.made_by_driver))
    }

    fn networks(&self) -> Vec<Value> {
        let network = |(index, interface): (usize, &Interface)| {
            let name = link_name(index, interface);
            match &interface.network {
                Some(network) => json!({ "name": name, "multus": { "networkName": network } }),
                None => json!({ "name": name, "pod": {} }),
            }
        };
        self.interfaces.iter().enumerate().map(network).collect()
    }

    /// Names and addresses within the guest are known from its agent alone.
    fn reported(&self) -> Vec<Value> {
        let report = |(index, interface): (usize, &Interface)| {
            let mut report = json!({
                "name": link_name(index, interface),
                "mac": format!("52:54:00:00:00:{index:02x}"),
                "infoSource": "domain",
                "queueCount": 1,
            });
            if self.is_heard() {
                let device = interface.device.clone();
                let device = device.unwrap_or_else(|| format!("enp{}s0", index + 1));
                report["infoSource"] = "domain, guest-agent".into();
                report["interfaceName"] = device.into();
                if let Some(first) = interface.addresses.first() {
                    report["ipAddress"] = first.as_str().into();
                    report["ipAddresses"] = interface.addresses.clone().into();
                }
            }
            report
        };
        self.interfaces.iter().enumerate().map(report).collect()
    }

    fn conditions(&self) -> Vec<Value> {
        let mut conditions = vec![json!({ "type": "Ready", "status": "True" })];
        if self.is_heard() {
            conditions.push(json!({ "type": "AgentConnected", "status": "True" }));
        }
        conditions
    }

    fn is_heard(&self) -> bool {
        matches!(self.agent, GuestAgent::Connected { .. })
    }
}

fn link_name(index: usize, interface: &Interface) -> String {
    match interface.network {
        Some(_) => format!("nic-{index}"),
        None => "default".to_owned(),
    }
}
