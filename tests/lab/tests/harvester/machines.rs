//! VMs as a guest sees them, and what goes with them.

use anyhow::Result;
use lab::{
    HarvesterHost,
    harvester::{Interface, Place},
};

use super::{Guest, gone, possible};

#[tokio::test(flavor = "multi_thread")]
async fn host_moves_a_vm_and_says_where_it_is() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::start().await?;
    let vm = host
        .vm("node-0")
        .node("host-a")
        .region("r")
        .zone("zone-a")
        .addresses(&["10.1.0.11", "fd00::11"])
        .create()
        .await?;
    let at = async |pointer: &str| {
        let instance = vm.instance().await.unwrap().unwrap();
        let value = serde_json::to_value(&instance).unwrap();
        value.pointer(pointer).cloned().unwrap_or_default()
    };
    let zone = "/metadata/annotations/topology.kubernetes.io~1zone";
    let first = "/status/interfaces/0";
    assert_eq!(at(zone).await, "zone-a");
    assert_eq!(at(&format!("{first}/ipAddresses/1")).await, "fd00::11");
    assert_eq!(at(&format!("{first}/interfaceName")).await, "enp1s0");
    assert_eq!(vm.machine().await?.unwrap().data["status"]["ready"], true);

    let migration = vm
        .begin_migration(Place::on("host-b").zone("zone-b"))
        .await?;
    assert_eq!(at("/status/migrationState/targetNode").await, "host-b");
    assert_eq!(
        at("/status/migrationState/completed").await,
        serde_json::Value::Null
    );
    assert_eq!(
        (at(zone).await, at("/status/nodeName").await),
        ("zone-a".into(), "host-a".into())
    );
    migration.complete().await?;
    assert_eq!(at("/status/migrationState/completed").await, true);
    assert_eq!(
        (at(zone).await, at("/status/nodeName").await),
        ("zone-b".into(), "host-b".into())
    );
    assert!(
        at("/metadata/annotations/topology.kubernetes.io~1region")
            .await
            .is_null()
    );
    vm.begin_migration(Place::on("host-c"))
        .await?
        .fail()
        .await?;
    assert_eq!(at("/status/nodeName").await, "host-b");

    vm.set_addresses(&["10.1.0.12"]).await?;
    assert_eq!(
        at(&format!("{first}/ipAddresses")).await,
        serde_json::json!(["10.1.0.12"])
    );
    vm.set_interfaces(&[
        Interface::pod(),
        Interface::on("ns/b").addresses(&["10.9.0.1"]),
    ])
    .await?;
    assert_eq!(at("/spec/networks/1/multus/networkName").await, "ns/b");
    assert_eq!(at("/status/interfaces/1/ipAddress").await, "10.9.0.1");

    vm.stop().await?;
    assert!(vm.instance().await?.is_none());
    assert_eq!(vm.machine().await?.unwrap().data["status"]["ready"], false);
    vm.start().await?;
    assert_eq!(at("/status/phase").await, "Running");
    let before = vm.uid().await?;
    assert_ne!(vm.recreate().await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn host_removes_the_balancers_of_a_cluster_that_is_being_removed() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::builder().cluster("gc").start().await?;
    let (one, two) = (host.vm("a").create().await?, host.vm("b").create().await?);
    host.vm("c").cluster("gc-2").create().await?;
    let guest = Guest::of(&host).await?;
    guest.create("mine", "dhcp").await?;
    let theirs = lab::harvester::new_balancer("theirs", "gc-2", "dhcp");
    guest.post(&theirs).await?;
    for vm in [&one, &two] {
        host.allocated("mine").await?;
        vm.delete().await?;
        assert!(
            host.load_balancer("mine").await?.is_some(),
            "no removal of the cluster"
        );
        vm.recreate().await?;
    }
    one.mark_cluster_removal().await?;
    one.delete().await?;
    gone(&host, "mine").await?;
    assert!(host.load_balancer("theirs").await?.is_some());
    Ok(())
}
