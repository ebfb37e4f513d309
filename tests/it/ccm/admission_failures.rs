//! Hosts whose webhooks refuse, are down, hang, or do not fill in what they usually do.

use std::time::Duration;

use anyhow::ensure;
use lab::{
    HarvesterHost, clock,
    harvester::{Profile, Webhook},
};
use serde_json::json;

use super::{
    observed::{IPAM, creations, deletions, empty, writes},
    stage::{play_on, play_with_host},
};

/// Long enough for a client that loops to show; shorter than the first pause after a failure.
const WATCHED: Duration = Duration::from_secs(3);

#[test]
fn host_f4_a_refused_creation_is_told_and_services_can_still_be_deleted() {
    play_with_host("refused", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        let address = world.served("old").await?;
        let text = "guest cluster gc is being removed";
        let denied = Webhook::Denies(text.to_owned());
        world.host.knobs().validator(denied);
        world.pooled("new").await?;
        world.warned("new", text).await?;
        let asked = world.asked_of_host(WATCHED).await;
        ensure!(creations(&asked) <= 1, "a hot loop:\n{asked}");
        ensure!(world.balancers_of("new").await?.is_empty(), "an object");
        ensure!(world.address("new").await?.is_none(), "an address");
        world.serves("old", &address).await?;

        world.delete("new").await?;
        world.delete("old").await?;
        world.no_balancer_of("old").await?;
        empty(&pool).await
    });
}

#[test]
fn host_f4_a_host_that_misses_a_running_vm_serves_when_there_is_one() {
    let host = HarvesterHost::builder().profile(Profile::V1_8_0);
    play_on("no-vm", host, &[], async |world| {
        let pool = world.host.pool("pool").network("");
        pool.range("10.1.0.192", "10.1.0.250").create().await?;
        let _manager = world.manager().await?;
        world.pooled("web").await?;
        world.warned("web", "it has no running vm").await?;
        ensure!(world.balancers_of("web").await?.is_empty(), "an object");
        let vm = world.host.vm("gc-vm").interfaces(&[]);
        vm.create().await?;
        let address = world.addressed("web").await?;
        world.serves("web", &address).await
    });
}

#[test]
fn host_f5_a_refused_update_is_told_and_leaves_the_vip_alone() {
    play_with_host("refused-update", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        let address = world.served("ipam").await?;
        let object = world.object("ipam").await?;
        let wished = json!({ "metadata": { "annotations": { IPAM: "dhcp" } } });
        let services = world.guest.services();
        world.guest.patch(&services, "ipam", wished).await?;
        world.warned("ipam", "pool to dhcp").await?;

        world.leased("lease", "10.1.0.77").await?;
        let text = "this address is not to my taste";
        let denied = Webhook::Denies(text.to_owned());
        world.host.knobs().validator(denied);
        let other = "10.1.0.78";
        world.lease_anew("lease", other).await?;
        world.warned("lease", text).await?;
        let before = world.access.api().counts();
        world.keeps("ipam", &address, WATCHED / 2).await?;
        world.keeps("lease", other, WATCHED / 2).await?;
        let asked = world.access.api().counts().since(&before);
        ensure!(writes(&asked) <= 1, "a hot loop:\n{asked}");
        ensure!(deletions(&asked) == 0, "{asked}");
        world.still_has("ipam", &object).await?;

        world.host.knobs().validator(Webhook::Works);
        world.recorded("lease", other).await
    });
}

#[test]
fn host_f6_a_webhook_that_is_down_is_waited_for() {
    play_with_host("webhook-down", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        world.leased("old", "10.1.0.77").await?;
        world.host.knobs().validator(Webhook::Fails);
        world.pooled("new").await?;
        let address = "10.1.0.78";
        world.lease_anew("old", address).await?;
        world.warned("new", "failed calling webhook").await?;
        world.warned("old", "failed calling webhook").await?;
        let before = world.access.api().counts();
        world.keeps("old", address, WATCHED).await?;
        let asked = world.access.api().counts().since(&before);
        ensure!(writes(&asked) <= 2, "a hot loop:\n{asked}");
        ensure!(deletions(&asked) == 0, "{asked}");

        world.host.knobs().validator(Webhook::Works);
        world.addressed("new").await?;
        world.recorded("old", address).await
    });
}

#[test]
fn host_f6_a_webhook_that_hangs_costs_bounded_time() {
    play_with_host("webhook-hangs", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        let address = world.served("old").await?;
        world.host.knobs().validator(Webhook::Hangs(HANGS));
        let begun = clock::now();
        world.pooled("new").await?;
        world.warned("new", "failed calling webhook").await?;
        let time = begun.elapsed();
        ensure!(time < HANGS / 2, "a call took {time:?}");
        world.host.knobs().validator(Webhook::Works);
        world.addressed("new").await?;
        world.serves("old", &address).await?;
        let counts = world.access.api().counts();
        ensure!(deletions(&counts) == 0, "{counts}");
        Ok(())
    });
}

/// Longer than any call may take.
const HANGS: Duration = Duration::from_secs(60);

#[test]
fn host_f7_without_the_mutating_webhook_an_explicit_network_is_enough() {
    play_with_host("unmutated", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        world.host.knobs().mutator(Webhook::Fails);
        let network = "cloudprovider.harvesterhci.io/network";
        let explicit = json!({ IPAM: "pool", network: "default/nodes" });
        world.service("explicit", explicit).await?;
        world.addressed("explicit").await?;

        world.pooled("implicit").await?;
        world.warned("implicit", "no matched IPPool").await?;
        let object = world.object("implicit").await?;
        let asked = world.asked_of_host(WATCHED).await;
        ensure!(writes(&asked) <= 1, "a hot loop:\n{asked}");
        // Nobody else writes to the object.
        world.host.knobs().mutator(Webhook::Works);
        world.addressed("implicit").await?;
        world.still_has("implicit", &object).await
    });
}
