use serde_json::{Value, json};

use super::*;

const UID: &str = "d4b50d98-39ec-4d88-8098-36579de5db4a";

fn settings() -> Settings {
    Settings {
        cluster: "rke2-a".to_owned(),
        management_network: None,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "every caller has a literal")]
fn service(annotations: Value, ingress: &[&str]) -> Service {
    let ingress: Vec<Value> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
    serde_json::from_value(json!({
        "metadata": {"namespace": "ns1", "name": "lb", "uid": UID, "annotations": annotations},
        "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": ingress}},
    }))
    .unwrap()
}

fn plain() -> Service {
    service(json!({}), &[])
}

#[test]
fn names_are_the_go_programs() {
    let long = "kube-system-rke2-ingress-nginx-controller";
    for (cluster, namespace, service, expected) in [
        ("test", "default", "abcd", "test-default-abcd-7198d990"),
        ("1test", "default", "abcd", "a1test-default-abcd-725d6700"),
        (
            "test",
            "default-default",
            long,
            "test-default-default-kube-system-rke2-ingress-nginx-con5cd57013",
        ),
        (
            "test",
            "default-default",
            "kube-system-rke2-ingress-nginx-co-abcd",
            "test-default-default-kube-system-rke2-ingress-nginx-co-88b790f1",
        ),
        (
            "1test",
            "default-default",
            long,
            "a1test-default-default-kube-system-rke2-ingress-nginx-c6fc0f001",
        ),
        (
            "kubernetes",
            "default-default",
            long,
            "kubernetes-default-default-kube-system-rke2-ingress-ngi9255419d",
        ),
        ("", "default", "web", "a-default-web-0ffc2fd1"),
        (
            "My.Cluster",
            "default",
            "web",
            "aMy.Cluster-default-web-28be534b",
        ),
        ("rke2-a", "ns1", "lb", "rke2-a-ns1-lb-993d199c"),
    ] {
        assert_eq!(name(cluster, namespace, service, UID), expected);
        assert!(is_named_for(expected, cluster, namespace, service));
    }
    let zeroes = name(
        "rke2-a",
        "ns1",
        "lb",
        "00000000-0000-0000-0000-00000000040c",
    );
    assert_eq!(zeroes, "rke2-a-ns1-lb-00006c60");
    assert!(!is_named_for("rke2-a-ns1-lb", "rke2-a", "ns1", "lb"));
    assert!(!is_named_for(
        "rke2-a-ns1-lb-2-993d199c",
        "rke2-a",
        "ns1",
        "lb"
    ));
    assert!(!is_named_for(
        "rke2-a-ns1-lb-993D199C",
        "rke2-a",
        "ns1",
        "lb"
    ));
}

#[test]
fn a_name_that_is_no_ascii_is_cut_between_characters() {
    let cluster = "ä".repeat(40);
    assert!(name(&cluster, "a", "b", UID).len() <= 63);
}

#[test]
fn the_cluster_name_is_used_without_the_quotes_around_it() {
    for (given, expected) in [
        ("'gc'", "gc"),
        (" \"gc\"\n", "gc"),
        ("`kubernetes`", "kubernetes"),
    ] {
        assert_eq!(normalised(given), expected);
    }
    for (cluster, ambiguous) in [("gc", false), ("kubernetes", true), ("", true)] {
        let cluster = cluster.to_owned();
        let settings = Settings {
            cluster,
            ..settings()
        };
        assert_eq!(settings.is_ambiguous(), ambiguous, "{settings:?}");
    }
}

#[test]
fn a_new_object_is_what_the_go_program_sends_and_who_made_it() {
    let object = desired(&settings(), &plain(), Ipam::Pool, Some("guest"));
    let expected = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
        "kind": "LoadBalancer",
        "metadata": {
            "name": "rke2-a-ns1-lb-993d199c",
            "labels": {
                "cloudprovider.harvesterhci.io/cluster": "rke2-a",
                "cloudprovider.harvesterhci.io/serviceNamespace": "ns1",
                "cloudprovider.harvesterhci.io/serviceName": "lb",
            },
            "annotations": {
                "loadbalancer.harvesterhci.io/cluster": "rke2-a",
                "loadbalancer.harvesterhci.io/network": "",
                "loadbalancer.harvesterhci.io/project": "",
                "loadbalancer.harvesterhci.io/namespace": "",
                "cloudprovider.harvesterhci.io/lb-network": "",
                "cloudprovider.harvesterhci.io/guestClusterUID": "guest",
            },
        },
        "spec": {"workloadType": "cluster", "ipam": "pool"},
    });
    assert_eq!(serde_json::to_value(object).unwrap(), expected);
}

#[test]
fn networks_and_scope_of_the_service_are_on_a_new_object() {
    let managed = Settings {
        management_network: Some("default/mgmt".to_owned()),
        ..settings()
    };
    let wished = service(
        json!({
            "cloudprovider.harvesterhci.io/network": "default/net",
            "cloudprovider.harvesterhci.io/project": "c:p",
            "cloudprovider.harvesterhci.io/namespace": "x",
        }),
        &["10.0.0.1"],
    );
    let object = desired(&managed, &wished, Ipam::Dhcp, None);
    for (key, expected) in [
        ("loadbalancer.harvesterhci.io/network", Some("default/net")),
        (
            "cloudprovider.harvesterhci.io/lb-network",
            Some("default/net"),
        ),
        (
            "cloudprovider.harvesterhci.io/managementNetwork",
            Some("default/mgmt"),
        ),
        ("loadbalancer.harvesterhci.io/project", Some("c:p")),
        ("loadbalancer.harvesterhci.io/namespace", Some("x")),
        ("cloudprovider.harvesterhci.io/guestClusterUID", None),
    ] {
        assert_eq!(object.annotation(key), expected, "{key}");
    }
    assert_eq!(
        (object.spec.ipam.as_deref(), object.status),
        (Some("dhcp"), None)
    );
}

/// As the host stores it: annotations forced, address given.
fn stored(ipam: &str, ip: &str) -> LoadBalancer {
    let mut object = desired(&settings(), &plain(), Ipam::Pool, None);
    object.spec.ipam = Some(ipam.to_owned());
    let annotations = object.annotations_mut();
    annotations.insert(load_balancer::PROJECT.to_owned(), "c/p".to_owned());
    annotations.insert(load_balancer::NAMESPACE.to_owned(), "vms".to_owned());
    annotations.insert(
        load_balancer::NETWORK.to_owned(),
        "default/first".to_owned(),
    );
    object.status = serde_json::from_value(json!({"allocatedAddress": {"ip": ip}})).unwrap();
    object
}

#[test]
fn what_the_host_made_of_an_object_is_not_revised() {
    assert_eq!(
        revised(&settings(), &plain(), &stored("pool", "10.0.0.1")),
        None
    );
    assert_eq!(
        revised(&settings(), &plain(), &stored("dhcp", "0.0.0.0")),
        None
    );
}

#[test]
fn what_this_side_owns_is_put_right_and_the_rest_is_kept() {
    let mut object = stored("pool", "10.0.0.1");
    object.spec.other.insert("ipPool".to_owned(), "p".into());
    object
        .labels_mut()
        .insert("foreign".to_owned(), "kept".to_owned());
    let expected = object.clone();
    object.labels_mut().remove(harvester::SERVICE_NAME);
    object.annotations_mut().remove(harvester::LB_NETWORK);
    object
        .annotations_mut()
        .insert(harvester::MANAGEMENT_NETWORK.to_owned(), "old".to_owned());
    object.spec.ipam = None;
    assert_eq!(revised(&settings(), &plain(), &object), Some(expected));
}

#[test]
fn the_address_in_use_is_recorded_where_it_comes_from_this_reservation() {
    for (ipam, allocated, shown, expected) in [
        ("pool", "10.0.0.1", "10.0.0.1", Some("10.0.0.1")),
        ("pool", "10.0.0.2", "10.0.0.1", None),
        ("dhcp", "0.0.0.0", "10.0.0.9", Some("10.0.0.9")),
        ("dhcp", "0.0.0.0", "0.0.0.0", None),
        ("dhcp", "0.0.0.0", "host.name", None),
    ] {
        let new = revised(
            &settings(),
            &service(json!({}), &[shown]),
            &stored(ipam, allocated),
        );
        let recorded = new.as_ref().and_then(LoadBalancer::recorded_address);
        assert_eq!(recorded, expected, "{ipam} {allocated} {shown}");
    }
}

#[test]
fn wishes_that_an_object_cannot_follow_are_named() {
    let ipam = |value: &str| service(json!({"cloudprovider.harvesterhci.io/ipam": value}), &[]);
    let network =
        |value: &str| service(json!({"cloudprovider.harvesterhci.io/network": value}), &[]);
    let pool = stored("pool", "10.0.0.1");
    assert_eq!(conflict(&plain(), &pool), None);
    assert_eq!(conflict(&ipam("ippool"), &pool), None);
    assert_eq!(
        conflict(&ipam("dhcp"), &pool),
        Some(Complaint::IpamChanged {
            ipam: Ipam::Pool,
            wished: Ipam::Dhcp
        })
    );
    assert_eq!(
        conflict(&ipam("static"), &pool),
        Some(Complaint::Ipam("static".to_owned()))
    );
    assert_eq!(
        conflict(&network("default/net"), &pool),
        Some(Complaint::NetworkChanged {
            network: String::new(),
            wished: "default/net".to_owned()
        })
    );
    let mut object = pool.clone();
    object.annotations_mut().remove(harvester::LB_NETWORK);
    assert_eq!(
        conflict(&network("default/net"), &object),
        None,
        "older than the record"
    );
    let lb_network = harvester::LB_NETWORK.to_owned();
    object
        .annotations_mut()
        .insert(lb_network, "default/net".to_owned());
    assert_eq!(
        conflict(&network("default/net"), &object),
        Some(Complaint::NetworkOverridden {
            used: "default/first".to_owned(),
            wished: "default/net".to_owned(),
        })
    );
    let mut object = pool;
    object.spec.workload_type = Some("vm".to_owned());
    assert_eq!(
        conflict(&plain(), &object),
        Some(Complaint::WorkloadType("vm".to_owned()))
    );
}

#[test]
fn an_object_of_another_cluster_is_not_ours_whatever_its_name() {
    let mut object = stored("pool", "10.0.0.1");
    assert!(is_ours(&settings(), &object));
    object.labels_mut().remove(harvester::CLUSTER);
    assert!(is_ours(&settings(), &object), "by its annotation");
    object.annotations_mut().remove(load_balancer::CLUSTER);
    assert!(is_ours(&settings(), &object), "by its name");
    object
        .labels_mut()
        .insert(harvester::CLUSTER.to_owned(), "rke2".to_owned());
    assert!(!is_ours(&settings(), &object));
}
