//! What the command line, the environment and the files decided, validated before the first await.
//! The rest of the program never sees argv or the environment.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use ipnet::IpNet;

/// The speaker's settings (`--speaker-…`), with kube-vip's environment names as defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeakerConfig {
    /// Kubernetes name of the Node this process runs on; also the holder identity's first part.
    pub node_name: String,
    /// Release namespace: ours for Leases, Secrets and events about no object.
    pub namespace: String,
    /// Only Services of this namespace; `None` is all.
    pub service_namespace: Option<String>,
    /// The link of the node's traffic; `None` is the default-route link.
    pub interface: Option<String>,
    /// The link for VIPs where a Service names none.
    pub service_interface: InterfaceChoice,
    pub vip_prefix: VipPrefix,
    pub class: ClassRules,
    /// Announce only; write neither annotations nor status of Services.
    pub disable_service_updates: bool,
    /// Announce `externalTrafficPolicy: Cluster` Services only while they have an endpoint.
    pub require_endpoints: bool,
    pub election: ElectionMode,
    pub election_scope: ElectionScope,
    /// With the global scope: Services annotated `kube-vip.io/forcePerServiceElection: "true"`
    /// have an election of their own.
    pub election_on_demand: bool,
    pub lease: LeaseConfig,
    /// Period of the refreshing announcements after the first burst.
    pub announce_interval: Duration,
    pub conflict: ConflictPolicy,
    /// VIPs outside are refused; empty allows all.
    pub allowed_cidrs: Vec<IpNet>,
    pub api_outage: ApiOutagePolicy,
    /// Kernel lifetime of a VIP address; `None` is for ever.
    pub address_lifetime: Option<Duration>,
    /// Plain HTTP metrics, kube-vip's `:2112`.
    pub metrics_address: Option<SocketAddr>,
    /// Plain HTTP `/healthz`.
    pub health_port: Option<u16>,
    /// Guest cluster kubeconfig; `None` is in-cluster.
    pub kubeconfig: Option<PathBuf>,
    /// The API server's own addresses, never accepted as VIPs.
    pub api_server: Vec<IpAddr>,
}

/// Which link a VIP goes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InterfaceChoice {
    /// The link whose network contains the VIP, else the node's link.
    #[default]
    Auto,
    Named(String),
}

/// Prefix length of VIP addresses on their link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VipPrefix {
    pub ipv4: PrefixLength,
    pub ipv6: PrefixLength,
}

impl Default for VipPrefix {
    fn default() -> Self {
        Self {
            ipv4: PrefixLength::Fixed(32),
            ipv6: PrefixLength::Fixed(128),
        }
    }
}

/// One family's prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixLength {
    Fixed(u8),
    /// That of the link's address whose network contains the VIP.
    Auto,
}

/// Which `spec.loadBalancerClass` values this speaker serves (kube-vip's rules).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRules {
    /// Empty: only Services without a class (with `legacy` off).
    pub name: String,
    /// Legacy rule: leave Services without a class alone.
    pub only: bool,
    /// Legacy rule: no class, or ours. Off: the class must equal `name`.
    pub legacy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionMode {
    /// kube-vip's protocol: a Lease for each group, or one for all.
    Lease,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionScope {
    /// An owner for each group of Services that share addresses.
    Service,
    /// One owner for all.
    Global,
}

/// Names and timings of the elections over Leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Namespace of the global Lease.
    pub namespace: String,
    /// Name of the global Lease.
    pub name: String,
    pub duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictPolicy {
    /// Another host answers for the address: do not announce, say so, try again.
    Refuse,
    /// Announce all the same (segments with proxy ARP).
    Warn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiOutagePolicy {
    Hold,
    Withdraw,
}
