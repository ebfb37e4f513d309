//! The annotation `alpha.kubernetes.io/provided-node-ip`, which a kubelet with `--node-ip` writes, and
//! the framework's filter by it. Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeAddress;

/// Why the annotation cannot be satisfied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unsatisfied {
    #[error("{0:?} is neither an IP address nor an IPv4,IPv6 pair")]
    Unreadable(String),
    #[error("the VM does not report {0}")]
    NotReported(IpAddr),
}

/// One address, or one of each family, comma separated and without blanks.
pub(super) fn parse(text: &str) -> Result<Vec<IpAddr>, Unsatisfied> {
    let unreadable = || Unsatisfied::Unreadable(text.to_owned());
    let wanted: Vec<IpAddr> = text
        .split(',')
        .map(parse_one)
        .collect::<Option<_>>()
        .ok_or_else(unreadable)?;
    let is_readable = match wanted.as_slice() {
        [_] => true,
        [first, second] => {
            let is_v4 = |address: &IpAddr| address.to_canonical().is_ipv4();
            let is_wild = first.is_unspecified() || second.is_unspecified();
            is_v4(first) != is_v4(second) && !is_wild
        }
        _ => false,
    };
    is_readable.then_some(wanted).ok_or_else(unreadable)
}

/// Leading zeros of IPv4 numbers are decimal, as in Go's lenient reader.
fn parse_one(text: &str) -> Option<IpAddr> {
    let number = |octet: &str| match octet.trim_start_matches('0') {
        "" if !octet.is_empty() => "0".to_owned(),
        digits => digits.to_owned(),
    };
    text.parse().ok().or_else(|| {
        let octets: Vec<String> = text.split('.').map(number).collect();
        octets.join(".").parse().ok()
    })
}

/// First what was asked for, as reported, in the order asked for; then whatever is of a type that
/// this left out.
pub(super) fn filter(
    reported: Vec<NodeAddress>,
    wanted: &[IpAddr],
) -> Result<Vec<NodeAddress>, Unsatisfied> {
    let mut sorted: Vec<NodeAddress> = Vec::with_capacity(reported.len());
    for address in wanted {
        let is_wanted = |entry: &&NodeAddress| {
            let ip = entry.address.parse::<IpAddr>();
            ip.is_ok_and(|ip| ip.to_canonical() == address.to_canonical())
        };
        let before = sorted.len();
        sorted.extend(reported.iter().filter(is_wanted).cloned());
        if sorted.len() == before {
            return Err(Unsatisfied::NotReported(*address));
        }
    }
    let matched: Vec<String> = sorted.iter().map(|entry| entry.type_.clone()).collect();
    let others = reported
        .into_iter()
        .filter(|entry| !matched.contains(&entry.type_));
    sorted.extend(others);
    Ok(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `I10.0.0.1 E1.2.3.4 Hn1 Dname`: types by their first letter.
    fn list(text: &str) -> Vec<NodeAddress> {
        let entries = text.split_whitespace().map(|entry| {
            let (kind, address) = entry.split_at(1);
            let kind = match kind {
                "I" => "InternalIP",
                "E" => "ExternalIP",
                "H" => "Hostname",
                "N" => "InternalDNS",
                "X" => "ExternalDNS",
                other => panic!("{other}"),
            };
            NodeAddress {
                address: address.to_owned(),
                type_: kind.to_owned(),
            }
        });
        entries.collect()
    }

    fn filtered(reported: &str, annotation: &str) -> Result<Vec<NodeAddress>, Unsatisfied> {
        filter(list(reported), &parse(annotation)?)
    }

    #[test]
    fn fw_h5_to_h18_the_annotation_puts_its_addresses_first_and_hides_others_of_their_type() {
        for (number, reported, annotation, expected) in [
            (5, "I10.1.1.1 Hn", "10.1.1.1", Some("I10.1.1.1 Hn")),
            (
                6,
                "I10.1.1.1 E55.1.1.1 Hn",
                "55.1.1.1",
                Some("E55.1.1.1 I10.1.1.1 Hn"),
            ),
            (
                7,
                "E10.1.1.1 I10.1.1.1 E55.1.1.1 I10.9.9.9 Hn",
                "10.1.1.1",
                Some("E10.1.1.1 I10.1.1.1 Hn"),
            ),
            (
                8,
                "I10.1.1.1 E55.1.1.1 Xex.io Nin.io Hn",
                "10.1.1.1",
                Some("I10.1.1.1 E55.1.1.1 Xex.io Nin.io Hn"),
            ),
            (
                9,
                "I10.1.1.1 I10.2.2.2 Hn",
                "10.2.2.2",
                Some("I10.2.2.2 Hn"),
            ),
            (10, "I10.1.1.1 Hn", "10.2.2.2", None),
            (
                11,
                "I2600:1f14:0000::0001 Hn",
                "2600:1f14::1",
                Some("I2600:1f14:0000::0001 Hn"),
            ),
            (12, "I10.1.1.1 Hn", "10.1.1.1,fd00::1", None),
            (
                13,
                "I10.1.1.1 Ifd00::1 Hn",
                "10.1.1.1,fd00::1",
                Some("I10.1.1.1 Ifd00::1 Hn"),
            ),
            (
                14,
                "Ifd00::1 I10.1.1.1 Hn",
                "10.1.1.1,fd00::1",
                Some("I10.1.1.1 Ifd00::1 Hn"),
            ),
            (
                15,
                "I10.1.1.1 Ifd00::1 I10.2.2.2 Ifd00::2 Hn",
                "10.1.1.1,fd00::1",
                Some("I10.1.1.1 Ifd00::1 Hn"),
            ),
            (
                16,
                "I10.1.1.1 Ifd00::1 E55.1.1.1 Hn",
                "10.1.1.1,fd00::1",
                Some("I10.1.1.1 Ifd00::1 E55.1.1.1 Hn"),
            ),
            (
                17,
                "I10.1.1.1 Ifd00::1 E55.1.1.1 E2001:db8::1 Hn",
                "fd00::1,10.1.1.1",
                Some("Ifd00::1 I10.1.1.1 E55.1.1.1 E2001:db8::1 Hn"),
            ),
            (
                18,
                "I10.1.1.1 Ifd00::1 E55.1.1.1 E2001:db8::1 Hn",
                "55.1.1.1,fd00::1",
                Some("E55.1.1.1 Ifd00::1 Hn"),
            ),
        ] {
            let result = filtered(reported, annotation).ok();
            assert_eq!(result, expected.map(list), "H{number}");
        }
    }

    #[test]
    fn fw_n9_only_an_address_or_a_pair_of_families_is_read() {
        for (text, expected) in [
            ("10.0.0.5", Some("10.0.0.5")),
            ("010.000.0.05", Some("10.0.0.5")),
            ("fd00::5,10.0.0.5", Some("fd00::5 10.0.0.5")),
            ("FD00:0::5", Some("fd00::5")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("", None),
            ("abc", None),
            ("10.0.0.5, fd00::5", None),
            ("10.0.0.5,10.0.0.6", None),
            ("10.0.0.5,fd00::5,10.0.0.6", None),
            ("0.0.0.0,fd00::5", None),
            ("10.0.0.5,::", None),
            ("10..0.5", None),
            ("10.0.0.256", None),
        ] {
            let read = parse(text).ok().map(|addresses| {
                let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                texts.join(" ")
            });
            assert_eq!(read.as_deref(), expected, "{text:?}");
        }
    }
}
