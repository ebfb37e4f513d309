//! Guest clusters side by side in one namespace of their host.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt, api::DeleteParams};
use lab::{
    Guest,
    harvester::{Interface, LoadBalancer},
    poll_until,
};
use serde_json::json;

use super::stage::{SOON, World, allocated_address, play_with_host, stop};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
const CLUSTER: &str = "cloudprovider.harvesterhci.io/cluster";
const NETWORK: &str = "loadbalancer.harvesterhci.io/network";
const ADDRESS: &str = "kube-vip.io/loadbalancerIPs";

/// The objects of a cluster.
async fn objects_of(world: &World, cluster: &str) -> Result<Vec<LoadBalancer>> {
    let mut all = world.host.load_balancers().await?;
    all.retain(|it| it.labels().get(CLUSTER).is_some_and(|it| it == cluster));
    Ok(all)
}

async fn served(guest: &Guest, name: &str) -> Result<Service> {
    poll_until(SOON, "an address", async || {
        let service = guest.services().get(name).await?;
        let is_served = service.annotations().contains_key(ADDRESS);
        Ok(is_served.then_some(service))
    })
    .await
}

#[test]
fn host_f24_two_clusters_of_one_namespace_do_not_touch_each_others_objects() {
    play_with_host("two", async |world| {
        // Names that begin alike, each on a network of its own.
        for (cluster, network, first, last) in [
            ("gc", "default/a", "10.1.0.192", "10.1.0.250"),
            ("gc-2", "default/b", "10.1.1.192", "10.1.1.250"),
        ] {
            let link = Interface::on(network).addresses(&["10.1.0.10"]);
            let vm = world.host.vm(&format!("{cluster}-0"));
            vm.cluster(cluster).interfaces(&[link]).create().await?;
            let pool = world.host.pool(cluster).network(network);
            pool.range(first, last).create().await?;
        }
        let manager = world.manager().await?;
        let neighbour = world.neighbour("gc-2").await?;
        for guest in [&world.guest, &neighbour.guest] {
            for name in ["web", "other"] {
                let service = json!({
                    "metadata": { "name": name, "annotations": { IPAM: "pool" } },
                    "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
                });
                guest.create(&guest.services(), service).await?;
                served(guest, name).await?;
            }
        }
        for (cluster, network, start) in [
            ("gc", "default/a", "10.1.0."),
            ("gc-2", "default/b", "10.1.1."),
        ] {
            let objects = objects_of(world, cluster).await?;
            ensure!(objects.len() == 2, "{objects:?}");
            for object in objects {
                ensure!(object.annotations()[NETWORK] == network, "{object:?}");
                ensure!(allocated_address(&object).starts_with(start), "{object:?}");
            }
        }
        let others = objects_of(world, "gc-2").await?;

        // One Service goes as it should, the other while nobody looks: its object is an orphan.
        world.delete("web").await?;
        stop(&manager, SOON).await?;
        let bare = json!({ "metadata": { "finalizers": null } });
        world.change("other", bare).await?;
        let services: Api<Service> = world.guest.services();
        services.delete("other", &DeleteParams::default()).await?;
        ensure!(objects_of(world, "gc").await?.len() == 1, "no orphan");
        let before = neighbour.access.api().counts();
        let _again = world.manager().await?;
        // 10 s of grace, and what the start takes.
        poll_until(Duration::from_secs(60), "the orphan gone", async || {
            Ok(objects_of(world, "gc").await?.is_empty().then_some(()))
        })
        .await?;

        let now = objects_of(world, "gc-2").await?;
        let identity = |all: &[LoadBalancer]| -> Vec<_> {
            let it = all.iter();
            it.map(|it| (it.uid(), allocated_address(it).to_owned()))
                .collect()
        };
        ensure!(identity(&now) == identity(&others), "{now:?}");
        let since = neighbour.access.api().counts().since(&before);
        ensure!(since.of("create", "loadbalancers") == 0, "{since}");
        ensure!(since.of("delete", "loadbalancers") == 0, "{since}");
        neighbour.stop().await
    });
}
