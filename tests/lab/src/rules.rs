//! What a port of the switch lets through, as nftables of the bridge family; pure.
//!
//! Each port has a table of its own, so that a change on one port is one transaction and touches no
//! other port.

use std::{
    collections::BTreeSet,
    fmt::{self, Write},
    net::IpAddr,
};

/// Which way frames go through a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// What the host sends.
    FromHost,
    /// What the host would receive.
    ToHost,
}

/// Frames to be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Traffic {
    /// Every frame.
    Everything,
    /// ARP requests and replies.
    Arp,
    /// Neighbour solicitations and advertisements.
    NeighbourDiscovery,
    /// UDP from or to this port.
    Udp(u16),
    /// TCP from or to this port.
    Tcp(u16),
    /// IP packets from or to this address, and ARP about it.
    Address(IpAddr),
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: &[String] = &match self {
            Self::Everything => vec!["drop".to_owned()],
            Self::Arp => vec!["ether type arp drop".to_owned()],
            Self::NeighbourDiscovery => {
                vec!["icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } drop".to_owned()]
            }
            Self::Udp(port) => both(&["udp sport", "udp dport"], port),
            Self::Tcp(port) => both(&["tcp sport", "tcp dport"], port),
            Self::Address(IpAddr::V4(address)) => both(
                &["ip saddr", "ip daddr", "arp saddr ip", "arp daddr ip"],
                address,
            ),
            Self::Address(IpAddr::V6(address)) => both(&["ip6 saddr", "ip6 daddr"], address),
        };
        rules.iter().try_for_each(|rule| writeln!(f, "    {rule}"))
    }
}

fn both(matches: &[&str], value: impl fmt::Display) -> Vec<String> {
    matches
        .iter()
        .map(|field| format!("{field} {value} drop"))
        .collect()
}

/// The script that makes `table` drop `blocked`, and `loss` percent of the rest in each direction,
/// on the bridge port `member`; without either it removes the table.
pub(crate) fn script(
    table: &str,
    member: &str,
    loss: f64,
    blocked: &BTreeSet<(Direction, Traffic)>,
) -> String {
    // The first line makes the second one valid where there is no table yet.
    let mut script = format!("add table bridge {table}\ndelete table bridge {table}\n");
    if blocked.is_empty() && loss <= 0.0 {
        return script;
    }
    let mut chain = |direction, name, hook, end, priority| {
        let _ = write!(
            script,
            "table bridge {table} {{\n  chain {name} {{\n    \
             type filter hook {hook} priority {priority}; policy accept;\n    \
             {end} != \"{member}\" accept\n"
        );
        for (_, traffic) in blocked.iter().filter(|(way, _)| *way == direction) {
            let _ = write!(script, "{traffic}");
        }
        let _ = writeln!(
            script,
            "    numgen random mod 10000 < {:.0} drop",
            loss * 100.0
        );
        let _ = writeln!(script, "  }}\n}}");
    };
    // Prerouting is before the bridge learns from a frame: what is lost teaches it nothing.
    chain(
        Direction::FromHost,
        "from_host",
        "prerouting",
        "iifname",
        -500,
    );
    chain(Direction::ToHost, "to_host", "postrouting", "oifname", 500);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_drop_removes_the_table() {
        let script = script("p1", "p1", 0.0, &BTreeSet::new());
        assert_eq!(script, "add table bridge p1\ndelete table bridge p1\n");
    }

    #[test]
    fn each_direction_has_its_own_rules_and_loss_comes_last() {
        let blocked = BTreeSet::from([
            (Direction::FromHost, Traffic::Udp(10258)),
            (Direction::ToHost, Traffic::Arp),
        ]);
        let script = script("p1", "p1b", 2.5, &blocked);
        let expected = r#"add table bridge p1
delete table bridge p1
table bridge p1 {
  chain from_host {
    type filter hook prerouting priority -500; policy accept;
    iifname != "p1b" accept
    udp sport 10258 drop
    udp dport 10258 drop
    numgen random mod 10000 < 250 drop
  }
}
table bridge p1 {
  chain to_host {
    type filter hook postrouting priority 500; policy accept;
    oifname != "p1b" accept
    ether type arp drop
    numgen random mod 10000 < 250 drop
  }
}
"#;
        assert_eq!(script, expected);
    }
}
