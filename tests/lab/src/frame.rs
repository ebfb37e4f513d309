//! The frames that the probes send and understand: ARP, neighbour discovery, echo; pure.
//!
//! RFC 826, 4861, 792, 4443. Frames from the wire are read with checked access only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::mac::MacAddress;

const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
const SOLICITED_FLAG: u8 = 0x40;

/// Someone says on the wire that an address is at an Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) address: IpAddr,
    pub(crate) mac: MacAddress,
    /// Nobody asked: gratuitous ARP, or an advertisement without the Solicited flag.
    pub(crate) gratuitous: bool,
}

/// "Who has `asked`?", broadcast.
pub(crate) fn arp_request(mac: MacAddress, from: Ipv4Addr, asked: Ipv4Addr) -> Vec<u8> {
    [
        &MacAddress::BROADCAST.0[..],
        &mac.0,
        &ETHERTYPE_ARP,
        // Ethernet, IPv4, lengths 6 and 4, request.
        &[0, 1, 8, 0, 6, 4, 0, 1],
        &mac.0,
        &from.octets(),
        &[0; 6],
        &asked.octets(),
    ]
    .concat()
}

/// A neighbour solicitation for `asked`, to its solicited-node group, with our Ethernet address.
pub(crate) fn solicitation(mac: MacAddress, from: Ipv6Addr, asked: Ipv6Addr) -> Vec<u8> {
    let [.., x, y, z] = asked.octets();
    let group = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(x),
        u16::from_be_bytes([y, z]),
    );
    let mut message = [
        // Type, code, checksum to come, reserved.
        &[SOLICITATION, 0, 0, 0, 0, 0, 0, 0][..],
        &asked.octets(),
        // One unit of eight bytes.
        &[SOURCE_LINK_LAYER, 1],
        &mac.0,
    ]
    .concat();
    let pseudo = [
        &from.octets()[..],
        &group.octets(),
        // Upper-layer length and next header.
        &[0, 0, 0, 32, 0, 0, 0, ICMPV6],
        &message,
    ]
    .concat();
    message[2..4].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    [
        &[0x33, 0x33, 0xff, x, y, z][..],
        &mac.0,
        &ETHERTYPE_IPV6,
        // Version 6, payload of 32 bytes, hop limit 255.
        &[0x60, 0, 0, 0, 0, 32, ICMPV6, 255],
        &from.octets(),
        &group.octets(),
        &message,
    ]
    .concat()
}

/// What a frame claims, if it is an ARP reply, a gratuitous ARP or a neighbour advertisement.
pub(crate) fn claim(frame: &[u8]) -> Option<Claim> {
    let source = frame.get(6..12)?.first_chunk()?;
    let body = frame.get(14..)?;
    match *frame.get(12..14)?.first_chunk()? {
        ETHERTYPE_ARP => arp_claim(body),
        ETHERTYPE_IPV6 => advertised(body, MacAddress(*source)),
        _ => None,
    }
}

fn arp_claim(body: &[u8]) -> Option<Claim> {
    let (header, rest) = body.split_first_chunk::<8>()?;
    let [0, 1, 8, 0, 6, 4, 0, operation] = *header else {
        return None;
    };
    let (mac, rest) = rest.split_first_chunk::<6>()?;
    let (sender, rest) = rest.split_first_chunk::<4>()?;
    let target = rest.get(6..10)?;
    let gratuitous = sender == target;
    (operation == 2 || gratuitous).then(|| Claim {
        address: Ipv4Addr::from(*sender).into(),
        mac: MacAddress(*mac),
        gratuitous,
    })
}

fn advertised(packet: &[u8], source: MacAddress) -> Option<Claim> {
    if *packet.get(6)? != ICMPV6 {
        return None;
    }
    let (fixed, options) = packet.get(40..)?.split_first_chunk::<24>()?;
    let [ADVERTISEMENT, 0, _, _, flags, _, _, _, target @ ..] = *fixed else {
        return None;
    };
    let target: [u8; 16] = target;
    Some(Claim {
        address: Ipv6Addr::from(target).into(),
        mac: target_link_layer(options).unwrap_or(source),
        gratuitous: flags & SOLICITED_FLAG == 0,
    })
}

/// The first target link-layer address among the options; a zero length ends the walk.
fn target_link_layer(mut options: &[u8]) -> Option<MacAddress> {
    while let [kind, units, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(units) * 8)?;
        if kind == TARGET_LINK_LAYER {
            return option.get(2..8)?.first_chunk().copied().map(MacAddress);
        }
        if units == 0 {
            return None;
        }
        options = rest;
    }
    None
}

/// An echo request that carries `sequence` in full as its payload.
pub(crate) fn echo_request(to: IpAddr, identifier: u16, sequence: u64) -> Vec<u8> {
    let kind = if to.is_ipv4() { 8 } else { 128 };
    let [.., high, low] = sequence.to_be_bytes();
    let identifier = identifier.to_be_bytes();
    let mut message = [
        &[kind, 0, 0, 0],
        &identifier[..],
        &[high, low],
        &sequence.to_be_bytes(),
    ]
    .concat();
    if to.is_ipv4() {
        // The kernel fills in that of `ICMPv6`, which covers addresses.
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    message
}

/// The sequence of an echo reply to `identifier`, as a raw ICMP or `ICMPv6` socket delivers it.
pub(crate) fn echo_reply(packet: &[u8], over_ipv4: bool, identifier: u16) -> Option<u64> {
    let message = if over_ipv4 {
        // A raw IPv4 socket shows the header, whose length is in units of four bytes.
        packet.get(usize::from(packet.first()? & 0x0f) * 4..)?
    } else {
        packet
    };
    let (header, payload) = message.split_first_chunk::<8>()?;
    let [kind, 0, _, _, high, low, _, _] = *header else {
        return None;
    };
    let expected = if over_ipv4 { 0 } else { 129 };
    if kind != expected || u16::from_be_bytes([high, low]) != identifier {
        return None;
    }
    payload.first_chunk().copied().map(u64::from_be_bytes)
}

/// RFC 1071, over an even number of bytes or a last one padded with zero.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let [.., high, low] = (!(folded + (folded >> 16))).to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const THEM: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    fn arp(operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let head = [0, 1, 8, 0, 6, 4, 0, operation];
        [
            &US.0[..],
            &THEM.0,
            &[8, 6],
            &head,
            &THEM.0,
            &sender,
            &US.0,
            &target,
        ]
        .concat()
    }

    fn advertisement(flags: u8, options: &[u8]) -> Vec<u8> {
        let target = "fd07::100".parse::<Ipv6Addr>().unwrap().octets();
        let mut ip = [0; 40];
        ip[6] = ICMPV6;
        let fixed = [136, 0, 0, 0, flags, 0, 0, 0];
        [
            &US.0[..],
            &THEM.0,
            &[0x86, 0xdd],
            &ip,
            &fixed,
            &target,
            options,
        ]
        .concat()
    }

    #[test]
    fn an_arp_request_is_no_claim_but_a_reply_is() {
        let asked = Ipv4Addr::new(10, 7, 0, 100);
        assert_eq!(
            claim(&arp_request(US, Ipv4Addr::new(10, 7, 0, 1), asked)),
            None
        );
        let expected = Claim {
            address: asked.into(),
            mac: THEM,
            gratuitous: false,
        };
        assert_eq!(
            claim(&arp(2, asked.octets(), [10, 7, 0, 1])),
            Some(expected)
        );
    }

    #[test]
    fn gratuitous_arp_is_told_in_both_forms() {
        for operation in [1, 2] {
            let found = claim(&arp(operation, [10, 7, 0, 100], [10, 7, 0, 100]));
            assert!(found.unwrap().gratuitous, "{operation}");
        }
    }

    #[test]
    fn an_advertisement_names_its_target_option_before_its_source() {
        let address: IpAddr = "fd07::100".parse().unwrap();
        let option = [2, 1, 2, 0, 0, 0, 0, 9];
        let mac = MacAddress([2, 0, 0, 0, 0, 9]);
        let answered = claim(&advertisement(SOLICITED_FLAG, &option));
        assert_eq!(
            answered,
            Some(Claim {
                address,
                mac,
                gratuitous: false
            })
        );
        let unsolicited = claim(&advertisement(0, &[]));
        assert_eq!(
            unsolicited,
            Some(Claim {
                address,
                mac: THEM,
                gratuitous: true
            })
        );
    }

    #[test]
    fn broken_frames_and_options_are_no_panic() {
        let whole = advertisement(0, &[2, 1, 2, 0, 0, 0, 0, 9]);
        for length in 0..whole.len() {
            let _ = claim(&whole[..length]);
        }
        assert_eq!(target_link_layer(&[1, 0, 0, 0]), None);
        assert_eq!(target_link_layer(&[2, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(target_link_layer(&[1, 255, 0, 0]), None);
    }

    #[test]
    fn a_solicitation_has_a_checksum_that_adds_up() {
        let from = "fe80::1".parse().unwrap();
        let frame = solicitation(US, from, "fd07::12:3456".parse().unwrap());
        assert_eq!(frame.len(), 14 + 40 + 32);
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        let pseudo = [
            &frame[22..54],
            &[0, 0, 0, 32, 0, 0, 0, ICMPV6],
            &frame[54..],
        ]
        .concat();
        assert_eq!(checksum(&pseudo), 0);
    }

    #[test]
    fn an_echo_carries_its_whole_sequence() {
        let mut reply = echo_request("10.0.0.1".parse().unwrap(), 7, 70_000);
        assert_eq!(checksum(&reply), 0);
        reply[0] = 0;
        let packet = [&[0x45][..], &[0; 19], &reply].concat();
        assert_eq!(echo_reply(&packet, true, 7), Some(70_000));
        assert_eq!(echo_reply(&packet, true, 8), None);
        assert_eq!(echo_reply(&packet[..30], true, 7), None);
    }
}
