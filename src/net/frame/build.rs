//! Builds the frames that the announcer sends, complete with checksum. Pure.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    ops::Deref,
};

use pnet::{
    packet::{
        arp::{ArpHardwareTypes, ArpOperation, ArpOperations, MutableArpPacket},
        ethernet::{EtherType, EtherTypes, MutableEthernetPacket},
        icmpv6::{
            self, Icmpv6Types,
            ndp::{
                MutableNeighborAdvertPacket, MutableNeighborSolicitPacket, NdpOptionTypes,
                NeighborAdvertFlags,
            },
        },
        ip::IpNextHeaderProtocols,
        ipv6::MutableIpv6Packet,
    },
    util::MacAddr,
};

use super::{ETHERNET, IPV6, NEIGHBOUR_MESSAGE, parse, solicited_node_group};
use crate::net::link::MacAddress;

const ARP: usize = ETHERNET + 28;
/// A link-layer address option.
const LINK_OPTION: usize = 8;

/// A frame ready to be sent, without a heap allocation: a thousand are sent at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    bytes: [u8; Self::CAPACITY],
    length: usize,
}

impl Frame {
    const CAPACITY: usize = ETHERNET + IPV6 + NEIGHBOUR_MESSAGE + LINK_OPTION;

    /// An ARP frame, as opposed to an IPv6 one.
    pub fn is_arp(&self) -> bool {
        self.length == ARP
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match parse(self) {
            Ok(heard) => heard.fmt(f),
            Err(_) => f.debug_list().entries(self.iter()).finish(),
        }
    }
}

/// "Who has `vip`?" from nobody: sender 0.0.0.0, so that no cache on the link learns anything
/// (the probe of RFC 5227 section 2.1.1).
pub fn arp_question(from: MacAddress, vip: Ipv4Addr) -> Frame {
    let sender = Ipv4Addr::UNSPECIFIED;
    arp(
        ArpOperations::Request,
        (from, sender),
        (MacAddress::ZERO, vip),
        MacAddress::BROADCAST,
    )
}

/// "Who has `target`? Tell `sender`", to all, or to the one MAC that is expected to answer.
pub fn arp_request(
    from: MacAddress,
    sender: Ipv4Addr,
    target: Ipv4Addr,
    to: Option<MacAddress>,
) -> Frame {
    arp(
        ArpOperations::Request,
        (from, sender),
        (MacAddress::ZERO, target),
        to.unwrap_or(MacAddress::BROADCAST),
    )
}

/// `vip` is at `mac`, said as a request (the announcement of RFC 5227 section 2.3).
pub fn gratuitous_request(mac: MacAddress, vip: Ipv4Addr) -> Frame {
    arp_request(mac, vip, vip, None)
}

/// `vip` is at `mac`, said as a reply. The target MAC is the sender's, not broadcast: Linux takes
/// only this form for gratuitous, and ignores others for entries younger than a second.
pub fn gratuitous_reply(mac: MacAddress, vip: Ipv4Addr) -> Frame {
    let us = (mac, vip);
    arp(ArpOperations::Reply, us, us, MacAddress::BROADCAST)
}

fn arp(
    operation: ArpOperation,
    (sender_mac, sender): (MacAddress, Ipv4Addr),
    (target_mac, target): (MacAddress, Ipv4Addr),
    to: MacAddress,
) -> Frame {
    let mut frame = ethernet(sender_mac, to, EtherTypes::Arp, ARP);
    let mut packet =
        MutableArpPacket::new(&mut frame.bytes[ETHERNET..]).expect("the buffer has room for ARP");
    packet.set_hardware_type(ArpHardwareTypes::Ethernet);
    packet.set_protocol_type(EtherTypes::Ipv4);
    packet.set_hw_addr_len(6);
    packet.set_proto_addr_len(4);
    packet.set_operation(operation);
    packet.set_sender_hw_addr(address(sender_mac));
    packet.set_sender_proto_addr(sender);
    packet.set_target_hw_addr(address(target_mac));
    packet.set_target_proto_addr(target);
    frame
}

/// `vip` is at `mac`, to all nodes, overriding what they have cached (RFC 4861 section 7.2.6).
/// `source` is the link-local address, or the VIP where the link has none.
pub fn unsolicited_advertisement(mac: MacAddress, source: Ipv6Addr, vip: Ipv6Addr) -> Frame {
    let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut frame = ipv6(mac, multicast_mac(to), source, to, true);
    let mut packet = MutableNeighborAdvertPacket::new(frame.neighbour_message())
        .expect("the buffer has room for the message");
    packet.set_icmpv6_type(Icmpv6Types::NeighborAdvert);
    packet.set_flags(NeighborAdvertFlags::Override);
    packet.set_target_addr(vip);
    frame.finish(Some((NdpOptionTypes::TargetLLAddr.0, mac)), source, to)
}

/// "Who has `target`?" to its solicited-node group. From `::` it is the question of duplicate
/// address detection (RFC 4862 section 5.4.2) and carries no link-layer address.
pub fn multicast_solicitation(from: MacAddress, source: Ipv6Addr, target: Ipv6Addr) -> Frame {
    let to = solicited_node_group(target);
    solicit(from, multicast_mac(to), source, to, target)
}

/// "Are you still `target`?" to the one MAC that is expected to answer.
pub fn unicast_solicitation(
    from: MacAddress,
    to: MacAddress,
    source: Ipv6Addr,
    target: Ipv6Addr,
) -> Frame {
    solicit(from, to, source, target, target)
}

fn solicit(
    from: MacAddress,
    to_mac: MacAddress,
    source: Ipv6Addr,
    to: Ipv6Addr,
    target: Ipv6Addr,
) -> Frame {
    let named = !source.is_unspecified();
    let mut frame = ipv6(from, to_mac, source, to, named);
    let mut packet = MutableNeighborSolicitPacket::new(frame.neighbour_message())
        .expect("the buffer has room for the message");
    packet.set_icmpv6_type(Icmpv6Types::NeighborSolicit);
    packet.set_target_addr(target);
    let option = named.then_some((NdpOptionTypes::SourceLLAddr.0, from));
    frame.finish(option, source, to)
}

fn ethernet(from: MacAddress, to: MacAddress, ethertype: EtherType, length: usize) -> Frame {
    let mut frame = Frame {
        bytes: [0; Frame::CAPACITY],
        length,
    };
    let mut packet =
        MutableEthernetPacket::new(&mut frame.bytes).expect("the buffer has room for Ethernet");
    packet.set_source(address(from));
    packet.set_destination(address(to));
    packet.set_ethertype(ethertype);
    frame
}

fn ipv6(
    from: MacAddress,
    to_mac: MacAddress,
    source: Ipv6Addr,
    to: Ipv6Addr,
    option: bool,
) -> Frame {
    const PLAIN: usize = NEIGHBOUR_MESSAGE;
    const WITH_OPTION: usize = NEIGHBOUR_MESSAGE + LINK_OPTION;
    let (payload, length) = if option {
        (WITH_OPTION, ETHERNET + IPV6 + WITH_OPTION)
    } else {
        (PLAIN, ETHERNET + IPV6 + PLAIN)
    };
    let mut frame = ethernet(from, to_mac, EtherTypes::Ipv6, length);
    let mut packet =
        MutableIpv6Packet::new(&mut frame.bytes[ETHERNET..]).expect("the buffer has room for IPv6");
    packet.set_version(6);
    packet.set_payload_length(u16::try_from(payload).expect("24 or 32 bytes"));
    packet.set_next_header(IpNextHeaderProtocols::Icmpv6);
    packet.set_hop_limit(255);
    packet.set_source(source);
    packet.set_destination(to);
    frame
}

impl Frame {
    fn neighbour_message(&mut self) -> &mut [u8] {
        let message = self.bytes.get_mut(ETHERNET + IPV6..self.length);
        message.unwrap_or_default()
    }

    /// Writes the option, then the checksum over everything.
    fn finish(mut self, option: Option<(u8, MacAddress)>, source: Ipv6Addr, to: Ipv6Addr) -> Self {
        let message = self.neighbour_message();
        if let Some((kind, MacAddress([a, b, c, d, e, f]))) = option {
            let place = message
                .get_mut(NEIGHBOUR_MESSAGE..)
                .and_then(<[u8]>::first_chunk_mut::<LINK_OPTION>);
            *place.expect("the buffer has room for the option") = [kind, 1, a, b, c, d, e, f];
        }
        let mut packet =
            icmpv6::MutableIcmpv6Packet::new(message).expect("the buffer has room for the message");
        packet.set_checksum(icmpv6::checksum(&packet.to_immutable(), &source, &to));
        self
    }
}

/// 33:33 and the group's last four bytes (RFC 2464 section 7).
fn multicast_mac(group: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = group.octets();
    MacAddress([0x33, 0x33, a, b, c, d])
}

fn address(MacAddress(bytes): MacAddress) -> MacAddr {
    bytes.into()
}
