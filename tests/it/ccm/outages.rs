//! Hosts that are out of reach, or want other credentials.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use kube::{ResourceExt, api::DeleteParams};
use lab::{Counts, Failure, Manager, clock, harvester::Pace, poll_until};

use super::{
    observed::{creations, deletions, empty, writes},
    stage::{SOON, World, play_with_host},
};

/// Long enough for a client that loops to show.
const WATCHED: Duration = Duration::from_secs(4);
/// More than a call or a watch may be silent.
const LONG: Duration = Duration::from_secs(15);

#[test]
fn host_f10_an_outage_at_creation_is_waited_for() {
    play_with_host("down-create", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        let address = world.served("old").await?;
        let down = Failure::status(StatusCode::SERVICE_UNAVAILABLE);
        world.access.api().fail(down);
        world.pooled("new").await?;
        world
            .warned("new", "failed to ensure load balancer")
            .await?;
        ensure!(world.balancers_of("new").await?.is_empty(), "an object");
        world.access.api().heal();
        let new = world.addressed("new").await?;
        world.serves("new", &new).await?;
        world.object("new").await?;
        world.serves("old", &address).await
    });
}

#[test]
fn host_f10_an_outage_at_an_update_leaves_the_vip_and_the_update_comes_later() {
    play_with_host("down-update", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        world.leased("web", "10.1.0.77").await?;
        let object = world.object("web").await?;
        world.access.api().refuse();
        let address = "10.1.0.78";
        world.lease_anew("web", address).await?;
        world
            .warned("web", "failed to ensure load balancer")
            .await?;
        world.keeps("web", address, Duration::from_secs(1)).await?;
        world.access.api().heal();
        world.recorded("web", address).await?;
        world.still_has("web", &object).await?;
        world.serves("web", address).await
    });
}

#[test]
fn host_f10_a_deletion_in_an_outage_waits_and_is_completed() {
    play_with_host("down-delete", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        world.served("web").await?;
        world.access.api().refuse();
        delete(world, "web").await?;
        world
            .warned("web", "failed to delete load balancer")
            .await?;
        let service = world.get("web").await?;
        ensure!(
            !service.finalizers().is_empty(),
            "it was let go: {service:?}"
        );
        world.access.api().heal();
        gone(world, "web").await?;
        world.no_balancer_of("web").await?;
        empty(&pool).await
    });
}

#[test]
fn host_f10_an_outage_changes_nothing_about_what_is_settled() {
    play_with_host("down-steady", async |world| {
        world.pool().await?;
        let manager = world.manager().await?;
        let address = world.served("old").await?;
        world.recorded("old", &address).await?;
        let object = world.object("old").await?;
        let before = (manager.api.counts(), world.access.api().counts());
        world.access.api().refuse();
        world.keeps("old", &address, WATCHED).await?;
        world.access.api().heal();
        // The watch is back: what happens on the host is seen.
        world.served("new").await?;
        world.still_has("old", &object).await?;
        ensure_untouched(world, &manager, &before, 1)
    });
}

/// Finalizers are written together with the status.
fn patches_of_status(counts: &Counts) -> u64 {
    counts.of("patch", "services/status")
}

/// In both clusters the Services and objects were written for these new Services alone.
fn ensure_untouched(
    world: &World,
    manager: &Manager,
    before: &(Counts, Counts),
    news: u64,
) -> Result<()> {
    let guest = manager.api.counts().since(&before.0);
    let (finalizers, addresses) = (patches_of_status(&guest), guest.of("patch", "services"));
    ensure!(
        finalizers <= news && addresses <= news,
        "Services were written:\n{guest}"
    );
    let host = world.access.api().counts().since(&before.1);
    ensure!(creations(&host) == news, "objects were made:\n{host}");
    ensure!(deletions(&host) == 0, "objects were deleted:\n{host}");
    Ok(())
}

#[test]
fn host_f10_a_sync_that_is_cut_in_the_middle_for_15_s_is_completed() {
    play_with_host("down-sync", async |world| {
        world.pool().await?;
        let manager = world.manager().await?;
        let address = world.served("old").await?;
        world.recorded("old", &address).await?;
        let before = (manager.api.counts(), world.access.api().counts());
        // The call that follows the finalizer is on its way when nothing passes any more.
        let (guest, host) = (&manager.api, world.access.api());
        host.latency(Duration::from_millis(500));
        world.pooled("new").await?;
        poll_until(SOON, "finalizer", async || {
            let patched = patches_of_status(&guest.counts().since(&before.0));
            Ok((patched > 0).then_some(()))
        })
        .await?;
        host.blackhole();
        world.keeps("old", &address, LONG).await?;
        ensure!(world.balancers_of("new").await?.is_empty(), "not cut");
        host.heal();
        let new = world.addressed("new").await?;
        world.serves("new", &new).await?;
        world.object("new").await?;
        let asked = world.access.api().counts().since(&before.1);
        ensure!(deletions(&asked) == 0, "objects were deleted:\n{asked}");
        world.serves("old", &address).await
    });
}

#[test]
fn host_f10_a_deletion_that_is_cut_in_the_middle_is_completed() {
    play_with_host("down-deleting", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        let address = world.served("old").await?;
        world.served("web").await?;
        world.host.knobs().finalizer_removal(Pace::Held);
        delete(world, "web").await?;
        poll_until(SOON, "object that is being deleted", async || {
            let object = world.object("web").await?;
            Ok(object.metadata.deletion_timestamp.map(drop))
        })
        .await?;
        world.access.api().blackhole();
        // Nobody in the guest sees the end of the object.
        world.host.knobs().finalizer_removal(Pace::AtOnce);
        world.no_balancer_of("web").await?;
        world.keeps("old", &address, WATCHED).await?;
        let service = world.get("web").await?;
        ensure!(
            !service.finalizers().is_empty(),
            "it was let go: {service:?}"
        );
        world.access.api().heal();
        gone(world, "web").await?;
        let left = pool.allocated().await?;
        ensure!(left.len() == 1 && left.contains_key(&address), "{left:?}");
        Ok(())
    });
}

#[test]
fn host_f11_a_withdrawn_token_is_told_and_a_new_one_is_used() {
    play_with_host("unauthorised", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        let address = world.served("old").await?;
        world.host.revoke_token().await?;
        let refused = |world: &World| world.access.api().counts().answered(401);
        // Open watches outlive a token; the API server forgets it within 10 s.
        poll_until(SOON, "refusal", async || {
            world.access.api().cut_watches();
            clock::sleep(Duration::from_millis(200)).await;
            Ok((refused(world) > 0).then_some(()))
        })
        .await?;
        world.pooled("new").await?;
        world.warned("new", "Unauthorized").await?;
        calm(world).await?;
        world.serves("old", &address).await?;
        world.host.rotate_token().await?;
        let new = world.addressed("new").await?;
        world.serves("new", &new).await
    });
}

#[test]
fn host_f11_missing_rights_are_told_and_used_when_they_are_there() {
    play_with_host("forbidden", async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        let address = world.served("old").await?;
        let forbidden = Failure::status(StatusCode::FORBIDDEN);
        let api = world.access.api();
        api.fail(forbidden.resource("loadbalancers"));
        api.cut_watches();
        world.pooled("new").await?;
        world.warned("new", "the lab says so").await?;
        calm(world).await?;
        world.serves("old", &address).await?;
        api.heal();
        let new = world.addressed("new").await?;
        world.serves("new", &new).await
    });
}

/// The manager asks with pauses: the Service after 5 s and more, each of its watches (of load balancers,
/// VMs and their instances) after 1 s and more.
async fn calm(world: &World) -> Result<()> {
    let asked = world.asked_of_host(WATCHED).await;
    ensure!(writes(&asked) <= 1, "a hot loop of writes:\n{asked}");
    ensure!(asked.total() <= 30, "a hot loop:\n{asked}");
    Ok(())
}

/// Asks for the end of a Service.
async fn delete(world: &World, name: &str) -> Result<()> {
    let services = world.guest.services();
    services.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until a Service is gone.
async fn gone(world: &World, name: &str) -> Result<()> {
    let services = world.guest.services();
    poll_until(SOON, &format!("Service {name} gone"), async || {
        Ok(services.get_opt(name).await?.is_none().then_some(()))
    })
    .await
}
