//! Classic BPF programs as data, for packet sockets.
//!
//! One program: [`NEIGHBOUR_FRAMES`]. A packet socket sees every frame of its EtherType; without a
//! filter each one would be copied to us, and a busy IPv6 link would drown the few that matter.
//! Offsets count from the Ethernet header. The kernel has taken VLAN tags out before the filter
//! runs: a frame of a VLAN that this host has a link for has moved to that link, and one of any other
//! VLAN looks like an untagged frame, but for its packet type. A load beyond the end of a frame drops
//! the frame.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

/// One instruction of the classic BPF machine (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    /// How many instructions to skip when a comparison holds.
    pub jump_true: u8,
    /// How many instructions to skip when it does not.
    pub jump_false: u8,
    pub operand: u32,
}

/// `ldb [k]`: A = the byte at k.
const LOAD_BYTE: u16 = 0x30;
/// `ldh [k]`: A = the 16 bits at k.
const LOAD_HALF: u16 = 0x28;
/// `jeq #k`: compares A with k.
const JUMP_EQUAL: u16 = 0x15;
/// `ret #k`: accepts the first k bytes, none for 0.
const RETURN: u16 = 0x06;

/// The pseudo offset at which the kernel keeps the packet's type (`SKF_AD_OFF + SKF_AD_PKTTYPE`).
const PACKET_TYPE: u32 = 0xffff_f004;
/// `PACKET_OTHERHOST`: for another MAC, seen in promiscuous mode, or of a VLAN that this host has no
/// link for.
const OTHER_HOST: u32 = 3;
/// `PACKET_OUTGOING`: a copy of a frame that this host sends.
const OUTGOING: u32 = 4;
/// More than any frame holds.
const WHOLE: u32 = 0x0004_0000;

const fn load(code: u16, offset: u32) -> Instruction {
    Instruction {
        code,
        jump_true: 0,
        jump_false: 0,
        operand: offset,
    }
}

const fn equal(operand: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction {
        code: JUMP_EQUAL,
        jump_true,
        jump_false,
        operand,
    }
}

const fn accept(bytes: u32) -> Instruction {
    Instruction {
        code: RETURN,
        jump_true: 0,
        jump_false: 0,
        operand: bytes,
    }
}

/// Passes ARP, and ICMPv6 neighbour solicitations and advertisements directly behind an IPv6
/// header; drops everything else, every outgoing copy, and what is not for this host.
///
/// Neighbour discovery behind extension headers is dropped on purpose: no implementation sends
/// it so, and RFC 6980 forbids the only one that could occur, fragmentation.
pub const NEIGHBOUR_FRAMES: [Instruction; 13] = [
    load(LOAD_BYTE, PACKET_TYPE), //  0  whose is it?
    equal(OTHER_HOST, 9, 0),      //  1  not ours: to 11
    equal(OUTGOING, 8, 0),        //  2  we sent it: to 11
    load(LOAD_HALF, 12),          //  3  EtherType
    equal(0x0806, 7, 0),          //  4  ARP: to 12
    equal(0x86dd, 0, 5),          //  5  not IPv6: to 11
    load(LOAD_BYTE, 20),          //  6  next header
    equal(58, 0, 3),              //  7  not ICMPv6: to 11
    load(LOAD_BYTE, 54),          //  8  ICMPv6 type
    equal(135, 2, 0),             //  9  neighbour solicitation: to 12
    equal(136, 1, 0),             // 10  neighbour advertisement: to 12
    accept(0),                    // 11  drop
    accept(WHOLE),                // 12  pass
];

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::net::{
        frame::{self, Frame},
        link::MacAddress,
    };

    const HOST: u8 = 0;
    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    /// What the kernel does with the program: the number of bytes it lets through.
    fn interpret(program: &[Instruction], frame: &[u8], packet_type: u8) -> u32 {
        let mut accumulator = 0_u32;
        let mut counter = 0;
        loop {
            let at = program[counter];
            counter += 1;
            let offset = at.operand as usize;
            match at.code {
                LOAD_BYTE if at.operand == PACKET_TYPE => accumulator = packet_type.into(),
                LOAD_BYTE => match frame.get(offset) {
                    Some(byte) => accumulator = (*byte).into(),
                    None => return 0,
                },
                LOAD_HALF => match frame.get(offset..offset + 2) {
                    Some(half) => accumulator = u16::from_be_bytes([half[0], half[1]]).into(),
                    None => return 0,
                },
                JUMP_EQUAL if accumulator == at.operand => counter += usize::from(at.jump_true),
                JUMP_EQUAL => counter += usize::from(at.jump_false),
                RETURN => return at.operand,
                code => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    fn passes(frame: &[u8], packet_type: u8) -> bool {
        interpret(&NEIGHBOUR_FRAMES, frame, packet_type) > 0
    }

    fn frames() -> Vec<Frame> {
        let v4 = "192.0.2.1".parse().unwrap();
        let v6: Ipv6Addr = "2001:db8::1".parse().unwrap();
        vec![
            frame::arp_question(MAC, v4),
            frame::gratuitous_request(MAC, v4),
            frame::gratuitous_reply(MAC, v4),
            frame::unsolicited_advertisement(MAC, v6, v6),
            frame::multicast_solicitation(MAC, v6, v6),
        ]
    }

    #[test]
    fn what_neighbours_say_passes_and_copies_and_foreign_vlans_do_not() {
        for frame in frames() {
            for (name, packet_type, expected) in [
                ("to this host", HOST, true),
                ("broadcast", 1, true),
                ("multicast", 2, true),
                ("to another host, or of a foreign VLAN", 3, false),
                ("outgoing", 4, false),
            ] {
                assert_eq!(passes(&frame, packet_type), expected, "{name} {frame:?}");
            }
        }
    }

    #[test]
    fn everything_else_is_dropped() {
        let advertisement = frames()[3];
        for (name, offset, value) in [
            ("IPv4", 12, 0x08_u8),
            ("hop-by-hop options first", 20, 0),
            ("UDP", 20, 17),
            ("router solicitation", 54, 133),
            ("router advertisement", 54, 134),
            ("redirect", 54, 137),
            ("echo", 54, 128),
        ] {
            let mut bytes = advertisement.to_vec();
            bytes[offset] = value;
            assert!(!passes(&bytes, HOST), "{name}");
        }
    }

    #[test]
    fn a_frame_that_ends_early_is_dropped() {
        let advertisement = frames()[3];
        for length in 0..=54 {
            assert!(!passes(&advertisement[..length], HOST), "{length} bytes");
        }
    }
}
