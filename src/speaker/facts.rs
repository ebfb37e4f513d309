//! What the author of a Service should know: the reasons of the speaker's Events.
//!
//! A [`Fact`] holds as long as its cause does; an Event is written when a fact begins to hold or its
//! message changes, never on each round.

use super::selection::ServiceKey;

/// Event reasons, an interface for those who alert on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The VIP is announced from this node.
    Announced,
    /// Another host answers for the address.
    AddressConflict,
    /// Nodes of this cluster answer for the address: kube-proxy in IPVS mode without strict ARP.
    NodesAnswer,
    /// kube-vip still serves the address.
    ServedByKubeVip,
    /// The address may not be announced: a node's, a gateway's, the API server's, …
    AddressRefused,
    /// No link for the address on the nodes that could announce it.
    NoLink,
    /// The kernel refused the address.
    AddressFailed,
    /// No node qualifies.
    NoCandidate,
    /// No node passes the soft conditions; they are ignored.
    ConditionsIgnored,
    /// No node serves every `Local` Service of a group.
    PartiallyServed,
    /// One owner for all VIPs, and a `Local` Service.
    GlobalElection,
    NotSupported,
    NotYetSupported,
    InvalidConfiguration,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Announced => "VIPAnnounced",
            Self::AddressConflict => "AddressConflict",
            Self::NodesAnswer => "NodesAnswer",
            Self::ServedByKubeVip => "ServedByKubeVip",
            Self::AddressRefused => "AddressRefused",
            Self::NoLink => "NoLink",
            Self::AddressFailed => "AddressFailed",
            Self::NoCandidate => "NoCandidate",
            Self::ConditionsIgnored => "ConditionsIgnored",
            Self::PartiallyServed => "PartiallyServed",
            Self::GlobalElection => "GlobalElection",
            Self::NotSupported => "NotSupported",
            Self::NotYetSupported => "NotYetSupported",
            Self::InvalidConfiguration => "InvalidConfiguration",
        }
    }
}

/// Who says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every speaker sees the same, from API objects alone: told once, whoever is first.
    Cluster,
    /// Only this node can know.
    Node,
}

/// Something that holds about a Service now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    pub reason: Reason,
    pub message: String,
    pub warning: bool,
    pub scope: Scope,
    /// Told only after it has held for a while: such facts are true for a moment in ordinary life.
    pub settles: bool,
}

impl Fact {
    /// A warning that follows from API objects alone.
    pub fn warning(reason: Reason, message: String) -> Self {
        Self {
            reason,
            message,
            warning: true,
            scope: Scope::Cluster,
            settles: false,
        }
    }

    pub fn normal(reason: Reason, message: String) -> Self {
        Self {
            warning: false,
            ..Self::warning(reason, message)
        }
    }

    #[must_use]
    pub fn seen_here(mut self) -> Self {
        self.scope = Scope::Node;
        self
    }

    #[must_use]
    pub fn once_settled(mut self) -> Self {
        self.settles = true;
        self
    }
}

/// Identity of a fact: its message may change while it holds.
pub type FactKey = (ServiceKey, Reason, String);
