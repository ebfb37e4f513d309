//! Objects and Services that go: slowly, too fast, or with their whole cluster.

use std::time::Duration;

use anyhow::ensure;
use kube::{ResourceExt, api::DeleteParams};
use lab::{clock, harvester::Pace, poll_until};
use serde_json::json;

use super::stage::{SOON, play_with_host, quiet};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

#[test]
fn host_f19_a_service_deleted_before_the_host_is_done_ends_after_its_object() {
    play_with_host("race", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        let knobs = world.host.knobs();
        // Booking, then status, then finalizer, each so long after the other.
        knobs.between_writes(Duration::from_secs(3));
        world.service("web", json!({ IPAM: "pool" })).await?;
        let leaked = poll_until(SOON, "a booking", async || {
            Ok(pool.allocated().await?.into_iter().next())
        })
        .await?;
        world.delete("web").await?;
        let left = world.balancers_of("web").await?;
        ensure!(left.is_empty(), "the Service went before {left:?}");
        world.told("web", "DeletedLoadBalancer").await?;
        // The booking of an object without a finalizer stays: that is the host's.
        let booked = pool.allocated().await?;
        ensure!(booked.into_iter().eq([leaked.clone()]), "another leak");

        // A successor is another Service: it neither gets the leaked address nor leaks its own.
        knobs.between_writes(Duration::ZERO);
        world.service("web", json!({ IPAM: "pool" })).await?;
        let address = world.settled("web").await?;
        ensure!(address != leaked.0, "{address} is still booked");
        world.delete("web").await?;
        let booked = pool.allocated().await?;
        ensure!(booked.into_iter().eq([leaked]), "another leak");
        ensure!(world.host.load_balancers().await?.is_empty(), "an object");
        Ok(())
    });
}

#[test]
fn host_f20_a_deletion_that_is_stuck_keeps_the_finalizer_and_is_explained() {
    play_with_host("stuck", async |world| {
        let pool = world.pool().await?;
        let manager = world.manager().await?;
        for name in ["gone", "back"] {
            world.service(name, json!({ IPAM: "pool" })).await?;
            world.settled(name).await?;
        }
        let before = world.balancer_of("back").await?;
        world.host.knobs().finalizer_removal(Pace::Held);
        let since = world.access.api().counts();
        let services = world.guest.services();
        services.delete("gone", &DeleteParams::default()).await?;
        let cluster_ip = json!({ "spec": { "type": "ClusterIP" } });
        world.change("back", cluster_ip).await?;
        for name in ["gone", "back"] {
            poll_until(SOON, &format!("the end of {name} begun"), async || {
                let object = world.balancer_of(name).await?;
                Ok(object.metadata.deletion_timestamp.map(drop))
            })
            .await?;
        }
        // Who wants it back has to wait, too.
        let balancer = json!({ "spec": { "type": "LoadBalancer" } });
        world.change("back", balancer).await?;
        for name in ["gone", "back"] {
            let told = world.told(name, "SyncLoadBalancerFailed").await?;
            ensure!(told.contains("is being deleted"), "{told}");
        }
        quiet(&manager.api).await?;
        let asked = world.access.api().counts().since(&since);
        ensure!(asked.of("delete", "loadbalancers") == 2, "{asked}");
        ensure!(asked.of("create", "loadbalancers") <= 1, "{asked}");
        for name in ["gone", "back"] {
            world.balancer_of(name).await?;
            let service = world.get(name).await?;
            ensure!(service.finalizers() == [FINALIZER], "{service:?}");
        }
        ensure!(!world.was_told("gone", "DeletedLoadBalancer").await?, "?");

        world.host.knobs().finalizer_removal(Pace::AtOnce);
        poll_until(SOON, "the end of `gone`", async || {
            Ok(services.get_opt("gone").await?.is_none().then_some(()))
        })
        .await?;
        let after = poll_until(SOON, "a new object of `back`", async || {
            let now = world.balancer_of("back").await?;
            Ok((now.uid() != before.uid()).then_some(now))
        })
        .await?;
        ensure!(after.name_any() == before.name_any(), "{after:?}");
        world.host.allocated(&after.name_any()).await?;
        world.settled("back").await?;
        let booked = pool.allocated().await?;
        ensure!(booked.len() == 1, "{booked:?}");
        Ok(())
    });
}

#[test]
fn host_f21_a_cluster_that_is_being_removed_does_not_fight_for_its_objects() {
    play_with_host("removal", async |world| {
        let pool = world.pool().await?;
        let mut vms = Vec::new();
        for name in ["node-0", "node-1"] {
            let vm = world.host.vm(name).addresses(&["10.1.0.11"]);
            vms.push(vm.create().await?);
        }
        let _manager = world.manager().await?;
        for name in ["first", "second"] {
            world.service(name, json!({ IPAM: "pool" })).await?;
            world.settled(name).await?;
        }
        for vm in &vms {
            vm.mark_cluster_removal().await?;
        }
        let before = world.access.api().counts();
        vms[0].delete().await?;
        for name in ["first", "second"] {
            let told = world.told(name, "SyncLoadBalancerFailed").await?;
            ensure!(told.contains("is being removed"), "{told}");
        }
        clock::sleep(Duration::from_secs(3)).await;
        let tries = world.access.api().counts().since(&before);
        // Two Services, a second try of each after 5 s at the earliest.
        ensure!(tries.of("create", "loadbalancers") <= 4, "{tries}");
        ensure!(tries.of("delete", "loadbalancers") == 0, "{tries}");
        ensure!(world.host.load_balancers().await?.is_empty(), "an object");
        ensure!(pool.allocated().await?.is_empty(), "a booking");

        // Services can still be deleted, and new ones are refused like the old.
        world.delete("first").await?;
        world.service("third", json!({ IPAM: "pool" })).await?;
        let told = world.told("third", "SyncLoadBalancerFailed").await?;
        ensure!(told.contains("is being removed"), "{told}");
        world.delete("third").await?;
        world.delete("second").await
    });
}
