//! Announces VIPs on a link by gratuitous ARP and unsolicited neighbour advertisements, and asks
//! the link who answers for an address.
