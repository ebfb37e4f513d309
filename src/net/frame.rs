//! Frames of neighbour resolution: checked reading, and building.
//!
//! [`parse`] takes what arrived on an Ethernet link and says what a neighbour said: an ARP request
//! or reply (RFC 826, for IPv4 over Ethernet only), or an IPv6 neighbour solicitation or
//! advertisement (RFC 4861, with every check of sections 7.1.1 and 7.1.2). It accepts any bytes and
//! never panics. The builders make the frames that the announcer sends, complete with checksum.
//!
//! pnet's fixed-layout views are used both ways. Its iterator over neighbour discovery options is
//! not: it overflows on long options and loops on empty ones. They are walked here.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

mod build;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pnet::{
    packet::{
        Packet,
        arp::{ArpHardwareTypes, ArpOperation, ArpOperations, ArpPacket},
        ethernet::{EtherType, EtherTypes, EthernetPacket},
        icmpv6::{
            self, Icmpv6Code, Icmpv6Packet, Icmpv6Types,
            ndp::{
                NdpOptionTypes, NeighborAdvertFlags, NeighborAdvertPacket, NeighborSolicitPacket,
            },
        },
        ip::IpNextHeaderProtocols,
        ipv6::Ipv6Packet,
    },
    util::MacAddr,
};

pub use self::build::{
    Frame, arp_question, arp_request, gratuitous_reply, gratuitous_request, multicast_solicitation,
    unicast_solicitation, unsolicited_advertisement,
};
use super::link::MacAddress;

const ETHERNET: usize = 14;
const IPV6: usize = 40;
/// An ICMPv6 neighbour message without options.
const NEIGHBOUR_MESSAGE: usize = 24;
const SOLICITED: u8 = 0x40;

/// What a neighbour said on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    ArpRequest {
        ethernet_source: MacAddress,
        sender_mac: MacAddress,
        sender_ip: Ipv4Addr,
        target_ip: Ipv4Addr,
    },
    ArpReply {
        ethernet_source: MacAddress,
        sender_mac: MacAddress,
        sender_ip: Ipv4Addr,
        target_ip: Ipv4Addr,
    },
    NeighbourSolicitation {
        ethernet_source: MacAddress,
        source: Ipv6Addr,
        target: Ipv6Addr,
        source_link: Option<MacAddress>,
    },
    NeighbourAdvertisement {
        ethernet_source: MacAddress,
        source: Ipv6Addr,
        target: Ipv6Addr,
        target_link: Option<MacAddress>,
        solicited: bool,
        overrides: bool,
    },
}

/// A neighbour's statement that an address is at a MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub address: IpAddr,
    pub mac: MacAddress,
    /// It makes neighbours forget another MAC. (An advertisement without the Override flag does not.)
    pub overrides: bool,
}

impl Heard {
    /// The sender of the Ethernet frame.
    pub fn ethernet_source(&self) -> MacAddress {
        match self {
            Self::ArpRequest {
                ethernet_source, ..
            }
            | Self::ArpReply {
                ethernet_source, ..
            }
            | Self::NeighbourSolicitation {
                ethernet_source, ..
            }
            | Self::NeighbourAdvertisement {
                ethernet_source, ..
            } => *ethernet_source,
        }
    }

    /// The claim this makes. Questions from 0.0.0.0 and `::` make none: they ask, and hold nothing.
    pub fn claim(&self) -> Option<Claim> {
        match *self {
            Self::ArpRequest {
                sender_mac,
                sender_ip,
                ..
            }
            | Self::ArpReply {
                sender_mac,
                sender_ip,
                ..
            } => (!sender_ip.is_unspecified()).then_some(Claim {
                address: sender_ip.into(),
                mac: sender_mac,
                overrides: true,
            }),
            Self::NeighbourSolicitation {
                source,
                source_link,
                ..
            } => source_link.map(|mac| Claim {
                address: source.into(),
                mac,
                overrides: true,
            }),
            Self::NeighbourAdvertisement {
                ethernet_source,
                target,
                target_link,
                overrides,
                ..
            } => Some(Claim {
                address: target.into(),
                mac: target_link.unwrap_or(ethernet_source),
                overrides,
            }),
        }
    }
}

/// Why bytes are not something a neighbour said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("the frame ends early")]
    Truncated,
    #[error("EtherType {0:#06x} is neither ARP nor IPv6")]
    EtherType(u16),
    #[error("the ARP packet is not for IPv4 over Ethernet")]
    ArpFormat,
    #[error("ARP operation {0} is neither request nor reply")]
    ArpOperation(u16),
    #[error("the sender's hardware address is a group address")]
    GroupSender,
    #[error("the IPv6 packet carries no ICMPv6 neighbour message")]
    NotNeighbourDiscovery,
    #[error("the hop limit is {0}: the packet was routed")]
    HopLimit(u8),
    #[error("the ICMPv6 checksum is wrong")]
    Checksum,
    #[error("the ICMPv6 code is {0}, not 0")]
    Code(u8),
    #[error("the target {0} is a multicast address")]
    MulticastTarget(Ipv6Addr),
    #[error("a neighbour discovery option is empty or reaches beyond the packet")]
    Option,
    #[error("source, destination and flags do not belong together")]
    Contradiction,
}

/// Reads a frame of an Ethernet link; VLAN tags have been taken out by the kernel.
pub fn parse(frame: &[u8]) -> Result<Heard, FrameError> {
    let ethernet = EthernetPacket::new(frame).ok_or(FrameError::Truncated)?;
    let source = mac(ethernet.get_source());
    if is_group(source) {
        return Err(FrameError::GroupSender);
    }
    match ethernet.get_ethertype() {
        EtherTypes::Arp => parse_arp(source, ethernet.payload()),
        EtherTypes::Ipv6 => parse_ipv6(source, ethernet.payload()),
        EtherType(other) => Err(FrameError::EtherType(other)),
    }
}

fn parse_arp(ethernet_source: MacAddress, bytes: &[u8]) -> Result<Heard, FrameError> {
    let arp = ArpPacket::new(bytes).ok_or(FrameError::Truncated)?;
    if arp.get_hardware_type() != ArpHardwareTypes::Ethernet
        || arp.get_protocol_type() != EtherTypes::Ipv4
        || arp.get_hw_addr_len() != 6
        || arp.get_proto_addr_len() != 4
    {
        return Err(FrameError::ArpFormat);
    }
    let sender_mac = mac(arp.get_sender_hw_addr());
    if is_group(sender_mac) {
        return Err(FrameError::GroupSender);
    }
    let (sender_ip, target_ip) = (arp.get_sender_proto_addr(), arp.get_target_proto_addr());
    match arp.get_operation() {
        ArpOperations::Request => Ok(Heard::ArpRequest {
            ethernet_source,
            sender_mac,
            sender_ip,
            target_ip,
        }),
        ArpOperations::Reply => Ok(Heard::ArpReply {
            ethernet_source,
            sender_mac,
            sender_ip,
            target_ip,
        }),
        ArpOperation(other) => Err(FrameError::ArpOperation(other)),
    }
}

fn parse_ipv6(ethernet_source: MacAddress, bytes: &[u8]) -> Result<Heard, FrameError> {
    let ip = Ipv6Packet::new(bytes).ok_or(FrameError::Truncated)?;
    if ip.get_version() != 6 || ip.get_next_header() != IpNextHeaderProtocols::Icmpv6 {
        return Err(FrameError::NotNeighbourDiscovery);
    }
    // The Ethernet payload may be padded; the IPv6 header knows where the message ends.
    let message = bytes
        .get(IPV6..IPV6 + usize::from(ip.get_payload_length()))
        .ok_or(FrameError::Truncated)?;
    let icmp = Icmpv6Packet::new(message).ok_or(FrameError::Truncated)?;
    let kind = icmp.get_icmpv6_type();
    if kind != Icmpv6Types::NeighborSolicit && kind != Icmpv6Types::NeighborAdvert {
        return Err(FrameError::NotNeighbourDiscovery);
    }
    let options = message
        .get(NEIGHBOUR_MESSAGE..)
        .ok_or(FrameError::Truncated)?;
    if ip.get_hop_limit() != 255 {
        return Err(FrameError::HopLimit(ip.get_hop_limit()));
    }
    let (source, destination) = (ip.get_source(), ip.get_destination());
    if icmp.get_checksum() != icmpv6::checksum(&icmp, &source, &destination) {
        return Err(FrameError::Checksum);
    }
    if icmp.get_icmpv6_code() != Icmpv6Code(0) {
        return Err(FrameError::Code(icmp.get_icmpv6_code().0));
    }
    if kind == Icmpv6Types::NeighborSolicit {
        solicitation(ethernet_source, source, destination, message, options)
    } else {
        advertisement(ethernet_source, source, destination, message, options)
    }
}

/// RFC 4861 section 7.1.1.
fn solicitation(
    ethernet_source: MacAddress,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: &[u8],
    options: &[u8],
) -> Result<Heard, FrameError> {
    let target = NeighborSolicitPacket::new(message)
        .ok_or(FrameError::Truncated)?
        .get_target_addr();
    if target.is_multicast() {
        return Err(FrameError::MulticastTarget(target));
    }
    let source_link = link_option(options, NdpOptionTypes::SourceLLAddr.0)?;
    if source.is_unspecified()
        && (source_link.is_some() || destination != solicited_node_group(target))
    {
        return Err(FrameError::Contradiction);
    }
    Ok(Heard::NeighbourSolicitation {
        ethernet_source,
        source,
        target,
        source_link,
    })
}

/// RFC 4861 section 7.1.2.
fn advertisement(
    ethernet_source: MacAddress,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: &[u8],
    options: &[u8],
) -> Result<Heard, FrameError> {
    let packet = NeighborAdvertPacket::new(message).ok_or(FrameError::Truncated)?;
    let target = packet.get_target_addr();
    if target.is_multicast() {
        return Err(FrameError::MulticastTarget(target));
    }
    let flags = packet.get_flags();
    let solicited = flags & SOLICITED != 0;
    if solicited && destination.is_multicast() {
        return Err(FrameError::Contradiction);
    }
    Ok(Heard::NeighbourAdvertisement {
        ethernet_source,
        source,
        target,
        target_link: link_option(options, NdpOptionTypes::TargetLLAddr.0)?,
        solicited,
        overrides: flags & NeighborAdvertFlags::Override != 0,
    })
}

/// The address in the first link-layer address option of this kind. All options are checked, also
/// those of no interest (RFC 4861 section 4.6: length 0 discards the packet).
fn link_option(mut options: &[u8], kind: u8) -> Result<Option<MacAddress>, FrameError> {
    let mut found = None;
    while let [option, length, ..] = *options {
        let size = usize::from(length) * 8;
        if size == 0 {
            return Err(FrameError::Option);
        }
        let (body, rest) = options.split_at_checked(size).ok_or(FrameError::Option)?;
        if let [_, 1, a, b, c, d, e, f] = *body
            && option == kind
        {
            let address = MacAddress([a, b, c, d, e, f]);
            if is_group(address) {
                return Err(FrameError::GroupSender);
            }
            found = found.or(Some(address));
        }
        options = rest;
    }
    if options.is_empty() {
        Ok(found)
    } else {
        Err(FrameError::Option)
    }
}

/// `ff02::1:ffXX:XXXX` (RFC 4291 section 2.7.1).
fn solicited_node_group(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    let low = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low)
}

fn is_group(MacAddress([first, ..]): MacAddress) -> bool {
    first & 1 == 1
}

fn mac(address: MacAddr) -> MacAddress {
    MacAddress(address.octets())
}

#[cfg(test)]
mod tests;
