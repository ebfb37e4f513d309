use serde_json::json;

use super::*;
use crate::ccm::service::{
    loadbalancer::{Ipam, Settings, desired},
    plan::plan,
};

fn settings() -> Settings {
    Settings {
        cluster: "gc".to_owned(),
        management_network: None,
    }
}

fn service(name: &str, ports: &[(i32, &str)], metadata: &Value, ingress: &[&str]) -> Service {
    let ports: Vec<Value> = ports
        .iter()
        .map(|(port, protocol)| json!({"port": port, "protocol": protocol}))
        .collect();
    let ingress: Vec<Value> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
    let mut object = json!({
        "metadata": {"namespace": "a", "name": name, "uid": name,
            "finalizers": ["service.kubernetes.io/load-balancer-cleanup"]},
        "spec": {"type": "LoadBalancer", "ports": ports},
        "status": {"loadBalancer": {"ingress": ingress}},
    });
    for (key, value) in metadata.as_object().unwrap() {
        object["metadata"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn primary() -> Service {
    service("p", &[(80, "TCP")], &json!({}), &["10.0.0.1"])
}

fn wishing(ports: &[(i32, &str)]) -> Service {
    let wish = json!({"annotations": {"cloudprovider.harvesterhci.io/primary-service": "a/p"}});
    service("s", ports, &wish, &[])
}

fn attached(name: &str, ports: &[(i32, &str)], address: &str) -> Service {
    let metadata = json!({
        "annotations": {
            "cloudprovider.harvesterhci.io/primary-service": "a/p",
            "kube-vip.io/loadbalancerIPs": address,
        },
        "labels": {"cloudprovider.harvesterhci.io/primary-service": "a.p"},
    });
    service(name, ports, &metadata, &["10.0.0.1"])
}

fn next(
    service: &Service,
    primary: Option<&Service>,
    siblings: Vec<&Service>,
    balancers: (Balancer<'_>, Option<&LoadBalancer>),
) -> Next {
    plan(&Facts {
        settings: &settings(),
        guest: None,
        service,
        balancer: balancers.0,
        just_sent: false,
        sharers: &[],
        primary: target(service).map(|key| Primary {
            key,
            service: primary,
            balancer: balancers.1,
            siblings,
        }),
        mapping: None,
    })
}

fn alone(service: &Service, primary: Option<&Service>) -> Next {
    next(service, primary, Vec::new(), (Balancer::Unlisted, None))
}

fn publish(next: Next) -> Publish {
    match next {
        Next::Step(Step::Publish(publish)) => publish,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_secondary_gets_the_primarys_address_interface_network_and_label() {
    let mut target = primary();
    let annotations = target.annotations_mut();
    annotations.insert(kube_vip::SERVICE_INTERFACE.to_owned(), "enp2s0".to_owned());
    annotations.insert(harvester::NETWORK.to_owned(), "default/net".to_owned());
    let mut wishing = wishing(&[(443, "TCP")]);
    wishing
        .annotations_mut()
        .insert(harvester::IPAM.to_owned(), "pool".to_owned());
    let expected = json!({"metadata": {
        "uid": "s",
        "annotations": {
            "kube-vip.io/loadbalancerIPs": "10.0.0.1",
            "kube-vip.io/serviceInterface": "enp2s0",
            "cloudprovider.harvesterhci.io/network": "default/net",
            "cloudprovider.harvesterhci.io/ipam": null,
        },
        "labels": {"cloudprovider.harvesterhci.io/primary-service": "a.p"},
    }});
    assert_eq!(publish(alone(&wishing, Some(&target))).patch, expected);
}

#[test]
fn an_attached_secondary_is_left_alone_follows_the_primary_and_is_put_right() {
    let ports = [(443, "TCP")];
    assert_eq!(
        alone(&attached("s", &ports, "10.0.0.1"), Some(&primary())),
        Next::Settled
    );
    let mut moved = primary();
    moved.status = service("p", &[], &json!({}), &["10.0.0.2"]).status;
    let publish_moved = publish(alone(&attached("s", &ports, "10.0.0.1"), Some(&moved)));
    assert_eq!(publish_moved.wrong, None);
    let put_right = publish(alone(&attached("s", &ports, "10.9.9.9"), Some(&primary())));
    assert_eq!(put_right.wrong.as_deref(), Some("10.9.9.9"));
}

#[test]
fn what_cannot_be_a_primary_is_named() {
    let wish = |text: &str| {
        let wish = json!({"annotations": {"cloudprovider.harvesterhci.io/primary-service": text}});
        service("s", &[(443, "TCP")], &wish, &[])
    };
    for text in ["", "p", "/p", "a/"] {
        let expected = Complaint::PrimaryName(text.to_owned());
        assert_eq!(alone(&wish(text), None), Next::Refused(expected));
    }
    let key = ObjectKey::new("a", "p");
    let refused = |target: Option<&Service>| alone(&wishing(&[(443, "TCP")]), target);
    assert_eq!(
        refused(None),
        Next::Refused(Complaint::PrimaryMissing(key.clone()))
    );
    let mut other = primary();
    other.spec.as_mut().unwrap().type_ = Some("ClusterIP".to_owned());
    let unfit = Next::Refused(Complaint::PrimaryUnfit(key.clone()));
    assert_eq!(refused(Some(&other)), unfit);
    let mut other = primary();
    let chained = harvester::PRIMARY_SERVICE.to_owned();
    other.annotations_mut().insert(chained, "a/q".to_owned());
    assert_eq!(refused(Some(&other)), unfit);
    let mut other = primary();
    other.metadata.deletion_timestamp = serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap();
    assert_eq!(
        refused(Some(&other)),
        Next::Refused(Complaint::PrimaryTerminating(key.clone()))
    );
    let mut other = primary();
    other.status = None;
    assert_eq!(
        refused(Some(&other)),
        Next::Wait(Pending::NoPrimaryAddress(key))
    );
    let own = wish("a/s");
    let expected = Complaint::PrimaryUnfit(ObjectKey::new("a", "s"));
    assert_eq!(alone(&own, Some(&own)), Next::Refused(expected));
}

#[test]
fn a_port_has_one_holder_for_each_protocol() {
    let sibling = attached("t", &[(53, "UDP")], "10.0.0.1");
    let target = primary();
    for (port, protocol, holder) in [
        (80, "TCP", Some("p")),
        (80, "UDP", None),
        (53, "UDP", Some("t")),
        (53, "TCP", None),
    ] {
        let wishing = wishing(&[(443, "TCP"), (port, protocol)]);
        let found = next(
            &wishing,
            Some(&target),
            vec![&sibling],
            (Balancer::Unlisted, None),
        );
        match holder {
            None => assert!(matches!(found, Next::Step(Step::Publish(_))), "{found:?}"),
            Some(holder) => assert_eq!(
                found,
                Next::Refused(Complaint::PortTaken {
                    port,
                    protocol: protocol.to_owned(),
                    holder: ObjectKey::new("a", holder),
                })
            ),
        }
    }
}

#[test]
fn networks_must_agree_where_the_secondary_names_one() {
    let target = primary();
    let mut record = desired(&settings(), &target, Ipam::Pool, None);
    let lb_network = harvester::LB_NETWORK.to_owned();
    record
        .annotations_mut()
        .insert(lb_network, "default/net".to_owned());
    let with = |network: Option<&str>| {
        let mut wishing = wishing(&[(443, "TCP")]);
        if let Some(network) = network {
            let key = harvester::NETWORK.to_owned();
            wishing.annotations_mut().insert(key, network.to_owned());
        }
        next(
            &wishing,
            Some(&target),
            Vec::new(),
            (Balancer::Unlisted, Some(&record)),
        )
    };
    assert_eq!(
        with(Some("default/other")),
        Next::Refused(Complaint::SharedNetwork {
            network: "default/net".to_owned(),
            wished: "default/other".to_owned(),
        })
    );
    for network in [None, Some("default/net")] {
        assert!(matches!(with(network), Next::Step(Step::Publish(_))));
    }
}

#[test]
fn an_address_of_its_own_is_given_back_once_it_is_no_longer_announced() {
    let mut shared = attached("s", &[(443, "TCP")], "10.0.0.1");
    let mut own = desired(&settings(), &shared, Ipam::Pool, None);
    own.metadata.uid = Some("o".to_owned());
    own.status = serde_json::from_value(json!({"allocatedAddress": {"ip": "10.0.0.5"}})).unwrap();
    let target = primary();
    let with = |service: &Service| {
        next(
            service,
            Some(&target),
            Vec::new(),
            (Balancer::Present(&own), None),
        )
    };
    assert_eq!(with(&shared), Next::Step(delete(&own)));
    shared.status = service("s", &[], &json!({}), &["10.0.0.5"]).status;
    let expected = Pending::StillAnnounced(own.name_any());
    assert_eq!(with(&shared), Next::Wait(expected));
}

#[test]
fn long_label_values_end_in_a_checksum_and_fit() {
    assert_eq!(label_value(&ObjectKey::new("a", "p")), "a.p");
    assert_eq!(labelled("a.p"), Some(ObjectKey::new("a", "p")));
    let long = ObjectKey::new("n".repeat(40), "s".repeat(40));
    let other = ObjectKey::new("n".repeat(40), "s".repeat(41));
    let value = label_value(&long);
    assert_eq!(value.len(), 63);
    assert_ne!(value, label_value(&other));
}

#[test]
fn a_group_is_known_by_annotation_and_by_label() {
    let mut groups = Groups::default();
    let [p, s, t] = ["p", "s", "t"].map(|name| ObjectKey::new("a", name));
    groups.set(&p, Some(&primary()));
    groups.set(&s, Some(&wishing(&[])));
    groups.set(&t, Some(&attached("t", &[], "10.0.0.1")));
    let all = |key: &ObjectKey| groups.related(key).into_iter().collect::<Vec<_>>();
    assert_eq!(all(&p), [s.clone(), t.clone()]);
    assert_eq!(all(&s), [p.clone(), t.clone()]);
    groups.set(&s, None);
    groups.set(&t, Some(&primary()));
    assert!(groups.related(&p).is_empty());
    assert_eq!(groups.members("a.p").count(), 0);
}

#[test]
fn who_was_attached_and_is_cleaned_up_no_longer_holds_the_primary() {
    let mut service = attached("s", &[], "10.0.0.1");
    assert!(is_attached(&service, "a.p"));
    service.spec.as_mut().unwrap().type_ = Some("ClusterIP".to_owned());
    assert!(is_attached(&service, "a.p"), "until then it does");
    service.metadata.finalizers = None;
    assert!(!is_attached(&service, "a.p"));
}
