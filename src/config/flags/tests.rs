use super::*;

fn flags(line: &str) -> Parsed {
    match parse(&words(line)) {
        Ok(Outcome::Flags(parsed)) => *parsed,
        other => panic!("{line:?} gives {other:?}"),
    }
}

fn refused(line: &str) -> String {
    match parse(&words(line)) {
        Err(error) => error.to_string(),
        Ok(other) => panic!("{line:?} gives {other:?}"),
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn clap_accepts_the_definitions() {
    command().debug_assert();
}

#[test]
fn flags_are_read_in_every_spelling_of_go() {
    for line in ["-v5", "-v=5", "-v 5", "--v=5", "--v 5", "--v=1 --v=5"] {
        assert_eq!(flags(line).flags.logging.v, 5, "{line}");
    }
    for (line, expected) in [
        ("", true),
        ("--leader-elect", true),
        ("--leader-elect=false", false),
        ("--leader_elect=F", false),
        ("--leader-elect=false --leader-elect", true),
    ] {
        assert_eq!(flags(line).flags.generic.leader_elect, expected, "{line}");
    }
    assert_eq!(
        flags("--cluster_name=a_b").flags.generic.cluster_name,
        "a_b"
    );
}

#[test]
fn the_first_use_of_a_list_replaces_its_default_and_further_uses_append() {
    for (line, expected) in [
        ("", vec!["*"]),
        ("--controllers=*,-service", vec!["*", "-service"]),
        ("--controllers -service,route", vec!["-service", "route"]),
        ("--controllers=a --controllers=b", vec!["a", "b"]),
        ("--controllers=-*", vec!["-*"]),
    ] {
        assert_eq!(flags(line).flags.generic.controllers, expected, "{line}");
    }
}

#[test]
fn mistakes_are_named_as_the_go_program_names_them() {
    for (line, expected) in [
        ("--nope", "unknown flag: --nope"),
        ("--nope=1", "unknown flag: --nope"),
        ("loadbalancer", "unexpected argument \"loadbalancer\""),
        ("--leader-elect false", "unexpected argument \"false\""),
        ("--leader-elect=maybe", "for --leader-elect: it is neither"),
        ("--min-resync-period=12", "for --min-resync-period: a unit"),
        ("--secure-port=70000", "\"70000\" for --secure-port"),
        ("--v=high", "\"high\" for --v"),
        ("--cluster-name", "needs an argument: --cluster-name"),
        ("--profiling=2", "for --profiling: it is neither"),
        ("--node-sync-period=x", "for --node-sync-period: a number"),
        ("--speaker-conflict=x", "it is none of refuse,warn"),
    ] {
        let error = refused(line);
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn values_may_begin_with_a_dash() {
    let parsed = flags("--concurrent-node-syncs -5 --cluster-name -x");
    assert_eq!(parsed.flags.controllers.concurrent_node_syncs, -5);
    assert_eq!(parsed.flags.generic.cluster_name, "-x");
}

#[test]
fn fw_o1_defaults_are_those_of_the_go_program_with_harvesters_presets() {
    let texts = flags("").texts;
    let text = |name: &str| {
        texts
            .iter()
            .find(|(flag, _)| flag == name)
            .map(|(_, text)| text.as_str())
    };
    for (name, expected) in [
        ("allow-untagged-cloud", "true"),
        ("authentication-skip-lookup", "true"),
        ("authentication-token-webhook-cache-ttl", "10s"),
        (
            "authorization-always-allow-paths",
            "/healthz,/readyz,/livez",
        ),
        ("bind-address", "0.0.0.0"),
        ("cloud-provider", "harvester"),
        ("cluster-name", "kubernetes"),
        ("concurrent-node-status-updates", "0"),
        ("concurrent-node-syncs", "1"),
        ("concurrent-service-syncs", "1"),
        ("configure-cloud-routes", "true"),
        ("controller-start-interval", "0s"),
        ("controllers", "*"),
        ("disable-vmi-controller", "false"),
        ("kube-api-burst", "30"),
        (
            "kube-api-content-type",
            "application/vnd.kubernetes.protobuf",
        ),
        ("kube-api-qps", "20"),
        ("leader-elect", "true"),
        ("leader-elect-lease-duration", "15s"),
        ("leader-elect-renew-deadline", "10s"),
        ("leader-elect-resource-lock", "leases"),
        ("leader-elect-resource-name", "cloud-controller-manager"),
        ("leader-elect-resource-namespace", "kube-system"),
        ("leader-elect-retry-period", "2s"),
        ("log-flush-frequency", "5s"),
        ("logging-format", "text"),
        ("min-resync-period", "12h0m0s"),
        ("node-monitor-period", "5s"),
        ("node-status-update-frequency", "5m0s"),
        ("profiling", "true"),
        ("requestheader-username-headers", "x-remote-user"),
        ("route-reconciliation-period", "10s"),
        ("v", "0"),
        ("webhook-secure-port", "10260"),
    ] {
        assert_eq!(text(name), Some(expected), "--{name}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    assert!(matches!(parse(&words("-h")), Ok(Outcome::Print(_))));
    assert!(matches!(parse(&words("--version")), Ok(Outcome::Print(_))));
}

#[test]
fn an_empty_file_link_or_address_is_none() {
    let optional = [
        "kubeconfig",
        "master",
        "cloud-config",
        "cert-dir",
        "tls-cert-file",
        "tls-private-key-file",
        "client-ca-file",
        "requestheader-client-ca-file",
        "authentication-kubeconfig",
        "authorization-kubeconfig",
        "speaker-interface",
        "speaker-service-interface",
        "speaker-allowed-cidrs",
    ];
    for name in optional {
        let value = if name == "speaker-allowed-cidrs" {
            "10.0.0.0/8"
        } else {
            "x"
        };
        for args in [
            vec![format!("--{name}=")],
            vec![format!("--{name}"), String::new()],
            vec![format!("--{name}={value}"), format!("--{name}=")],
        ] {
            match parse(&args) {
                Ok(Outcome::Flags(parsed)) => assert!(!parsed.given.contains(name), "{args:?}"),
                other => panic!("{args:?} gives {other:?}"),
            }
        }
    }
    let again = flags("--kubeconfig= --kubeconfig=/a");
    assert_eq!(again.flags.misc.kubeconfig, Some("/a".into()));
}

#[test]
fn the_argument_behind_a_flag_is_its_value_whatever_it_looks_like() {
    for line in ["--cluster-name --a_b", "--cluster_name --a_b"] {
        assert_eq!(flags(line).flags.generic.cluster_name, "--a_b", "{line}");
    }
    let parsed = flags("--cluster-name --kubeconfig= --v 3");
    assert_eq!(parsed.flags.generic.cluster_name, "--kubeconfig=");
    assert_eq!(parsed.flags.logging.v, 3);
    assert!(refused("-- --v=3").contains("--v=3"));
}

#[test]
fn help_and_version_are_gos_booleans() {
    for line in ["--version=true", "--version=T", "--help=1"] {
        assert!(
            matches!(parse(&words(line)), Ok(Outcome::Print(_))),
            "{line}"
        );
    }
    assert!(matches!(parse(&words("-hv5")), Ok(Outcome::Print(_))));
    for line in ["--version=false", "--help=0"] {
        assert!(
            matches!(parse(&words(line)), Ok(Outcome::Flags(_))),
            "{line}"
        );
    }
    assert!(refused("--version=maybe").contains("--version"));
}

#[test]
fn only_flags_of_the_command_line_count_as_given() {
    let parsed = flags("--kube-api-qps=5 -v 1");
    let expected = ["kube-api-qps", "v"].map(str::to_owned);
    assert_eq!(parsed.given, expected.into());
}
