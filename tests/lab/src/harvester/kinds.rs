//! The objects of a Harvester host, as far as its simulator and the scenarios touch them.
//!
//! What is not named here survives a read and a write (`rest`).

use std::collections::BTreeMap;

use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind, object::Object},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::names;

/// What a host calls a guest cluster's LoadBalancer.
pub(super) const CLUSTER: &str = "cluster";
/// IPAM by the VIP's holder in the guest.
pub(super) const DHCP: &str = "dhcp";
/// What stands for an address that DHCP will give.
pub(super) const UNSPECIFIED: &str = "0.0.0.0";
const READY: &str = "Ready";

/// `loadbalancer.harvesterhci.io/v1beta1` LoadBalancer.
pub type LoadBalancer = Object<LoadBalancerSpec, LoadBalancerStatus>;
/// `loadbalancer.harvesterhci.io/v1beta1` `IPPool`.
pub type IpPool = Object<IpPoolSpec, IpPoolStatus>;
/// A `VirtualMachine` or a `VirtualMachineInstance`.
pub type Machine = DynamicObject;

/// What a guest asks for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerSpec {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workload_type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipam: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_pool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check: Option<Map<String, Value>>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What the host gives, and in `address` what the guest says it uses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerStatus {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Present though empty, as the host writes it.
    pub allocated_address: AllocatedAddress,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// An address that is booked in a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocatedAddress {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_pool: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mask: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
}

/// A condition without the fields that the host never sets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_update_time: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl LoadBalancerStatus {
    /// The only condition there is, once the host has looked at the object.
    pub fn ready(&self) -> Option<&Condition> {
        self.conditions.iter().find(|it| it.kind == READY)
    }

    pub(super) fn set_ready(&mut self, message: &str, now: &str) {
        set_ready(&mut self.conditions, message, now);
    }
}

/// True without a message, False with one; the time changes only with either.
fn set_ready(conditions: &mut Vec<Condition>, message: &str, now: &str) {
    let status = if message.is_empty() { "True" } else { "False" };
    if !conditions.iter().any(|it| it.kind == READY) {
        conditions.push(Condition {
            kind: READY.to_owned(),
            ..Condition::default()
        });
    }
    for condition in conditions.iter_mut().filter(|it| it.kind == READY) {
        if condition.status != status || condition.message != message {
            status.clone_into(&mut condition.status);
            message.clone_into(&mut condition.message);
            now.clone_into(&mut condition.last_update_time);
        }
    }
}

/// Addresses, and who gets one without naming the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpPoolSpec {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    pub ranges: Vec<Range>,
    pub selector: Selector,
}

/// Addresses of one subnet; both ends belong to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Range {
    pub subnet: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub range_start: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub range_end: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
}

/// Who may have an address of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    pub priority: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<Scope>,
}

/// One of the groups that a pool is for; `*` is any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scope {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub project: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub guest_cluster: String,
}

impl Scope {
    pub fn new(project: &str, namespace: &str, guest_cluster: &str) -> Self {
        Self {
            project: project.to_owned(),
            namespace: namespace.to_owned(),
            guest_cluster: guest_cluster.to_owned(),
        }
    }

    pub(super) fn everything() -> Self {
        Self::new("*", "*", "*")
    }
}

impl IpPoolSpec {
    /// A pool is global by having exactly one scope, which is everything.
    pub(super) fn is_global(&self) -> bool {
        self.selector.scope == [Scope::everything()]
    }
}

/// The books of a pool: address to `<namespace>/<name>` of a LoadBalancer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpPoolStatus {
    pub total: i64,
    pub available: i64,
    pub last_allocated: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated_history: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl IpPoolStatus {
    /// Whether the host has looked at the pool.
    pub(super) fn is_known(&self) -> bool {
        self.conditions.iter().any(|it| it.kind == READY)
    }

    pub(super) fn set_ready(&mut self, now: &str) {
        set_ready(&mut self.conditions, "", now);
    }
}

pub(super) fn load_balancers() -> ApiResource {
    resource(
        "loadbalancer.harvesterhci.io",
        "v1beta1",
        "LoadBalancer",
        "loadbalancers",
    )
}

pub(super) fn ip_pools() -> ApiResource {
    resource(
        "loadbalancer.harvesterhci.io",
        "v1beta1",
        "IPPool",
        "ippools",
    )
}

pub(super) fn machines() -> ApiResource {
    resource("kubevirt.io", "v1", "VirtualMachine", "virtualmachines")
}

pub(super) fn instances() -> ApiResource {
    resource(
        "kubevirt.io",
        "v1",
        "VirtualMachineInstance",
        "virtualmachineinstances",
    )
}

/// Load balancers of a namespace, for any client.
pub fn balancers_in(client: &Client, namespace: &str) -> Api<LoadBalancer> {
    Api::namespaced_with(client.clone(), namespace, &load_balancers())
}

pub(super) fn pools(client: &Client) -> Api<IpPool> {
    Api::all_with(client.clone(), &ip_pools())
}

/// `VirtualMachine`s of a namespace, for any client.
pub fn machines_in(client: &Client, namespace: &str) -> Api<Machine> {
    Api::namespaced_with(client.clone(), namespace, &machines())
}

/// `VirtualMachineInstance`s of a namespace, for any client.
pub fn instances_in(client: &Client, namespace: &str) -> Api<Machine> {
    Api::namespaced_with(client.clone(), namespace, &instances())
}

/// A LoadBalancer as a guest cluster asks for it, with what says whose it is.
pub fn new_balancer(name: &str, cluster: &str, ipam: &str) -> LoadBalancer {
    let spec = LoadBalancerSpec {
        workload_type: CLUSTER.to_owned(),
        ipam: ipam.to_owned(),
        ..LoadBalancerSpec::default()
    };
    let mut balancer = LoadBalancer::new(name, &load_balancers(), spec);
    let cluster = |key: &str| Some([(key.to_owned(), cluster.to_owned())].into());
    balancer.metadata.annotations = cluster(names::CLUSTER);
    balancer.metadata.labels = cluster(names::OWNER);
    balancer
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}
