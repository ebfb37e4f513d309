//! Nodes whose VMs are on the host.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use lab::{harvester::Place, poll_until};
use serde_json::json;

use super::stage::{SOON, World, addresses, play_on, play_with_host};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";

#[test]
fn a_node_is_initialised_from_its_vm() {
    play_with_host("initialised", async |world| {
        let vm = world.host.vm("node-0").node("host-a").region("r").zone("a");
        let vm = vm.addresses(&["10.1.0.11"]).create().await?;
        let _manager = world.manager().await?;
        world.guest.register("node-0", json!({})).await?;
        let node = world.initialised("node-0").await?;
        let provider = node.spec.as_ref().and_then(|it| it.provider_id.clone());
        ensure!(
            provider == Some(format!("harvester://{}", vm.uid().await?)),
            "{provider:?}"
        );
        ensure!(
            node.labels().get(ZONE).is_some_and(|it| it == "a"),
            "{node:?}"
        );
        ensure!(
            node.labels().get(REGION).is_some_and(|it| it == "r"),
            "{node:?}"
        );
        let addresses = addresses(&node);
        ensure!(
            addresses.contains(&"InternalIP 10.1.0.11".to_owned()),
            "{addresses:?}"
        );
        ensure!(
            addresses
                .last()
                .is_some_and(|it| it.starts_with("Hostname")),
            "{addresses:?}"
        );
        Ok(())
    });
}

#[test]
fn a_node_that_comes_before_its_vm_is_initialised_when_that_is_there() {
    play_with_host("late-vm", async |world| {
        let _manager = world.manager().await?;
        world.guest.register("node-0", json!({})).await?;
        lab::clock::sleep(std::time::Duration::from_secs(1)).await;
        let vm = world.host.vm("node-0").node("host-a").zone("a");
        vm.addresses(&["10.1.0.11"]).create().await?;
        world.initialised("node-0").await.map(drop)
    });
}

#[test]
fn a_node_follows_its_vm_to_another_zone() {
    play_with_host("migration", async |world| {
        let vm = world.host.vm("node-0").node("host-a").zone("a");
        let vm = vm.addresses(&["10.1.0.11"]).create().await?;
        let _manager = world.manager().await?;
        world.guest.register("node-0", json!({})).await?;
        world.initialised("node-0").await?;
        vm.migrate(Place::on("host-b").zone("b")).await?;
        until(world, "zone b", |node| {
            node.labels().get(ZONE).is_some_and(|it| it == "b")
        })
        .await
    });
}

#[test]
fn a_node_follows_the_addresses_of_its_vm() {
    play_on(
        "addresses",
        lab::HarvesterHost::builder(),
        &["--node-status-update-frequency=10s"],
        async |world| {
            let vm = world.host.vm("node-0").node("host-a");
            let vm = vm.addresses(&["10.1.0.11"]).create().await?;
            let _manager = world.manager().await?;
            world.guest.register("node-0", json!({})).await?;
            world.initialised("node-0").await?;
            vm.set_addresses(&["10.1.0.12"]).await?;
            until(world, "the new address", |node| {
                addresses(node).contains(&"InternalIP 10.1.0.12".to_owned())
            })
            .await?;
            // A silent agent takes nothing away.
            vm.set_addresses(&[]).await?;
            lab::clock::sleep(std::time::Duration::from_secs(2)).await;
            let node = world.guest.nodes().get("node-0").await?;
            let addresses = addresses(&node);
            ensure!(
                addresses.contains(&"InternalIP 10.1.0.12".to_owned()),
                "{addresses:?}"
            );
            Ok(())
        },
    );
}

#[test]
fn a_node_whose_vm_is_gone_goes_too_and_one_whose_vm_is_stopped_stays() {
    play_on(
        "lifecycle",
        lab::HarvesterHost::builder(),
        &["--node-monitor-period=1s"],
        async |world| {
            let mut vms = Vec::new();
            for (name, address) in [("gone", "10.1.0.11"), ("stopped", "10.1.0.12")] {
                let vm = world.host.vm(name).node("host-a").addresses(&[address]);
                vms.push(vm.create().await?);
                world.guest.register(name, json!({})).await?;
            }
            let _manager = world.manager().await?;
            for name in ["gone", "stopped"] {
                world.initialised(name).await?;
            }
            vms[0].delete().await?;
            vms[1].stop().await?;
            for name in ["gone", "stopped"] {
                world.guest.ready(name, false).await?;
            }
            let nodes = world.guest.nodes();
            poll_until(SOON, "no node `gone`", async || {
                Ok(nodes.get_opt("gone").await?.is_none().then_some(()))
            })
            .await?;
            poll_until(SOON, "the taint of a stopped node", async || {
                let node = nodes.get("stopped").await?;
                let taints = node.spec.and_then(|it| it.taints).unwrap_or_default();
                let shut_down = "node.cloudprovider.kubernetes.io/shutdown";
                Ok(taints.iter().any(|it| it.key == shut_down).then_some(()))
            })
            .await?;
            vms[1].start().await?;
            world.guest.ready("stopped", true).await?;
            poll_until(SOON, "no taint any more", async || {
                let node = nodes.get("stopped").await?;
                let taints = node.spec.and_then(|it| it.taints).unwrap_or_default();
                let shut_down = "node.cloudprovider.kubernetes.io/shutdown";
                Ok((!taints.iter().any(|it| it.key == shut_down)).then_some(()))
            })
            .await
        },
    );
}

async fn until(world: &World, what: &str, is_so: impl Fn(&Node) -> bool) -> Result<()> {
    poll_until(SOON, what, async || {
        let node = world.guest.nodes().get("node-0").await?;
        Ok(is_so(&node).then_some(()))
    })
    .await
}
