use std::collections::BTreeMap;

use super::*;

const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

fn settings() -> Settings {
    Settings {
        cluster: "gc".to_owned(),
        management_network: None,
    }
}

/// A Service with finalizer and these changes.
fn service(changes: &Value) -> Service {
    let mut object = json!({
        "metadata": {"namespace": "a", "name": "s", "uid": "u", "finalizers": [FINALIZER],
            "annotations": {}, "labels": {}},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}]},
    });
    merge(&mut object, changes);
    serde_json::from_value(object).unwrap()
}

fn merge(target: &mut Value, changes: &Value) {
    let (Value::Object(target), Value::Object(changes)) = (&mut *target, changes) else {
        *target = changes.clone();
        return;
    };
    for (key, value) in changes {
        merge(target.entry(key.clone()).or_insert(Value::Null), value);
    }
}

fn annotated(annotations: &Value) -> Service {
    service(&json!({"metadata": {"annotations": annotations}}))
}

fn deleted(changes: &Value) -> Service {
    let mut all = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    merge(&mut all, changes);
    service(&all)
}

/// The object of `service(..)` as the host has it.
fn object(status: Value) -> LoadBalancer {
    let mut object = desired(&settings(), &service(&json!({})), Ipam::Pool, None);
    object.metadata.uid = Some("o".to_owned());
    object.status = serde_json::from_value(status).unwrap();
    object
}

fn allocated(ip: &str) -> LoadBalancer {
    object(json!({"allocatedAddress": {"ip": ip}}))
}

fn plan_of(service: &Service, balancer: Balancer<'_>) -> Next {
    plan(&Facts {
        settings: &settings(),
        guest: None,
        service,
        balancer,
        just_sent: false,
        sharers: &[],
        primary: None,
        mapping: None,
    })
}

fn name_of(next: &Next) -> &'static str {
    match next {
        Next::Step(Step::AddFinalizer(_)) => "add finalizer",
        Next::Step(Step::Create(_)) => "create",
        Next::Step(Step::Replace(_)) => "replace",
        Next::Step(Step::Delete { .. }) => "delete",
        Next::Step(Step::Look) => "look",
        Next::Step(Step::Publish(_)) => "publish",
        Next::Step(Step::Release(_)) => "release",
        Next::Settled => "settled",
        Next::Wait(_) => "wait",
        Next::Refused(_) => "refused",
    }
}

fn published(next: &Next) -> &Value {
    match next {
        Next::Step(Step::Publish(publish)) => &publish.patch["metadata"],
        other => panic!("{other:?}"),
    }
}

#[test]
fn fw_s1_s5_a_service_that_never_was_ours_is_left_alone() {
    let bare = json!({"metadata": {"finalizers": null}, "spec": {"type": "ClusterIP"}});
    let class = json!({"metadata": {"finalizers": null}, "spec": {"loadBalancerClass": "x"}});
    for changes in [bare, class] {
        let service = service(&changes);
        for balancer in [Balancer::Unknown, Balancer::Unlisted, Balancer::Absent] {
            assert_eq!(plan_of(&service, balancer), Next::Settled);
        }
    }
}

#[test]
fn fw_s2_s3_s4_s70_h63_h64_the_finalizer_is_on_before_anything_else_whatever_the_protocol() {
    for protocol in ["UDP", "TCP", "SCTP"] {
        let service = service(&json!({
            "metadata": {"finalizers": ["other"]},
            "spec": {"ports": [{"port": 1, "protocol": protocol}]},
        }));
        let expected = json!({"metadata": {
            "uid": "u",
            "finalizers": [FINALIZER],
            "$setElementOrder/finalizers": ["other", FINALIZER],
        }});
        assert_eq!(
            plan_of(&service, Balancer::Unlisted),
            Next::Step(Step::AddFinalizer(expected)),
            "and fw_h64: only the new one and the order of all"
        );
    }
}

#[test]
fn fw_s8_s69_with_the_finalizer_the_object_is_next() {
    let service = service(&json!({}));
    for balancer in [Balancer::Unlisted, Balancer::Absent] {
        let Next::Step(Step::Create(created)) = plan_of(&service, balancer) else {
            panic!("nothing created");
        };
        assert_eq!(created.name_any(), object_name(&settings(), &service));
    }
    assert_eq!(name_of(&plan_of(&service, Balancer::Unknown)), "look");
}

#[test]
fn fw_s6_s7_s72_s76_the_finalizer_goes_after_the_object_and_with_the_status() {
    let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}});
    let mut cluster_ip = json!({"spec": {"type": "ClusterIP"}});
    merge(&mut cluster_ip, &shown);
    for service in [service(&cluster_ip), deleted(&shown)] {
        let present = allocated("10.0.0.1");
        let delete = Step::Delete {
            name: present.name_any(),
            uid: "o".to_owned(),
        };
        assert_eq!(
            plan_of(&service, Balancer::Present(&present)),
            Next::Step(delete)
        );
        for balancer in [Balancer::Unknown, Balancer::Unlisted] {
            assert_eq!(plan_of(&service, balancer), Next::Step(Step::Look));
        }
        let expected = json!({
            "metadata": {"uid": "u", "$deleteFromPrimitiveList/finalizers": [FINALIZER]},
            "status": {"loadBalancer": {"ingress": null}},
        });
        assert_eq!(
            plan_of(&service, Balancer::Absent),
            Next::Step(Step::Release(expected))
        );
    }
}

#[test]
fn fw_s71_s73_s75_nothing_is_patched_that_is_not_there() {
    let next = plan_of(&deleted(&json!({})), Balancer::Absent);
    let Next::Step(Step::Release(patch)) = next else {
        panic!("{next:?}")
    };
    assert_eq!(patch.get("status"), None);
    let bare = deleted(&json!({"metadata": {"finalizers": ["other"]}}));
    assert_eq!(plan_of(&bare, Balancer::Absent), Next::Settled);
}

#[test]
fn the_status_of_a_service_with_a_class_is_not_cleared() {
    let service = deleted(&json!({
        "spec": {"loadBalancerClass": "x"},
        "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}},
    }));
    let next = plan_of(&service, Balancer::Absent);
    let Next::Step(Step::Release(patch)) = next else {
        panic!("{next:?}")
    };
    assert_eq!(patch.get("status"), None);
}

#[test]
fn an_address_that_is_given_back_goes_from_a_service_that_stays() {
    let address = json!({"metadata": {"annotations": {
        "kube-vip.io/loadbalancerIPs": "10.0.0.1", "other": "x",
    }}});
    let with = |changes: Value| {
        let mut all = address.clone();
        merge(&mut all, &changes);
        all
    };
    let cluster_ip = service(&with(json!({"spec": {"type": "ClusterIP"}})));
    let class = service(&with(json!({"spec": {"loadBalancerClass": "x"}})));
    let nothing = service(&json!({"spec": {"type": "ClusterIP"}}));
    for (service, expected) in [
        (
            cluster_ip,
            Some(json!({"kube-vip.io/loadbalancerIPs": null})),
        ),
        (deleted(&address), None),
        (class, None),
        (nothing, None),
    ] {
        let next = plan_of(&service, Balancer::Absent);
        let Next::Step(Step::Release(patch)) = next else {
            panic!("{next:?}")
        };
        assert_eq!(patch["metadata"].get("annotations"), expected.as_ref());
    }
}

#[test]
fn an_object_without_an_address_exists_and_is_deleted_like_any_other() {
    let present = object(Value::Null);
    assert_eq!(
        name_of(&plan_of(&deleted(&json!({})), Balancer::Present(&present))),
        "delete"
    );
}

#[test]
fn a_service_stays_until_the_host_has_let_go() {
    let mut present = allocated("10.0.0.1");
    present.metadata.deletion_timestamp = deleted(&json!({})).metadata.deletion_timestamp;
    let expected = Next::Wait(Pending::Terminating(present.name_any()));
    assert_eq!(
        plan_of(&deleted(&json!({})), Balancer::Present(&present)),
        expected
    );
    // And one that is wanted does not use what is going away.
    assert_eq!(
        plan_of(&service(&json!({})), Balancer::Present(&present)),
        expected
    );
}

#[test]
fn an_address_that_others_share_is_kept() {
    let present = allocated("10.0.0.1");
    let sharers = [ObjectKey::new("b", "t")];
    let next = plan(&Facts {
        settings: &settings(),
        guest: None,
        service: &deleted(&json!({})),
        balancer: Balancer::Present(&present),
        just_sent: false,
        sharers: &sharers,
        primary: None,
        mapping: None,
    });
    assert_eq!(next, Next::Refused(Complaint::Shared(sharers.to_vec())));
}

#[test]
fn an_object_of_another_cluster_is_neither_used_nor_deleted() {
    let mut foreign = allocated("10.0.0.1");
    foreign
        .labels_mut()
        .insert(harvester::CLUSTER.to_owned(), "gc-2".to_owned());
    let next = plan_of(&service(&json!({})), Balancer::Present(&foreign));
    assert_eq!(next, Next::Refused(Complaint::Foreign(foreign.name_any())));
    let next = plan_of(&deleted(&json!({})), Balancer::Present(&foreign));
    assert_eq!(name_of(&next), "release");
}

#[test]
fn what_the_host_allocated_is_published_also_when_it_is_not_ready() {
    for status in [
        json!({"allocatedAddress": {"ip": "10.0.0.1"}}),
        json!({"allocatedAddress": {"ip": "10.0.0.1"},
            "conditions": [{"type": "Ready", "status": "False", "message": "x"}]}),
    ] {
        let next = plan_of(&service(&json!({})), Balancer::Present(&object(status)));
        let expected = json!({
            "uid": "u", "annotations": {"kube-vip.io/loadbalancerIPs": "10.0.0.1"},
        });
        assert_eq!(published(&next), &expected);
    }
    let mut dhcp = allocated("0.0.0.0");
    dhcp.spec.ipam = Some("dhcp".to_owned());
    let wished = annotated(&json!({"cloudprovider.harvesterhci.io/ipam": "dhcp"}));
    let next = plan_of(&wished, Balancer::Present(&dhcp));
    assert_eq!(
        published(&next)["annotations"]["kube-vip.io/loadbalancerIPs"],
        "0.0.0.0"
    );
}

#[test]
fn no_address_is_waited_for_and_nothing_is_blanked() {
    let shown = annotated(&json!({"kube-vip.io/loadbalancerIPs": "10.0.0.1"}));
    let message = "no matched IPPool with requirement &{…}";
    for (status, expected) in [
        (
            Value::Null,
            Pending::Unprocessed(object(Value::Null).name_any()),
        ),
        (
            json!({"conditions": [{"type": "Ready", "status": "True"}]}),
            Pending::Unprocessed(object(Value::Null).name_any()),
        ),
        (
            json!({"conditions": [{"type": "Ready", "status": "False", "message": message}]}),
            Pending::NoAddress {
                ipam: Ipam::Pool,
                message: message.to_owned(),
            },
        ),
    ] {
        let next = plan_of(&shown, Balancer::Present(&object(status)));
        assert_eq!(next, Next::Wait(expected));
    }
}

#[test]
fn an_address_changed_by_hand_is_put_back_and_one_that_moved_is_followed() {
    let shown = annotated(&json!({"kube-vip.io/loadbalancerIPs": "10.0.0.9"}));
    let dhcp_wish = annotated(&json!({
        "kube-vip.io/loadbalancerIPs": "10.0.0.9",
        "cloudprovider.harvesterhci.io/ipam": "dhcp",
    }));
    for (service, ipam, allocated, recorded, wrong) in [
        (
            &shown,
            "pool",
            "10.0.0.1",
            Some("10.0.0.1"),
            Some("10.0.0.9"),
        ),
        (&shown, "pool", "10.0.0.1", None, Some("10.0.0.9")),
        (&shown, "pool", "10.0.0.1", Some("10.0.0.9"), None),
        (
            &dhcp_wish,
            "dhcp",
            "0.0.0.0",
            Some("10.0.0.5"),
            Some("10.0.0.9"),
        ),
    ] {
        let mut object = object(json!({
            "allocatedAddress": {"ip": allocated}, "address": recorded}));
        object.spec.ipam = Some(ipam.to_owned());
        let next = plan_of(service, Balancer::Present(&object));
        assert_eq!(
            published(&next)["annotations"]["kube-vip.io/loadbalancerIPs"],
            allocated
        );
        let Next::Step(Step::Publish(publish)) = next else {
            panic!()
        };
        assert_eq!(publish.wrong.as_deref(), wrong, "{ipam} {recorded:?}");
    }
}

#[test]
fn an_address_that_is_none_is_not_published() {
    let next = plan_of(
        &service(&json!({})),
        Balancer::Present(&allocated("10.0.0.x")),
    );
    assert_eq!(next, Next::Refused(Complaint::NoIp("10.0.0.x".to_owned())));
}

#[test]
fn a_wish_that_cannot_be_met_holds_up_nothing_else() {
    let wished = annotated(&json!({"cloudprovider.harvesterhci.io/ipam": "dhcp"}));
    let present = allocated("10.0.0.1");
    let next = plan_of(&wished, Balancer::Present(&present));
    assert_eq!(
        published(&next)["annotations"]["kube-vip.io/loadbalancerIPs"],
        "10.0.0.1"
    );
    let served = annotated(&json!({
        "cloudprovider.harvesterhci.io/ipam": "dhcp",
        "kube-vip.io/loadbalancerIPs": "10.0.0.1",
    }));
    let next = plan_of(&served, Balancer::Present(&present));
    let complaint = Complaint::IpamChanged {
        ipam: Ipam::Pool,
        wished: Ipam::Dhcp,
    };
    assert_eq!(next, Next::Refused(complaint));
}

#[test]
fn an_unknown_way_to_an_address_creates_nothing() {
    let wished = annotated(&json!({"cloudprovider.harvesterhci.io/ipam": "static"}));
    let next = plan_of(&wished, Balancer::Unlisted);
    assert_eq!(next, Next::Refused(Complaint::Ipam("static".to_owned())));
}

#[test]
fn a_doubtful_mapping_of_networks_blocks_what_is_new_and_nothing_that_works() {
    let empty = ConfigMap {
        data: Some(BTreeMap::from([(
            "interface-nad-mapping".to_owned(),
            String::new(),
        )])),
        ..ConfigMap::default()
    };
    let full = ConfigMap {
        data: Some(BTreeMap::from([(
            "interface-nad-mapping".to_owned(),
            r#"{"default/net":"enp2s0"}"#.to_owned(),
        )])),
        ..ConfigMap::default()
    };
    let wish = json!({"cloudprovider.harvesterhci.io/network": "default/net"});
    let new = annotated(&wish);
    let mut present = desired(&settings(), &new, Ipam::Pool, None);
    present.status = allocated("10.0.0.1").status;
    let of = |service: &Service, balancer: Balancer<'_>, mapping: &ConfigMap| {
        plan(&Facts {
            settings: &settings(),
            guest: None,
            service,
            balancer,
            just_sent: false,
            sharers: &[],
            primary: None,
            mapping: Some(mapping),
        })
    };
    assert_eq!(
        of(&new, Balancer::Unlisted, &empty),
        Next::Refused(Complaint::NoCommonNetwork)
    );
    let next = of(&new, Balancer::Present(&present), &empty);
    assert_eq!(
        next,
        Next::Refused(Complaint::NoCommonNetwork),
        "no address on a wrong link"
    );
    let mut served = new.clone();
    let shown = served.annotations_mut();
    shown.insert(
        "kube-vip.io/loadbalancerIPs".to_owned(),
        "10.0.0.1".to_owned(),
    );
    assert_eq!(
        of(&served, Balancer::Present(&present), &empty),
        Next::Settled
    );
    let next = of(&new, Balancer::Present(&present), &full);
    let expected = json!({
        "kube-vip.io/loadbalancerIPs": "10.0.0.1", "kube-vip.io/serviceInterface": "enp2s0",
    });
    assert_eq!(published(&next)["annotations"], expected);
}

#[test]
fn a_service_that_no_longer_shares_gets_its_own_address_and_a_blank_label() {
    let shared = service(&json!({"metadata": {
        "labels": {"cloudprovider.harvesterhci.io/primary-service": "a.p"},
        "annotations": {"kube-vip.io/loadbalancerIPs": "10.0.0.7"},
    }}));
    let next = plan_of(&shared, Balancer::Present(&allocated("10.0.0.1")));
    let expected = json!({
        "uid": "u",
        "annotations": {"kube-vip.io/loadbalancerIPs": "10.0.0.1"},
        "labels": {"cloudprovider.harvesterhci.io/primary-service": ""},
    });
    assert_eq!(published(&next), &expected);
    let Next::Step(Step::Publish(publish)) = next else {
        panic!()
    };
    assert_eq!(publish.wrong, None);
}

#[test]
fn the_address_in_use_is_recorded_last_and_then_all_is_settled() {
    let served = service(&json!({
        "metadata": {"annotations": {"kube-vip.io/loadbalancerIPs": "10.0.0.1"}},
        "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}},
    }));
    let next = plan_of(&served, Balancer::Present(&allocated("10.0.0.1")));
    let Next::Step(Step::Replace(replaced)) = next else {
        panic!("{next:?}")
    };
    assert_eq!(replaced.recorded_address(), Some("10.0.0.1"));
    assert_eq!(
        plan_of(&served, Balancer::Present(&replaced)),
        Next::Settled
    );
}

#[test]
fn host_f7_an_object_that_missed_the_webhook_is_sent_once_more_while_it_has_no_address() {
    let service = service(&json!({}));
    let next = |object: &LoadBalancer, just_sent: bool| {
        name_of(&plan(&Facts {
            settings: &settings(),
            guest: None,
            service: &service,
            balancer: Balancer::Present(object),
            just_sent,
            sharers: &[],
            primary: None,
            mapping: None,
        }))
    };
    let mut missed = object(json!({}));
    missed.metadata.namespace = Some("host".to_owned());
    assert_eq!(next(&missed, false), "replace");
    assert_eq!(next(&missed, true), "wait");

    let mut seen = missed.clone();
    let annotations = seen.annotations_mut();
    annotations.insert(
        "loadbalancer.harvesterhci.io/namespace".to_owned(),
        "host".to_owned(),
    );
    assert_eq!(next(&seen, false), "wait");

    let mut served = allocated("10.0.0.1");
    served.metadata.namespace = Some("host".to_owned());
    assert_eq!(next(&served, false), "publish");
}
