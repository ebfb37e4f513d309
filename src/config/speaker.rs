//! The speaker's settings, from its flags (into which the environment was translated before).

use std::{net::IpAddr, ops::RangeInclusive, time::Duration};

use super::{
    ApiOutagePolicy, ClassRules, ConflictPolicy, ElectionMode, ElectionScope, InterfaceChoice,
    LeaseConfig, SpeakerConfig, Surroundings, ccm::timing_fault, error::Error, flags::Parsed,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Faster refreshing would only be noise on the segment.
const SHORTEST_ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);

/// The running speaker refreshes addresses every second, and the kernel counts whole seconds.
const SHORTEST_ADDRESS_LIFETIME: Duration = Duration::from_secs(2);

/// Heartbeats between these; slower ones would be no faster than Leases.
const HEARTBEAT_INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(1);

/// Decides the speaker's settings; mistakes and warnings are appended.
pub(super) fn decide(
    parsed: &Parsed,
    surroundings: &Surroundings,
    errors: &mut Vec<Error>,
    warnings: &mut Vec<String>,
) -> SpeakerConfig {
    let flags = &parsed.flags.speaker;
    let namespace = namespace(flags.speaker_namespace.as_deref(), surroundings);
    ranges(parsed, errors);
    heartbeats(parsed, errors, warnings);
    if flags.speaker_api_outage == "hold" && parsed.given.contains("speaker-api-outage") {
        warnings.push(
            "--speaker-api-outage=hold: owners by Lease withdraw at the renew deadline all the same"
                .to_owned(),
        );
    }
    SpeakerConfig {
        node_name: node_name(flags.speaker_node_name.as_deref(), surroundings, errors),
        lease: lease(parsed, &namespace, errors),
        namespace,
        service_namespace: flags
            .speaker_service_namespace
            .clone()
            .filter(|name| !name.is_empty()),
        interface: flags.speaker_interface.clone(),
        service_interface: service_interface(parsed),
        vip_prefix: flags.speaker_vip_prefix,
        class: ClassRules {
            name: flags.speaker_class.clone(),
            only: flags.speaker_class_only,
            legacy: flags.speaker_class_legacy,
        },
        disable_service_updates: flags.speaker_disable_service_updates,
        require_endpoints: flags.speaker_require_endpoints,
        election: ElectionMode::Lease,
        election_scope: match flags.speaker_election_scope.as_str() {
            "global" => ElectionScope::Global,
            _ => ElectionScope::Service,
        },
        election_on_demand: flags.speaker_election_on_demand,
        announce_interval: flags.speaker_announce_interval,
        conflict: match flags.speaker_conflict.as_str() {
            "warn" => ConflictPolicy::Warn,
            _ => ConflictPolicy::Refuse,
        },
        allowed_cidrs: flags.speaker_allowed_cidrs.clone(),
        api_outage: match flags.speaker_api_outage.as_str() {
            "withdraw" => ApiOutagePolicy::Withdraw,
            _ => ApiOutagePolicy::Hold,
        },
        address_lifetime: Some(flags.speaker_address_lifetime).filter(|l| !l.is_zero()),
        realtime: flags.speaker_realtime,
        metrics_address: flags.speaker_metrics_address.0,
        health_port: Some(flags.speaker_health_port).filter(|port| *port != 0),
        kubeconfig: parsed.flags.misc.kubeconfig.clone(),
        master: parsed.flags.misc.master.clone(),
        api_server: api_server(surroundings),
    }
}

fn ranges(parsed: &Parsed, errors: &mut Vec<Error>) {
    let flags = &parsed.flags.speaker;
    let interval = flags.speaker_announce_interval;
    if !(SHORTEST_ANNOUNCE_INTERVAL..=DAY).contains(&interval) {
        let reason = "it is outside 500ms to 24h";
        errors.push(Error::rule("speaker-announce-interval", reason));
    }
    let lifetime = flags.speaker_address_lifetime;
    if !lifetime.is_zero() && !(SHORTEST_ADDRESS_LIFETIME..=DAY).contains(&lifetime) {
        let reason = "it is neither 0 nor in 2s to 24h";
        errors.push(Error::rule("speaker-address-lifetime", reason));
    }
}

/// Only the election by heartbeats will read these; a configuration that is meant for it is checked
/// all the same.
fn heartbeats(parsed: &Parsed, errors: &mut Vec<Error>, warnings: &mut Vec<String>) {
    let flags = &parsed.flags.speaker;
    let interval = flags.speaker_heartbeat_interval;
    if !HEARTBEAT_INTERVALS.contains(&interval) {
        let reason = "it is outside 10ms to 1s";
        errors.push(Error::rule("speaker-heartbeat-interval", reason));
    }
    if flags.speaker_suspect_timeout < interval * 2 || flags.speaker_suspect_timeout > DAY {
        let reason = "it is shorter than two heartbeat intervals, or longer than 24h";
        errors.push(Error::rule("speaker-suspect-timeout", reason));
    }
    if !is_subdomain(&flags.speaker_key_secret) {
        let reason = "it is no name of a Secret";
        let value = &flags.speaker_key_secret;
        errors.push(Error::flag("speaker-key-secret", value, reason));
    }
    for name in [
        "speaker-heartbeat-interval",
        "speaker-suspect-timeout",
        "speaker-profile",
        "speaker-heartbeat-port",
        "speaker-heartbeat-address",
        "speaker-key-secret",
    ] {
        if parsed.given.contains(name) {
            warnings.push(format!("--{name} has no effect with the lease election"));
        }
    }
}

/// A link that was named for the node is also that of the VIPs, as in kube-vip; otherwise the link
/// whose network contains the VIP.
fn service_interface(parsed: &Parsed) -> InterfaceChoice {
    let flags = &parsed.flags.speaker;
    match (&flags.speaker_service_interface, &flags.speaker_interface) {
        (Some(choice), _) => choice.clone(),
        (None, Some(name)) => InterfaceChoice::Named(name.clone()),
        (None, None) => InterfaceChoice::Auto,
    }
}

fn node_name(given: Option<&str>, surroundings: &Surroundings, errors: &mut Vec<Error>) -> String {
    const FLAG: &str = "speaker-node-name";
    let name = given
        .filter(|name| !name.is_empty())
        .or(surroundings.host_name.as_deref())
        .unwrap_or_default()
        .to_ascii_lowercase();
    if !is_subdomain(&name) {
        let reason = "it is no name of a Node";
        errors.push(Error::flag(FLAG, name.clone(), reason));
    }
    name
}

fn namespace(given: Option<&str>, surroundings: &Surroundings) -> String {
    given
        .filter(|name| !name.is_empty())
        .or(surroundings.pod_namespace.as_deref())
        .unwrap_or("kube-system")
        .to_owned()
}

fn lease(parsed: &Parsed, namespace: &str, errors: &mut Vec<Error>) -> LeaseConfig {
    let flags = &parsed.flags.speaker;
    let text = &flags.speaker_lease_name;
    let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
    if !is_subdomain(name) || !is_subdomain(namespace) {
        let reason = "it is neither name nor namespace/name";
        errors.push(Error::flag("speaker-lease-name", text, reason));
    }
    let lease = LeaseConfig {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        duration: flags.speaker_lease_duration,
        renew_deadline: flags.speaker_renew_deadline,
        retry_period: flags.speaker_retry_period,
    };
    if let Some(reason) = timing_fault(lease.duration, lease.renew_deadline, lease.retry_period) {
        errors.push(Error::rule("speaker-lease-duration", reason));
    }
    lease
}

/// The in-cluster address of the API server, where it is an address.
fn api_server(surroundings: &Surroundings) -> Vec<IpAddr> {
    surroundings
        .environment
        .get("KUBERNETES_SERVICE_HOST")
        .and_then(|host| host.parse().ok())
        .into_iter()
        .collect()
}

/// RFC 1123 subdomain, as names of Nodes and Leases are.
fn is_subdomain(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}
