//! Watches that end, and events that nobody saw.

use anyhow::{Result, ensure};
use http::StatusCode;
use kube::{ResourceExt, api::DeleteParams};
use lab::{ApiProxy, Failure, poll_until};
use serde_json::json;

use super::stage::{SOON, allocated_address, play_with_host, quiet};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";

/// Ends all watches, and lets none begin.
fn blind(way: &ApiProxy) {
    for verb in ["watch", "list"] {
        way.fail(Failure::status(StatusCode::SERVICE_UNAVAILABLE).verb(verb));
    }
    way.cut_watches();
}

/// Lets the client see again, after it heard that its position is too old.
async fn sighted(way: &ApiProxy) -> Result<()> {
    way.heal();
    way.fail(Failure::status(StatusCode::GONE).verb("watch").times(4));
    let before = way.counts();
    poll_until(SOON, "410 and a list", async || {
        let since = way.counts().since(&before);
        let lists = since.matching(|it| it.verb == "list" && it.code == Some(200));
        Ok((since.answered(410) > 0 && lists > 0).then_some(()))
    })
    .await
}

#[test]
fn host_f25_events_of_the_host_that_were_missed_are_made_up_for() {
    play_with_host("blind-host", async |world| {
        world.pool().await?;
        let other = world.host.pool("other").by_name_only();
        let other = other.range("10.1.1.10", "10.1.1.20").create().await?;
        let _manager = world.manager().await?;
        for name in ["moved", "deleted", "same"] {
            world.service(name, json!({ IPAM: "pool" })).await?;
            world.settled(name).await?;
        }
        let deleted = world.balancer_of("deleted").await?;
        let same = world.balancer_of("same").await?;

        let way = world.access.api();
        let watches = way.counts();
        blind(way);
        let moved = world.balancer_of("moved").await?.name_any();
        world.host.assign_pool(&moved, &other).await?;
        let address = poll_until(SOON, "another address", async || {
            let object = world.balancer_of("moved").await?;
            let address = allocated_address(&object);
            Ok(address.starts_with("10.1.1.").then(|| address.to_owned()))
        })
        .await?;
        world.host.delete_load_balancer(&deleted.name_any()).await?;
        world.no_balancer_of("deleted").await?;
        poll_until(SOON, "the loss of the watch", async || {
            let since = way.counts().since(&watches);
            Ok((since.answered(503) > 0).then_some(()))
        })
        .await?;
        sighted(way).await?;

        world.shows("moved", &address).await?;
        world.recorded("moved", &address).await?;
        let again = poll_until(SOON, "the object again", async || {
            Ok(world.balancers_of("deleted").await?.pop())
        })
        .await?;
        ensure!(again.name_any() == deleted.name_any(), "{again:?}");
        world.settled("deleted").await?;
        quiet(way).await?;
        let now = world.balancer_of("same").await?;
        ensure!(now.resource_version() == same.resource_version(), "{now:?}");
        Ok(())
    });
}

#[test]
fn host_f25_events_of_the_guest_that_were_missed_are_made_up_for() {
    play_with_host("blind-guest", async |world| {
        let pool = world.pool().await?;
        let manager = world.manager().await?;
        for name in ["deleted", "typed", "same"] {
            world.service(name, json!({ IPAM: "pool" })).await?;
            world.settled(name).await?;
        }
        let same = world.balancer_of("same").await?;
        let before = manager.api.counts();
        blind(&manager.api);
        let services = world.guest.services();
        services.delete("deleted", &DeleteParams::default()).await?;
        let cluster_ip = json!({ "spec": { "type": "ClusterIP" } });
        world.change("typed", cluster_ip).await?;
        world.service("new", json!({ IPAM: "pool" })).await?;
        poll_until(SOON, "the loss of the watches", async || {
            let since = manager.api.counts().since(&before);
            Ok((since.answered(503) > 0).then_some(()))
        })
        .await?;
        sighted(&manager.api).await?;

        for name in ["deleted", "typed"] {
            world.no_balancer_of(name).await?;
        }
        poll_until(SOON, "the end of `deleted`", async || {
            Ok(services.get_opt("deleted").await?.is_none().then_some(()))
        })
        .await?;
        world.settled("new").await?;
        quiet(world.access.api()).await?;
        let now = world.balancer_of("same").await?;
        ensure!(now.resource_version() == same.resource_version(), "{now:?}");
        let booked = pool.allocated().await?;
        ensure!(booked.len() == 2, "{booked:?}");
        Ok(())
    });
}
