//! The LoadBalancer object of a Service: its name, what it should say, whose it is. Pure.
//!
//! Names, labels, annotations and spec are the Go program's, so that its objects are adopted as they
//! are. Deliberate differences: an object is revised only where it differs from what this side owns
//! (the host overwrites `…/project` and `…/namespace`, so these are only set at creation), `ipam` is
//! always explicit, because an object without it never gives its address back, and a new object says
//! which guest cluster made it.

use std::{fmt, net::IpAddr};

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::plan::Complaint;
use crate::{
    config::CcmConfig,
    harvester::loadbalancer::{LoadBalancer, Status},
    k8s::names::{harvester, load_balancer},
};

const WORKLOAD_TYPE: &str = "cluster";
const PREFIX_LENGTH: usize = 55;

/// What the controller was told about its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub cluster: String,
    pub management_network: Option<String>,
}

impl Settings {
    pub(super) fn new(config: &CcmConfig) -> Self {
        Self {
            cluster: normalised(&config.cluster_name),
            management_network: config.management_network.clone(),
        }
    }

    /// Other guest clusters may go by this name too.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.cluster.is_empty() || self.cluster == "kubernetes"
    }
}

/// Without the blanks and quotes that templates leave around a value.
fn normalised(cluster: &str) -> String {
    let around = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r' | '"' | '\'' | '`');
    cluster.trim_matches(around).to_owned()
}

/// Who chooses the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ipam {
    Pool,
    Dhcp,
}

impl Ipam {
    /// What the Service asks for. `ippool` is how some documentation spells it.
    pub(super) fn wished(service: &Service) -> Result<Self, Complaint> {
        match annotation(service, harvester::IPAM) {
            "" | "pool" | "ippool" => Ok(Self::Pool),
            "dhcp" => Ok(Self::Dhcp),
            other => Err(Complaint::Ipam(other.to_owned())),
        }
    }

    /// What the object has; absent means a pool.
    pub(super) fn of(object: &LoadBalancer) -> Self {
        match object.spec.ipam.as_deref() {
            Some("dhcp") => Self::Dhcp,
            _ => Self::Pool,
        }
    }
}

impl fmt::Display for Ipam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pool => "pool",
            Self::Dhcp => "dhcp",
        })
    }
}

/// The value of an annotation; empty if there is none.
pub(super) fn annotation<'a>(service: &'a Service, key: &str) -> &'a str {
    let value = service.annotations().get(key);
    value.map(String::as_str).unwrap_or_default()
}

/// The addresses that the Service's status shows.
pub(super) fn ingress(service: &Service) -> impl Iterator<Item = &str> {
    let status = service.status.as_ref();
    let ingress = status
        .and_then(|status| status.load_balancer.as_ref())
        .and_then(|status| status.ingress.as_ref());
    ingress
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ip.as_deref())
        .filter(|ip| !ip.is_empty())
}

/// The name of the object for the Service with this UID.
pub(super) fn name(cluster: &str, namespace: &str, service: &str, uid: &str) -> String {
    let base = base(cluster, namespace, service);
    let sum = crc32(base.bytes().chain(uid.bytes()));
    format!("{}{sum:08x}", prefix(&base))
}

/// Whether `object` is named as objects for a Service of this name are, whatever its UID.
pub(super) fn is_named_for(object: &str, cluster: &str, namespace: &str, service: &str) -> bool {
    let base = base(cluster, namespace, service);
    object.strip_prefix(prefix(&base)).is_some_and(|sum| {
        sum.len() == 8 && sum.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn base(cluster: &str, namespace: &str, service: &str) -> String {
    let a = if is_dns_1035_label(cluster) { "" } else { "a" };
    format!("{a}{cluster}-{namespace}-{service}-")
}

fn prefix(base: &str) -> &str {
    let mut end = base.len().min(PREFIX_LENGTH);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    base.split_at(end).0
}

fn is_dns_1035_label(text: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 63
        && text.bytes().next().is_some_and(|c| c.is_ascii_lowercase())
        && text.bytes().last().is_some_and(alphanumeric)
        && text.bytes().all(|c| alphanumeric(c) || c == b'-')
}

/// CRC-32 as in IEEE 802.3.
pub(super) fn crc32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            let low = sum & 1;
            sum = (sum >> 1) ^ (0xEDB8_8320 * low);
        }
    }
    !sum
}

/// Whose an object is that has the name of ours.
pub(super) fn is_ours(settings: &Settings, object: &LoadBalancer) -> bool {
    // An object that lost its label still says it in the annotation; one that says nothing bears
    // our Service's UID in its name.
    let owner = object
        .label(harvester::CLUSTER)
        .or_else(|| object.annotation(load_balancer::CLUSTER));
    owner.is_none_or(|owner| owner == settings.cluster)
}

/// The object to create for the Service. `guest` is what tells this guest cluster from another one of
/// the same name.
pub(super) fn desired(
    settings: &Settings,
    service: &Service,
    ipam: Ipam,
    guest: Option<&str>,
) -> LoadBalancer {
    let namespace = service.namespace().unwrap_or_default();
    let uid = service.uid().unwrap_or_default();
    let network = annotation(service, harvester::NETWORK);
    let mut object = LoadBalancer::default();
    object.metadata.name = Some(name(
        &settings.cluster,
        &namespace,
        &service.name_any(),
        &uid,
    ));
    object.spec.workload_type = Some(WORKLOAD_TYPE.to_owned());
    object.spec.ipam = Some(ipam.to_string());
    own(settings, service, &mut object);
    let project = annotation(service, harvester::PROJECT);
    let scope = annotation(service, harvester::NAMESPACE);
    let mut set = |key: &str, value: &str| {
        object
            .annotations_mut()
            .insert(key.to_owned(), value.to_owned());
    };
    set(load_balancer::PROJECT, project);
    set(load_balancer::NAMESPACE, scope);
    set(load_balancer::NETWORK, network);
    if let Some(guest) = guest {
        set(harvester::GUEST_CLUSTER_UID, guest);
    }
    object
}

/// The object with what this side owns put right; `None` if it is.
pub(super) fn revised(
    settings: &Settings,
    service: &Service,
    object: &LoadBalancer,
) -> Option<LoadBalancer> {
    let mut new = object.clone();
    own(settings, service, &mut new);
    if new.spec.ipam.as_deref().is_none_or(str::is_empty) {
        new.spec.ipam = Some(Ipam::Pool.to_string());
    }
    if let Some(address) = address_in_use(service, object)
        && object.recorded_address() != Some(address)
    {
        new.status.get_or_insert_with(Status::default).address = Some(address.to_owned());
    }
    (new != *object).then_some(new)
}

fn own(settings: &Settings, service: &Service, object: &mut LoadBalancer) {
    let namespace = service.namespace().unwrap_or_default();
    let labels = object.labels_mut();
    for (key, value) in [
        (harvester::CLUSTER, settings.cluster.as_str()),
        (harvester::SERVICE_NAMESPACE, namespace.as_str()),
        (harvester::SERVICE_NAME, &service.name_any()),
    ] {
        if labels.get(key).is_none_or(|old| old != value) {
            labels.insert(key.to_owned(), value.to_owned());
        }
    }
    let annotations = object.annotations_mut();
    annotations.insert(load_balancer::CLUSTER.to_owned(), settings.cluster.clone());
    // An object that is older than this record takes the Service's word.
    annotations
        .entry(harvester::LB_NETWORK.to_owned())
        .or_insert_with(|| annotation(service, harvester::NETWORK).to_owned());
    match &settings.management_network {
        Some(network) => {
            annotations.insert(harvester::MANAGEMENT_NETWORK.to_owned(), network.clone());
        }
        None => {
            annotations.remove(harvester::MANAGEMENT_NETWORK);
        }
    }
}

/// Whether the host's webhook was skipped when the object was last written: it puts the object's own
/// namespace into an annotation. Only another write, of whatever content, has the webhook complete it.
pub(super) fn is_incomplete(object: &LoadBalancer) -> bool {
    let namespace = object.namespace();
    namespace.is_some() && object.annotation(load_balancer::NAMESPACE) != namespace.as_deref()
}

/// The address that clients reach the Service at, where it comes from this reservation: between an
/// old address and a new one the status still shows the old one.
fn address_in_use<'a>(service: &'a Service, object: &LoadBalancer) -> Option<&'a str> {
    let shown = ingress(service).next()?;
    let address: IpAddr = shown.parse().ok()?;
    let fits = match Ipam::of(object) {
        Ipam::Dhcp => !address.is_unspecified(),
        Ipam::Pool => object.allocated()?.parse() == Ok(address),
    };
    fits.then_some(shown)
}

/// What the Service asks for and the object cannot become.
pub(super) fn conflict(service: &Service, object: &LoadBalancer) -> Option<Complaint> {
    if object.spec.workload_type.as_deref() != Some(WORKLOAD_TYPE) {
        let found = object.spec.workload_type.clone().unwrap_or_default();
        return Some(Complaint::WorkloadType(found));
    }
    let ipam = Ipam::of(object);
    match Ipam::wished(service) {
        Ok(wished) if wished == ipam => {}
        Ok(wished) => return Some(Complaint::IpamChanged { ipam, wished }),
        Err(complaint) => return Some(complaint),
    }
    let wished = annotation(service, harvester::NETWORK);
    let network = object.annotation(harvester::LB_NETWORK)?;
    if network != wished {
        return Some(Complaint::NetworkChanged {
            network: network.to_owned(),
            wished: wished.to_owned(),
        });
    }
    // Hosts up to 1.8 put their own choice in its place.
    let used = object.annotation(load_balancer::NETWORK)?;
    (!wished.is_empty() && used != wished).then(|| Complaint::NetworkOverridden {
        used: used.to_owned(),
        wished: wished.to_owned(),
    })
}

#[cfg(test)]
mod tests;
