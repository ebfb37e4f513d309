//! The cloud controllers' settings, from their flags, with the framework's and Harvester's rules.

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;

use super::{
    controllers::{Controllers, unknown_items},
    error::Error,
    flags::Parsed,
    serving,
};

/// What the cloud controllers need to know.
#[derive(Debug, Clone, PartialEq)]
pub struct CcmConfig {
    /// Kubeconfig of the Harvester cluster.
    pub cloud_config: Option<PathBuf>,
    pub cluster_name: String,
    pub controllers: Controllers,
    pub controller_start_interval: Duration,
    pub min_resync_period: Duration,
    /// Limit of requests to the guest cluster; only when one was given.
    pub api_rate: Option<ApiRate>,
    pub node_monitor_period: Duration,
    pub node_status_update_frequency: Duration,
    /// `None`: controllers run without an election.
    pub leader_election: Option<LeaderElection>,
    pub workers: Workers,
    /// Network attachment `namespace/name` of the management traffic.
    pub management_network: Option<String>,
    /// Which addresses are internal ones: at most one prefix per family.
    pub node_ip_cidr: Vec<IpNet>,
    pub node_exclude_ip_ranges: Vec<IpNet>,
    /// Ignore the address annotations of nodes when classifying addresses.
    pub ignore_address_annotations: bool,
    pub vmi_controller: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApiRate {
    pub per_second: f32,
    pub burst: u32,
}

/// The Lease that elects the replica whose controllers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderElection {
    pub namespace: String,
    pub name: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

/// Numbers of workers; `None` where none was given, which does not limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Workers {
    pub node_syncs: Option<u32>,
    pub node_status_updates: Option<u32>,
    pub service_syncs: Option<u32>,
}

/// Feature gates that a Go cloud controller manager of the supported versions knows of itself.
const FEATURE_GATES: &[&str] = &[
    "AllAlpha",
    "AllBeta",
    "CloudControllerManagerWatchBasedRoutesReconciliation",
    "CloudControllerManagerWebhook",
    "ContextualLogging",
    "ControllerManagerReleaseLeaderElectionLockOnExit",
    "LoggingAlphaOptions",
    "LoggingBetaOptions",
    "NativeHistograms",
    "StableLoadBalancerNodeSet",
];

/// Decides the controllers' settings; mistakes and warnings are appended.
pub(super) fn decide(
    parsed: &Parsed,
    errors: &mut Vec<Error>,
    warnings: &mut Vec<String>,
) -> CcmConfig {
    let generic = &parsed.flags.generic;
    let harvester = &parsed.flags.harvester;
    feature_gates(&generic.feature_gates, errors, warnings);
    let mut keep = |result: Result<Vec<IpNet>, Error>| {
        result.unwrap_or_else(|error| {
            errors.push(error);
            Vec::new()
        })
    };
    let node_ip_cidr = keep(node_ip_cidr(&harvester.node_ip_cidr));
    let node_exclude_ip_ranges = keep(exclude_ranges(&harvester.node_exclude_ip_ranges));
    let controllers = Controllers::from_items(generic.controllers.iter().map(String::as_str))
        .unwrap_or_else(|unknown| {
            errors.push(unknown.into());
            Controllers {
                enabled: BTreeSet::new(),
                none: false,
            }
        });
    if generic.use_service_account_credentials {
        let text =
            "--use-service-account-credentials has no effect: all controllers have one identity";
        warnings.push(text.to_owned());
    }
    framework_rules(parsed, serving::port(parsed, controllers.none), errors);
    CcmConfig {
        cloud_config: generic.cloud_config.clone(),
        cluster_name: generic.cluster_name.clone(),
        controllers,
        controller_start_interval: generic.controller_start_interval,
        min_resync_period: generic.min_resync_period,
        api_rate: api_rate(parsed),
        node_monitor_period: generic.node_monitor_period,
        node_status_update_frequency: parsed.flags.misc.node_status_update_frequency,
        leader_election: leader_election(parsed, errors),
        workers: workers(parsed, errors),
        management_network: management_network(harvester.management_network.as_deref(), errors),
        node_ip_cidr,
        node_exclude_ip_ranges,
        ignore_address_annotations: harvester.disable_annotation_alpha_provided_ip_addr,
        vmi_controller: !harvester.disable_vmi_controller,
    }
}

fn framework_rules(parsed: &Parsed, secure_port: u16, errors: &mut Vec<Error>) {
    match parsed.flags.generic.cloud_provider.as_str() {
        "harvester" => {}
        "" => errors.push(Error::rule("cloud-provider", "it must not be empty")),
        other => errors.push(Error::flag(
            "cloud-provider",
            other,
            "this program is the provider harvester",
        )),
    }
    let text = |name: &str| {
        parsed
            .texts
            .iter()
            .find(|(flag, _)| flag == name)
            .map_or("", |(_, text)| text.as_str())
    };
    for name in unknown_items(text("webhooks").split(',')) {
        errors.push(Error::flag("webhooks", name, "there is no such webhook"));
    }
    if super::env::parse_bool(text("enable-leader-migration")) == Some(true) {
        let reason = "these controllers never ran elsewhere: there is nothing to migrate from";
        errors.push(Error::rule("enable-leader-migration", reason));
    }
    let webhook_port = text("webhook-secure-port");
    match webhook_port.parse::<u16>() {
        Err(_) => {
            let reason = "it is not in 0 to 65535";
            errors.push(Error::flag("webhook-secure-port", webhook_port, reason));
        }
        Ok(port) if port != 0 && port == secure_port => {
            let reason = "it is the secure port's";
            errors.push(Error::flag("webhook-secure-port", webhook_port, reason));
        }
        Ok(_) => {}
    }
}

fn feature_gates(items: &[String], errors: &mut Vec<Error>, warnings: &mut Vec<String>) {
    for item in items.iter().filter(|item| !item.is_empty()) {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let name = name.trim();
        if super::env::parse_bool(value.trim()).is_none() {
            let reason = "a gate is Name=true or Name=false";
            errors.push(Error::flag("feature-gates", item, reason));
        } else if !FEATURE_GATES.contains(&name) {
            warnings.push(format!("feature gate {name} is unknown here and ignored"));
        }
    }
}

fn api_rate(parsed: &Parsed) -> Option<ApiRate> {
    let generic = &parsed.flags.generic;
    let given = ["kube-api-qps", "kube-api-burst"]
        .iter()
        .any(|flag| parsed.given.contains(*flag));
    // A rate that is not positive switches the limit off, as in client-go.
    (given && generic.kube_api_qps > 0.0).then(|| ApiRate {
        per_second: generic.kube_api_qps,
        burst: u32::try_from(generic.kube_api_burst).unwrap_or(0).max(1),
    })
}

fn leader_election(parsed: &Parsed, errors: &mut Vec<Error>) -> Option<LeaderElection> {
    let generic = &parsed.flags.generic;
    if !generic.leader_elect {
        return None;
    }
    if generic.leader_elect_resource_lock != "leases" {
        let value = &generic.leader_elect_resource_lock;
        let reason = "the only lock is leases";
        errors.push(Error::flag("leader-elect-resource-lock", value, reason));
    }
    let election = LeaderElection {
        namespace: generic.leader_elect_resource_namespace.clone(),
        name: generic.leader_elect_resource_name.clone(),
        lease_duration: generic.leader_elect_lease_duration,
        renew_deadline: generic.leader_elect_renew_deadline,
        retry_period: generic.leader_elect_retry_period,
    };
    if let Some(reason) = timing_fault(
        election.lease_duration,
        election.renew_deadline,
        election.retry_period,
    ) {
        errors.push(Error::rule("leader-elect-lease-duration", reason));
    }
    Some(election)
}

/// client-go's rules for the timings of an election.
pub(super) fn timing_fault(
    lease: Duration,
    renew: Duration,
    retry: Duration,
) -> Option<&'static str> {
    if lease < Duration::from_secs(1) || retry.is_zero() {
        Some("the lease lasts at least 1s, and the retry period is not zero")
    } else if lease <= renew {
        Some("the lease must last longer than the renew deadline")
    } else if renew <= retry.mul_f64(1.2) {
        Some("the renew deadline must be longer than 1.2 times the retry period")
    } else {
        None
    }
}

fn workers(parsed: &Parsed, errors: &mut Vec<Error>) -> Workers {
    let controllers = &parsed.flags.controllers;
    let mut count = |flag: &'static str, value: i32, least: i32, reason: &'static str| {
        if value < least {
            errors.push(Error::flag(flag, value.to_string(), reason));
        }
        u32::try_from(value)
            .ok()
            .filter(|_| parsed.given.contains(flag))
    };
    let node_syncs = count(
        "concurrent-node-syncs",
        controllers.concurrent_node_syncs,
        1,
        "it must be positive",
    );
    let node_status_updates = count(
        "concurrent-node-status-updates",
        controllers.concurrent_node_status_updates,
        0,
        "it must not be negative",
    );
    let service_syncs = count(
        "concurrent-service-syncs",
        controllers.concurrent_service_syncs,
        1,
        "it must be positive",
    );
    Workers {
        node_syncs,
        node_status_updates: node_status_updates.filter(|n| *n > 0).or(node_syncs),
        service_syncs,
    }
}

/// A name without a namespace is in `default`, whatever namespace the VMs are in.
fn management_network(text: Option<&str>, errors: &mut Vec<Error>) -> Option<String> {
    let text = text.filter(|text| !text.is_empty())?;
    match text.split_once('/') {
        None => Some(format!("default/{text}")),
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            Some(text.to_owned())
        }
        Some(_) => {
            let reason = "it is neither name nor namespace/name";
            errors.push(Error::flag("management-network", text, reason));
            None
        }
    }
}

fn node_ip_cidr(text: &str) -> Result<Vec<IpNet>, Error> {
    const FLAG: &str = "node-ip-cidr";
    let mut prefixes: Vec<IpNet> = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        let prefix = prefix(entry)
            .ok_or_else(|| Error::flag(FLAG, entry, "it is neither an IP address nor a prefix"))?;
        if !is_assignable(prefix.addr()) {
            let reason = "loopback, link-local, multicast, unspecified and broadcast addresses are no node's";
            return Err(Error::flag(FLAG, entry, reason));
        }
        let same_family = |p: &IpNet| p.addr().is_ipv4() == prefix.addr().is_ipv4();
        if prefixes.iter().any(same_family) {
            return Err(Error::flag(FLAG, text, "at most one entry per family"));
        }
        prefixes.push(prefix);
    }
    Ok(prefixes.into_iter().map(|prefix| prefix.trunc()).collect())
}

fn exclude_ranges(items: &[String]) -> Result<Vec<IpNet>, Error> {
    items
        .iter()
        .map(|item| item.trim())
        .filter(|item| !item.is_empty())
        .map(|item| {
            prefix(item).map(|p| p.trunc()).ok_or_else(|| {
                let reason = "it is neither an IP address nor a prefix";
                Error::flag("node-exclude-ip-ranges", item, reason)
            })
        })
        .collect()
}

/// A bare address is a prefix of full length; host bits are kept.
fn prefix(text: &str) -> Option<IpNet> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn is_assignable(address: IpAddr) -> bool {
    let outside = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(outside || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_prefixes_follow_the_go_programs_rules() {
        for (text, expected) in [
            ("", Some("")),
            (" 10.0.0.5 , ,fd00::1/64", Some("10.0.0.5/32 fd00::/64")),
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("126.0.0.0/7", Some("126.0.0.0/7")),
            ("10.0.0.0/8,192.168.0.0/16", None),
            ("fd00::/64,fd01::/64", None),
            ("127.0.0.1", None),
            ("169.254.1.0/24", None),
            ("fe80::/64", None),
            ("224.0.0.0/8", None),
            ("ff02::1", None),
            ("0.0.0.0/0", None),
            ("255.255.255.255", None),
            ("10.0.0.0/33", None),
            ("host", None),
        ] {
            let read = node_ip_cidr(text).ok().map(|prefixes| {
                let texts: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
                texts.join(" ")
            });
            assert_eq!(read.as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_management_network_without_namespace_is_in_default() {
        for (text, expected) in [
            ("", Some(None)),
            ("mgmt", Some(Some("default/mgmt"))),
            ("ns/mgmt", Some(Some("ns/mgmt"))),
            ("/mgmt", None),
            ("ns/", None),
            ("a/b/c", None),
        ] {
            let mut errors = Vec::new();
            let read = management_network(Some(text), &mut errors);
            let read = errors.is_empty().then_some(read.as_deref());
            assert_eq!(read, expected, "{text:?}");
        }
    }

    #[test]
    fn election_timings_follow_client_go() {
        let fault = |lease: u64, renew: u64, retry: u64| {
            let [lease, renew, retry] = [lease, renew, retry].map(Duration::from_millis);
            timing_fault(lease, renew, retry).is_some()
        };
        assert!(!fault(15_000, 10_000, 2_000));
        assert!(!fault(1_000, 900, 300));
        assert!(fault(10_000, 10_000, 2_000));
        assert!(fault(15_000, 2_400, 2_000));
        assert!(fault(999, 900, 300));
        assert!(fault(15_000, 10_000, 0));
    }
}
