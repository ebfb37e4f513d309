use proptest::prelude::*;

use super::*;

fn surroundings(variables: &[(&str, &str)]) -> Surroundings {
    Surroundings {
        environment: variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        host_name: Some("Node-1".to_owned()),
        pod_namespace: None,
    }
}

fn loaded(line: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match load(&args, &surroundings(variables)) {
        Ok(
            Invocation::Run(config) | Invocation::Check(config) | Invocation::Vips { config, .. },
        ) => Ok(*config),
        Ok(Invocation::Print(text)) => Err(text),
        Err(refused) => Err(refused.to_string()),
    }
}

fn speaker(line: &str, variables: &[(&str, &str)]) -> SpeakerConfig {
    loaded(line, variables)
        .unwrap()
        .speaker
        .expect("a speaker was asked for")
}

fn refused(line: &str, variables: &[(&str, &str)]) -> String {
    loaded(line, variables).expect_err(line)
}

#[test]
fn a_plain_start_is_the_go_programs() {
    let config = loaded("", &[]).unwrap();
    assert_eq!(config.speaker, None);
    assert_eq!(config.ccm.controllers.enabled.len(), 4);
    assert!(config.ccm.vmi_controller);
    assert_eq!(config.ccm.api_rate, None);
    assert_eq!(config.ccm.workers, Workers::default());
    let serving = config.serving.unwrap();
    assert_eq!(serving.address.to_string(), "0.0.0.0:10258");
    assert!(serving.authentication.skip_lookup);
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn the_speakers_defaults_are_those_of_the_design() {
    let config = speaker("--speaker", &[]);
    let expected = SpeakerConfig {
        node_name: "node-1".to_owned(),
        namespace: "kube-system".to_owned(),
        service_namespace: None,
        interface: None,
        service_interface: InterfaceChoice::Auto,
        vip_prefix: VipPrefix::default(),
        class: ClassRules {
            name: "kube-vip.io/kube-vip-class".to_owned(),
            only: false,
            legacy: true,
        },
        disable_service_updates: false,
        require_endpoints: false,
        election: ElectionMode::Lease,
        election_scope: ElectionScope::Service,
        election_on_demand: false,
        lease: LeaseConfig {
            namespace: "kube-system".to_owned(),
            name: "plndr-svcs-lock".to_owned(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        },
        announce_interval: Duration::from_secs(60),
        conflict: ConflictPolicy::Refuse,
        allowed_cidrs: vec![],
        api_outage: ApiOutagePolicy::Hold,
        address_lifetime: Some(Duration::from_secs(5)),
        realtime: true,
        metrics_address: None,
        health_port: None,
        kubeconfig: None,
        master: None,
        api_server: vec![],
    };
    assert_eq!(config, expected);
}

#[test]
fn kube_vips_manager_with_harvesters_environment_is_the_speaker_alone() {
    let variables = [
        ("vip_arp", "true"),
        ("lb_enable", "true"),
        ("lb_port", "6443"),
        ("vip_subnet", "32"),
        ("cp_enable", "false"),
        ("svc_enable", "true"),
        ("svc_election", "false"),
        ("prometheus_server", ":2112"),
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ];
    let config = loaded("manager", &variables).unwrap();
    assert!(config.ccm.controllers.none);
    assert_eq!(config.serving, None);
    assert_eq!(config.warnings, Vec::<String>::new());
    let speaker = config.speaker.unwrap();
    assert_eq!(speaker.election_scope, ElectionScope::Global);
    assert_eq!(speaker.metrics_address, "[::]:2112".parse().ok());
    assert_eq!(speaker.api_server, ["10.96.0.1".parse::<IpAddr>().unwrap()]);
}

#[test]
fn a_flag_wins_over_its_variable_and_a_variable_over_the_default() {
    let variables = [("vip_interface", "eth1"), ("vip_leaseduration", "20")];
    let config = speaker("--speaker --speaker-lease-duration=30s", &variables);
    assert_eq!(config.lease.duration, Duration::from_secs(30));
    assert_eq!(config.interface.as_deref(), Some("eth1"));
    let named = InterfaceChoice::Named("eth1".to_owned());
    assert_eq!(config.service_interface, named);
    let auto = speaker("--speaker --speaker-service-interface=auto", &variables);
    assert_eq!(auto.service_interface, InterfaceChoice::Auto);
}

#[test]
fn variables_mean_nothing_without_a_speaker() {
    let config = loaded("", &[("vip_arp", "nonsense"), ("address", "x")]).unwrap();
    assert_eq!((config.speaker, config.warnings), (None, vec![]));
    let off = loaded("--speaker=false", &[("svc_enable", "true")]).unwrap();
    assert_eq!(off.speaker, None);
}

#[test]
fn an_empty_class_is_no_class_and_other_empty_variables_are_unset() {
    let config = speaker("--speaker", &[("lb_class_name", ""), ("vip_subnet", "")]);
    assert_eq!(config.class.name, "");
    assert_eq!(config.vip_prefix, VipPrefix::default());
}

#[test]
fn a_bad_value_is_blamed_on_where_it_came_from() {
    let error = refused("--speaker", &[("health_check_port", "80")]);
    assert!(
        error.contains("environment variable health_check_port"),
        "{error}"
    );
    let error = refused("--speaker --speaker-health-port=80", &[]);
    assert!(error.contains("--speaker-health-port"), "{error}");
}

#[test]
fn impossible_combinations_are_refused_together() {
    let error = refused(
        "--cloud-provider= --leader-elect-resource-lock=endpoints --concurrent-node-syncs=0 \
         --controllers=loadbalancer --webhooks=x --tls-cert-file=/a --secure-port=10260 \
         --feature-gates=A=maybe --enable-leader-migration",
        &[],
    );
    for part in [
        "--cloud-provider",
        "--leader-elect-resource-lock",
        "--concurrent-node-syncs",
        "\"loadbalancer\" is not in the list of known controllers",
        "--webhooks",
        "--tls-cert-file",
        "--webhook-secure-port",
        "--feature-gates",
        "--enable-leader-migration",
    ] {
        assert!(error.contains(part), "{part} is missing in:\n{error}");
    }
}

#[test]
fn each_rule_of_the_framework_holds_alone() {
    for (line, refused_for) in [
        ("--webhook-secure-port=10258", Some("--webhook-secure-port")),
        (
            "--webhook-secure-port=9 --secure-port=9",
            Some("--webhook-secure-port"),
        ),
        (
            "--speaker --controllers=-* --webhook-secure-port=10258",
            None,
        ),
        (
            "--enable-leader-migration=1",
            Some("--enable-leader-migration"),
        ),
        (
            "--enable-leader-migration=T",
            Some("--enable-leader-migration"),
        ),
        ("--enable-leader-migration=F", None),
        (
            "--requestheader-username-headers=a,",
            Some("--requestheader-username-headers"),
        ),
        (
            "--requestheader-uid-headers=,a",
            Some("--requestheader-uid-headers"),
        ),
        (
            "--requestheader-group-headers=a,,b",
            Some("--requestheader-group-headers"),
        ),
        (
            "--requestheader-extra-headers-prefix=,",
            Some("--requestheader-extra-headers-prefix"),
        ),
        (
            "--requestheader-allowed-names=a,",
            Some("--requestheader-allowed-names"),
        ),
        ("--requestheader-group-headers=", None),
        ("--requestheader-allowed-names=", None),
    ] {
        match (loaded(line, &[]), refused_for) {
            (Ok(_), None) => {}
            (Err(error), Some(flag)) => assert!(error.contains(flag), "{line}: {error}"),
            (other, _) => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn the_namespace_of_the_environment_is_a_fallback() {
    let variables = [("cp_namespace", "elsewhere")];
    assert_eq!(speaker("--speaker", &variables).namespace, "elsewhere");
    let mut around = surroundings(&variables);
    around.pod_namespace = Some("pods-own".to_owned());
    let namespace = |line: &str| {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match load(&args, &around) {
            Ok(Invocation::Run(config)) => config.speaker.map(|s| s.namespace),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(namespace("--speaker").as_deref(), Some("pods-own"));
    let given = namespace("--speaker --speaker-namespace=given");
    assert_eq!(given.as_deref(), Some("given"));
}

#[test]
fn flags_without_effect_under_leases_are_checked_and_reported() {
    let warnings = |line: &str| loaded(line, &[]).map(|config| config.warnings);
    for line in [
        "--speaker --speaker-heartbeat-interval=50ms",
        "--speaker --speaker-suspect-timeout=1s",
        "--speaker --speaker-profile=fast",
        "--speaker --speaker-heartbeat-port=10259",
        "--speaker --speaker-heartbeat-address=fd00::1",
        "--speaker --speaker-key-secret=mine",
        "--speaker --speaker-api-outage=hold",
    ] {
        let flag = line.trim_start_matches("--speaker ");
        let (flag, _) = flag.split_once('=').unwrap();
        let warnings = warnings(line).unwrap();
        assert_eq!(warnings.len(), 1, "{line}: {warnings:?}");
        assert!(warnings[0].contains(flag), "{warnings:?}");
    }
    for line in ["--speaker", "--speaker --speaker-api-outage=withdraw"] {
        assert_eq!(warnings(line), Ok(vec![]), "{line}");
    }
    for line in [
        "--speaker --speaker-heartbeat-interval=9ms",
        "--speaker --speaker-suspect-timeout=199ms",
        "--speaker --speaker-profile=slow",
        "--speaker --speaker-heartbeat-port=0",
        "--speaker --speaker-heartbeat-address=node",
        "--speaker --speaker-key-secret=a_b",
    ] {
        let error = refused(line, &[]);
        let flag = line.trim_start_matches("--speaker --speaker-");
        let (flag, _) = flag.split_once('=').unwrap();
        assert!(error.contains(flag), "{line}: {error}");
    }
}

#[test]
fn the_speakers_rules_hold_for_flags_and_variables() {
    for (line, part) in [
        (
            "--speaker --speaker-lease-duration=10s",
            "speaker-lease-duration",
        ),
        (
            "--speaker --speaker-announce-interval=1ms",
            "speaker-announce-interval",
        ),
        (
            "--speaker --speaker-address-lifetime=1s",
            "speaker-address-lifetime",
        ),
        ("--speaker --speaker-node-name=no_node", "speaker-node-name"),
        ("--speaker --speaker-lease-name=a/b/c", "speaker-lease-name"),
        ("--speaker --speaker-vip-prefix=33", "speaker-vip-prefix"),
        ("--controllers=-*", "nothing is switched on"),
        ("--speaker -o json", "--output"),
    ] {
        let error = refused(line, &[]);
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn fw_o3_o4_o6_to_o11_worker_counts() {
    let workers = |line: &str| loaded(line, &[]).map(|c| c.ccm.workers);
    let given = |node_syncs, node_status_updates| {
        Ok(Workers {
            node_syncs,
            node_status_updates,
            service_syncs: None,
        })
    };
    for (line, expected) in [
        ("", given(None, None)),
        ("--concurrent-node-syncs=5", given(Some(5), Some(5))),
        (
            "--concurrent-node-syncs=5 --concurrent-node-status-updates=0",
            given(Some(5), Some(5)),
        ),
        (
            "--concurrent-node-syncs=5 --concurrent-node-status-updates=5",
            given(Some(5), Some(5)),
        ),
        (
            "--concurrent-node-syncs=5 --concurrent-node-status-updates=3",
            given(Some(5), Some(3)),
        ),
    ] {
        assert_eq!(workers(line), expected, "{line}");
    }
    for line in [
        "--concurrent-node-syncs=-5",
        "--concurrent-node-syncs=0",
        "--concurrent-node-syncs=5 --concurrent-node-status-updates=-1",
        "--concurrent-service-syncs=0",
    ] {
        assert!(workers(line).is_err(), "{line}");
    }
}

#[test]
fn credentials_of_their_own_for_controllers_are_a_warning() {
    let config = loaded("--use-service-account-credentials", &[]).unwrap();
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
}

#[test]
fn fw_o2_the_list_of_open_paths_can_be_emptied() {
    let config = loaded("--authorization-always-allow-paths=", &[]).unwrap();
    let open = config.serving.map(|s| s.authorization.always_allow);
    assert_eq!(open, Some(vec![]));
}

#[test]
fn the_lease_may_be_in_another_namespace() {
    let config = speaker("--speaker", &[("svc_leasename", "ns/lock")]);
    assert_eq!(config.lease.namespace, "ns");
    assert_eq!(config.lease.name, "lock");
    assert_eq!(config.namespace, "kube-system");
}

#[test]
fn unknown_feature_gates_are_a_warning() {
    let config = loaded("--feature-gates=Nope=true,AllAlpha=false", &[]).unwrap();
    assert_eq!(config.warnings.len(), 1);
    assert!(config.warnings[0].contains("Nope"));
}

#[test]
fn the_full_help_comes_with_an_error_only_when_asked_for() {
    let help = |line: &str| {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        load(&args, &Surroundings::default()).unwrap_err().help
    };
    assert_eq!(help("--nope"), None);
    assert_eq!(help("--nope --show-full-help-on-error=F"), None);
    assert!(help("--nope --show_full_help_on_error=T").is_some());
    let full = help("--nope --show-full-help-on-error").unwrap();
    assert!(full.contains("--speaker-announce-interval"));
}

/// Words that reach deep into the readers, and some that do not.
fn word() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec![
        "--controllers=",
        "--node-ip-cidr=",
        "--speaker-vip-prefix=",
        "--speaker-allowed-cidrs=",
        "--speaker-lease-name=",
        "--speaker-metrics-address=",
        "--speaker-node-name=",
        "--tls-sni-cert-key=",
        "--feature-gates=",
        "--webhooks=",
        "--v=",
        "--speaker",
        "--",
        "-",
        "",
    ]);
    (names, ".{0,12}").prop_map(|(name, value)| format!("{name}{value}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_command_line_and_no_environment_panics(
        args in prop::collection::vec(word(), 0..4),
        class in ".{0,12}",
        values in prop::collection::vec("[-0-9a-z,./:]{0,12}", 5),
    ) {
        let names = ["vip_subnet", "vip_arpRate", "vip_loglevel", "prometheus_server", "svc_leasename"];
        let mut around = surroundings(&[("svc_enable", "true")]);
        around.environment.insert("lb_class_name".to_owned(), class);
        for (name, value) in names.into_iter().zip(values) {
            around.environment.insert(name.to_owned(), value);
        }
        let _ = load(&args, &around);
    }
}
