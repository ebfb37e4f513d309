//! The flags of the speaker. Their text forms are read here; what they mean together is decided in
//! `config::speaker`.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use clap::{Args, builder::PossibleValuesParser};
use ipnet::IpNet;

use crate::config::{InterfaceChoice, PrefixLength, VipPrefix, duration};

#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speaker flags")]
pub(in crate::config) struct SpeakerFlags {
    /// Announce the addresses of LoadBalancer Services from this node
    #[arg(long, default_value = "false")]
    pub speaker: bool,
    /// Name of this Node (default: the host name)
    #[arg(long)]
    pub speaker_node_name: Option<String>,
    /// Namespace of our own objects (default: the pod's, else kube-system)
    #[arg(long)]
    pub speaker_namespace: Option<String>,
    /// Serve the Services of this namespace only
    #[arg(long)]
    pub speaker_service_namespace: Option<String>,
    /// The node's link (default: that of the default route)
    #[arg(long, value_parser = link_name)]
    pub speaker_interface: Option<String>,
    /// Link of the VIPs: `auto` (the one whose network contains the VIP) or a name (default: --speaker-interface if given, else auto)
    #[arg(long, value_parser = interface_choice)]
    pub speaker_service_interface: Option<InterfaceChoice>,
    /// Prefix lengths of VIPs, `v4[,v6]`; `auto` copies the link's
    #[arg(long, default_value = "32,128", value_parser = vip_prefix)]
    pub speaker_vip_prefix: VipPrefix,
    /// The loadBalancerClass to serve; empty serves Services without one
    #[arg(long, default_value = "kube-vip.io/kube-vip-class")]
    pub speaker_class: String,
    /// Leave Services without a class alone
    #[arg(long, default_value = "false")]
    pub speaker_class_only: bool,
    /// Serve Services without a class beside those of ours
    #[arg(long, default_value = "true")]
    pub speaker_class_legacy: bool,
    /// Announce only; write neither annotations nor status of Services
    #[arg(long, default_value = "false")]
    pub speaker_disable_service_updates: bool,
    /// Announce a Service of externalTrafficPolicy Cluster only while it has an endpoint
    #[arg(long, default_value = "false")]
    pub speaker_require_endpoints: bool,
    /// How owners are found
    #[arg(long, default_value = "lease", value_parser = PossibleValuesParser::new(["lease"]))]
    pub speaker_election: String,
    /// An owner for each Service, or one for all
    #[arg(long, default_value = "service", value_parser = PossibleValuesParser::new(["service", "global"]))]
    pub speaker_election_scope: String,
    /// Global scope: Services annotated kube-vip.io/forcePerServiceElection have owners of their own
    #[arg(long, default_value = "false")]
    pub speaker_election_on_demand: bool,
    /// The one Lease of the global scope, `[namespace/]name`
    #[arg(long, default_value = "plndr-svcs-lock")]
    pub speaker_lease_name: String,
    #[arg(long, default_value = "15s", value_parser = duration::parse)]
    pub speaker_lease_duration: Duration,
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub speaker_renew_deadline: Duration,
    #[arg(long, default_value = "2s", value_parser = duration::parse)]
    pub speaker_retry_period: Duration,
    /// Period of the refreshing announcements
    #[arg(long, default_value = "1m0s", value_parser = duration::parse)]
    pub speaker_announce_interval: Duration,
    /// When another host answers for a VIP: refuse it, or warn and announce all the same
    #[arg(long, default_value = "refuse", value_parser = PossibleValuesParser::new(["refuse", "warn"]))]
    pub speaker_conflict: String,
    /// VIPs outside of these prefixes are refused (default: none is)
    #[arg(long, value_delimiter = ',', value_parser = prefix)]
    pub speaker_allowed_cidrs: Vec<IpNet>,
    /// While the API server cannot be reached: hold VIPs, or withdraw them; owners by Lease withdraw at the renew deadline either way
    #[arg(long, default_value = "hold", value_parser = PossibleValuesParser::new(["hold", "withdraw"]))]
    pub speaker_api_outage: String,
    /// Period of heartbeats between members (no effect with the lease election)
    #[arg(long, default_value = "100ms", value_parser = duration::parse)]
    pub speaker_heartbeat_interval: Duration,
    /// Silence after which a member is suspect (no effect with the lease election)
    #[arg(long, default_value = "300ms", value_parser = duration::parse)]
    pub speaker_suspect_timeout: Duration,
    /// Heartbeat timings: default or fast (no effect with the lease election)
    #[arg(long, default_value = "default", value_parser = PossibleValuesParser::new(["default", "fast"]))]
    pub speaker_profile: String,
    /// UDP port of heartbeats (no effect with the lease election)
    #[arg(long, default_value = "10258", value_parser = clap::value_parser!(u16).range(1..))]
    pub speaker_heartbeat_port: u16,
    /// Address of heartbeats (default: the Node's InternalIP; no effect with the lease election)
    #[arg(long)]
    pub speaker_heartbeat_address: Option<IpAddr>,
    /// Secret with the key of heartbeats (no effect with the lease election)
    #[arg(long, default_value = "harvester-cloud-provider-speaker")]
    pub speaker_key_secret: String,
    /// The kernel removes VIPs that were not refreshed for this long; 0 never
    #[arg(long, default_value = "5s", value_parser = duration::parse)]
    pub speaker_address_lifetime: Duration,
    /// Run before all ordinary work of the node (needs the capability `SYS_NICE`; without it as any other process)
    #[arg(long, default_value = "true")]
    pub speaker_realtime: bool,
    /// Plain HTTP metrics, `address:port` or `:port`; `off`
    #[arg(long, default_value = "off", value_parser = metrics_address)]
    pub speaker_metrics_address: MetricsAddress,
    /// Plain HTTP /healthz; 0 is off
    #[arg(long, default_value = "0", value_parser = health_port)]
    pub speaker_health_port: u16,
}

/// Flags of the commands.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Command flags")]
pub(in crate::config) struct CommandFlags {
    /// Output of `vips`: text or json
    #[arg(short = 'o', long, value_parser = PossibleValuesParser::new(["text", "json"]))]
    pub output: Option<String>,
}

/// Where plain metrics are served, if at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::config) struct MetricsAddress(pub Option<SocketAddr>);

/// Why a text is not what a speaker's flag takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::config) enum TextError {
    #[error("it is no link name (1 to 15 bytes without slash, colon or blank)")]
    LinkName,
    #[error("it is no prefix length `v4[,v6]`: 1 to 32, 1 to 128, or auto")]
    Prefix,
    #[error("it is no IP prefix")]
    Network,
    #[error("it is neither off, :port nor address:port")]
    Address,
    #[error("it is neither 0 nor a port from 1024 to 65535")]
    HealthPort,
}

fn link_name(text: &str) -> Result<String, TextError> {
    let length_ok = (1..=15).contains(&text.len());
    let bytes_ok = text
        .bytes()
        .all(|b| b.is_ascii_graphic() && b != b'/' && b != b':');
    if length_ok && bytes_ok && text != "." && text != ".." {
        Ok(text.to_owned())
    } else {
        Err(TextError::LinkName)
    }
}

fn interface_choice(text: &str) -> Result<InterfaceChoice, TextError> {
    match text {
        "auto" => Ok(InterfaceChoice::Auto),
        name => link_name(name).map(InterfaceChoice::Named),
    }
}

/// `32`, `32,128`, `auto`, `auto,128`: one length alone is IPv4's, and IPv6 keeps 128, but a lone
/// `auto` is for both.
fn vip_prefix(text: &str) -> Result<VipPrefix, TextError> {
    let length = |text: &str, most: u8| match text.trim().trim_start_matches('/') {
        "auto" => Ok(PrefixLength::Auto),
        digits => digits
            .parse()
            .ok()
            .filter(|length| (1..=most).contains(length))
            .map(PrefixLength::Fixed)
            .ok_or(TextError::Prefix),
    };
    match text.split_once(',') {
        Some((ipv4, ipv6)) => Ok(VipPrefix {
            ipv4: length(ipv4, 32)?,
            ipv6: length(ipv6, 128)?,
        }),
        None => Ok(match length(text, 32)? {
            PrefixLength::Auto => VipPrefix {
                ipv4: PrefixLength::Auto,
                ipv6: PrefixLength::Auto,
            },
            ipv4 @ PrefixLength::Fixed(_) => VipPrefix {
                ipv4,
                ..VipPrefix::default()
            },
        }),
    }
}

fn prefix(text: &str) -> Result<IpNet, TextError> {
    let text = text.trim();
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map(|net| net.trunc())
        .map_err(|_| TextError::Network)
}

fn metrics_address(text: &str) -> Result<MetricsAddress, TextError> {
    let address = match text {
        "" | "off" => return Ok(MetricsAddress(None)),
        _ => match text.strip_prefix(':') {
            Some(port) => port
                .parse()
                .map(|port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
                .map_err(|_| TextError::Address)?,
            None => text.parse().map_err(|_| TextError::Address)?,
        },
    };
    if address.port() == 0 {
        return Err(TextError::Address);
    }
    Ok(MetricsAddress(Some(address)))
}

fn health_port(text: &str) -> Result<u16, TextError> {
    text.parse()
        .ok()
        .filter(|port| *port == 0 || *port >= 1024)
        .ok_or(TextError::HealthPort)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_lengths_are_read_in_all_forms_of_kube_vip() {
        use PrefixLength::{Auto, Fixed};
        for (text, expected) in [
            ("32", Some((Fixed(32), Fixed(128)))),
            ("/24", Some((Fixed(24), Fixed(128)))),
            ("24,64", Some((Fixed(24), Fixed(64)))),
            ("auto", Some((Auto, Auto))),
            ("auto,auto", Some((Auto, Auto))),
            ("auto,128", Some((Auto, Fixed(128)))),
            ("32, auto", Some((Fixed(32), Auto))),
            ("33", None),
            ("0", None),
            ("32,129", None),
            ("32,128,1", None),
            ("", None),
        ] {
            let read = vip_prefix(text).ok().map(|p| (p.ipv4, p.ipv6));
            assert_eq!(read, expected, "{text:?}");
        }
    }

    #[test]
    fn metrics_addresses_are_gos_listen_addresses() {
        for (text, expected) in [
            ("off", Some(None)),
            ("", Some(None)),
            (":2112", Some("[::]:2112".parse().ok())),
            ("127.0.0.1:2112", Some("127.0.0.1:2112".parse().ok())),
            ("2112", None),
            (":0", None),
            (":70000", None),
        ] {
            let read = metrics_address(text).ok().map(|a| a.0);
            assert_eq!(read, expected, "{text:?}");
        }
    }

    #[test]
    fn link_names_are_what_the_kernel_takes() {
        for good in ["eth0", "bond0.100", "a"] {
            assert!(link_name(good).is_ok(), "{good:?}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "eth0:1", "sixteen-bytes-xx"] {
            assert!(link_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn privileged_health_ports_are_refused_as_in_kube_vip() {
        for (text, good) in [("0", true), ("1", false), ("1023", false), ("1024", true)] {
            assert_eq!(health_port(text).is_ok(), good, "{text}");
        }
    }
}
