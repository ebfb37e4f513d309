use serde_json::{Value, json};

use super::*;

fn node(name: &str, provider_id: Option<&str>) -> Node {
    let node = json!({"metadata": {"name": name}, "spec": {"providerID": provider_id}});
    serde_json::from_value(node).unwrap()
}

fn machine(name: &str, uid: &str, cluster: Option<&str>) -> Arc<VirtualMachine> {
    let labels = cluster.map(|cluster| json!({CLUSTER_LABEL: cluster}));
    let machine = json!({"metadata": {"name": name, "uid": uid, "labels": labels}});
    Arc::new(serde_json::from_value(machine).unwrap())
}

fn instance(value: Value) -> VirtualMachineInstance {
    serde_json::from_value(value).unwrap()
}

/// One interface per list of addresses, on the networks default/a, default/b, …
fn on_networks(interfaces: &[&[&str]]) -> VirtualMachineInstance {
    let letters = ["a", "b", "c"];
    let names = letters.iter().zip(interfaces);
    instance(json!({
        "metadata": {"name": "n1"},
        "spec": {"networks": names.clone().map(|(letter, _)| json!({
            "name": format!("nic-{letter}"), "multus": {"networkName": format!("default/{letter}")},
        })).collect::<Vec<_>>()},
        "status": {"phase": "Running", "interfaces": names.map(|(letter, addresses)| json!({
            "name": format!("nic-{letter}"), "ipAddresses": addresses,
            "ipAddress": addresses.first().unwrap_or(&""),
        })).collect::<Vec<_>>()},
    }))
}

type Row = (
    &'static str,
    Node,
    Vec<Arc<VirtualMachine>>,
    Option<&'static str>,
    &'static [(&'static str, &'static str)],
    Option<(&'static str, Proof)>,
);

fn rows_of_ids_and_names() -> Vec<Row> {
    let ours = Some("harvester://u1");
    vec![
        (
            "the namesake has the UID",
            node("n1", ours),
            vec![machine("n1", "u1", None)],
            None,
            &[],
            Some(("u1", Proof::Uid)),
        ),
        (
            "the UID counts more than the name",
            node("n1", ours),
            vec![machine("n1", "u2", None), machine("vm-7", "u1", None)],
            None,
            &[],
            Some(("u1", Proof::Uid)),
        ),
        (
            "a machine replaced under the same name",
            node("n1", ours),
            vec![machine("n1", "u2", None)],
            None,
            &[],
            Some(("u2", Proof::Name)),
        ),
        (
            "nothing has the UID, the name or the host name",
            node("n1", ours),
            vec![machine("n2", "u2", None)],
            None,
            &[("n2", "n2")],
            None,
        ),
        (
            "by name where there is no provider ID",
            node("n1", None),
            vec![machine("n1", "u1", None)],
            None,
            &[],
            Some(("u1", Proof::Name)),
        ),
        (
            "another provider's ID says nothing",
            node("n1", Some("k3s://n1")),
            vec![machine("n1", "u1", None)],
            None,
            &[],
            Some(("u1", Proof::Name)),
        ),
    ]
}

fn rows_of_labels_and_guests() -> Vec<Row> {
    vec![
        (
            "a namesake of another cluster is passed over",
            node("web-1", None),
            vec![
                machine("web-1", "u2", Some("other")),
                machine("vm-7", "u1", Some("c")),
            ],
            Some("c"),
            &[("vm-7", "Web-1.example.com")],
            Some(("u1", Proof::Hostname)),
        ),
        (
            "labels nobody of this cluster has say nothing",
            node("web-1", None),
            vec![machine("web-1", "u2", Some("other"))],
            Some("c"),
            &[],
            Some(("u2", Proof::Name)),
        ),
        (
            "two guests with the same name prove nothing",
            node("web-1", None),
            vec![machine("a", "u1", None), machine("b", "u2", None)],
            None,
            &[("a", "web-1"), ("b", "web-1")],
            None,
        ),
        (
            "a guest without a name is nobody",
            node("web-1", None),
            vec![machine("a", "u1", None)],
            None,
            &[("a", "")],
            None,
        ),
        (
            "a full node name matches the full host name only",
            node("web-1.example.com", None),
            vec![machine("a", "u1", None), machine("b", "u2", None)],
            None,
            &[("a", "web-1.example.com"), ("b", "web-1.example.org")],
            Some(("u1", Proof::Hostname)),
        ),
    ]
}

#[test]
fn a_node_is_found_by_uid_then_by_name_then_by_what_its_guest_says() {
    let rows = rows_of_ids_and_names()
        .into_iter()
        .chain(rows_of_labels_and_guests());
    for (what, node, machines, cluster, hostnames, expected) in rows {
        let hostnames = hostnames
            .iter()
            .map(|(machine, hostname)| ((*machine).to_owned(), (*hostname).to_owned()))
            .collect();
        let found = find(&node, machines.as_slice(), cluster, &hostnames);
        let found = found.map(|found| (found.machine.uid().unwrap(), found.proof));
        let expected = expected.map(|(uid, proof)| (uid.to_owned(), proof));
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn only_a_name_that_somebody_gave_tells_clusters_apart() {
    for (name, expected) in [
        ("prod", Some("prod")),
        (" \"prod\"\n", Some("prod")),
        ("kubernetes", None),
        ("'kubernetes'", None),
        ("", None),
    ] {
        assert_eq!(cluster_label(name), expected, "{name:?}");
    }
}

#[test]
fn fw_l22_l23_n36_the_provider_id_is_the_machines_uid_and_not_the_instances() {
    let machine = machine("n1", "vm-uid", None);
    let vmi = on_networks(&[&["10.0.0.5"]]);
    let metadata = metadata(&machine, Some(&vmi), None);
    assert_eq!(metadata.provider_id, "harvester://vm-uid");
    assert_eq!(
        machine_uid(&node("n1", Some("harvester://vm-uid"))),
        Some("vm-uid")
    );
    assert_eq!(machine_uid(&node("n1", Some("harvester://"))), None);
    assert_eq!(machine_uid(&node("n1", Some("aws://i-1"))), None);
}

#[test]
fn addresses_are_those_of_the_management_network_that_are_of_use() {
    let two = on_networks(&[&["10.0.0.5"], &["10.1.0.5"]]);
    let pod = instance(json!({
        "metadata": {"name": "n1"},
        "spec": {"networks": [{"name": "default", "pod": {}}]},
        "status": {"interfaces": [{"name": "default", "ipAddress": "10.0.0.5"}]},
    }));
    let single = instance(json!({
        "metadata": {"name": "n1"},
        "spec": {"networks": [{"name": "a", "multus": {"networkName": "default/a"}}]},
        "status": {"interfaces": [{"name": "a", "ipAddress": "10.0.0.5", "ipAddresses": []}]},
    }));
    let one = |addresses: &[&str]| on_networks(&[addresses]);
    let rows = [
        ("the first network", two.clone(), None, Ok("10.0.0.5")),
        (
            "the named one",
            two.clone(),
            Some("default/b"),
            Ok("10.1.0.5"),
        ),
        (
            "no such network",
            two,
            Some("default/c"),
            Err(Silence::NoNetwork),
        ),
        ("pod network only", pod, None, Err(Silence::NoNetwork)),
        ("only ipAddress", single, None, Ok("10.0.0.5")),
        (
            "families and order",
            one(&["10.0.0.5", "FD00:0::5", "10.0.0.10"]),
            None,
            Ok("10.0.0.5 fd00::5 10.0.0.10"),
        ),
        (
            "loopback",
            one(&["127.0.0.1"]),
            None,
            Err(Silence::NoAddress),
        ),
        (
            "link-local",
            one(&["169.254.10.1", "fe80::1", "10.0.0.5"]),
            None,
            Ok("10.0.0.5"),
        ),
        (
            "what is no address, and repetitions",
            one(&["10.0.0.1", "not-an-ip", "10.0.0.1", "10.0.0.2/24", ""]),
            None,
            Ok("10.0.0.1"),
        ),
        (
            "multicast, broadcast, unspecified",
            one(&["224.0.0.1", "255.255.255.255", "::", "ff02::1"]),
            None,
            Err(Silence::NoAddress),
        ),
        ("a silent agent", one(&[]), None, Err(Silence::NoAddress)),
    ];
    let machine = machine("n1", "u1", None);
    for (what, vmi, management, expected) in rows {
        let known = metadata(&machine, Some(&vmi), management).addresses;
        let known = known.map(|addresses| {
            let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            texts.join(" ")
        });
        assert_eq!(known, expected.map(str::to_owned), "{what}");
    }
}

#[test]
fn an_instance_that_ends_or_is_the_predecessors_says_nothing() {
    let machine = machine("n1", "u1", None);
    let of = |owner: &str, phase: &str, deleted: Option<&str>| {
        let mut vmi = on_networks(&[&["10.0.0.5"]]);
        let metadata = json!({
            "name": "n1", "deletionTimestamp": deleted,
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                                 "name": "n1", "uid": owner}],
        });
        vmi.metadata = serde_json::from_value(metadata).unwrap();
        vmi.status.as_mut().unwrap().phase = phase.to_owned();
        metadata_of(&machine, &vmi)
    };
    assert!(of("u1", "Running", None).is_ok());
    for silent in [
        of("u0", "Running", None),
        of("u1", "Succeeded", None),
        of("u1", "Failed", None),
        of("u1", "Running", Some("2026-01-01T00:00:00Z")),
    ] {
        assert_eq!(silent, Err(Silence::NoInstance));
    }
    assert_eq!(
        metadata(&machine, None, None).addresses,
        Err(Silence::NoInstance)
    );
}

fn metadata_of(
    machine: &VirtualMachine,
    vmi: &VirtualMachineInstance,
) -> Result<Vec<IpAddr>, Silence> {
    metadata(machine, Some(vmi), None).addresses
}

#[test]
fn zone_and_region_are_what_the_host_annotated_if_they_can_be_labels() {
    let annotated = |annotations: Value| {
        topology(&instance(
            json!({"metadata": {"name": "n1", "annotations": annotations}}),
        ))
    };
    let both = annotated(json!({label::ZONE: "z-1", label::REGION: "r.1"}));
    assert_eq!(
        (both.zone.as_deref(), both.region.as_deref()),
        (Some("z-1"), Some("r.1"))
    );
    for bad in ["", "a b", "-a", "a/b", &"a".repeat(64)] {
        let read = annotated(json!({label::ZONE: bad}));
        assert_eq!(read, Topology::default(), "{bad:?}");
    }
}

#[test]
fn only_guests_of_this_cluster_that_no_node_runs_on_are_asked_for_their_name() {
    let vmi = |labels: Value| {
        instance(json!({
            "metadata": {"name": "vm", "labels": labels, "ownerReferences": [
                {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "u"}]},
            "status": {"phase": "Running"},
        }))
    };
    let driver = json!({CREATOR_LABEL: MACHINE_DRIVER});
    let ours = json!({CLUSTER_LABEL: "c", CREATOR_LABEL: MACHINE_DRIVER});
    let theirs = json!({CLUSTER_LABEL: "d", CREATOR_LABEL: MACHINE_DRIVER});
    for (labels, cluster, taken, expected) in [
        (&ours, Some("c"), None, true),
        (&ours, Some("c"), Some("u"), false),
        (&theirs, Some("c"), None, false),
        (&driver, Some("c"), None, false),
        (&driver, None, None, true),
        (&json!({}), None, None, false),
    ] {
        let taken = taken.into_iter().collect();
        let asked = may_be_asked(&vmi(labels.clone()), cluster, &taken);
        assert_eq!(asked, expected, "{labels} {cluster:?}");
    }
}
