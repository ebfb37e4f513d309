use super::*;
use crate::{
    config::ElectionScope,
    speaker::{
        selection::{EndpointGate, SharedLease},
        testing::{config, ip},
    },
};

fn request(created: i64, vips: &[&str]) -> VipRequest {
    VipRequest {
        uid: String::new(),
        created: k8s_openapi::jiff::Timestamp::from_second(created).ok(),
        addresses: vips.iter().map(|vip| ip(vip)).collect(),
        interface: None,
        gate: EndpointGate::None,
        lease: None,
        own_election: false,
        node_selector: None,
        ports: Vec::new(),
    }
}

fn sharing(created: i64, vips: &[&str], lease: &str) -> VipRequest {
    let lease = SharedLease {
        namespace: "shop".to_owned(),
        name: lease.to_owned(),
    };
    VipRequest {
        lease: Some(lease),
        ..request(created, vips)
    }
}

/// `lease: service service; …`, sorted.
fn grouped(requests: &[(&str, VipRequest)], config: &SpeakerConfig) -> Vec<String> {
    let requests: BTreeMap<ServiceKey, &VipRequest> = requests
        .iter()
        .map(|(name, r)| (ServiceKey::new("shop", name), r))
        .collect();
    let mut found: Vec<String> = groups(&requests, config)
        .iter()
        .map(|group| {
            let services: Vec<&str> = group.services.iter().map(|s| &*s.name).collect();
            format!("{}: {}", group.lease.name, services.join(" "))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn each_service_is_a_group_of_its_own_unless_it_shares_an_address() {
    let services = [
        ("a", request(3, &["10.0.0.1"])),
        ("b", request(1, &["10.0.0.2", "fd00::2"])),
        ("c", request(2, &["fd00::2"])),
    ];
    assert_eq!(
        grouped(&services, &config()),
        ["kubevip-a: a", "kubevip-b: b c"]
    );
}

#[test]
fn sharing_joins_through_others() {
    let services = [
        ("a", request(3, &["10.0.0.1"])),
        ("b", request(2, &["10.0.0.1", "10.0.0.2"])),
        ("c", request(1, &["10.0.0.2"])),
    ];
    assert_eq!(grouped(&services, &config()), ["kubevip-c: c b a"]);
}

#[test]
fn services_that_name_one_lease_are_a_group_under_it() {
    let services = [
        ("a", sharing(2, &["10.0.0.1"], "common")),
        ("b", sharing(1, &["10.0.0.2"], "common")),
        ("c", request(0, &["10.0.0.2"])),
        ("d", request(0, &["10.0.0.3"])),
    ];
    assert_eq!(
        grouped(&services, &config()),
        ["common: c b a", "kubevip-d: d"]
    );
}

#[test]
fn a_lease_named_after_another_services_own_joins_it() {
    let services = [
        ("a", request(1, &["10.0.0.1"])),
        ("b", sharing(2, &["10.0.0.2"], "kubevip-a")),
    ];
    assert_eq!(grouped(&services, &config()), ["kubevip-a: a b"]);
}

#[test]
fn the_global_scope_has_one_group_and_on_demand_takes_services_out_of_it() {
    let global = SpeakerConfig {
        election_scope: ElectionScope::Global,
        ..config()
    };
    let forced = |vip: &str| VipRequest {
        own_election: true,
        ..request(9, &[vip])
    };
    let services = [
        ("a", request(1, &["10.0.0.1"])),
        ("b", forced("10.0.0.2")),
        ("c", forced("10.0.0.1")),
    ];
    assert_eq!(
        grouped(&services, &global),
        ["plndr-svcs-lock: a b c"],
        "annotation alone"
    );
    let on_demand = SpeakerConfig {
        election_on_demand: true,
        ..global
    };
    assert_eq!(
        grouped(&services, &on_demand),
        ["kubevip-b: b", "plndr-svcs-lock: a c"],
        "a shared address keeps c with a"
    );
}

#[test]
fn leases_of_groups_are_distinct_and_every_service_is_in_one() {
    let services: Vec<(String, VipRequest)> = (0..50)
        .map(|i| {
            (
                format!("s{i}"),
                request(i, &[&format!("10.0.0.{}", 1 + i % 17)]),
            )
        })
        .collect();
    let requests: BTreeMap<ServiceKey, &VipRequest> = services
        .iter()
        .map(|(name, r)| (ServiceKey::new("shop", name), r))
        .collect();
    let found = groups(&requests, &config());
    assert_eq!(found.len(), 17);
    let leases: std::collections::BTreeSet<_> = found.iter().map(|g| g.lease.clone()).collect();
    assert_eq!(leases.len(), 17);
    assert_eq!(found.iter().map(|g| g.services.len()).sum::<usize>(), 50);
}
