//! Which link a VIP goes to on this node, and which addresses may be no VIP at all: pure.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    config::{InterfaceChoice, PrefixLength, SpeakerConfig},
    net::link::{AddressKey, Link, LinkAddress, LinkIndex, Snapshot},
};

/// This node's links, and the addresses on them that are its own: no VIP of ours among them. Made once
/// for a decision about many VIPs.
#[derive(Debug)]
pub struct Ground<'a> {
    links: &'a Snapshot,
    own: Vec<&'a LinkAddress>,
}

impl<'a> Ground<'a> {
    /// `put`: addresses that this process put on a link; kernels before 5.18 do not keep their mark.
    pub fn new(links: &'a Snapshot, put: impl Fn(&AddressKey) -> bool) -> Self {
        let addresses = links.addresses.values();
        let own = addresses.filter(|a| !a.marked && !put(&a.key())).collect();
        Self { links, own }
    }

    /// The node's own addresses on one link.
    pub fn on(&self, link: LinkIndex) -> impl Iterator<Item = &'a LinkAddress> + '_ {
        self.own.iter().copied().filter(move |a| a.link == link)
    }

    /// All of the node's own addresses.
    pub fn own(&self) -> &[&'a LinkAddress] {
        &self.own
    }
}

/// Where a VIP goes on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub link: LinkIndex,
    pub prefix_len: u8,
    /// Frames can leave and arrive there now.
    pub running: bool,
}

/// Why this node has no place for a VIP.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    #[error("there is no link {0:?}")]
    NoSuchLink(String),
    #[error("no link is in a network of {0}, and there is no default route")]
    NoNetwork(IpAddr),
    #[error("link {0:?} has no Ethernet address")]
    NotEthernet(String),
    #[error(
        "no address of link {0:?} is in a network of {1}, so there is no prefix length to copy"
    )]
    NoPrefix(String, IpAddr),
}

/// Why an address may not be announced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0} is a {1} address")]
    Kind(IpAddr, &'static str),
    #[error("{0} is an address of node {1}")]
    Node(IpAddr, String),
    #[error("{0} is an address of the API server")]
    ApiServer(IpAddr),
    #[error("{0} is a gateway of this node")]
    Gateway(IpAddr),
    #[error("{0} is an address of this host, on link {1:?}")]
    OwnAddress(IpAddr, String),
    #[error("{0} is the {1} of {2}")]
    NetworkEdge(IpAddr, &'static str, IpNet),
    #[error("{0} is outside the allowed networks (--speaker-allowed-cidrs)")]
    NotAllowed(IpAddr),
}

/// What no link and no cluster could make a VIP.
pub fn refusal_by_kind(vip: IpAddr, config: &SpeakerConfig) -> Option<Refusal> {
    let kind = match vip {
        _ if vip.is_unspecified() => Some("unspecified"),
        _ if vip.is_loopback() => Some("loopback"),
        _ if vip.is_multicast() => Some("multicast"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("link-local"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("broadcast"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("reserved"),
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => Some("reserved"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("link-local"),
        _ => None,
    };
    if let Some(kind) = kind {
        return Some(Refusal::Kind(vip, kind));
    }
    if config.api_server.contains(&vip) {
        return Some(Refusal::ApiServer(vip));
    }
    let allowed = &config.allowed_cidrs;
    (!allowed.is_empty() && !allowed.iter().any(|net| net.contains(&vip)))
        .then_some(Refusal::NotAllowed(vip))
}

/// What this node's links and routes forbid.
///
/// An unmarked host-length address equal to the VIP is no obstacle: kube-vip leaves such addresses
/// behind, and taking the VIP means to adopt it.
pub fn refusal_here(vip: IpAddr, ground: &Ground<'_>) -> Option<Refusal> {
    let links = ground.links;
    if links
        .default_routes
        .iter()
        .any(|route| route.gateway == Some(vip))
    {
        return Some(Refusal::Gateway(vip));
    }
    for address in &ground.own {
        let host_length = max_prefix_len(address.address);
        if address.address == vip && (address.prefix_len != host_length || !address.deprecated) {
            let name = links
                .links
                .get(&address.link)
                .map(|l| l.name.clone())
                .unwrap_or_default();
            return Some(Refusal::OwnAddress(vip, name));
        }
        if let Some(edge) = network_edge(vip, address.address, address.prefix_len) {
            return Some(edge);
        }
    }
    None
}

fn network_edge(vip: IpAddr, address: IpAddr, prefix_len: u8) -> Option<Refusal> {
    let (IpAddr::V4(_), IpAddr::V4(_), ..=30) = (vip, address, prefix_len) else {
        return None;
    };
    let net = IpNet::new(address, prefix_len).ok()?.trunc();
    if net.network() == vip {
        return Some(Refusal::NetworkEdge(vip, "network address", net));
    }
    (net.broadcast() == vip).then_some(Refusal::NetworkEdge(vip, "broadcast address", net))
}

/// Chooses the link: the Service's annotation, else the configured one for Services, else the
/// configured one of the node, else the link whose network contains the VIP, else the default-route
/// link of the VIP's family, else that of the other family.
pub fn place(
    vip: IpAddr,
    annotation: Option<&InterfaceChoice>,
    config: &SpeakerConfig,
    ground: &Ground<'_>,
) -> Result<Place, NoPlace> {
    let link = choose(vip, annotation, config, ground)?;
    if link.mac.is_none() || link.loopback {
        return Err(NoPlace::NotEthernet(link.name.clone()));
    }
    let prefix_len = prefix_len(vip, link, config, ground)?;
    Ok(Place {
        link: link.index,
        prefix_len,
        running: link.is_running(),
    })
}

fn choose<'a>(
    vip: IpAddr,
    annotation: Option<&InterfaceChoice>,
    config: &SpeakerConfig,
    ground: &Ground<'a>,
) -> Result<&'a Link, NoPlace> {
    let links = ground.links;
    let named = |name: &str| {
        links
            .links
            .values()
            .find(|link| link.name == name)
            .ok_or_else(|| NoPlace::NoSuchLink(name.to_owned()))
    };
    match annotation.unwrap_or(&config.service_interface) {
        InterfaceChoice::Named(name) => return named(name),
        InterfaceChoice::Auto if annotation.is_none() => {
            if let Some(name) = &config.interface {
                return named(name);
            }
        }
        InterfaceChoice::Auto => {}
    }
    if let Some(link) = in_network(vip, ground) {
        return Ok(link);
    }
    if let Some(name) = &config.interface {
        return named(name);
    }
    default_route_link(vip, links).ok_or(NoPlace::NoNetwork(vip))
}

/// The link with an address whose network contains the VIP: running ones first, then the longest
/// prefix, then kernel order.
fn in_network<'a>(vip: IpAddr, ground: &Ground<'a>) -> Option<&'a Link> {
    let links = ground.links;
    ground
        .own
        .iter()
        .filter(|a| a.prefix_len < max_prefix_len(a.address))
        .filter(|a| contains(a.address, a.prefix_len, vip))
        .filter_map(|a| links.links.get(&a.link).map(|link| (link, a.prefix_len)))
        .filter(|(link, _)| !link.loopback && link.mac.is_some())
        .min_by_key(|(link, prefix_len)| (!link.is_running(), u8::MAX - prefix_len, link.index))
        .map(|(link, _)| link)
}

fn default_route_link(vip: IpAddr, links: &Snapshot) -> Option<&Link> {
    let of_family = |ipv6| links.default_routes.iter().find(move |r| r.ipv6 == ipv6);
    of_family(vip.is_ipv6())
        .or_else(|| of_family(!vip.is_ipv6()))
        .and_then(|route| links.links.get(&route.link))
}

fn prefix_len(
    vip: IpAddr,
    link: &Link,
    config: &SpeakerConfig,
    ground: &Ground<'_>,
) -> Result<u8, NoPlace> {
    let rule = if vip.is_ipv4() {
        config.vip_prefix.ipv4
    } else {
        config.vip_prefix.ipv6
    };
    match rule {
        PrefixLength::Fixed(length) => Ok(length),
        PrefixLength::Auto => ground
            .on(link.index)
            .filter(|a| contains(a.address, a.prefix_len, vip))
            .map(|a| a.prefix_len)
            .max()
            .ok_or_else(|| NoPlace::NoPrefix(link.name.clone(), vip)),
    }
}

fn contains(address: IpAddr, prefix_len: u8, vip: IpAddr) -> bool {
    IpNet::new(address, prefix_len).is_ok_and(|net| net.contains(&vip))
}

/// 32 or 128.
pub fn max_prefix_len(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests;
