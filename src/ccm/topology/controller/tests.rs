use serde_json::{Value, json};

use super::*;
use crate::{
    ccm::node::testing::{Changes, Stage, configured, modified, nobody, quiet, soon},
    k8s::dialogue::{self, Server},
};

struct Bench {
    _stage: Stage,
    guest: Server,
    instances: Changes,
}

fn node() -> Value {
    json!({
        "metadata": {"name": "web-1", "uid": "node-1", "resourceVersion": "1", "labels": {
            "failure-domain.beta.kubernetes.io/zone": "z1", "topology.kubernetes.io/zone": "z1"}},
        "spec": {"providerID": "harvester://vm-1"},
    })
}

fn instance(version: &str, zone: Option<&str>, interface: &str) -> Value {
    let mut annotations = json!({"kubevirt.io/x": "y"});
    if let Some(zone) = zone {
        annotations["topology.kubernetes.io/zone"] = zone.into();
    }
    json!({
        "metadata": {
            "name": "vm-7", "namespace": "vms", "uid": "vmi-1", "resourceVersion": version,
            "annotations": annotations, "labels": {
                "guestcluster.harvesterhci.io/name": "prod",
                "harvesterhci.io/creator": "docker-machine-driver-harvester"},
        },
        "spec": {"networks": [{"name": "a", "multus": {"networkName": "default/a"}}]},
        "status": {"phase": "Running", "interfaces": [
            {"name": "a", "interfaceName": interface}]},
    })
}

fn map(value: &str) -> Value {
    json!({
        "metadata": {"name": MAP_NAME, "namespace": MAP_NAMESPACE, "resourceVersion": "1"},
        "data": {MAP_KEY: value},
    })
}

fn start(instance: Value, maps: Vec<Value>) -> Bench {
    let mut stage = Stage::default();
    let (nodes, _) = stage.watch(vec![node()]);
    let (machines, _) = stage.watch(vec![json!({"metadata": {
        "name": "vm-7", "namespace": "vms", "uid": "vm-1", "resourceVersion": "1"}})]);
    let (instances, changes) = stage.watch(vec![instance]);
    let (network_map, _) = stage.watch(maps);
    let (guest, server) = dialogue::pair();
    let feeds = Feeds {
        nodes,
        machines,
        instances,
        network_map,
    };
    let controller = Controller::new(Parts {
        guest,
        config: configured("--cluster-name=prod"),
        nodes: feeds.nodes.cache.clone(),
        network_map: feeds.network_map.cache.clone(),
        machines: MachineView::new(
            "vms",
            feeds.machines.cache.clone(),
            feeds.instances.cache.clone(),
        ),
        recorder: Recorder::new(nobody(), "test", "test").0,
    });
    stage.tasks.spawn(controller.run(feeds, Shutdown::new()));
    Bench {
        _stage: stage,
        guest: server,
        instances: changes,
    }
}

const MAP: &str = r#"{"default/a":"enp1s0"}"#;

#[tokio::test(start_paused = true)]
async fn a_migration_to_another_zone_is_written_to_the_node_of_the_machine() {
    let mut bench = start(instance("1", Some("z1"), "enp1s0"), vec![map(MAP)]);
    quiet(&mut bench.guest, Duration::from_secs(5)).await;
    let moved = modified(&instance("2", Some("z2"), "enp1s0"));
    bench.instances.send(moved).unwrap();
    let call = soon(&mut bench.guest).await;
    assert!(call.uri.starts_with("/api/v1/nodes/web-1?"));
    let expected = json!({
        "failure-domain.beta.kubernetes.io/zone": "z2", "topology.kubernetes.io/zone": "z2"});
    assert_eq!(call.body["metadata"]["labels"], expected);
    call.ok(&node());
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_goes_takes_the_labels_along_but_a_new_instance_has_time() {
    let mut bench = start(instance("1", Some("z1"), "enp1s0"), vec![map(MAP)]);
    quiet(&mut bench.guest, Duration::from_secs(5)).await;
    bench
        .instances
        .send(modified(&instance("2", None, "enp1s0")))
        .unwrap();
    let call = soon(&mut bench.guest).await;
    let expected = json!({
        "failure-domain.beta.kubernetes.io/zone": null, "topology.kubernetes.io/zone": null});
    assert_eq!(call.body["metadata"]["labels"], expected);
    call.ok(&node());

    let mut bench = start(instance("1", None, "enp1s0"), vec![map(MAP)]);
    quiet(&mut bench.guest, Duration::from_secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn the_map_is_made_where_it_is_missing_and_put_where_it_differs() {
    let mut bench = start(instance("1", Some("z1"), "enp1s0"), vec![]);
    soon(&mut bench.guest).await.fail(404, "NotFound");
    let call = soon(&mut bench.guest).await;
    assert_eq!(call.method, "POST");
    assert_eq!(call.body["data"][MAP_KEY], MAP);
    call.ok(&map(MAP));

    let mut bench = start(instance("1", Some("z1"), "enp1s0"), vec![map("")]);
    soon(&mut bench.guest).await.ok(&map(""));
    let call = soon(&mut bench.guest).await;
    assert_eq!(call.method, "PUT");
    assert_eq!(call.body["data"][MAP_KEY], MAP);
    call.ok(&map(MAP));
}
