//! Which Services this speaker serves, and what each asks for: pure.
//!
//! Input is one Service and the configuration; output is a [`VipRequest`], or the reason why the
//! Service is not ours, together with what its author should be told. The rules and their order are
//! kube-vip's (type, `ignore`, class, address), with two deliberate differences: an address is never
//! taken from a status, because another load balancer may have written it, and bad values cost only
//! themselves.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::{Service, ServicePort},
    jiff::Timestamp,
};

use super::{
    facts::{Fact, Reason},
    node_selector::NodeSelector,
};
use crate::{
    config::{ClassRules, InterfaceChoice, SpeakerConfig},
    k8s::names,
};

/// Namespace and name of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ServiceKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn of(service: &Service) -> Self {
        Self::new(
            service.metadata.namespace.as_deref().unwrap_or_default(),
            service.metadata.name.as_deref().unwrap_or_default(),
        )
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Who may announce a Service's VIPs, as far as its endpoints decide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointGate {
    /// Every node, with or without endpoints (`externalTrafficPolicy: Cluster`).
    None,
    /// Every node, while the Service has an endpoint anywhere.
    Any,
    /// The nodes with an endpoint of their own (`externalTrafficPolicy: Local`).
    Local,
}

/// A Lease chosen by `kube-vip.io/leaseName`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedLease {
    pub namespace: String,
    pub name: String,
}

/// What a Service of ours asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct VipRequest {
    pub uid: String,
    /// Creation time; the oldest Service of a group names its Lease.
    pub created: Option<Timestamp>,
    /// At least one; without duplicates, in the author's order.
    pub addresses: Vec<IpAddr>,
    /// `kube-vip.io/serviceInterface`.
    pub interface: Option<InterfaceChoice>,
    pub gate: EndpointGate,
    pub lease: Option<SharedLease>,
    /// `kube-vip.io/forcePerServiceElection`.
    pub own_election: bool,
    pub node_selector: Option<NodeSelector>,
    /// Port number and protocol, for the status.
    pub ports: Vec<(i32, String)>,
}

/// The verdict about one Service.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// `None`: not ours, or nothing usable asked for.
    pub request: Option<VipRequest>,
    /// The Service is addressed to us (type, class, not ignored), even if it asks for nothing usable.
    pub ours: bool,
    /// What to tell the author.
    pub facts: Vec<Fact>,
}

impl Selection {
    fn not_ours() -> Self {
        Self {
            request: None,
            ours: false,
            facts: Vec::new(),
        }
    }
}

/// Applies the rules to one Service.
pub fn select(service: &Service, config: &SpeakerConfig) -> Selection {
    let empty = BTreeMap::new();
    let annotations = service.metadata.annotations.as_ref().unwrap_or(&empty);
    let spec = service.spec.as_ref();
    let is_load_balancer = spec.and_then(|s| s.type_.as_deref()) == Some("LoadBalancer");
    let class = spec.and_then(|s| s.load_balancer_class.as_deref());
    if !is_load_balancer
        || service.metadata.deletion_timestamp.is_some()
        || is_true(annotations, names::kube_vip::IGNORE)
        || !class_matches(class, &config.class)
    {
        return Selection::not_ours();
    }
    let mut facts = Vec::new();
    unsupported(annotations, &mut facts);
    let addresses = addresses(service, annotations, &mut facts);
    let request = if addresses.is_empty() {
        None
    } else {
        request(service, annotations, addresses, config, &mut facts)
    };
    Selection {
        request,
        ours: true,
        facts,
    }
}

/// kube-vip's class rules: the legacy one serves "no class or ours", the other "exactly ours", where
/// an empty name means "no class".
fn class_matches(class: Option<&str>, rules: &ClassRules) -> bool {
    match (class, rules.legacy) {
        (Some(class), true) => class == rules.name,
        (None, true) => !rules.only,
        (class, false) => class.unwrap_or_default() == rules.name,
    }
}

fn is_true(annotations: &BTreeMap<String, String>, key: &str) -> bool {
    annotations.get(key).is_some_and(|v| v == "true")
}

/// Features of kube-vip that this speaker does not have; the Service is served without them.
fn unsupported(annotations: &BTreeMap<String, String>, facts: &mut Vec<Fact>) {
    let present = |key: &str| {
        annotations
            .get(key)
            .is_some_and(|v| !v.is_empty() && v != "false")
    };
    for (key, instead) in [
        (
            names::kube_vip::SERVICE_VLAN,
            "create the VLAN link on the nodes and name it in kube-vip.io/serviceInterface",
        ),
        (
            names::kube_vip::FLUSH_CONNTRACK,
            "connections are left to conntrack's own timeouts",
        ),
        (
            names::kube_vip::IGNORE_SERVICE_SECURITY,
            "there is no packet filter to be exempt from",
        ),
        (
            names::kube_vip::EGRESS,
            "traffic of the Pods leaves with the node's address",
        ),
        (
            names::kube_vip::FORWARD_UPNP,
            "map the ports on the gateway by hand",
        ),
    ] {
        if present(key) {
            facts.push(Fact::warning(
                Reason::NotSupported,
                format!("annotation {key} is not supported: {instead}"),
            ));
        }
    }
    for key in [
        names::kube_vip::MACVLAN_NAME,
        names::kube_vip::DHCP_BROADCAST,
        names::kube_vip::RP_FILTER,
        names::kube_vip::LOADBALANCER_HOSTNAME,
        names::kube_vip::DDNS,
    ] {
        if present(key) {
            facts.push(Fact::warning(
                Reason::NotYetSupported,
                format!("annotation {key} belongs to DHCP, which this version does not do yet"),
            ));
        }
    }
}

/// The addresses asked for: `kube-vip.io/loadbalancerIPs` wins over `spec.loadBalancerIP`.
fn addresses(
    service: &Service,
    annotations: &BTreeMap<String, String>,
    facts: &mut Vec<Fact>,
) -> Vec<IpAddr> {
    let asked = annotations
        .get(names::kube_vip::LOADBALANCER_IPS)
        .map(String::as_str)
        .or_else(|| {
            service
                .spec
                .as_ref()
                .and_then(|s| s.load_balancer_ip.as_deref())
        })
        .unwrap_or_default();
    let mut addresses = Vec::new();
    for text in asked.split(',').map(str::trim).filter(|t| !t.is_empty()) {
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => {
                facts.push(Fact::warning(
                    Reason::NotYetSupported,
                    format!("address {text} asks for DHCP, which this version does not do yet"),
                ));
            }
            Ok(address) => {
                let address = address.to_canonical();
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            Err(_) => facts.push(Fact::warning(
                Reason::NotSupported,
                format!("{text:?} is not an IP address; host names as VIPs are not supported"),
            )),
        }
    }
    addresses
}

fn request(
    service: &Service,
    annotations: &BTreeMap<String, String>,
    addresses: Vec<IpAddr>,
    config: &SpeakerConfig,
    facts: &mut Vec<Fact>,
) -> Option<VipRequest> {
    let spec = service.spec.as_ref()?;
    let local = spec.external_traffic_policy.as_deref() == Some("Local");
    let lease = annotations
        .get(names::kube_vip::LEASE_NAME)
        .filter(|v| !v.is_empty())
        .map(|value| shared_lease(value, service.metadata.namespace.as_deref()));
    if let Some(lease) = lease
        .as_ref()
        .filter(|lease| !may_name(lease, service, config))
    {
        facts.push(Fact::warning(
            Reason::InvalidConfiguration,
            format!(
                "{} is {}/{}: it must be a Lease of the Service's own namespace, or the one for all \
                 Services; the Service is not announced",
                names::kube_vip::LEASE_NAME, lease.namespace, lease.name
            ),
        ));
        return None;
    }
    if lease.is_some() && local {
        // kube-vip leaves such a Service alone too: one Lease cannot follow the endpoints of several.
        facts.push(Fact::warning(
            Reason::InvalidConfiguration,
            format!(
                "{} needs externalTrafficPolicy: Cluster; the Service is not announced",
                names::kube_vip::LEASE_NAME
            ),
        ));
        return None;
    }
    let node_selector = match annotations
        .get(names::harvester::VIP_NODE_SELECTOR)
        .map(|v| v.parse())
    {
        Some(Ok(selector)) => Some(selector),
        Some(Err(error)) => {
            facts.push(Fact::warning(
                Reason::InvalidConfiguration,
                format!(
                    "{}: {error}; the Service is not announced",
                    names::harvester::VIP_NODE_SELECTOR
                ),
            ));
            return None;
        }
        None => None,
    };
    Some(VipRequest {
        uid: service.metadata.uid.clone().unwrap_or_default(),
        created: service.metadata.creation_timestamp.as_ref().map(|t| t.0),
        addresses,
        interface: annotations
            .get(names::kube_vip::SERVICE_INTERFACE)
            .and_then(|v| interface(v)),
        gate: gate(local, annotations, config, facts),
        lease,
        own_election: is_true(annotations, names::kube_vip::FORCE_PER_SERVICE_ELECTION),
        node_selector,
        ports: ports(spec.ports.as_deref().unwrap_or_default()),
    })
}

fn interface(value: &str) -> Option<InterfaceChoice> {
    match value.trim() {
        "" => None,
        "auto" => Some(InterfaceChoice::Auto),
        name => Some(InterfaceChoice::Named(name.to_owned())),
    }
}

/// Who may write a Service must not make every speaker contend for any Lease of the cluster.
fn may_name(lease: &SharedLease, service: &Service, config: &SpeakerConfig) -> bool {
    let global = &config.lease;
    let is_global = lease.namespace == global.namespace && lease.name == global.name;
    let is_own = service.metadata.namespace.as_deref() == Some(&lease.namespace);
    is_object_name(&lease.name) && (is_own || is_global)
}

/// A DNS-1123 subdomain, which the names of objects are.
fn is_object_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// `name` or `namespace/name`.
fn shared_lease(value: &str, namespace: Option<&str>) -> SharedLease {
    let (namespace, name) = value
        .split_once('/')
        .unwrap_or_else(|| (namespace.unwrap_or_default(), value));
    SharedLease {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn gate(
    local: bool,
    annotations: &BTreeMap<String, String>,
    config: &SpeakerConfig,
    facts: &mut Vec<Fact>,
) -> EndpointGate {
    if local {
        return EndpointGate::Local;
    }
    let mut required = config.require_endpoints;
    match annotations
        .get(names::harvester::VIP_REQUIRE_ENDPOINTS)
        .map(String::as_str)
    {
        Some("true") => required = true,
        Some("false") => required = false,
        Some(other) => facts.push(Fact::warning(
            Reason::InvalidConfiguration,
            format!(
                "{} is {other:?}, neither true nor false",
                names::harvester::VIP_REQUIRE_ENDPOINTS
            ),
        )),
        None => {}
    }
    if is_true(
        annotations,
        names::kube_vip::ALLOW_RECONCILE_WITHOUT_ENDPOINTS,
    ) {
        required = false;
    }
    if required {
        EndpointGate::Any
    } else {
        EndpointGate::None
    }
}

fn ports(ports: &[ServicePort]) -> Vec<(i32, String)> {
    ports
        .iter()
        .map(|p| {
            (
                p.port,
                p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests;
