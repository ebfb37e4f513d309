//! Objects that somebody deletes on the host.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use kube::{Api, ResourceExt, api::PostParams};
use lab::{
    Failure,
    harvester::{LoadBalancer, Pace, Range, balancers_in, new_balancer},
    poll_until,
};

use super::{
    observed::creations,
    stage::{SOON, World, play_with_host},
};

#[test]
fn host_f12_an_object_deleted_by_an_administrator_returns_with_name_and_address() {
    play_with_host("vanished", async |world| {
        let pool = world.pool().await?;
        let _manager = world.manager().await?;
        let address = world.served("web").await?;
        world.served("other").await?;
        let object = world.object("web").await?;
        world.host.delete_load_balancer(&object.name_any()).await?;
        restored(world, "web", &object, &address).await?;
        ensure!(pool.allocated().await?.len() == 2, "a leak");
        Ok(())
    });
}

#[test]
fn host_f12_an_object_that_is_long_in_terminating_is_waited_for() {
    play_with_host("terminating", async |world| {
        world.pool().await?;
        let manager = world.manager().await?;
        let address = world.served("web").await?;
        let object = world.object("web").await?;
        world.host.knobs().finalizer_removal(Pace::Held);
        let before = (world.access.api().counts(), manager.api.counts());
        world.host.delete_load_balancer(&object.name_any()).await?;
        let told = world.warned("web", "is being deleted").await?;
        ensure!(told.contains(&object.name_any()), "{told}");
        let asked = world.access.api().counts().since(&before.0);
        ensure!(creations(&asked) == 0, "it did not wait:\n{asked}");
        let written = manager.api.counts().since(&before.1);
        let patches =
            written.matching(|it| it.verb == "patch" && it.resource.starts_with("services"));
        ensure!(patches == 0, "the Service was written:\n{written}");
        world.serves("web", &address).await?;
        world.host.knobs().finalizer_removal(Pace::AtOnce);
        restored(world, "web", &object, &address).await
    });
}

#[test]
fn host_f13_a_service_moves_when_another_took_the_address_of_its_deleted_object() {
    play_with_host("taken", async |world| {
        let vm = world.host.vm("vm").addresses(&["10.1.0.10"]);
        vm.create().await?;
        world.host.knobs().time_scale(0.02);
        let pool = world.host.pool("one");
        let pool = pool.range("10.1.0.192", "10.1.0.192").create().await?;
        let _manager = world.manager().await?;
        let address = world.served("web").await?;
        world.recorded("web", &address).await?;
        let object = world.object("web").await?;

        let busy = Failure::status(StatusCode::SERVICE_UNAVAILABLE);
        let api = world.access.api();
        api.fail(busy.verb("create").resource("loadbalancers"));
        world.host.delete_load_balancer(&object.name_any()).await?;
        world.no_balancer_of("web").await?;
        let competitor = compete(world, "competitor").await?;
        ensure!(competitor == address, "{competitor} instead of {address}");
        api.heal();
        // The object is there again, without an address: there is none.
        let successor = world.object("web").await?;
        ensure!(successor.name_any() == object.name_any(), "{successor:?}");
        pool.set_ranges(&[range("10.1.0.192", "10.1.0.193")])
            .await?;
        let other = "10.1.0.193";
        world.serves("web", other).await?;
        ensure!(world.address("web").await?.as_deref() == Some(other));
        world.recorded("web", other).await?;
        world.still_has("web", &successor).await
    });
}

/// Waits until a Service has another object of the same name, and the same address everywhere.
async fn restored(world: &World, name: &str, old: &LoadBalancer, address: &str) -> Result<()> {
    let new = poll_until(SOON, &format!("another object of {name}"), async || {
        let new = world.object(name).await?;
        Ok((new.uid() != old.uid()).then_some(new))
    })
    .await?;
    ensure!(new.name_any() == old.name_any(), "the name is {new:?}");
    let new = world.host.allocated(&new.name_any()).await?;
    let allocated = new.status.map(|it| it.allocated_address.ip);
    ensure!(
        allocated.as_deref() == Some(address),
        "{allocated:?} instead of {address}"
    );
    world.recorded(name, address).await?;
    world.keeps(name, address, Duration::from_millis(500)).await
}

/// Creates somebody else's object of the same cluster; returns its address.
async fn compete(world: &World, name: &str) -> Result<String> {
    let objects: Api<LoadBalancer> = balancers_in(&world.host.kube(), world.host.namespace());
    let object = new_balancer(name, "gc", "pool");
    objects.create(&PostParams::default(), &object).await?;
    let object = world.host.allocated(name).await?;
    let status = object.status.context("no status")?;
    Ok(status.allocated_address.ip)
}

fn range(first: &str, last: &str) -> Range {
    Range {
        subnet: "10.1.0.0/24".to_owned(),
        range_start: first.to_owned(),
        range_end: last.to_owned(),
        gateway: String::new(),
    }
}
