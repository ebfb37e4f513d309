//! Announces VIPs on a link by gratuitous ARP and unsolicited neighbour advertisements, and asks
//! the link who answers for an address.
//!
//! One task per link ([`run`]) joins a packet socket with two sans-IO machines: the `schedule`
//! knows when which VIP is due, the `witness` knows what was asked, who answered, and who else
//! claims what we announce. Neither puts an address on a link; that is done before a VIP is
//! announced, and undone after it is silent.

mod agenda;
mod driver;
mod fence;
pub mod metrics;
mod schedule;
mod witness;

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

pub use self::{
    driver::run,
    fence::{Fence, Proof, fence},
};
use crate::net::link::{LinkIndex, MacAddress};

/// What the announcer has to know of its link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFacts {
    pub index: LinkIndex,
    pub name: String,
    pub mac: MacAddress,
    /// A usable link-local address: the source of advertisements and solicitations.
    pub link_local: Option<Ipv6Addr>,
    /// The cluster's node addresses on this link, without our own.
    pub neighbours: Vec<IpAddr>,
    /// The MACs of all links of this host: where several are in one segment, the kernel answers on
    /// each of them for every address it has, and that is no stranger.
    pub host_macs: Vec<MacAddress>,
}

/// What a link's announcer is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Ask who answers for an address. A question about the same address is replaced.
    Ask { vip: IpAddr, question: Question },
    /// Stop asking; no answer to the question is reported any more.
    Forget { vip: IpAddr },
    /// Announce from now on, beginning with a burst, also if the VIP is announced already. While
    /// a predecessor may still answer, ten seconds at most, announce every 250 ms.
    Announce {
        vip: IpAddr,
        predecessor_may_answer: bool,
    },
    /// Announce no more.
    Silence { vip: IpAddr },
    /// The link, still of the same index, has changed. After a change of its MAC every VIP is
    /// announced with a burst.
    Facts(LinkFacts),
}

/// When an address counts as free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Nobody is thought to have it: asked at 0, 3 and 6 ms, clear after 10 ms of silence, and
    /// three more questions in the next second, whose answers still count.
    New,
    /// Somebody is about to give it up: asked every 25 ms until three in a row are unanswered.
    UntilSilent { limit: Duration },
}

/// What a link's announcer tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnnouncerEvent {
    /// Nobody answers for the address.
    Clear { link: LinkIndex, vip: IpAddr },
    /// Somebody answers for an address that was asked for; after a `Clear` it takes that back.
    /// The question is closed.
    Answered {
        link: LinkIndex,
        vip: IpAddr,
        by: MacAddress,
        /// The cluster node that has this MAC.
        node: Option<IpAddr>,
    },
    /// Somebody claims an address that we announce: at most once per 10 s and VIP.
    Conflict {
        link: LinkIndex,
        vip: IpAddr,
        by: MacAddress,
        /// The cluster node that has this MAC.
        node: Option<IpAddr>,
    },
    /// The first frame after an [`Command::Announce`] has left.
    FirstAnnounced { link: LinkIndex, vip: IpAddr },
    /// The announcer has ended by itself.
    Stopped { link: LinkIndex, reason: String },
}

/// How to announce.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Between two announcements of a VIP after its burst, give or take 20 %.
    pub interval: Duration,
    /// While it is closed nothing is announced; questions are asked all the same.
    pub fence: Fence,
}
