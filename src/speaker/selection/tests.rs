use k8s_openapi::{
    api::core::v1::ServiceSpec,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::*;
use crate::speaker::testing::config;

fn service(kind: &str, ip: Option<&str>, annotations: &[(&str, &str)]) -> Service {
    Service {
        metadata: ObjectMeta {
            namespace: Some("shop".to_owned()),
            name: Some("web".to_owned()),
            uid: Some("u-1".to_owned()),
            annotations: Some(
                annotations
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                    .collect(),
            ),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some(kind.to_owned()),
            load_balancer_ip: ip.map(str::to_owned),
            ports: Some(vec![ServicePort {
                port: 80,
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn balanced(annotations: &[(&str, &str)]) -> Service {
    service("LoadBalancer", None, annotations)
}

fn addresses_of(service: &Service) -> Vec<String> {
    let request = select(service, &config()).request;
    request
        .map(|r| r.addresses.iter().map(ToString::to_string).collect())
        .unwrap_or_default()
}

fn reasons_of(service: &Service) -> Vec<Reason> {
    select(service, &config())
        .facts
        .iter()
        .map(|fact| fact.reason)
        .collect()
}

#[test]
fn only_load_balancers_that_are_not_ignored_are_ours() {
    let ip = (names::kube_vip::LOADBALANCER_IPS, "10.0.0.9");
    assert!(select(&balanced(&[ip]), &config()).ours);
    assert!(!select(&service("ClusterIP", Some("10.0.0.9"), &[]), &config()).ours);
    assert!(
        !select(
            &balanced(&[ip, (names::kube_vip::IGNORE, "true")]),
            &config()
        )
        .ours
    );
    assert!(
        select(
            &balanced(&[ip, (names::kube_vip::IGNORE, "false")]),
            &config()
        )
        .ours
    );
    let mut deleted = balanced(&[ip]);
    deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert!(!select(&deleted, &config()).ours);
}

#[test]
fn class_rules_are_kube_vips() {
    let rules = |name: &str, only, legacy| ClassRules {
        name: name.to_owned(),
        only,
        legacy,
    };
    let ours = "kube-vip.io/kube-vip-class";
    for (class, rules, expected) in [
        (None, rules(ours, false, true), true),
        (Some(ours), rules(ours, false, true), true),
        (Some("other"), rules(ours, false, true), false),
        (None, rules(ours, true, true), false),
        (Some(ours), rules(ours, true, true), true),
        (None, rules(ours, false, false), false),
        (Some(ours), rules(ours, false, false), true),
        (None, rules("", false, false), true),
        (Some("other"), rules("", false, false), false),
    ] {
        assert_eq!(
            class_matches(class, &rules),
            expected,
            "{class:?} {rules:?}"
        );
    }
}

#[test]
fn the_annotation_wins_over_the_field_and_the_status_counts_never() {
    let annotated = [(
        names::kube_vip::LOADBALANCER_IPS,
        " 10.0.0.9 , fd00::9,10.0.0.9, ::ffff:10.0.0.9",
    )];
    let both = service("LoadBalancer", Some("10.0.0.8"), &annotated);
    assert_eq!(addresses_of(&both), ["10.0.0.9", "fd00::9"]);
    assert_eq!(
        addresses_of(&service("LoadBalancer", Some("fd00::8"), &[])),
        ["fd00::8"]
    );
    let mut foreign = balanced(&[]);
    foreign.status = serde_json::from_value(serde_json::json!({
        "loadBalancer": {"ingress": [{"ip": "10.0.0.7"}]}
    }))
    .unwrap();
    assert_eq!(addresses_of(&foreign), Vec::<String>::new());
    assert!(select(&foreign, &config()).ours);
}

#[test]
fn bad_addresses_cost_only_themselves() {
    let mixed = balanced(&[(
        names::kube_vip::LOADBALANCER_IPS,
        "10.0.0.9,web.example.org,0.0.0.0",
    )]);
    assert_eq!(addresses_of(&mixed), ["10.0.0.9"]);
    assert_eq!(
        reasons_of(&mixed),
        [Reason::NotSupported, Reason::NotYetSupported]
    );
}

#[test]
fn what_is_not_supported_is_said_and_the_vip_is_served() {
    let ip = (names::kube_vip::LOADBALANCER_IPS, "10.0.0.9");
    for key in [
        names::kube_vip::SERVICE_VLAN,
        names::kube_vip::FLUSH_CONNTRACK,
        names::kube_vip::IGNORE_SERVICE_SECURITY,
        names::kube_vip::EGRESS,
        names::kube_vip::FORWARD_UPNP,
    ] {
        let service = balanced(&[ip, (key, "true")]);
        assert_eq!(reasons_of(&service), [Reason::NotSupported], "{key}");
        assert_eq!(addresses_of(&service), ["10.0.0.9"], "{key}");
        assert!(
            reasons_of(&balanced(&[ip, (key, "false")])).is_empty(),
            "{key}"
        );
    }
    for key in [
        names::kube_vip::MACVLAN_NAME,
        names::kube_vip::DHCP_BROADCAST,
        names::kube_vip::RP_FILTER,
        names::kube_vip::LOADBALANCER_HOSTNAME,
    ] {
        let service = balanced(&[ip, (key, "1")]);
        assert_eq!(reasons_of(&service), [Reason::NotYetSupported], "{key}");
    }
}

#[test]
fn annotations_become_the_request() {
    let service = balanced(&[
        (names::kube_vip::LOADBALANCER_IPS, "10.0.0.9"),
        (names::kube_vip::SERVICE_INTERFACE, "eth1"),
        (names::kube_vip::LEASE_NAME, "shop/shared"),
        (names::kube_vip::FORCE_PER_SERVICE_ELECTION, "true"),
        (names::harvester::VIP_NODE_SELECTOR, "zone=a"),
    ]);
    let request = select(&service, &config()).request.unwrap();
    assert_eq!(
        request.interface,
        Some(InterfaceChoice::Named("eth1".to_owned()))
    );
    let shared = SharedLease {
        namespace: "shop".to_owned(),
        name: "shared".to_owned(),
    };
    assert_eq!(request.lease, Some(shared));
    assert!(request.own_election);
    assert_eq!(request.node_selector, "zone=a".parse().ok());
    assert_eq!(request.ports, [(80, "TCP".to_owned())]);
    assert_eq!(request.gate, EndpointGate::None);
}

#[test]
fn the_endpoint_gate_follows_policy_flag_and_annotations() {
    let gate = |local: bool, flag: bool, annotations: &[(&str, &str)]| {
        let mut all = vec![(names::kube_vip::LOADBALANCER_IPS, "10.0.0.9")];
        all.extend(annotations);
        let mut service = balanced(&all);
        if local {
            service.spec.as_mut().unwrap().external_traffic_policy = Some("Local".to_owned());
        }
        let config = SpeakerConfig {
            require_endpoints: flag,
            ..config()
        };
        select(&service, &config).request.unwrap().gate
    };
    let required = (names::harvester::VIP_REQUIRE_ENDPOINTS, "true");
    let not_required = (names::harvester::VIP_REQUIRE_ENDPOINTS, "false");
    let allowed = (names::kube_vip::ALLOW_RECONCILE_WITHOUT_ENDPOINTS, "true");
    assert_eq!(gate(false, false, &[]), EndpointGate::None);
    assert_eq!(gate(false, true, &[]), EndpointGate::Any);
    assert_eq!(gate(false, true, &[not_required]), EndpointGate::None);
    assert_eq!(gate(false, true, &[allowed]), EndpointGate::None);
    assert_eq!(gate(false, false, &[required]), EndpointGate::Any);
    assert_eq!(gate(true, false, &[allowed]), EndpointGate::Local);
}

#[test]
fn a_shared_lease_needs_the_cluster_policy() {
    let mut service = balanced(&[
        (names::kube_vip::LOADBALANCER_IPS, "10.0.0.9"),
        (names::kube_vip::LEASE_NAME, "shared"),
    ]);
    assert!(select(&service, &config()).request.is_some());
    service.spec.as_mut().unwrap().external_traffic_policy = Some("Local".to_owned());
    assert_eq!(select(&service, &config()).request, None);
    assert_eq!(reasons_of(&service), [Reason::InvalidConfiguration]);
}

#[test]
fn a_selector_that_cannot_be_read_announces_nothing() {
    let service = balanced(&[
        (names::kube_vip::LOADBALANCER_IPS, "10.0.0.9"),
        (names::harvester::VIP_NODE_SELECTOR, "zone in (a"),
    ]);
    assert_eq!(select(&service, &config()).request, None);
    assert_eq!(reasons_of(&service), [Reason::InvalidConfiguration]);
}

proptest::proptest! {
    #[test]
    fn no_text_in_annotations_breaks_the_selection(ips in ".*", interface in ".*", selector in ".*") {
        let service = balanced(&[
            (names::kube_vip::LOADBALANCER_IPS, &ips),
            (names::kube_vip::SERVICE_INTERFACE, &interface),
            (names::harvester::VIP_NODE_SELECTOR, &selector),
            (names::kube_vip::LEASE_NAME, &interface),
        ]);
        let selection = select(&service, &config());
        proptest::prop_assert!(selection.request.is_none_or(|r| !r.addresses.is_empty()));
    }
}

#[test]
fn a_shared_lease_is_of_the_services_own_namespace_or_the_one_for_all() {
    for (lease, allowed) in [
        ("common", true),
        ("shop/common", true),
        ("kube-system/plndr-svcs-lock", true),
        ("kube-system/kube-controller-manager", false),
        ("shop/", false),
        ("a b", false),
        ("-a", false),
    ] {
        let service = balanced(&[
            (names::kube_vip::LOADBALANCER_IPS, "10.0.0.9"),
            (names::kube_vip::LEASE_NAME, lease),
        ]);
        let selection = select(&service, &config());
        assert_eq!(selection.request.is_some(), allowed, "{lease}");
        assert_eq!(selection.facts.is_empty(), allowed, "{lease}");
    }
}
