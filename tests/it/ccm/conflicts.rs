//! Others that write what the manager writes, or that were there before it.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use lab::{
    clock,
    harvester::{
        DEFAULT_NETWORK, Interface, LoadBalancer, MachineOrder, Profile, balancers_in, new_balancer,
    },
    poll_until,
};
use serde_json::json;

use super::stage::{
    SOON, World, allocated_address, play_on, play_with_host, quiet, recorded_address,
};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
const NETWORK: &str = "cloudprovider.harvesterhci.io/network";

/// Writes of a storm; each overtakes an update of the manager, whose round trip is longer.
const STORM: u64 = 60;

#[test]
fn host_f17_a_storm_of_other_writes_costs_tries_and_loses_nothing() {
    play_with_host("storm", async |world| {
        let manager = world.manager().await?;
        world.companion.lease("default/web", "10.1.0.77");
        world.service("web", json!({ IPAM: "dhcp" })).await?;
        world.serves("web", "10.1.0.77").await?;
        world.recorded("web", "10.1.0.77").await?;
        let object = world.balancer_of("web").await?;

        let way = world.access.api();
        way.latency(Duration::from_millis(40));
        let before = way.counts();
        world.companion.lease("default/web", "10.1.0.78");
        for number in 1..=STORM {
            let note =
                json!({ "metadata": { "annotations": { "lab.test/storm": number.to_string() } } });
            world
                .host
                .patch_load_balancer(&object.name_any(), &note)
                .await?;
            clock::sleep(Duration::from_millis(30)).await;
        }
        let during = way.counts().since(&before);
        let lost = during.matching(|it| it.verb == "update" && it.code == Some(409));
        ensure!(lost > 0, "no storm at all:\n{during}");
        world.recorded("web", "10.1.0.78").await?;
        way.heal();

        let after = world.balancer_of("web").await?;
        ensure!(after.uid() == object.uid(), "another object");
        ensure!(
            after.annotations()["lab.test/storm"] == STORM.to_string(),
            "{after:?}"
        );
        ensure!(after.spec == object.spec, "{after:?}");
        let all = way.counts().since(&before);
        ensure!(all.of("update", "loadbalancers") <= STORM + 1, "{all}");
        ensure!(all.of("create", "loadbalancers") == 0, "{all}");
        ensure!(all.of("delete", "loadbalancers") == 0, "{all}");
        quiet(way).await?;
        quiet(&manager.api).await
    });
}

#[test]
fn host_f18_a_booking_that_nobody_knows_of_becomes_the_address() {
    play_with_host("leaked", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        let knobs = world.host.knobs();
        knobs.stop_controllers();
        world.service("leaked", json!({ IPAM: "pool" })).await?;
        let object = poll_until(SOON, "an object", async || {
            Ok(world.balancers_of("leaked").await?.pop())
        })
        .await?;
        let id = format!("{}/{}", world.host.namespace(), object.name_any());
        pool.leak("10.1.0.222", &id).await?;
        knobs.start_controllers();
        world.serves("leaked", "10.1.0.222").await?;
        let now = world.balancer_of("leaked").await?;
        ensure!(now.uid() == object.uid(), "another object");

        // The host books, and forgets that it did.
        knobs.lose_status_writes(1);
        world.service("lost", json!({ IPAM: "pool" })).await?;
        world.settled("lost").await?;
        let booked = pool.allocated().await?;
        ensure!(booked.len() == 2, "{booked:?}");
        for name in ["leaked", "lost"] {
            world.delete(name).await?;
        }
        let booked = pool.allocated().await?;
        ensure!(booked.is_empty(), "{booked:?}");
        Ok(())
    });
}

/// Learns the name that the object of a Service has, and leaves the Service without one.
async fn name_of_object(world: &World, service: &str) -> Result<String> {
    world.service(service, json!({ IPAM: "pool" })).await?;
    world.addressed(service).await?;
    let name = world.balancer_of(service).await?.name_any();
    let cluster_ip = json!({ "spec": { "type": "ClusterIP" } });
    world.change(service, cluster_ip).await?;
    world.no_balancer_of(service).await?;
    poll_until(SOON, "no finalizer", async || {
        let service = world.get(service).await?;
        Ok(service.finalizers().is_empty().then_some(()))
    })
    .await?;
    Ok(name)
}

/// An object of a cluster that has no VMs here.
fn of_another_cluster(name: &str) -> LoadBalancer {
    let mut foreign = new_balancer(name, "other", "pool");
    let network = "loadbalancer.harvesterhci.io/network".to_owned();
    let annotations = foreign.annotations_mut();
    annotations.insert(network, DEFAULT_NETWORK.to_owned());
    foreign
}

#[test]
fn host_f22_an_object_of_another_cluster_is_neither_adopted_nor_deleted() {
    play_with_host("foreign", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        let name = name_of_object(world, "web").await?;
        let objects = balancers_in(&world.host.kube(), world.host.namespace());
        let foreign = of_another_cluster(&name);
        objects.create(&PostParams::default(), &foreign).await?;
        let before = world.host.allocated(&name).await?;
        ensure!(!allocated_address(&before).is_empty(), "{before:?}");
        // Its finalizer is the host's last write.
        let before = poll_until(SOON, "the finalizer of the host", async || {
            let now = objects.get(&name).await?;
            Ok((!now.finalizers().is_empty()).then_some(now))
        })
        .await?;

        let balancer = json!({ "spec": { "type": "LoadBalancer" } });
        world.change("web", balancer.clone()).await?;
        let told = world.told("web", "SyncLoadBalancerFailed").await?;
        ensure!(
            told.contains(&name) && told.contains("another guest cluster"),
            "{told}"
        );
        quiet(world.access.api()).await?;
        ensure!(
            world.ingress("web").await?.is_empty(),
            "it took the address"
        );
        world.delete("web").await?;
        let after = objects.get(&name).await?;
        ensure!(after.metadata == before.metadata, "{after:?}");
        ensure!(after.status == before.status, "{after:?}");

        // Once the name is free it is the Service's.
        let name = name_of_object(world, "late").await?;
        let foreign = of_another_cluster(&name);
        objects.create(&PostParams::default(), &foreign).await?;
        world.host.allocated(&name).await?;
        world.change("late", balancer).await?;
        world.told("late", "SyncLoadBalancerFailed").await?;
        objects.delete(&name, &DeleteParams::default()).await?;
        let object = poll_until(SOON, "an object of its own", async || {
            Ok(world.balancers_of("late").await?.pop())
        })
        .await?;
        ensure!(object.name_any() == name, "{object:?}");
        world.host.allocated(&name).await.map(drop)
    });
}

#[test]
fn host_f23_a_host_that_puts_its_own_network_in_is_reported_and_not_fought() {
    let host = lab::HarvesterHost::builder().profile(Profile::V1_8);
    play_on("overridden", host, &[], async |world| {
        // Of two clusters whose names begin alike the wrong one's VM comes first.
        for (vm, cluster, network) in [("gc-0", "gc", "default/a"), ("gc-2-0", "gc-2", "default/b")]
        {
            let link = Interface::on(network).addresses(&["10.1.0.10"]);
            let vm = world.host.vm(vm).cluster(cluster).interfaces(&[link]);
            vm.create().await?;
        }
        let order = MachineOrder::First(vec!["gc-2-0".to_owned()]);
        world.host.knobs().machine_order(order);
        let pool = world.host.pool("b").network("default/b");
        pool.range("10.1.0.192", "10.1.0.250").create().await?;
        let manager = world.manager().await?;
        let wish = json!({ IPAM: "pool", NETWORK: "default/a" });
        world.service("web", wish).await?;
        let told = world.told("web", "SyncLoadBalancerFailed").await?;
        ensure!(
            told.contains("default/a") && told.contains("default/b"),
            "{told}"
        );
        // What the host gave serves all the same.
        let address = world.settled("web").await?;
        quiet(world.access.api()).await?;
        quiet(&manager.api).await?;
        let object = world.balancer_of("web").await?;
        ensure!(recorded_address(&object) == address, "{object:?}");

        // Nobody who did not ask for a network is bothered.
        world.service("any", json!({ IPAM: "pool" })).await?;
        let address = world.addressed("any").await?;
        world.recorded("any", &address).await?;
        ensure!(
            !world.was_told("any", "SyncLoadBalancerFailed").await?,
            "an event"
        );
        world.delete("web").await?;
        world.delete("any").await
    });
}
