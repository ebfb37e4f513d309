//! Hosts that have no address, have another than expected, or take their time.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;
use lab::{
    clock,
    harvester::{Pace, Scope},
};

use super::{
    observed::{creations, deletions, writes},
    stage::{World, play_with_host},
};

/// For what takes the host a second, or what its longest pause is scaled to.
const HEALED: Duration = Duration::from_secs(10);
/// Long enough for a client that loops to show.
const WATCHED: Duration = Duration::from_secs(3);

#[test]
fn host_f1_a_service_waits_for_an_exhausted_pool_and_gets_what_another_gives_back() {
    play_with_host("exhausted", async |world| {
        // The host's longest pause of 2 min becomes 2.4 s.
        world.host.knobs().time_scale(0.02);
        vm(world).await?;
        let pool = world.host.pool("two");
        pool.range("10.1.0.192", "10.1.0.193").create().await?;
        let _manager = world.manager().await?;
        let first = world.served("first").await?;
        let second = world.served("second").await?;
        world.pooled("third").await?;
        let object = world.object("third").await?;
        world.warned("third", "no IP addresses available").await?;
        ensure!(world.address("third").await?.is_none(), "an address");

        let asked = world.asked_of_host(WATCHED).await;
        ensure!(writes(&asked) == 0, "writes while it waits:\n{asked}");
        world.still_has("third", &object).await?;

        world.delete("first").await?;
        let freed = clock::now();
        let third = world.addressed("third").await?;
        let time = freed.elapsed();
        ensure!(time < HEALED, "healed after {time:?}");
        ensure!(third == first, "{third} instead of {first}");
        world.serves("third", &third).await?;
        world.still_has("third", &object).await?;
        world.serves("second", &second).await
    });
}

#[test]
fn host_f2_a_service_that_no_pool_is_for_is_served_when_one_is_added() {
    play_with_host("unmatched", async |world| {
        vm(world).await?;
        let elsewhere = world.host.pool("network").network("default/other");
        elsewhere.range("10.1.0.10", "10.1.0.20").create().await?;
        let others = Scope::new("*", world.host.namespace(), "other");
        let others = world.host.pool("cluster").scopes(&[others]);
        others.range("10.1.0.30", "10.1.0.40").create().await?;
        let _manager = world.manager().await?;
        world.pooled("web").await?;
        let object = world.object("web").await?;
        let told = world.warned("web", "no matched IPPool").await?;
        ensure!(told.contains("default/nodes"), "{told}");
        let asked = world.asked_of_host(WATCHED).await;
        ensure!(writes(&asked) == 0, "writes while it waits:\n{asked}");

        let pool = world.host.pool("right");
        pool.range("10.1.0.192", "10.1.0.250").create().await?;
        let added = clock::now();
        let address = world.addressed("web").await?;
        let time = added.elapsed();
        ensure!(time < HEALED, "healed after {time:?}");
        ensure!(address == "10.1.0.192", "{address} is of another pool");
        world.still_has("web", &object).await
    });
}

#[test]
fn host_f3_an_address_of_a_global_pool_on_another_network_is_taken() {
    play_with_host("global", async |world| {
        vm(world).await?;
        let pool = world.host.pool("global").network("default/other").global();
        let pool = pool.range("10.9.0.192", "10.9.0.250").create().await?;
        let _manager = world.manager().await?;
        let address = world.served("web").await?;
        ensure!(pool.allocated().await?.contains_key(&address), "{address}");
        let object = world.object("web").await?;
        let network = "loadbalancer.harvesterhci.io/network";
        let network = object.annotations().get(network);
        ensure!(
            network.is_some_and(|it| it == "default/nodes"),
            "the network is {network:?}"
        );
        let failures = world.times_told("web", "SyncLoadBalancerFailed").await?;
        ensure!(failures == 0, "{failures} failures were told");
        world.recorded("web", &address).await?;
        let asked = world.asked_of_host(Duration::from_secs(1)).await;
        ensure!(writes(&asked) == 0, "writes of a settled one:\n{asked}");
        Ok(())
    });
}

#[test]
fn host_f8_a_slow_allocation_holds_nobody_up() {
    play_with_host("slow", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        world.host.knobs().allocation(Pace::After(BRIEFLY));
        world.leased("old", "10.1.0.77").await?;
        world.served("leaving").await?;
        let before = world.access.api().counts();

        world.host.knobs().allocation(Pace::After(SLOW));
        let begun = clock::now();
        world.pooled("slow").await?;
        let slow = world.object("slow").await?;
        world.pooled("also-slow").await?;
        let also = world.object("also-slow").await?;
        world.lease_anew("old", "10.1.0.78").await?;
        world.recorded("old", "10.1.0.78").await?;
        world.delete("leaving").await?;
        let time = begun.elapsed();
        ensure!(time < SLOW, "others were held up for {time:?}");
        ensure!(world.address("slow").await?.is_none(), "too early");

        for (name, object) in [("slow", &slow), ("also-slow", &also)] {
            let address = world.addressed(name).await?;
            world.serves(name, &address).await?;
            world.still_has(name, object).await?;
        }
        let asked = world.access.api().counts().since(&before);
        ensure!(creations(&asked) == 2, "objects made again:\n{asked}");
        ensure!(deletions(&asked) == 1, "objects deleted:\n{asked}");
        Ok(())
    });
}

const BRIEFLY: Duration = Duration::from_millis(100);
const SLOW: Duration = Duration::from_secs(5);

#[test]
fn host_f9_a_service_waits_for_a_host_without_controllers() {
    play_with_host("idle-host", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        world.host.knobs().stop_controllers();
        world.pooled("web").await?;
        let object = world.object("web").await?;
        let told = world.warned("web", "has not processed").await?;
        ensure!(told.contains(&object.name_any()), "{told}");
        world.still_has("web", &object).await?;

        world.host.knobs().start_controllers();
        let address = world.addressed("web").await?;
        world.serves("web", &address).await?;
        world.still_has("web", &object).await?;
        let counts = world.access.api().counts();
        ensure!(creations(&counts) == 1, "objects made again:\n{counts}");
        ensure!(deletions(&counts) == 0, "objects deleted:\n{counts}");
        Ok(())
    });
}

/// A VM by whose network the host knows that of the guest.
async fn vm(world: &World) -> Result<()> {
    let vm = world.host.vm("vm").addresses(&["10.1.0.10"]);
    vm.create().await.map(drop)
}
