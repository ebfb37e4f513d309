//! Value types of the kernel's links and addresses, as the netlink verbs and the monitor speak them.

use std::{collections::BTreeMap, fmt, net::IpAddr, time::Duration};

/// The kernel's index of a link (network device) in this network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u32);

impl fmt::Display for LinkIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// 00:00:00:00:00:00, what a question leaves open.
    pub const ZERO: Self = Self([0; 6]);
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A link as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: LinkIndex,
    pub name: String,
    /// `ifalias`; carries our mark on links that we made.
    pub alias: Option<String>,
    /// `None` for links without a 6-byte hardware address.
    pub mac: Option<MacAddress>,
    /// The link below a macvlan, VLAN or veth end, where the kernel names one.
    pub parent: Option<LinkIndex>,
    pub loopback: bool,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    /// The lower layer works (`IFF_LOWER_UP` with `IFF_RUNNING`).
    pub carrier: bool,
    pub mtu: u32,
}

impl Link {
    /// Frames can leave and arrive: administratively up, with carrier.
    pub fn is_running(&self) -> bool {
        self.up && self.carrier
    }
}

/// An address on a link, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkAddress {
    pub link: LinkIndex,
    pub address: IpAddr,
    pub prefix_len: u8,
    /// Carries our mark ([`ADDRESS_PROTOCOL`]): a speaker of this node, now or formerly, made it.
    pub marked: bool,
    /// Usable now: neither tentative nor failed in duplicate address detection.
    pub usable: bool,
    /// Preferred lifetime is over: never chosen as a source address.
    pub deprecated: bool,
}

/// The mark on every address that this program adds (`IFA_PROTO`; kernels since 5.18 keep it).
pub const ADDRESS_PROTOCOL: u8 = 0x68;

/// What identifies an address on a link to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressKey {
    pub link: LinkIndex,
    pub address: IpAddr,
    pub prefix_len: u8,
}

impl LinkAddress {
    pub fn key(&self) -> AddressKey {
        AddressKey {
            link: self.link,
            address: self.address,
            prefix_len: self.prefix_len,
        }
    }
}

/// A VIP to be put on a link: host scope prefix, no prefix route, preferred lifetime 0, no kernel
/// duplicate address detection, our mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipAddress {
    pub key: AddressKey,
    /// Valid lifetime after which the kernel removes the address by itself; `None` is for ever.
    pub lifetime: Option<Duration>,
}

/// A default route, seen from the speaker: which link it leaves by and who forwards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefaultRoute {
    /// True for `::/0`.
    pub ipv6: bool,
    pub link: LinkIndex,
    pub gateway: Option<IpAddr>,
    pub metric: u32,
}

/// Everything the monitor knows at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    pub links: BTreeMap<LinkIndex, Link>,
    pub addresses: BTreeMap<AddressKey, LinkAddress>,
    /// Sorted; the best route of a family comes first among its family.
    pub default_routes: Vec<DefaultRoute>,
}

/// A change of links, addresses or default routes, in the order the kernel told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// The state of everything; what is not in it is gone. First event, and after any loss.
    Resync(Snapshot),
    /// A link appeared or changed in any field of [`Link`].
    Link(Link),
    LinkGone(LinkIndex),
    Address(LinkAddress),
    AddressGone(AddressKey),
    /// All default routes after a change of one.
    DefaultRoutes(Vec<DefaultRoute>),
}

impl Snapshot {
    /// Follows one event.
    pub fn apply(&mut self, event: &LinkEvent) {
        match event {
            LinkEvent::Resync(all) => *self = all.clone(),
            LinkEvent::Link(link) => {
                self.links.insert(link.index, link.clone());
            }
            LinkEvent::LinkGone(index) => {
                self.links.remove(index);
                self.addresses.retain(|key, _| key.link != *index);
            }
            LinkEvent::Address(address) => {
                self.addresses.insert(address.key(), address.clone());
            }
            LinkEvent::AddressGone(key) => {
                self.addresses.remove(key);
            }
            LinkEvent::DefaultRoutes(routes) => self.default_routes.clone_from(routes),
        }
    }
}
