//! What a manager may do: less than it would like, or with another token than at first.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::{ResourceExt, api::ListParams};
use lab::{
    Manager, Rights, clock,
    harvester::{GuestAgent, balancers_in},
    poll_until,
};
use serde_json::json;

use super::stage::{SOON, World, addresses, play_with_host, quiet, setup, stop};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
/// Three times what an API server believes a token after it was withdrawn.
const BELIEVED: Duration = Duration::from_secs(30);

/// More than the longest pause between questions to an agent.
const BACKED_OFF: Duration = Duration::from_secs(120);

/// A manager with the rights of the Go program's chart.
async fn manager_of_old(world: &World) -> Result<Manager> {
    let cloud_config = world.access.cloud_config().to_owned();
    let args = ["--cluster-name=gc", "--v=2", "--node-monitor-period=1s"];
    let mut setup = setup(cloud_config, &args);
    setup.rights = Rights::OfOld;
    world.guest.start_manager(&setup).await
}

#[test]
fn a_token_that_is_rotated_is_taken_up_without_a_restart() {
    play_with_host("rotation", async |world| {
        world.pool().await?;
        let manager = world.manager().await?;
        world.service("before", json!({ IPAM: "pool" })).await?;
        let before = world.settled("before").await?;
        let object = world.balancer_of("before").await?;

        let way = world.access.api();
        world.host.rotate_token().await?;
        // Until the old one is refused nothing shows which of them is used.
        let old = balancers_in(&way.client()?, world.host.namespace());
        poll_until(BELIEVED, "the end of the old token", async || {
            let answer = old.list(&ListParams::default()).await;
            let refused = matches!(answer, Err(kube::Error::Api(it)) if it.code == 401);
            Ok(refused.then_some(()))
        })
        .await?;
        let counts = way.counts();
        way.cut_watches();
        world.service("after", json!({ IPAM: "pool" })).await?;
        world.settled("after").await?;
        poll_until(BELIEVED, "watches with the new token", async || {
            let since = way.counts().since(&counts);
            Ok((since.matching(|it| it.verb == "watch" && it.code == Some(200)) > 0).then_some(()))
        })
        .await?;
        let since = way.counts().since(&counts);
        ensure!(since.answered(401) == 0, "{since}");
        let now = world.balancer_of("before").await?;
        ensure!(now.uid() == object.uid(), "another object");
        ensure!(world.ingress("before").await? == [before], "it moved");
        ensure!(
            !world.was_told("after", "SyncLoadBalancerFailed").await?,
            "?"
        );
        quiet(&manager.api).await
    });
}

#[test]
fn a_host_that_does_not_let_guests_ask_agents_serves_nodes_by_their_name() {
    play_with_host("no-agents", async |world| {
        world.host.allow_guest_agents(false).await?;
        let called = |name: &str| GuestAgent::Connected {
            hostname: name.to_owned(),
        };
        for (name, says, address) in [
            ("node-0", "node-0", "10.1.0.11"),
            ("vm-1", "worker-1", "10.1.0.12"),
        ] {
            let vm = world.host.vm(name).node("host-a").agent(called(says));
            vm.addresses(&[address]).create().await?;
        }
        let _manager = world.manager().await?;
        world.guest.register("worker-1", json!({})).await?;
        world.guest.register("node-0", json!({})).await?;
        let node = world.initialised("node-0").await?;
        let found = addresses(&node);
        ensure!(
            found.contains(&"InternalIP 10.1.0.11".to_owned()),
            "{found:?}"
        );
        poll_until(SOON, "a refusal", async || {
            Ok((world.access.api().counts().answered(403) > 0).then_some(()))
        })
        .await?;
        // Refused questions are not repeated without pause, and cost no node.
        let before = world.access.api().counts();
        clock::sleep(Duration::from_secs(3)).await;
        let since = world.access.api().counts().since(&before);
        ensure!(since.answered(403) <= 4, "{since}");
        let nodes = world.guest.nodes();
        ensure!(nodes.get_opt("worker-1").await?.is_some(), "it is deleted");

        world.host.allow_guest_agents(true).await?;
        poll_until(BACKED_OFF, "worker-1 initialised", async || {
            let found = addresses(&nodes.get("worker-1").await?);
            Ok(found
                .contains(&"InternalIP 10.1.0.12".to_owned())
                .then_some(()))
        })
        .await
    });
}

#[test]
fn a_node_with_a_name_of_its_own_is_found_by_what_its_guest_calls_itself() {
    play_with_host("hostname", async |world| {
        let mut vms = Vec::new();
        // The guest's agent says more, and in other letters, than the kubelet.
        for (name, says, address) in [
            ("vm-1", "Worker-1.example.com", "10.1.0.11"),
            ("vm-2", "worker-2", "10.1.0.12"),
        ] {
            let hostname = says.to_owned();
            let vm = world.host.vm(name).node("host-a").zone("a");
            let vm = vm.agent(GuestAgent::Connected { hostname });
            vms.push(vm.addresses(&[address]).create().await?);
        }
        // Of another cluster in the same namespace, and named alike.
        let hostname = "worker-2".to_owned();
        let other = world.host.vm("alike").cluster("other").node("host-a");
        let other = other.agent(GuestAgent::Connected { hostname });
        other.addresses(&["10.1.0.99"]).create().await?;

        let manager = world.manager().await?;
        for name in ["worker-1", "worker-2"] {
            world.guest.register(name, json!({})).await?;
        }
        for (name, vm, address) in [
            ("worker-1", &vms[0], "10.1.0.11"),
            ("worker-2", &vms[1], "10.1.0.12"),
        ] {
            let node = world.initialised(name).await?;
            let provider = node.spec.as_ref().and_then(|it| it.provider_id.clone());
            let expected = format!("harvester://{}", vm.uid().await?);
            ensure!(provider == Some(expected), "{name} is {provider:?}");
            let found = addresses(&node);
            ensure!(
                found.contains(&format!("InternalIP {address}")),
                "{found:?}"
            );
        }

        // Once known, a node is known by its VM, also to the next manager and without the agent.
        for vm in &vms {
            vm.set_agent(GuestAgent::NotConnected).await?;
        }
        stop(&manager, SOON).await?;
        let _next = manager_of_old(world).await?;
        for name in ["worker-1", "worker-2"] {
            world.guest.ready(name, false).await?;
        }
        clock::sleep(Duration::from_secs(3)).await;
        let nodes = world.guest.nodes();
        for name in ["worker-1", "worker-2"] {
            ensure!(nodes.get_opt(name).await?.is_some(), "{name} is deleted");
            let events = world.guest.events("Node", name).await?;
            ensure!(
                !events.iter().any(|it| it.0.contains("Deleting")),
                "{events:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn the_rights_of_the_chart_of_old_serve_services_and_nodes_and_delete_none() {
    play_with_host("chart-of-old", async |world| {
        let pool = world.pool().await?;
        let manager = manager_of_old(world).await?;
        let vm = world.host.vm("node-0").node("host-a").zone("a");
        let vm = vm.addresses(&["10.1.0.11"]).create().await?;
        world.guest.register("node-0", json!({})).await?;
        world.service("web", json!({ IPAM: "pool" })).await?;
        world.initialised("node-0").await?;
        world.settled("web").await?;
        world.told("web", "EnsuredLoadBalancer").await?;
        world.delete("web").await?;
        world.told("web", "DeletedLoadBalancer").await?;
        ensure!(pool.allocated().await?.is_empty(), "still booked");

        let before = manager.api.counts();
        vm.delete().await?;
        world.guest.ready("node-0", false).await?;
        let refused = |counts: &lab::Counts| {
            counts.matching(|it| {
                it.resource == "nodes" && it.verb == "delete" && it.code == Some(403)
            })
        };
        poll_until(SOON, "a refused deletion", async || {
            Ok((refused(&manager.api.counts().since(&before)) > 0).then_some(()))
        })
        .await?;
        clock::sleep(Duration::from_secs(4)).await;
        let since = manager.api.counts().since(&before);
        ensure!(refused(&since) == 1, "{since}");
        // Nothing else is refused but the watch over Leases, without which elections go on.
        let others = since.matching(|it| {
            it.code == Some(403) && !matches!(it.resource.as_str(), "nodes" | "leases")
        });
        ensure!(others == 0, "{since}");
        let events = world.guest.events("Node", "node-0").await?;
        let failed = events.iter().filter(|it| it.0 == "DeletingNodeFailed");
        ensure!(failed.count() == 1, "{events:?}");
        ensure!(world.guest.nodes().get_opt("node-0").await?.is_some(), "?");
        Ok(())
    });
}

#[test]
fn two_nodes_that_come_at_once_are_initialised_each_from_its_own_vm() {
    play_with_host("two-nodes", async |world| {
        let mut expected = Vec::new();
        for (name, zone, address) in [("node-0", "a", "10.1.0.11"), ("node-1", "b", "10.1.0.12")] {
            let vm = world.host.vm(name).node("host-a").zone(zone);
            let vm = vm.addresses(&[address]).create().await?;
            expected.push((name, zone, address, vm.uid().await?));
        }
        let _manager = world.manager().await?;
        let (first, second) = tokio::join!(
            world.guest.register("node-0", json!({})),
            world.guest.register("node-1", json!({})),
        );
        first.and(second)?;
        for (name, zone, address, uid) in expected {
            let node = world.initialised(name).await?;
            let provider = node.spec.as_ref().and_then(|it| it.provider_id.clone());
            ensure!(
                provider == Some(format!("harvester://{uid}")),
                "{provider:?}"
            );
            let found = addresses(&node);
            ensure!(
                found.contains(&format!("InternalIP {address}")),
                "{found:?}"
            );
            ensure!(
                node.labels()["topology.kubernetes.io/zone"] == zone,
                "{node:?}"
            );
        }
        Ok(())
    });
}
