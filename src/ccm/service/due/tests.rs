use serde_json::{Value, json};

use super::*;

fn base() -> Value {
    json!({
        "metadata": {"namespace": "a", "name": "s", "uid": "1",
            "finalizers": ["service.kubernetes.io/load-balancer-cleanup"]},
        "spec": {
            "type": "LoadBalancer", "externalIPs": ["1.1.1.1"], "ipFamilies": ["IPv4"],
            "ports": [{"name": "web", "protocol": "TCP", "port": 80, "nodePort": 30080, "targetPort": 8080}],
        },
    })
}

fn service(value: Value) -> Service {
    serde_json::from_value(value).unwrap()
}

/// The base with the value at a JSON pointer replaced; a missing last member is added.
fn with(pointer: &str, value: Value) -> Service {
    let mut object = base();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(list) => list[name.parse::<usize>().unwrap()] = value,
        other => other[name] = value,
    }
    service(object)
}

#[test]
fn fw_s35_s48_to_s62_needs_update_follows_the_framework() {
    let port = |field: &str, value: Value| with(&format!("/spec/ports/0/{field}"), value);
    let changes = vec![
        ("s48 type", with("/spec/type", json!("ClusterIP"))),
        ("s49 port", port("port", json!(81))),
        (
            "s50 external ips",
            with("/spec/externalIPs", json!(["1.1.1.1", "2.2.2.2"])),
        ),
        (
            "s51 external ips",
            with("/spec/externalIPs", json!(["2.2.2.2"])),
        ),
        ("s52 uid", with("/metadata/uid", json!("2"))),
        (
            "s53 policy",
            with("/spec/externalTrafficPolicy", json!("Local")),
        ),
        (
            "s54 health check",
            with("/spec/healthCheckNodePort", json!(30000)),
        ),
        ("s55 target port", port("targetPort", json!(8081))),
        ("s56 target port", port("targetPort", json!("web"))),
        (
            "s58 families",
            with("/spec/ipFamilies", json!(["IPv4", "IPv6"])),
        ),
        ("s61 app protocol", port("appProtocol", json!("http"))),
        ("node port", port("nodePort", json!(30081))),
        ("name", port("name", json!("x"))),
        ("protocol", port("protocol", json!("UDP"))),
        (
            "ranges",
            with("/spec/loadBalancerSourceRanges", json!(["10.0.0.0/8"])),
        ),
        ("affinity", with("/spec/sessionAffinity", json!("ClientIP"))),
        (
            "affinity's time",
            with(
                "/spec/sessionAffinityConfig",
                json!({"clientIP": {"timeoutSeconds": 1}}),
            ),
        ),
        ("s35 ip", with("/spec/loadBalancerIP", json!("1.2.3.4"))),
        (
            "annotations",
            with("/metadata/annotations", json!({"x": "y"})),
        ),
        ("class", with("/spec/loadBalancerClass", json!("x"))),
    ];
    for (what, changed) in changes {
        assert!(needs_update(&service(base()), &changed), "{what}");
        assert!(
            needs_update(&changed, &service(base())),
            "{what}, back (s59)"
        );
    }
    let http = port("appProtocol", json!("http"));
    assert!(
        needs_update(&http, &port("appProtocol", json!("tcp"))),
        "s62"
    );
    for (what, same) in [
        ("s57, s60 nothing", service(base())),
        ("labels", with("/metadata/labels", json!({"a": "b"}))),
        ("selector", with("/spec/selector", json!({"a": "b"}))),
        (
            "status",
            with(
                "/status",
                json!({"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}]}}),
            ),
        ),
        ("finalizers", with("/metadata/finalizers", json!([]))),
        (
            "internal policy",
            with("/spec/internalTrafficPolicy", json!("Local")),
        ),
        ("cluster ip", with("/spec/clusterIP", json!("10.0.0.1"))),
        (
            "no ranges",
            with("/spec/loadBalancerSourceRanges", json!([])),
        ),
    ] {
        assert!(!needs_update(&service(base()), &same), "{what}");
    }
    let cluster = with("/spec/type", json!("ClusterIP"));
    let mut other = cluster.clone();
    other.metadata.uid = Some("2".to_owned());
    assert!(!needs_update(&cluster, &other), "neither wants");
}

#[test]
fn fw_s43_to_s46_cleanup_needs_the_finalizer_and_an_end() {
    let of = |finalizer: bool, deleted: bool, kind: &str| {
        let mut object = base();
        if !finalizer {
            object["metadata"]["finalizers"] = json!([]);
        }
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        object["spec"]["type"] = json!(kind);
        needs_cleanup(&service(object))
    };
    assert!(!of(false, true, "LoadBalancer"), "s43");
    assert!(of(true, false, "NodePort"), "s44");
    assert!(!of(true, false, "LoadBalancer"), "s45");
    assert!(of(true, true, "LoadBalancer"), "s46");
}

#[test]
fn fw_h59_to_h62_the_finalizer_is_found_among_others() {
    let ours = "service.kubernetes.io/load-balancer-cleanup";
    for (list, expected) in [
        (json!([]), false),
        (json!(["other"]), false),
        (json!([ours]), true),
        (json!(["other", ours]), true),
    ] {
        let text = list.to_string();
        assert_eq!(
            has_finalizer(&with("/metadata/finalizers", list)),
            expected,
            "{text}"
        );
    }
}

#[test]
fn a_class_even_an_empty_one_is_somebody_elses() {
    assert!(wants(&service(base())));
    assert!(!wants(&with("/spec/loadBalancerClass", json!(""))));
    assert!(!wants(&with("/spec/type", json!("NodePort"))));
}

#[test]
fn the_first_sight_and_what_the_framework_overlooks_are_due() {
    let plain = service(base());
    assert!(is_due(None, &plain));
    assert!(!is_due(Some(&plain), &plain));
    let mut other = with("/spec/type", json!("ClusterIP"));
    assert!(is_due(None, &other), "needs cleanup");
    other.metadata.finalizers = None;
    assert!(!is_due(None, &other));
    for (what, new) in [
        ("finalizer off", with("/metadata/finalizers", json!([]))),
        (
            "status",
            with(
                "/status",
                json!({"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}]}}),
            ),
        ),
        (
            "label",
            with(
                "/metadata/labels",
                json!({"cloudprovider.harvesterhci.io/primary-service": "a.b"}),
            ),
        ),
    ] {
        assert!(is_due(Some(&plain), &new), "{what}");
    }
    assert!(
        !is_due(Some(&with("/metadata/finalizers", json!([]))), &plain),
        "finalizer on"
    );
    assert!(!is_due(
        Some(&plain),
        &with("/metadata/labels", json!({"a": "b"}))
    ));
}
