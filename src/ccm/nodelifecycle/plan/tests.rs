use std::collections::BTreeMap;

use super::*;

const SHUTDOWN: &str = taint::SHUTDOWN;

fn node(ready: &str, provider_id: Option<&str>, taints: &[(&str, &str)]) -> Arc<Node> {
    let taints = taints
        .iter()
        .map(|(key, effect)| json!({"key": key, "effect": effect}));
    let conditions = match ready {
        "" => json!([]),
        ready => json!([{"type": "Ready", "status": ready}]),
    };
    let node = json!({
        "metadata": {"name": "n1"},
        "spec": {"providerID": provider_id, "taints": taints.collect::<Vec<_>>()},
        "status": {"conditions": conditions},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

fn machine(name: &str, uid: &str, ready: Option<bool>) -> Arc<VirtualMachine> {
    let status = ready.map(|ready| json!({"ready": ready}));
    let machine = json!({"metadata": {"name": name, "uid": uid}, "status": status});
    Arc::new(serde_json::from_value(machine).unwrap())
}

/// What is done in the end, the list showing what the watch showed.
fn decided(node: &Node, machines: &[Arc<VirtualMachine>]) -> Verdict {
    if step(node) != Step::Ask {
        return Verdict::Nothing;
    }
    let found = instance::find(node, machines, None, &BTreeMap::new());
    match by_watch(node, found.as_ref()) {
        Verdict::List => by_list(node, found.as_ref()),
        other => other,
    }
}

const OURS: Option<&str> = Some("harvester://u1");

/// What it is, the condition Ready, the provider ID, the machines, what is done.
type Row = (
    &'static str,
    &'static str,
    Option<&'static str>,
    Vec<Arc<VirtualMachine>>,
    Verdict,
);

#[test]
fn fw_l1_to_l21_nodes_that_are_not_ready_go_with_their_machine_and_only_then() {
    let up = machine("n1", "u1", Some(true));
    let down = machine("n1", "u1", Some(false));
    let bare = machine("n1", "u1", None);
    let other = machine("n1", "u2", Some(true));
    let rows: Vec<Row> = vec![
        ("L7", "False", OURS, vec![], Verdict::Delete),
        ("L9", "False", OURS, vec![up.clone()], Verdict::Nothing),
        ("L10", "Unknown", OURS, vec![], Verdict::Delete),
        ("L11", "Unknown", OURS, vec![up.clone()], Verdict::Nothing),
        ("L12", "True", OURS, vec![], Verdict::Nothing),
        ("L13", "Unknown", OURS, vec![down.clone()], Verdict::Taint),
        (
            "L14, by name",
            "False",
            None,
            vec![down.clone()],
            Verdict::Taint,
        ),
        ("L20", "True", OURS, vec![down], Verdict::Nothing),
        ("no condition is Unknown", "", OURS, vec![], Verdict::Delete),
        (
            "no status is shut down",
            "False",
            OURS,
            vec![bare],
            Verdict::Taint,
        ),
        ("never initialised", "False", None, vec![], Verdict::Nothing),
        (
            "another provider's",
            "Unknown",
            Some("k3s://n1"),
            vec![],
            Verdict::Nothing,
        ),
        (
            "an empty UID",
            "Unknown",
            Some("harvester://"),
            vec![],
            Verdict::Nothing,
        ),
        (
            "replaced, and the new kubelet reports",
            "False",
            OURS,
            vec![other.clone()],
            Verdict::Nothing,
        ),
        (
            "replaced, and nobody reports",
            "Unknown",
            OURS,
            vec![other],
            Verdict::DeleteUntouched,
        ),
        (
            "under another name",
            "Unknown",
            OURS,
            vec![machine("vm-7", "u1", Some(true))],
            Verdict::Nothing,
        ),
    ];
    for (what, ready, provider_id, machines, expected) in rows {
        let node = node(ready, provider_id, &[]);
        assert_eq!(decided(&node, &machines), expected, "{what}");
    }
}

#[test]
fn the_watch_alone_deletes_nothing() {
    for ready in ["False", "Unknown", ""] {
        let node = node(ready, OURS, &[]);
        assert_eq!(by_watch(&node, None), Verdict::List);
    }
}

#[test]
fn a_node_that_is_being_deleted_is_left_to_whoever_deletes_it() {
    let mut node = Node::clone(&node("False", OURS, &[]));
    node.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(step(&node), Step::Nothing);
}

#[test]
fn a_list_without_any_ready_nodes_machine_is_not_believed() {
    let ready = |uid: &str| node("True", Some(&format!("harvester://{uid}")), &[]);
    let suspect = node("Unknown", Some("harvester://u9"), &[]);
    let machines = [machine("n1", "u1", Some(true))];
    assert!(is_plausible(
        &machines,
        &[ready("u1"), ready("u2"), suspect.clone()]
    ));
    assert!(!is_plausible(&machines, &[ready("u2"), suspect.clone()]));
    assert!(!is_plausible(&[], &[ready("u1")]));
    // Nobody is left to compare with.
    assert!(is_plausible(&[], &[suspect]));
}

#[test]
fn fw_l13_the_shutdown_taint_comes_once_and_beside_the_others() {
    let bare = node("False", OURS, &[("x", "NoSchedule")]);
    let expected = json!({"spec": {"taints": [
        {"key": "x", "effect": "NoSchedule"}, {"key": SHUTDOWN, "effect": "NoSchedule"}]}});
    assert_eq!(add_taint(&bare), Some(expected));
    let tainted = node("False", OURS, &[(SHUTDOWN, "NoSchedule")]);
    assert_eq!(add_taint(&tainted), None);
    // Ready again before the write.
    assert_eq!(add_taint(&node("True", OURS, &[])), None);
}

#[test]
fn fw_h19_to_h28_a_taint_is_its_key_and_its_effect() {
    for (what, taints, kept) in [
        (
            "H19, H23",
            vec![(SHUTDOWN, "NoSchedule"), ("x", "NoExecute")],
            Some(1),
        ),
        ("H20, H25", vec![("x", "NoSchedule")], None),
        ("H21, H26", vec![(SHUTDOWN, "NoExecute")], None),
        ("H22, H24, H28", vec![], None),
        ("H27", vec![(SHUTDOWN, "NoSchedule")], Some(0)),
    ] {
        let node = node("True", OURS, &taints);
        let left = remove_taint(&node).map(|patch| match &patch["spec"]["taints"] {
            Value::Array(kept) => kept.len(),
            _ => 0,
        });
        assert_eq!(left, kept, "{what}");
        let expected = if kept.is_some() {
            Step::Untaint
        } else {
            Step::Nothing
        };
        assert_eq!(step(&node), expected, "{what}");
    }
    // Not ready any more before the write.
    assert_eq!(
        remove_taint(&node("False", OURS, &[(SHUTDOWN, "NoSchedule")])),
        None
    );
}
