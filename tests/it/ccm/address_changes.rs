//! Addresses that change: on the host, by a lease, by hand; and VIPs that are slow to follow.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;
use lab::poll_until;
use serde_json::json;

use super::stage::{SOON, World, allocated_address, play_with_host, quiet, recorded_address};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
const DHCP: &str = "0.0.0.0";

/// Makes another pool and sends the object of a Service to it; returns the new address.
async fn move_to_another_pool(world: &World, name: &str) -> Result<String> {
    let other = world.host.pool("other").by_name_only();
    let other = other.range("10.1.1.10", "10.1.1.20").create().await?;
    let object = world.balancer_of(name).await?.name_any();
    world.host.assign_pool(&object, &other).await?;
    poll_until(SOON, "an address of the other pool", async || {
        let object = world.balancer_of(name).await?;
        let address = allocated_address(&object);
        Ok(address.starts_with("10.1.1.").then(|| address.to_owned()))
    })
    .await
}

#[test]
fn host_f14_an_address_that_the_host_changes_reaches_the_service_and_nothing_in_between_does() {
    play_with_host("moved", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        world.service("web", json!({ IPAM: "pool" })).await?;
        let old = world.settled("web").await?;
        let followed = world.follow("web");

        // Long enough for the manager to see that there is no address for a while.
        let pause = Duration::from_millis(300);
        world.host.knobs().between_writes(pause);
        let new = move_to_another_pool(world, "web").await?;
        world.serves("web", &new).await?;
        world.recorded("web", &new).await?;

        let asked = followed.annotations();
        ensure!(asked == [Some(old), Some(new)], "asked for {asked:?}");
        for shown in followed.seen() {
            ensure!(shown.ingress.len() == 1, "{shown:?}");
        }
        ensure!(pool.allocated().await?.is_empty(), "the old one is booked");
        // Nobody had changed anything by hand.
        ensure!(
            !world.was_told("web", "LoadBalancerAddressRestored").await?,
            "a wrong event"
        );
        quiet(world.access.api()).await
    });
}

#[test]
fn host_f14_a_vip_that_stays_at_the_old_address_is_what_the_host_is_told_of() {
    play_with_host("stays", async |world| {
        world.pool().await?;
        let manager = world.manager().await?;
        world.service("web", json!({ IPAM: "pool" })).await?;
        let old = world.settled("web").await?;

        world.companion.keep_addresses(true);
        let new = move_to_another_pool(world, "web").await?;
        world.shows("web", &new).await?;
        quiet(world.access.api()).await?;
        quiet(&manager.api).await?;
        ensure!(world.ingress("web").await? == [old.clone()], "it moved");
        let object = world.balancer_of("web").await?;
        ensure!(recorded_address(&object) == old, "{object:?}");

        world.companion.keep_addresses(false);
        world.serves("web", &new).await?;
        world.recorded("web", &new).await
    });
}

#[test]
fn host_f15_a_lease_that_changes_is_followed_on_the_host() {
    play_with_host("lease", async |world| {
        let _manager = world.manager().await?;
        world.companion.lease("default/web", "10.1.0.77");
        world.service("web", json!({ IPAM: "dhcp" })).await?;
        let followed = world.follow("web");
        world.serves("web", "10.1.0.77").await?;
        world.recorded("web", "10.1.0.77").await?;

        world.companion.lease("default/web", "10.1.0.78");
        world.serves("web", "10.1.0.78").await?;
        world.recorded("web", "10.1.0.78").await?;

        // What the host says stays what is asked for, and what is no address is never shown as one.
        ensure!(world.address("web").await?.as_deref() == Some(DHCP), "?");
        for shown in followed.seen() {
            ensure!(!shown.ingress.iter().any(|it| it == DHCP), "{shown:?}");
        }
        ensure!(
            world.get("web").await?.annotations()["kube-vip.io/requestedIP"] == "10.1.0.78",
            "the annotations of the lease are the companion's"
        );
        quiet(world.access.api()).await
    });
}

#[test]
fn host_f15_without_a_vip_nothing_is_recorded_and_a_slow_one_is_waited_for() {
    play_with_host("no-vip", async |world| {
        world.pool().await?;
        let manager = world.manager().await?;
        world.companion.stop();
        for (name, ipam) in [("leased", "dhcp"), ("pooled", "pool")] {
            world.service(name, json!({ IPAM: ipam })).await?;
        }
        let pooled = world.addressed("pooled").await?;
        world.shows("leased", DHCP).await?;
        quiet(world.access.api()).await?;
        quiet(&manager.api).await?;
        for name in ["leased", "pooled"] {
            ensure!(world.ingress(name).await?.is_empty(), "{name} is served");
            let object = world.balancer_of(name).await?;
            ensure!(recorded_address(&object).is_empty(), "{object:?}");
        }

        world.companion.lease("default/leased", "10.1.0.77");
        world.companion.delay(Duration::from_millis(700));
        world.companion.resume();
        for (name, address) in [("leased", "10.1.0.77"), ("pooled", &pooled)] {
            world.serves(name, address).await?;
            world.recorded(name, address).await?;
        }
        Ok(())
    });
}

#[test]
fn host_f15_a_vip_that_outlives_the_type_of_its_service_does_not_hold_up_the_end() {
    play_with_host("outlives", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        world.service("web", json!({ IPAM: "pool" })).await?;
        world.settled("web").await?;

        world.companion.keep_types(true);
        let cluster_ip = json!({ "spec": { "type": "ClusterIP" } });
        world.change("web", cluster_ip).await?;
        world.no_balancer_of("web").await?;
        poll_until(SOON, "neither finalizer nor status", async || {
            let service = world.get("web").await?;
            let bare = service.finalizers().is_empty() && world.ingress("web").await?.is_empty();
            Ok(bare.then_some(()))
        })
        .await?;
        ensure!(pool.allocated().await?.is_empty(), "still booked");
        // The address is anybody's now, so it must not come back with the type.
        ensure!(world.address("web").await?.is_none(), "the old address");
        world.service("taker", json!({ IPAM: "pool" })).await?;
        let taken = world.settled("taker").await?;
        let followed = world.follow("web");
        let balancer = json!({ "spec": { "type": "LoadBalancer" } });
        world.change("web", balancer).await?;
        let address = world.settled("web").await?;
        ensure!(address != taken, "{address} twice");
        let asked: Vec<_> = followed.annotations().into_iter().flatten().collect();
        ensure!(asked == [address], "asked for {asked:?}");
        world.delete("web").await
    });
}

#[test]
fn host_f16_a_status_that_somebody_erases_comes_back_with_the_same_address() {
    play_with_host("erased", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        world.companion.lease("default/leased", "10.1.0.77");
        world.service("pooled", json!({ IPAM: "pool" })).await?;
        world.service("leased", json!({ IPAM: "dhcp" })).await?;
        let pooled = world.addressed("pooled").await?;
        for (name, address) in [("pooled", pooled.as_str()), ("leased", "10.1.0.77")] {
            world.serves(name, address).await?;
            world.recorded(name, address).await?;
        }
        let pause = Duration::from_millis(200);
        world.host.knobs().between_writes(pause);
        for (name, address, allocated) in [
            ("pooled", pooled.as_str(), pooled.as_str()),
            ("leased", "10.1.0.77", DHCP),
        ] {
            let followed = world.follow(name);
            let before = world.balancer_of(name).await?;
            world.host.erase_status(&before.name_any()).await?;
            world.recorded(name, address).await?;
            poll_until(SOON, "the same address", async || {
                let now = world.balancer_of(name).await?;
                Ok(
                    (allocated_address(&now) == allocated && now.uid() == before.uid())
                        .then_some(()),
                )
            })
            .await?;
            quiet(world.access.api()).await?;
            for shown in followed.seen() {
                ensure!(shown.annotation.as_deref() == Some(allocated), "{shown:?}");
                ensure!(shown.ingress == [address], "{shown:?}");
            }
        }
        ensure!(pool.allocated().await?.len() == 1, "more is booked");
        Ok(())
    });
}
