//! What the kernel reports over rtnetlink, as values. Pure.
//!
//! One place reads route messages, for dumps and for notifications alike. Messages that are not
//! about a link, an address or a default route of the main table yield nothing.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkMessage},
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType, RouteVia},
};

use super::link::{
    ADDRESS_PROTOCOL, AddressKey, DefaultRoute, Link, LinkAddress, LinkIndex, MacAddress, Snapshot,
};

/// One report of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    Link(Link),
    LinkGone(LinkIndex),
    Address(LinkAddress),
    AddressGone(AddressKey),
    /// A default route was added or changed; more than one if it has several next hops.
    DefaultRoutes(Vec<DefaultRoute>),
    /// A default route is gone.
    DefaultRouteGone,
}

/// Reads one message.
pub(super) fn report(message: &RouteNetlinkMessage) -> Option<Report> {
    match message {
        RouteNetlinkMessage::NewLink(message) => link(message).map(Report::Link),
        // Bridges and IPv6 report through the same group, with their own family: a port that
        // leaves its bridge is not a link that is gone.
        RouteNetlinkMessage::DelLink(message) => (message.header.interface_family
            == AddressFamily::Unspec)
            .then_some(Report::LinkGone(LinkIndex(message.header.index))),
        RouteNetlinkMessage::NewAddress(message) => address(message).map(Report::Address),
        RouteNetlinkMessage::DelAddress(message) => {
            address(message).map(|a| Report::AddressGone(a.key()))
        }
        RouteNetlinkMessage::NewRoute(message) => {
            is_default(message).then(|| Report::DefaultRoutes(default_routes(message)))
        }
        RouteNetlinkMessage::DelRoute(message) => {
            is_default(message).then_some(Report::DefaultRouteGone)
        }
        _ => None,
    }
}

/// The state that a complete dump describes.
pub(super) fn snapshot(reports: impl IntoIterator<Item = Report>) -> Snapshot {
    let mut all = Snapshot::default();
    for report in reports {
        match report {
            Report::Link(link) => {
                all.links.insert(link.index, link);
            }
            Report::Address(address) => {
                all.addresses.insert(address.key(), address);
            }
            Report::DefaultRoutes(routes) => all.default_routes.extend(routes),
            Report::LinkGone(_) | Report::AddressGone(_) | Report::DefaultRouteGone => {}
        }
    }
    sort(&mut all.default_routes);
    all
}

/// By family, then the lowest metric first, as the kernel chooses.
pub(super) fn sort(routes: &mut Vec<DefaultRoute>) {
    routes.sort_by_key(|route| (route.ipv6, route.metric, route.link, route.gateway));
    routes.dedup();
}

fn link(message: &LinkMessage) -> Option<Link> {
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let flags = message.header.flags;
    let index = LinkIndex(message.header.index);
    let mut link = Link {
        index,
        name: String::new(),
        alias: None,
        mac: None,
        parent: None,
        loopback: flags.contains(LinkFlags::Loopback),
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp | LinkFlags::Running),
        mtu: 0,
    };
    let mut elsewhere = false;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::IfAlias(alias) if !alias.is_empty() => link.alias = Some(alias.clone()),
            LinkAttribute::Address(bytes) if !link.loopback => {
                link.mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(MacAddress);
            }
            LinkAttribute::Link(parent) if *parent != 0 && *parent != index.0 => {
                link.parent = Some(LinkIndex(*parent));
            }
            // The index below is one of another network namespace and means nothing here.
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            _ => {}
        }
    }
    if elsewhere {
        link.parent = None;
    }
    Some(link)
}

fn address(message: &AddressMessage) -> Option<LinkAddress> {
    let (mut local, mut address) = (None, None);
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let mut marked = false;
    for attribute in &message.attributes {
        match attribute {
            // With a peer, `Address` is the peer's. IPv6 without one has no `Local`.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            // The header has room for the first eight flags only.
            AddressAttribute::Flags(all) => flags = *all,
            AddressAttribute::Protocol(protocol) => {
                marked = u8::from(*protocol) == ADDRESS_PROTOCOL;
            }
            _ => {}
        }
    }
    Some(LinkAddress {
        link: LinkIndex(message.header.index),
        address: local.or(address)?,
        prefix_len: message.header.prefix_len,
        marked,
        usable: !flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed),
        deprecated: flags.contains(AddressFlags::Deprecated),
    })
}

/// Of the main table, for unicast. (Blackhole and unreachable defaults lead nowhere.)
fn is_default(message: &RouteMessage) -> bool {
    let header = &message.header;
    let table = message.attributes.iter().find_map(|a| match a {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    header.destination_prefix_length == 0
        && header.kind == RouteType::Unicast
        && matches!(
            header.address_family,
            AddressFamily::Inet | AddressFamily::Inet6
        )
        && table.unwrap_or_else(|| header.table.into()) == u32::from(RouteHeader::RT_TABLE_MAIN)
}

fn default_routes(message: &RouteMessage) -> Vec<DefaultRoute> {
    let ipv6 = message.header.address_family == AddressFamily::Inet6;
    let metric = message.attributes.iter().find_map(|a| match a {
        RouteAttribute::Priority(metric) => Some(*metric),
        _ => None,
    });
    let route = |link, attributes: &[RouteAttribute]| DefaultRoute {
        ipv6,
        link: LinkIndex(link),
        gateway: attributes.iter().find_map(gateway),
        metric: metric.unwrap_or(0),
    };
    let mut routes = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(link) => routes.push(route(*link, &message.attributes)),
            RouteAttribute::MultiPath(hops) => routes.extend(
                hops.iter()
                    .map(|hop| route(hop.interface_index, &hop.attributes)),
            ),
            _ => {}
        }
    }
    routes
}

fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip))
        | RouteAttribute::Via(RouteVia::Inet(ip)) => Some((*ip).into()),
        RouteAttribute::Gateway(RouteAddress::Inet6(ip))
        | RouteAttribute::Via(RouteVia::Inet6(ip)) => Some((*ip).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressProtocol;

    use super::*;

    fn route(attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.kind = RouteType::Unicast;
        message.attributes = attributes;
        message
    }

    #[test]
    fn a_bridge_port_that_leaves_is_not_a_link_that_is_gone() {
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.header.interface_family = AddressFamily::Bridge;
        assert_eq!(report(&RouteNetlinkMessage::DelLink(message.clone())), None);
        message.header.interface_family = AddressFamily::Unspec;
        assert_eq!(
            report(&RouteNetlinkMessage::DelLink(message)),
            Some(Report::LinkGone(LinkIndex(7)))
        );
    }

    #[test]
    fn the_parent_of_a_link_in_another_namespace_is_unknown() {
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::Link(9)];
        assert_eq!(link(&message).unwrap().parent, Some(LinkIndex(9)));
        message.attributes.push(LinkAttribute::LinkNetNsId(0));
        assert_eq!(link(&message).unwrap().parent, None);
    }

    #[test]
    fn the_flags_attribute_wins_over_the_header_and_local_over_the_peer() {
        let mut message = AddressMessage::default();
        message.attributes = vec![
            AddressAttribute::Address("192.0.2.2".parse().unwrap()),
            AddressAttribute::Local("192.0.2.1".parse().unwrap()),
            AddressAttribute::Flags(AddressFlags::Tentative | AddressFlags::Deprecated),
            AddressAttribute::Protocol(AddressProtocol::Other(ADDRESS_PROTOCOL)),
        ];
        let read = address(&message).unwrap();
        assert_eq!(read.address, "192.0.2.1".parse::<IpAddr>().unwrap());
        assert!(read.marked && read.deprecated && !read.usable);
    }

    #[test]
    fn an_address_without_attributes_yields_nothing() {
        let message = RouteNetlinkMessage::NewAddress(AddressMessage::default());
        assert_eq!(report(&message), None);
    }

    #[test]
    fn only_unicast_defaults_of_the_main_table_count() {
        let message = route(vec![RouteAttribute::Oif(2)]);
        assert!(is_default(&message));
        let mut other = message.clone();
        other.header.table = 10;
        assert!(!is_default(&other));
        let mut other = message.clone();
        other.attributes.push(RouteAttribute::Table(1000));
        assert!(!is_default(&other));
        let mut other = message.clone();
        other.header.kind = RouteType::BlackHole;
        assert!(!is_default(&other));
        let mut other = message;
        other.header.destination_prefix_length = 8;
        assert!(!is_default(&other));
    }

    #[test]
    fn the_lowest_metric_comes_first_in_each_family() {
        let default = |ipv6, link, metric| DefaultRoute {
            ipv6,
            link: LinkIndex(link),
            gateway: None,
            metric,
        };
        let mut routes = vec![
            default(true, 1, 0),
            default(false, 3, 200),
            default(false, 2, 100),
        ];
        sort(&mut routes);
        let links: Vec<u32> = routes.iter().map(|r| r.link.0).collect();
        assert_eq!(links, [2, 3, 1]);
    }
}
