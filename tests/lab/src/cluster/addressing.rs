//! Every address and name of a cluster, from its number.
//!
//! Pure. Cluster K has the node network 10.K.0.0/24 and `fd00:10:K::/64` (router .1, nodes from .11,
//! client .100, VIPs from .200) and for node n the pod networks 10.K.(128+n).0/24 and
//! `fd00:10:K:(8000+n)::/64`. Numbers in IPv6 addresses are written as in IPv4, so that both look alike.

use std::net::{Ipv4Addr, Ipv6Addr};

const ROUTER: u8 = 1;
const FIRST_NODE: u8 = 11;
const CLIENT: u8 = 100;
const FIRST_VIP: u8 = 200;
const FIRST_POD_NETWORK: u8 = 128;
const FIRST_POD: u8 = 10;

/// Nodes of a cluster at most.
const MOST_NODES: u8 = 64;
/// VIPs of a cluster at most, of each family.
const MOST_VIPS: u8 = 51;

/// The addresses of one cluster.
#[derive(Debug, Clone, Copy)]
pub struct Addressing {
    number: u8,
}

impl Addressing {
    pub(super) fn new(number: u8) -> Self {
        Self { number }
    }

    pub fn router(self) -> (Ipv4Addr, Ipv6Addr) {
        self.on_node_network(ROUTER)
    }

    pub fn client(self) -> (Ipv4Addr, Ipv6Addr) {
        self.on_node_network(CLIENT)
    }

    pub fn node(self, node: u8) -> (Ipv4Addr, Ipv6Addr) {
        assert!(
            node < MOST_NODES,
            "a cluster has at most {MOST_NODES} nodes"
        );
        self.on_node_network(FIRST_NODE + node)
    }

    pub fn vip(self, vip: u8) -> (Ipv4Addr, Ipv6Addr) {
        assert!(vip < MOST_VIPS, "a cluster has at most {MOST_VIPS} VIPs");
        self.on_node_network(FIRST_VIP + vip)
    }

    pub fn pod(self, node: u8, pod: u8) -> (Ipv4Addr, Ipv6Addr) {
        let host = FIRST_POD
            .checked_add(pod)
            .expect("a node has at most 245 pods");
        (
            Ipv4Addr::new(10, self.number, FIRST_POD_NETWORK + node, host),
            self.v6(0x8000 + u16::from(node), host),
        )
    }

    /// The pod networks of a node.
    pub fn pod_networks(self, node: u8) -> [String; 2] {
        let v4 = Ipv4Addr::new(10, self.number, FIRST_POD_NETWORK + node, 0);
        [
            format!("{v4}/24"),
            format!("{}/64", self.v6(0x8000 + u16::from(node), 0)),
        ]
    }

    /// The networks of all pods, as kube-proxy's `clusterCIDR`.
    pub fn cluster_cidr(self) -> String {
        let v4 = Ipv4Addr::new(10, self.number, FIRST_POD_NETWORK, 0);
        format!("{v4}/17,{}/49", self.v6(0x8000, 0))
    }

    fn on_node_network(self, host: u8) -> (Ipv4Addr, Ipv6Addr) {
        (Ipv4Addr::new(10, self.number, 0, host), self.v6(0, host))
    }

    fn v6(self, subnet: u16, host: u8) -> Ipv6Addr {
        let (cluster, host) = (as_written(self.number), as_written(host));
        Ipv6Addr::new(0xfd00, 0x10, cluster, subnet, 0, 0, 0, host)
    }
}

/// Both addresses with the prefix lengths of the node network.
pub(super) fn on_link((v4, v6): (Ipv4Addr, Ipv6Addr)) -> [String; 2] {
    [format!("{v4}/24"), format!("{v6}/64")]
}

/// The number whose hexadecimal digits are the decimal digits of `number`.
fn as_written(number: u8) -> u16 {
    let number = u16::from(number);
    ((number / 100) << 8) | ((number / 10 % 10) << 4) | (number % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_look_alike() {
        let of = Addressing::new(123);
        let text = |(v4, v6): (Ipv4Addr, Ipv6Addr)| format!("{v4} {v6}");
        assert_eq!(text(of.router()), "10.123.0.1 fd00:10:123::1");
        assert_eq!(text(of.node(2)), "10.123.0.13 fd00:10:123::13");
        assert_eq!(text(of.client()), "10.123.0.100 fd00:10:123::100");
        assert_eq!(text(of.vip(50)), "10.123.0.250 fd00:10:123::250");
        assert_eq!(text(of.pod(1, 0)), "10.123.129.10 fd00:10:123:8001::10");
        assert_eq!(
            of.pod_networks(1),
            ["10.123.129.0/24", "fd00:10:123:8001::/64"]
        );
        assert_eq!(of.cluster_cidr(), "10.123.128.0/17,fd00:10:123:8000::/49");
    }
}
