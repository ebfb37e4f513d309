//! kube-vip's environment variables, translated to this program's flags. Pure.
//!
//! Input is the environment, output a list of flags that stand *before* the command line: an
//! explicit flag wins over a variable, a variable over the default. (kube-vip has it the other way
//! round; what is typed is the stronger statement.) An empty variable counts as unset, except
//! `lb_class_name`, where it means "no class". A variable that is set to something unreadable is an
//! error that names it.

use std::{collections::BTreeMap, time::Duration};

use super::{duration, error::Error};

/// The environment as read at start.
pub type Environment = BTreeMap<String, String>;

/// A flag that a variable stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Derived {
    pub variable: &'static str,
    pub flag: &'static str,
    pub value: String,
}

/// What the environment says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Translation {
    pub flags: Vec<Derived>,
    pub warnings: Vec<String>,
    pub errors: Vec<Error>,
}

/// The longest period that a variable may give.
const LONGEST: u64 = 24 * 60 * 60;

/// kube-vip replaces shorter announcement periods, and so do we.
const SHORTEST_ARP_RATE: u64 = 500;

/// Variables whose text is the flag's text.
const VERBATIM: &[(&str, &str)] = &[
    ("vip_nodename", "speaker-node-name"),
    // Only where the pod's own namespace is not known.
    ("cp_namespace", "speaker-namespace"),
    ("svc_namespace", "speaker-service-namespace"),
    ("vip_interface", "speaker-interface"),
    ("vip_servicesinterface", "speaker-service-interface"),
    ("svc_leasename", "speaker-lease-name"),
    ("prometheus_server", "speaker-metrics-address"),
    ("health_check_port", "speaker-health-port"),
    ("k8s_config_file", "kubeconfig"),
];

const BOOLEAN: &[(&str, &str)] = &[
    ("lb_class_only", "speaker-class-only"),
    ("lb_class_legacy_handling", "speaker-class-legacy"),
    ("disable_service_updates", "speaker-disable-service-updates"),
    (
        "per_service_election_on_demand",
        "speaker-election-on-demand",
    ),
];

/// Periods in seconds.
const SECONDS: &[(&str, &str)] = &[
    ("vip_leaseduration", "speaker-lease-duration"),
    ("vip_renewdeadline", "speaker-renew-deadline"),
    ("vip_retryperiod", "speaker-retry-period"),
];

/// Modes that this program does not have, and what serves instead.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "cp_enable",
        "the control plane's VIP is not this program's: keep kube-vip for it",
    ),
    ("bgp_enable", "announce by BGP with MetalLB or Cilium"),
    (
        "vip_routingtable",
        "VIPs are announced by ARP and NDP only; a routing daemon can export host routes",
    ),
    (
        "vip_wireguard",
        "VIPs are announced by ARP and NDP only; tunnels are the CNI's",
    ),
];

/// Variables of kube-vip without any meaning here, and their defaults. What differs from its default
/// is reported once. (`lb_enable`, `lb_port` and `vip_leaderelection` are inert in kube-vip's
/// services mode already, every chart sets them, and nobody needs to hear of it.)
const IGNORED: &[(&str, &str)] = &[
    ("enable_endpoints", "false"),
    ("enable_node_labeling", "false"),
    ("enable_upnp", "false"),
    ("vip_interfaceloglobal", "false"),
    ("vip_allow_interface_not_up", "false"),
    ("vip_preserve_on_leadership_loss", "false"),
    ("vip_loseleadership", "false"),
    ("vip_loseleadership_timeout_seconds", "30"),
    ("vip_leasename", "plndr-cp-lock"),
    ("vip_leaseannotations", ""),
    ("dns_mode", "first"),
    ("dhcp_mode", ""),
    ("dhcp_backoff_attempts", "3"),
    ("egress_podcidr", ""),
    ("egress_servicecidr", ""),
    ("egress_withnftables", "true"),
    ("egress_enableinternalsnat", "false"),
    ("egress_clean", "false"),
    ("EGRESS_CLEAN", "false"),
    ("instance_name", ""),
    ("INSTANCE_NAME", ""),
    ("mirror_dest_interface", ""),
    ("config_file", ""),
    ("cp_detect", "false"),
    ("address", ""),
    ("vip_address", ""),
    ("vip_ddns", "false"),
    ("vip_skipdad", "false"),
    ("port", "6443"),
    ("kubernetes_addr", ""),
    ("lb_fwdmethod", "local"),
    ("backend_health_check_interval", "5"),
    ("control_plane_health_check_address", ""),
    ("control_plane_health_check_period_seconds", "5"),
    ("control_plane_health_check_timeout_seconds", "3"),
    ("control_plane_health_check_failure_threshold", "3"),
    ("control_plane_health_check_ca_path", ""),
    ("vip_singlenode", "false"),
    ("vip_startleader", "false"),
    ("vip_configmap", ""),
    ("iptables_backend", ""),
    ("AddPeersAsBackends", "false"),
    ("bgp_attach_ip_to_interface", "false"),
    ("bgp_routerid", ""),
    ("bgp_routerinterface", ""),
    ("bgp_as", "65000"),
    ("bgp_peeras", "65000"),
    ("bgp_peers", ""),
    ("bgp_peeraddress", ""),
    ("bgp_peerpass", ""),
    ("bgp_multihop", "false"),
    ("bgp_sourceif", ""),
    ("bgp_sourceip", ""),
    ("bgp_hold_time", "30"),
    ("bgp_keepalive_interval", "10"),
    ("mpbgp_nexthop", ""),
    ("mpbgp_ipv4", ""),
    ("mpbgp_ipv6", ""),
    ("annotation", ""),
    ("zebra_enable", "false"),
    ("zebra_url", "unix:/var/run/frr/zserv.api"),
    ("zebra_version", "6"),
    ("zebra_software_name", "frr8.3"),
    ("vip_cleanroutingtable", "false"),
    ("vip_routingtableid", "198"),
    ("vip_routingtabletype", "1"),
    ("vip_routingprotocol", "248"),
];

/// Among them those that hold passwords, which belong into no log.
const SECRET: [&str; 2] = ["bgp_peerpass", "bgp_peers"];

/// Whether the environment asks for the speaker (`svc_enable`).
pub(super) fn wants_speaker(env: &Environment) -> Result<bool, Error> {
    match value(env, "svc_enable") {
        None => Ok(false),
        Some(text) => boolean("svc_enable", text),
    }
}

/// Translates the variables of a process that runs a speaker.
pub(super) fn translate(env: &Environment) -> Translation {
    let mut out = Translation::default();
    for (variable, flag) in VERBATIM {
        if let Some(text) = value(env, variable) {
            out.flag(variable, flag, text);
        }
    }
    if let Some(name) = env.get("lb_class_name") {
        out.flag("lb_class_name", "speaker-class", name);
    }
    for (variable, flag) in BOOLEAN {
        if let Some(text) = value(env, variable) {
            out.take(boolean(variable, text), |out, on| {
                out.flag(variable, flag, on.to_string());
            });
        }
    }
    for (variable, flag) in SECONDS {
        if let Some(text) = value(env, variable) {
            out.take(number(variable, text, 1, LONGEST), |out, seconds| {
                out.flag(variable, flag, format!("{seconds}s"));
            });
        }
    }
    election_scope(env, &mut out);
    prefix(env, &mut out);
    announce_interval(env, &mut out);
    log_level(env, &mut out);
    unsupported(env, &mut out);
    out
}

impl Translation {
    fn flag(&mut self, variable: &'static str, flag: &'static str, value: impl Into<String>) {
        self.flags.push(Derived {
            variable,
            flag,
            value: value.into(),
        });
    }

    fn take<T>(&mut self, read: Result<T, Error>, then: impl FnOnce(&mut Self, T)) {
        match read {
            Ok(value) => then(self, value),
            Err(error) => self.errors.push(error),
        }
    }
}

fn election_scope(env: &Environment, out: &mut Translation) {
    const VARIABLE: &str = "svc_election";
    if let Some(text) = value(env, VARIABLE) {
        out.take(boolean(VARIABLE, text), |out, per_service| {
            let scope = if per_service { "service" } else { "global" };
            out.flag(VARIABLE, "speaker-election-scope", scope);
        });
    }
}

fn prefix(env: &Environment, out: &mut Translation) {
    if let Some(text) = value(env, "vip_subnet") {
        out.flag("vip_subnet", "speaker-vip-prefix", text);
    } else if let Some(text) = value(env, "vip_cidr") {
        out.warnings
            .push("vip_cidr is the old name of vip_subnet; it is still read".to_owned());
        out.flag("vip_cidr", "speaker-vip-prefix", text);
    }
}

fn announce_interval(env: &Environment, out: &mut Translation) {
    const VARIABLE: &str = "vip_arpRate";
    let Some(text) = value(env, VARIABLE) else {
        return;
    };
    out.take(number(VARIABLE, text, 0, LONGEST * 1000), |out, given| {
        let millis = if given < SHORTEST_ARP_RATE {
            out.warnings.push(format!(
                "{VARIABLE}={given} is below {SHORTEST_ARP_RATE} ms; 3000 ms is used"
            ));
            3000
        } else {
            given
        };
        let period = duration::format(Duration::from_millis(millis));
        out.flag(VARIABLE, "speaker-announce-interval", period);
    });
}

/// slog's levels: -4 is debug, 0 info, 4 warnings, 8 errors. Warnings cannot be switched off here,
/// so everything from 0 on is the default verbosity.
fn log_level(env: &Environment, out: &mut Translation) {
    const VARIABLE: &str = "vip_loglevel";
    let Some(text) = value(env, VARIABLE) else {
        return;
    };
    match text.parse::<i8>() {
        Ok(level) => {
            let verbosity = match level {
                ..=-8 => "5",
                -7..=-1 => "4",
                0.. => "0",
            };
            out.flag(VARIABLE, "v", verbosity);
        }
        Err(_) => out.errors.push(bad(VARIABLE, text, "it is no log level")),
    }
}

fn unsupported(env: &Environment, out: &mut Translation) {
    if let Some(text) = value(env, "vip_arp") {
        out.take(boolean("vip_arp", text), |out, on| {
            if !on {
                out.errors.push(bad(
                    "vip_arp",
                    "false",
                    "ARP and NDP are the only way this program announces",
                ));
            }
        });
    }
    for (variable, instead) in ELSEWHERE {
        if let Some(text) = value(env, variable) {
            out.take(boolean(variable, text), |out, on| {
                if on {
                    out.errors.push(bad(variable, "true", instead));
                }
            });
        }
    }
    if let Some(text) = value(env, "enable_service_security") {
        out.take(boolean("enable_service_security", text), |out, on| {
            if on {
                out.warnings.push(
                    "enable_service_security is not built in: VIPs accept what the host accepts; \
                     use NetworkPolicy or the host's firewall"
                        .to_owned(),
                );
            }
        });
    }
    for (variable, default) in IGNORED {
        if let Some(text) = value(env, variable).filter(|text| !is_default(text, default)) {
            let text = if SECRET.contains(variable) {
                "…"
            } else {
                text
            };
            out.warnings
                .push(format!("{variable}={text} has no effect in this program"));
        }
    }
}

/// Equal as text, or the same truth in Go's words.
fn is_default(text: &str, default: &str) -> bool {
    text == default
        || matches!((parse_bool(text), parse_bool(default)), (Some(a), Some(b)) if a == b)
}

fn value<'a>(env: &'a Environment, variable: &str) -> Option<&'a str> {
    env.get(variable)
        .map(String::as_str)
        .filter(|text| !text.is_empty())
}

/// Go's `strconv.ParseBool`.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

fn boolean(variable: &'static str, text: &str) -> Result<bool, Error> {
    parse_bool(text).ok_or_else(|| bad(variable, text, "it is neither true nor false"))
}

fn number(variable: &'static str, text: &str, least: u64, most: u64) -> Result<u64, Error> {
    let number = text
        .parse::<u64>()
        .map_err(|_| bad(variable, text, "it is no whole number"))?;
    if (least..=most).contains(&number) {
        Ok(number)
    } else {
        let range = format!("it is outside {least} to {most}");
        Err(bad(variable, text, &range))
    }
}

fn bad(variable: &str, text: &str, reason: &str) -> Error {
    Error::Variable {
        variable: variable.to_owned(),
        value: text.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Translation {
        let env = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        translate(&env)
    }

    #[test]
    fn each_variable_becomes_its_flag() {
        for (variable, text, flag, value) in [
            ("vip_interface", "eth1", "speaker-interface", "eth1"),
            ("lb_class_name", "", "speaker-class", ""),
            ("lb_class_only", "T", "speaker-class-only", "true"),
            ("svc_election", "0", "speaker-election-scope", "global"),
            ("svc_election", "true", "speaker-election-scope", "service"),
            ("vip_leaseduration", "15", "speaker-lease-duration", "15s"),
            ("vip_subnet", "auto,128", "speaker-vip-prefix", "auto,128"),
            ("vip_arpRate", "500", "speaker-announce-interval", "500ms"),
            ("vip_arpRate", "3000", "speaker-announce-interval", "3s"),
            ("vip_loglevel", "-4", "v", "4"),
            ("vip_loglevel", "8", "v", "0"),
            ("k8s_config_file", "/a", "kubeconfig", "/a"),
        ] {
            let derived = of(&[(variable, text)]);
            assert_eq!(derived.errors, [], "{variable}");
            let [one] = derived.flags.as_slice() else {
                panic!("{variable} gives {:?}", derived.flags)
            };
            assert_eq!((one.flag, one.value.as_str()), (flag, value), "{variable}");
        }
    }

    #[test]
    fn what_the_harvester_chart_sets_is_read_without_a_word() {
        let derived = of(&[
            ("vip_interface", ""),
            ("vip_arp", "true"),
            ("lb_enable", "true"),
            ("lb_port", "6443"),
            ("vip_subnet", "32"),
            ("cp_enable", "false"),
            ("svc_enable", "true"),
            ("svc_election", "false"),
            ("vip_leaderelection", "false"),
            ("prometheus_server", ":2112"),
        ]);
        assert_eq!((derived.warnings, derived.errors), (vec![], vec![]));
        let flags: Vec<&str> = derived.flags.iter().map(|d| d.flag).collect();
        assert_eq!(
            flags,
            [
                "speaker-metrics-address",
                "speaker-election-scope",
                "speaker-vip-prefix"
            ]
        );
    }

    #[test]
    fn an_unreadable_value_is_an_error_that_names_the_variable() {
        for (variable, text) in [
            ("lb_class_only", "yes"),
            ("vip_leaseduration", "15s"),
            ("vip_leaseduration", "0"),
            ("vip_leaseduration", "86401"),
            ("vip_arpRate", "-1"),
            ("vip_arpRate", "99999999999999999999"),
            ("vip_loglevel", "debug"),
            ("vip_arp", "false"),
            ("vip_arp", "on"),
            ("cp_enable", "true"),
            ("bgp_enable", "true"),
            ("vip_routingtable", "1"),
            ("vip_wireguard", "True"),
        ] {
            let derived = of(&[(variable, text)]);
            let [error] = derived.errors.as_slice() else {
                panic!("{variable}={text} gives {:?}", derived.errors)
            };
            assert!(error.to_string().contains(variable), "{error}");
        }
    }

    #[test]
    fn oddities_are_reported_once_each() {
        for (variable, text) in [
            ("vip_arpRate", "499"),
            ("vip_cidr", "32"),
            ("enable_service_security", "true"),
            ("vip_loseleadership", "true"),
            ("address", "10.0.0.1"),
            ("vip_skipdad", "1"),
            ("port", "7443"),
            ("lb_fwdmethod", "masquerade"),
            ("control_plane_health_check_ca_path", "/a"),
            ("bgp_as", "65001"),
            ("bgp_peerpass", "sesame"),
            ("bgp_peers", "10.0.0.1:65000:sesame:false"),
            ("mpbgp_nexthop", "fixed"),
            ("zebra_version", "5"),
            ("vip_routingtableid", "1"),
            ("AddPeersAsBackends", "true"),
        ] {
            let derived = of(&[(variable, text)]);
            assert_eq!(derived.warnings.len(), 1, "{variable}");
            assert!(!derived.warnings[0].contains("sesame"));
            assert!(derived.warnings[0].contains(variable));
            assert_eq!(derived.errors, []);
        }
        for (variable, default) in IGNORED {
            assert_eq!(of(&[(variable, default)]).warnings.len(), 0, "{variable}");
        }
        assert_eq!(of(&[("egress_withnftables", "1")]).warnings.len(), 0);
    }

    #[test]
    fn the_new_name_of_the_prefix_wins_over_the_old() {
        let derived = of(&[("vip_cidr", "24"), ("vip_subnet", "auto")]);
        assert_eq!(derived.flags.len(), 1);
        assert_eq!(derived.flags[0].variable, "vip_subnet");
    }

    #[test]
    fn the_speaker_is_asked_for_by_one_variable() {
        let env = |v: &str| Environment::from([("svc_enable".to_owned(), v.to_owned())]);
        assert_eq!(wants_speaker(&env("true")), Ok(true));
        assert_eq!(wants_speaker(&env("")), Ok(false));
        assert!(wants_speaker(&env("yes")).is_err());
    }
}
