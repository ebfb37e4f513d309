//! Services that get their address from the host.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use lab::poll_until;
use serde_json::json;

use super::stage::{SOON, World, play_with_host};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
const PRIMARY: &str = "cloudprovider.harvesterhci.io/primary-service";
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const ADDRESS: &str = "kube-vip.io/loadbalancerIPs";

#[test]
fn a_pool_service_gets_an_address_and_gives_it_back() {
    play_with_host("pool", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        world.service("web", json!({ IPAM: "pool" })).await?;
        let address = world.settled("web").await?;
        ensure!(address.starts_with("10.1.0."), "the address is {address}");
        let object = &world.balancers_of("web").await?[0];
        ensure!(pool.allocated().await?.contains_key(&address), "no booking");
        ensure!(object.spec.ipam == "pool", "{object:?}");
        let service = world.get("web").await?;
        ensure!(service.finalizers() == [FINALIZER], "{service:?}");
        world.told("web", "EnsuredLoadBalancer").await?;

        world.delete("web").await?;
        world.no_balancer_of("web").await?;
        ensure!(
            pool.allocated().await?.is_empty(),
            "the address is still booked"
        );
        world.told("web", "DeletedLoadBalancer").await.map(drop)
    });
}

#[test]
fn a_dhcp_service_gets_the_address_that_the_host_says() {
    play_with_host("dhcp", async |world| {
        let _manager = world.manager().await?;
        world.service("web", json!({ IPAM: "dhcp" })).await?;
        let address = world.addressed("web").await?;
        ensure!(address == "0.0.0.0", "the address is {address}");
        world.companion.lease("default/web", "10.1.0.77");
        world.serves("web", "10.1.0.77").await?;
        poll_until(SOON, "the leased address on the host", async || {
            let objects = world.balancers_of("web").await?;
            let status = objects.first().and_then(|it| it.status.as_ref());
            let recorded = status.map(|it| it.address.as_str());
            Ok((recorded == Some("10.1.0.77")).then_some(()))
        })
        .await?;
        world.delete("web").await?;
        world.no_balancer_of("web").await
    });
}

#[test]
fn a_service_may_share_the_address_of_another() {
    play_with_host("share", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        world.service("first", json!({ IPAM: "pool" })).await?;
        let address = world.addressed("first").await?;
        world.serves("first", &address).await?;
        let sharing = json!({ PRIMARY: "default/first" });
        world.service_on("second", sharing.clone(), 81).await?;
        let shared = world.addressed("second").await?;
        ensure!(shared == address, "{shared} is not {address}");
        ensure!(
            world.balancers_of("second").await?.is_empty(),
            "an object of its own"
        );

        world.service_on("third", sharing, 80).await?;
        let told = world.told("third", "SyncLoadBalancerFailed").await?;
        ensure!(told.contains("80"), "{told}");
        ensure!(world.address("third").await?.is_none(), "the port is taken");
        world.delete("third").await?;
        world.delete("second").await?;
        world.delete("first").await?;
        world.no_balancer_of("first").await
    });
}

#[test]
fn a_service_that_becomes_a_cluster_ip_loses_object_and_finalizer() {
    play_with_host("type", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        world.service("web", json!({ IPAM: "pool" })).await?;
        world.addressed("web").await?;
        let services = world.guest.services();
        let cluster_ip = json!({ "spec": { "type": "ClusterIP" } });
        world.guest.patch(&services, "web", cluster_ip).await?;
        world.no_balancer_of("web").await?;
        poll_until(SOON, "no finalizer", async || {
            let service = world.get("web").await?;
            Ok(service.finalizers().is_empty().then_some(()))
        })
        .await?;
        let again = json!({ "spec": { "type": "LoadBalancer" } });
        world.guest.patch(&services, "web", again).await?;
        poll_until(SOON, "an object again", async || {
            let objects = world.balancers_of("web").await?;
            Ok((!objects.is_empty()).then_some(()))
        })
        .await
    });
}

#[test]
fn an_address_that_somebody_changes_by_hand_is_put_back() {
    play_with_host("restored", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        world.service("web", json!({ IPAM: "pool" })).await?;
        let address = world.addressed("web").await?;
        let wrong = json!({ "metadata": { "annotations": { ADDRESS: "10.1.0.1" } } });
        world
            .guest
            .patch(&world.guest.services(), "web", wrong)
            .await?;
        back(world, "web", &address).await?;
        let told = world.told("web", "LoadBalancerAddressRestored").await?;
        ensure!(told.contains("10.1.0.1"), "{told}");
        Ok(())
    });
}

#[test]
fn an_object_that_somebody_deletes_on_the_host_comes_back() {
    play_with_host("recreated", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        world.service("web", json!({ IPAM: "pool" })).await?;
        world.addressed("web").await?;
        let name = world.balancers_of("web").await?[0].name_any();
        let before = world.balancers_of("web").await?[0].uid();
        world.host.delete_load_balancer(&name).await?;
        poll_until(SOON, "another object", async || {
            let objects = world.balancers_of("web").await?;
            Ok(objects.first().filter(|it| it.uid() != before).map(drop))
        })
        .await?;
        world.host.allocated(&name).await?;
        world.addressed("web").await.map(drop)
    });
}

async fn back(world: &World, name: &str, address: &str) -> Result<()> {
    poll_until(SOON, &format!("{address} on {name} again"), async || {
        let now = world.address(name).await?;
        Ok((now.as_deref() == Some(address)).then_some(()))
    })
    .await
}
