//! Writes the seed corpus of the `frame` target: every form of frame that is sent.

use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
};

use harvester_cloud_provider::net::{frame, link::MacAddress};

fn main() -> io::Result<()> {
    let us = MacAddress([2, 0, 0, 0, 0, 1]);
    let them = MacAddress([2, 0, 0, 0, 0, 2]);
    let v4 = Ipv4Addr::new(192, 0, 2, 7);
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
    let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let seeds = [
        ("arp-question", frame::arp_question(us, v4)),
        ("arp-request", frame::arp_request(us, v4, v4, Some(them))),
        ("gratuitous-request", frame::gratuitous_request(us, v4)),
        ("gratuitous-reply", frame::gratuitous_reply(us, v4)),
        (
            "advertisement",
            frame::unsolicited_advertisement(us, local, v6),
        ),
        ("solicitation", frame::multicast_solicitation(us, local, v6)),
        (
            "probe",
            frame::multicast_solicitation(us, Ipv6Addr::UNSPECIFIED, v6),
        ),
        (
            "unicast-solicitation",
            frame::unicast_solicitation(us, them, local, v6),
        ),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/frame");
    fs::create_dir_all(&folder)?;
    for (name, seed) in seeds {
        fs::write(folder.join(name), &*seed)?;
    }
    Ok(())
}
