use serde_json::{Value, json};

use super::*;
use crate::{
    ccm::node::testing::{Stage, configured, nobody, quiet, soon},
    k8s::dialogue::{self, Server},
    runtime::{health::Health, metrics},
};

struct Bench {
    _stage: Stage,
    guest: Server,
    host: Server,
}

fn node(name: &str, ready: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "5"},
        "spec": {"providerID": format!("harvester://vm-of-{name}")},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    })
}

fn machine(name: &str, ready: bool) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "vms", "uid": format!("vm-of-{name}"),
                     "resourceVersion": "1"},
        "status": {"ready": ready},
    })
}

fn start(nodes: Vec<Value>, machines: Vec<Value>) -> Bench {
    let mut stage = Stage::default();
    let (nodes, _) = stage.watch(nodes);
    let (machines, _) = stage.watch(machines);
    let (instances, _) = stage.watch(vec![]);
    let ((guest, guest_server), (host, host_server)) = (dialogue::pair(), dialogue::pair());
    let controller = Controller::new(Parts {
        guest,
        host,
        namespace: "vms".to_owned(),
        config: configured("--node-monitor-period=5s"),
        nodes: nodes.cache,
        machines: MachineView::new("vms", machines.cache, instances.cache),
        recorder: Recorder::new(nobody(), "test", "test").0,
        metrics: Metrics::register(&metrics::Metrics::new(&Health::new())),
    });
    stage.tasks.spawn(controller.run(Shutdown::new()));
    Bench {
        _stage: stage,
        guest: guest_server,
        host: host_server,
    }
}

fn list(machines: &[Value]) -> Value {
    json!({"metadata": {"resourceVersion": "9"}, "items": machines})
}

const PASS: Duration = Duration::from_secs(6);

#[tokio::test(start_paused = true)]
async fn fw_l10_a_node_is_deleted_by_its_uid_once_the_hosts_store_has_no_machine_of_it() {
    let mut bench = start(
        vec![node("a", "True"), node("b", "Unknown")],
        vec![machine("a", true)],
    );
    let call = bench.host.next().await;
    assert_eq!(
        call.uri,
        "/apis/kubevirt.io/v1/namespaces/vms/virtualmachines?"
    );
    call.ok(&list(&[machine("a", true)]));
    let call = soon(&mut bench.guest).await;
    assert_eq!(
        (call.method.as_str(), call.uri.as_str()),
        ("DELETE", "/api/v1/nodes/b?")
    );
    assert_eq!(call.body["preconditions"], json!({"uid": "uid-of-b"}));
    call.ok(&json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
}

#[tokio::test(start_paused = true)]
async fn fw_l8_a_host_that_fails_or_lists_another_place_costs_no_node() {
    let mut bench = start(
        vec![node("a", "True"), node("b", "Unknown")],
        vec![machine("a", true)],
    );
    bench.host.next().await.fail(503, "ServiceUnavailable");
    quiet(&mut bench.guest, Duration::from_secs(1)).await;
    bench.host.next().await.ok(&list(&[]));
    quiet(&mut bench.guest, Duration::from_secs(1)).await;
    // The watch was late.
    let call = bench.host.next().await;
    call.ok(&list(&[machine("a", true), machine("b", true)]));
    quiet(&mut bench.guest, Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_forbidden_is_tried_less_and_less_often() {
    let mut bench = start(vec![node("b", "Unknown")], vec![]);
    let (mut listed, mut tried) = (0, 0);
    let serving = async {
        loop {
            tokio::select! {
                call = bench.host.next() => { listed += 1; call.ok(&list(&[])); }
                call = bench.guest.next() => { tried += 1; call.fail(403, "Forbidden"); }
            }
        }
    };
    let none: Result<(), _> = tokio::time::timeout(Duration::from_secs(28), serving).await;
    assert!(none.is_err());
    assert_eq!(listed, tried);
    assert!((2..=3).contains(&tried), "{tried}");
}

#[tokio::test(start_paused = true)]
async fn fw_l13_a_machine_that_is_shut_down_gives_its_node_the_taint() {
    let mut bench = start(vec![node("a", "Unknown")], vec![machine("a", false)]);
    // The first pass may come before the host's first list.
    let call = tokio::time::timeout(PASS, bench.guest.next())
        .await
        .unwrap();
    let taint = json!({"key": "node.cloudprovider.kubernetes.io/shutdown", "effect": "NoSchedule"});
    assert_eq!(call.body["spec"]["taints"], json!([taint]));
    assert_eq!(call.body["metadata"]["resourceVersion"], "5");
    call.ok(&node("a", "Unknown"));
}

#[tokio::test(start_paused = true)]
async fn ready_nodes_are_not_asked_about() {
    let mut bench = start(vec![node("a", "True")], vec![]);
    tokio::join!(
        quiet(&mut bench.guest, Duration::from_secs(20)),
        quiet(&mut bench.host, Duration::from_secs(20)),
    );
}
