use std::{fmt::Write, ops::Range};

use proptest::prelude::*;

use super::*;

const US: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const THEM: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const VIP4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xab12, 0x3456);
const LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn the_gratuitous_reply_names_its_sender_as_target() {
    assert_eq!(
        hex(&gratuitous_reply(US, VIP4)),
        "ffffffffffff020000000001080600010800060400020200\
         00000001c0000207020000000001c0000207"
            .replace(' ', "")
    );
}

#[test]
fn the_gratuitous_request_leaves_the_target_open() {
    assert_eq!(
        hex(&gratuitous_request(US, VIP4)),
        "ffffffffffff020000000001080600010800060400010200\
         00000001c0000207000000000000c0000207"
    );
}

#[test]
fn the_unsolicited_advertisement_overrides_and_names_the_target_link() {
    let frame = unsolicited_advertisement(US, LOCAL, VIP6);
    assert_eq!(frame.len(), 86);
    assert_eq!(&frame[..6], &[0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(frame[58], 0x20, "Override, not Solicited, not Router");
    assert_eq!(
        parse(&frame),
        Ok(Heard::NeighbourAdvertisement {
            ethernet_source: US,
            source: LOCAL,
            target: VIP6,
            target_link: Some(US),
            solicited: false,
            overrides: true,
        })
    );
}

#[test]
fn a_question_from_nobody_carries_no_link_option() {
    let frame = multicast_solicitation(US, Ipv6Addr::UNSPECIFIED, VIP6);
    assert_eq!(frame.len(), 78);
    let heard = parse(&frame).unwrap();
    assert_eq!(heard.claim(), None);
    assert_eq!(parse(&arp_question(US, VIP4)).unwrap().claim(), None);
}

#[test]
fn the_solicited_node_group_has_the_last_three_bytes() {
    let frame = multicast_solicitation(US, LOCAL, VIP6);
    assert_eq!(&frame[..6], &[0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    let frame = unicast_solicitation(US, THEM, LOCAL, VIP6);
    assert_eq!(&frame[..6], &THEM.0);
}

#[test]
fn claims_are_read_from_every_form() {
    let claim = |frame: Frame| parse(&frame).unwrap().claim().unwrap();
    let v4 = Claim {
        address: VIP4.into(),
        mac: US,
        overrides: true,
    };
    assert_eq!(claim(gratuitous_request(US, VIP4)), v4);
    assert_eq!(claim(gratuitous_reply(US, VIP4)), v4);
    let asked = arp_request(US, VIP4, Ipv4Addr::new(192, 0, 2, 1), Some(THEM));
    assert_eq!(claim(asked), v4);
    let v6 = Claim {
        address: VIP6.into(),
        ..v4
    };
    assert_eq!(claim(unsolicited_advertisement(US, LOCAL, VIP6)), v6);
    assert_eq!(claim(multicast_solicitation(US, VIP6, LOCAL)), v6);
}

type Change = fn(&mut Vec<u8>);

/// Changes bytes, then makes the checksum right again.
fn forged(frame: Frame, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    change(&mut bytes);
    let ip = Ipv6Packet::new(&bytes[ETHERNET..]).unwrap();
    let (from, to) = (ip.get_source(), ip.get_destination());
    let icmp = Icmpv6Packet::new(&bytes[ETHERNET + IPV6..]).unwrap();
    let sum = icmpv6::checksum(&icmp, &from, &to);
    bytes[56..58].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn malformed_neighbour_messages_are_refused_for_the_right_reason() {
    let advert = unsolicited_advertisement(US, LOCAL, VIP6);
    let probe = multicast_solicitation(US, Ipv6Addr::UNSPECIFIED, VIP6);
    let cases: [(Frame, Change, FrameError); 9] = [
        (advert, |b| b[21] = 254, FrameError::HopLimit(254)),
        (advert, |b| b[55] = 1, FrameError::Code(1)),
        (advert, |b| b[58] |= SOLICITED, FrameError::Contradiction),
        (advert, |b| b[79] = 0, FrameError::Option),
        (advert, |b| b[79] = 2, FrameError::Option),
        (advert, |b| b[79] = 255, FrameError::Option),
        (advert, |b| b[80] |= 1, FrameError::GroupSender),
        (probe, |b| b[53] ^= 1, FrameError::Contradiction),
        (advert, |b| b[54] = 134, FrameError::NotNeighbourDiscovery),
    ];
    for (frame, change, error) in cases {
        assert_eq!(parse(&forged(frame, change)), Err(error));
    }
    let target = forged(advert, |b| b[62] = 0xff);
    assert!(matches!(
        parse(&target),
        Err(FrameError::MulticastTarget(_))
    ));
}

#[test]
fn malformed_arp_is_refused_for_the_right_reason() {
    for (offset, value, error) in [
        (15, 6, FrameError::ArpFormat),
        (16, 0x86, FrameError::ArpFormat),
        (18, 8, FrameError::ArpFormat),
        (19, 16, FrameError::ArpFormat),
        (21, 3, FrameError::ArpOperation(3)),
        (22, 1, FrameError::GroupSender),
        (6, 1, FrameError::GroupSender),
        (12, 0x88, FrameError::EtherType(0x8806)),
    ] {
        let mut bytes = gratuitous_reply(US, VIP4).to_vec();
        bytes[offset] = value;
        assert_eq!(parse(&bytes), Err(error), "byte {offset}");
    }
}

#[test]
fn padding_behind_the_message_is_ignored_and_a_short_frame_refused() {
    for frame in [
        gratuitous_reply(US, VIP4),
        unsolicited_advertisement(US, LOCAL, VIP6),
    ] {
        let mut padded = frame.to_vec();
        padded.extend([0x55; 20]);
        assert_eq!(parse(&padded), parse(&frame));
        for length in 0..frame.len() {
            assert_eq!(parse(&frame[..length]), Err(FrameError::Truncated));
        }
    }
}

fn any_frame() -> impl Strategy<Value = Frame> {
    any_frame_of(0..7)
}

/// The last three kinds are IPv6.
fn any_frame_of(kinds: Range<u8>) -> impl Strategy<Value = Frame> {
    let mac = any::<[u8; 6]>().prop_map(|mut bytes| {
        bytes[0] &= 0xfe;
        MacAddress(bytes)
    });
    let v6 = any::<Ipv6Addr>().prop_filter("unicast", |a| !a.is_multicast());
    let v4 = any::<Ipv4Addr>();
    (mac.clone(), mac, v4.clone(), v4, v6.clone(), v6, kinds).prop_map(
        |(us, them, a4, b4, a6, b6, kind)| match kind {
            0 => arp_question(us, a4),
            1 => arp_request(us, a4, b4, Some(them)),
            2 => gratuitous_request(us, a4),
            3 => gratuitous_reply(us, a4),
            4 => unsolicited_advertisement(us, a6, b6),
            5 => multicast_solicitation(us, a6, b6),
            _ => unicast_solicitation(us, them, a6, b6),
        },
    )
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }

    /// Random bytes seldom get past the first checks; changed frames do.
    #[test]
    fn changed_frames_are_read_without_panic(
        frame in any_frame(),
        changes in prop::collection::vec((0..86_usize, any::<u8>()), 0..6),
        cut in 0..100_usize,
    ) {
        let mut bytes = frame.to_vec();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut);
        let _ = parse(&bytes);
    }

    #[test]
    fn any_options_are_read_without_panic(
        options in prop::collection::vec(any::<u8>(), 0..600),
        kind in 0..4_u8,
    ) {
        let _ = link_option(&options, kind);
    }

    #[test]
    fn what_is_built_is_read_back(frame in any_frame()) {
        let heard = parse(&frame);
        prop_assert!(heard.is_ok(), "{:?}", heard);
        prop_assert_eq!(frame.is_arp(), matches!(
            heard.unwrap(), Heard::ArpRequest { .. } | Heard::ArpReply { .. }
        ));
    }

    /// The checksum covers the addresses and the whole message; one flipped bit never cancels out.
    #[test]
    fn a_flipped_bit_in_a_neighbour_message_is_refused(
        frame in any_frame_of(4..7),
        byte in 22..78_usize,
        bit in 0..8_u32,
    ) {
        let mut bytes = frame.to_vec();
        bytes[byte] ^= 1 << bit;
        prop_assert!(parse(&bytes).is_err());
    }
}
