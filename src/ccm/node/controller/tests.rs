use serde_json::{Value, json};

use super::*;
use crate::{
    ccm::node::testing::{Changes, Stage, configured, modified, nobody, quiet, soon},
    k8s::dialogue::{self, Server},
    runtime::{health::Health, metrics},
};

struct Bench {
    _stage: Stage,
    guest: Server,
    host: Server,
    nodes: Changes,
    instances: Changes,
}

fn node(version: &str, spec: &Value, addresses: &Value) -> Value {
    json!({
        "metadata": {"name": "n1", "uid": "node-1", "resourceVersion": version,
                     "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec, "status": {"addresses": addresses},
    })
}

fn waiting() -> Value {
    let taint = json!({"key": "node.cloudprovider.kubernetes.io/uninitialized",
                       "value": "true", "effect": "NoSchedule"});
    node("1", &json!({"taints": [taint]}), &json!([]))
}

fn initialised(address: &str) -> Value {
    let addresses = json!([{"type": "InternalIP", "address": address},
                           {"type": "Hostname", "address": "n1"}]);
    node("2", &json!({"providerID": "harvester://vm-1"}), &addresses)
}

fn machine(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "vms", "uid": "vm-1", "resourceVersion": "1"}})
}

fn instance(name: &str, version: &str, addresses: &[&str]) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "vms", "uid": "vmi-1", "resourceVersion": version,
            "labels": {"guestcluster.harvesterhci.io/name": "prod"},
            "annotations": {"topology.kubernetes.io/zone": "z1"},
        },
        "spec": {"networks": [{"name": "a", "multus": {"networkName": "default/a"}}]},
        "status": {"phase": "Running", "interfaces": [{"name": "a", "ipAddresses": addresses}]},
    })
}

fn start(nodes: Vec<Value>, services: Vec<Value>, machine: Value, instance: Value) -> Bench {
    let mut stage = Stage::default();
    let (nodes, node_changes) = stage.watch(nodes);
    let (services, _) = stage.watch(services);
    let (machines, _) = stage.watch(vec![machine]);
    let (instances, instance_changes) = stage.watch(vec![instance]);
    let ((guest, guest_server), (host, host_server)) = (dialogue::pair(), dialogue::pair());
    let feeds = Feeds {
        nodes,
        services,
        machines,
        instances,
    };
    let controller = Controller::new(Parts {
        guest,
        host,
        config: configured("--cluster-name=prod --node-status-update-frequency=5s"),
        nodes: feeds.nodes.cache.clone(),
        services: feeds.services.cache.clone(),
        machines: MachineView::new(
            "vms",
            feeds.machines.cache.clone(),
            feeds.instances.cache.clone(),
        ),
        recorder: Recorder::new(nobody(), "test", "test").0,
        metrics: Metrics::register(&metrics::Metrics::new(&Health::new())),
    });
    stage.tasks.spawn(controller.run(feeds, Shutdown::new()));
    Bench {
        _stage: stage,
        guest: guest_server,
        host: host_server,
        nodes: node_changes,
        instances: instance_changes,
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_waits_for_its_instance_and_is_initialised_as_soon_as_that_reports() {
    let mut bench = start(
        vec![waiting()],
        vec![],
        machine("n1"),
        instance("n1", "1", &[]),
    );
    quiet(&mut bench.guest, Duration::from_secs(15)).await;
    let reports = modified(&instance("n1", "2", &["10.0.0.5"]));
    bench.instances.send(reports).unwrap();
    let call = soon(&mut bench.guest).await;
    assert_eq!(call.method, "PATCH");
    assert!(call.uri.starts_with("/api/v1/nodes/n1?"));
    let expected = json!({
        "metadata": {
            "uid": "node-1", "resourceVersion": "1",
            "labels": {"failure-domain.beta.kubernetes.io/zone": "z1",
                       "topology.kubernetes.io/zone": "z1"},
        },
        "spec": {"providerID": "harvester://vm-1", "taints": null},
    });
    assert_eq!(call.body, expected);
    call.ok(&waiting());
    let call = soon(&mut bench.guest).await;
    assert!(call.uri.starts_with("/api/v1/nodes/n1/status?"));
    assert_eq!(call.body["metadata"], json!({"uid": "node-1"}));
    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.5"},
                           {"type": "Hostname", "address": "n1"}]);
    assert_eq!(call.body["status"]["addresses"], addresses);
    call.ok(&waiting());
    bench
        .nodes
        .send(modified(&initialised("10.0.0.5")))
        .unwrap();
    quiet(&mut bench.guest, Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_agent_changes_no_address_and_a_new_address_is_written_at_once() {
    let mut bench = start(
        vec![initialised("10.0.0.5")],
        vec![],
        machine("n1"),
        instance("n1", "1", &[]),
    );
    quiet(&mut bench.guest, Duration::from_secs(12)).await;
    let moved = modified(&instance("n1", "2", &["10.0.0.6"]));
    bench.instances.send(moved).unwrap();
    let call = soon(&mut bench.guest).await;
    assert!(call.uri.starts_with("/api/v1/nodes/n1/status?"));
    assert_eq!(call.body["status"]["addresses"][0]["address"], "10.0.0.6");
    call.ok(&initialised("10.0.0.6"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_and_nothing_written_when_nothing_changes_and_vips_are_no_change() {
    let service = json!({
        "metadata": {"name": "s", "namespace": "default", "resourceVersion": "1"},
        "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.100"}]}},
    });
    let mut bench = start(
        vec![initialised("10.0.0.5")],
        vec![service],
        machine("n1"),
        instance("n1", "1", &["10.0.0.5", "10.0.0.100"]),
    );
    tokio::join!(
        quiet(&mut bench.guest, Duration::from_secs(22)),
        quiet(&mut bench.host, Duration::from_secs(22)),
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_with_another_name_than_its_machine_is_found_by_what_the_guest_says() {
    let mut bench = start(
        vec![waiting()],
        vec![],
        machine("vm-7"),
        instance("vm-7", "1", &["10.0.0.5"]),
    );
    let call = soon(&mut bench.host).await;
    assert!(
        call.uri
            .ends_with("/namespaces/vms/virtualmachineinstances/vm-7/guestosinfo")
    );
    call.ok(&json!({"hostname": "N1.example.com"}));
    let call = soon(&mut bench.guest).await;
    assert_eq!(call.body["spec"]["providerID"], "harvester://vm-1");
    call.fail(403, "Forbidden");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_forbids_questions_is_not_asked_without_end() {
    let mut bench = start(
        vec![waiting()],
        vec![],
        machine("vm-7"),
        instance("vm-7", "1", &["10.0.0.5"]),
    );
    let mut asked = 0;
    let asking = async {
        loop {
            bench.host.next().await.fail(403, "Forbidden");
            asked += 1;
        }
    };
    let none: Result<(), _> = tokio::time::timeout(Duration::from_secs(28), asking).await;
    assert!(none.is_err());
    assert!((2..=8).contains(&asked), "{asked}");
}
