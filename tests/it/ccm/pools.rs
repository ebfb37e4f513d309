//! Pools that an administrator changes while they are in use.

use anyhow::ensure;
use kube::ResourceExt;
use lab::harvester::Range;
use serde_json::json;

use super::stage::{allocated_address, play_with_host, quiet};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";

#[test]
fn host_f26_what_becomes_of_a_pool_changes_nothing_for_services_that_have_an_address() {
    play_with_host("pools", async |world| {
        let pool = world.pool().await?;
        let manager = world.manager().await?;
        world.service("old", json!({ IPAM: "pool" })).await?;
        let address = world.settled("old").await?;
        let before = world.balancer_of("old").await?;

        // The host refuses both while an address is booked.
        ensure!(pool.delete().await.is_err(), "the pool is deleted");
        let range = |first: &str, last: &str| Range {
            subnet: "10.1.0.0/24".to_owned(),
            range_start: first.to_owned(),
            range_end: last.to_owned(),
            gateway: String::new(),
        };
        let without = [range("10.1.0.230", "10.1.0.250")];
        ensure!(pool.set_ranges(&without).await.is_err(), "it is shrunk");

        // Shrunk to what is booked, for nobody any more, and with another one in its place.
        pool.set_ranges(&[range(&address, &address)]).await?;
        let nobody = json!({ "spec": { "selector": { "scope": [] } } });
        pool.patch(&nobody).await?;
        let other = world.host.pool("other");
        let other = other.range("10.1.1.10", "10.1.1.20").create().await?;
        quiet(world.access.api()).await?;
        quiet(&manager.api).await?;
        let after = world.balancer_of("old").await?;
        ensure!(
            after.resource_version() == before.resource_version(),
            "{after:?}"
        );
        world.serves("old", &address).await?;

        world.service("new", json!({ IPAM: "pool" })).await?;
        let new = world.addressed("new").await?;
        ensure!(new.starts_with("10.1.1."), "{new} is of the old pool");
        ensure!(
            allocated_address(&world.balancer_of("old").await?) == address,
            "moved"
        );
        world.delete("old").await?;
        ensure!(pool.allocated().await?.is_empty(), "still booked");
        pool.delete().await?;
        world.serves("new", &new).await?;
        ensure!(other.allocated().await?.len() == 1, "another booking");
        Ok(())
    });
}
