//! Many Services at once, and leaders that end in the middle of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use lab::{HarvesterHost, clock, harvester::Pace, poll_until};
use serde_json::json;

use super::stage::{BRIEF_LEASES, SOON, World, leader, play_on, play_with_host, stop};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
const NETWORK: &str = "cloudprovider.harvesterhci.io/network";
const ADDRESS: &str = "kube-vip.io/loadbalancerIPs";
const SERVICE: &str = "cloudprovider.harvesterhci.io/serviceName";

/// By DHCP: a host books the addresses of a pool one after another.
const CROWD: usize = 500;
/// Ten times what a crowd takes.
const ALL: Duration = Duration::from_secs(100);
/// The time that a host takes for a new object.
const ALLOCATION: Duration = Duration::from_millis(100);
/// What a stop may take, and a margin.
const STOP: Duration = Duration::from_millis(2_500);
/// How often a crowd is looked at.
const LOOK: Duration = Duration::from_millis(250);

#[test]
fn forty_services_at_once_all_get_an_address_of_their_own_and_give_it_back() {
    play_with_host("forty", async |world| {
        let pool = world.pool().await?;
        world.host.knobs().allocation(Pace::After(ALLOCATION));
        let _manager = world.manager().await?;
        create(world, 40, "pool").await?;
        let addresses = all_addressed(world, 40, SOON).await?;
        let distinct: BTreeSet<_> = addresses.values().collect();
        ensure!(distinct.len() == 40, "{addresses:?}");
        one_object_each(world, 40).await?;
        delete_all(world).await?;
        nothing_left(world, SOON).await?;
        let booked = pool.allocated().await?;
        ensure!(booked.is_empty(), "still booked: {booked:?}");
        Ok(())
    });
}

#[test]
fn five_hundred_services_at_once_all_get_an_address() {
    play_with_host("crowd", async |world| {
        world.host.knobs().allocation(Pace::After(ALLOCATION));
        let _manager = world.manager().await?;
        create(world, CROWD, "dhcp").await?;
        all_addressed(world, CROWD, ALL).await?;
        one_object_each(world, CROWD).await?;
        delete_all(world).await?;
        nothing_left(world, ALL).await
    });
}

#[test]
fn services_whose_address_never_comes_delay_nobody() {
    // Without the map of networks the host alone knows that there is no such network.
    let flags = ["--concurrent-service-syncs=1", "--disable-vmi-controller"];
    play_on("never", HarvesterHost::builder(), &flags, async |world| {
        world.pool().await?;
        let _manager = world.manager().await?;
        let nowhere = json!({ IPAM: "pool", NETWORK: "default/nowhere" });
        for number in 0..5 {
            let name = format!("never-{number}");
            world.service(&name, nowhere.clone()).await?;
            poll_until(SOON, "the host's word on it", async || {
                let objects = world.balancers_of(&name).await?;
                let status = objects.first().and_then(|it| it.status.clone());
                let is_refused = status.is_some_and(|it| {
                    it.allocated_address.ip.is_empty()
                        && it.ready().is_some_and(|it| it.status == "False")
                });
                Ok(is_refused.then_some(()))
            })
            .await?;
        }
        let asked = clock::now();
        world.service("web", json!({ IPAM: "pool" })).await?;
        world.addressed("web").await?;
        let time = asked.elapsed();
        ensure!(time < Duration::from_secs(2), "it waited for {time:?}");
        let told = world.told("never-0", "SyncLoadBalancerFailed").await?;
        ensure!(told.contains("no matched IPPool"), "{told}");
        ensure!(world.address("never-0").await?.is_none(), "an address");
        Ok(())
    });
}

#[test]
fn a_leader_that_is_asked_to_stop_in_a_crowd_does_so_and_the_next_finishes() {
    play_with_host("crowd-stop", async |world| {
        world.host.knobs().allocation(Pace::After(ALLOCATION));
        let first = world.manager().await?;
        create(world, CROWD, "dhcp").await?;
        in_the_middle(world).await?;
        stop(&first, STOP).await?;
        ensure!(leader(&world.guest).await?.is_none(), "the Lease is held");
        ensure!(addresses(world).await?.len() < CROWD, "it was at the end");

        let _next = world.manager().await?;
        all_addressed(world, CROWD, ALL).await?;
        one_object_each(world, CROWD).await?;
        delete_all(world).await?;
        nothing_left(world, ALL).await
    });
}

#[test]
fn what_a_leader_that_is_killed_in_a_crowd_has_begun_the_next_finishes() {
    play_on(
        "crowd-kill",
        HarvesterHost::builder(),
        &BRIEF_LEASES,
        async |world| {
            world.host.knobs().allocation(Pace::After(ALLOCATION));
            let first = world.manager().await?;
            create(world, CROWD, "dhcp").await?;
            in_the_middle(world).await?;
            first.process.kill9()?;
            ensure!(addresses(world).await?.len() < CROWD, "it was at the end");

            let next = world.manager().await?;
            all_addressed(world, CROWD, ALL).await?;
            one_object_each(world, CROWD).await?;

            // And once more while all of it goes.
            delete_all(world).await?;
            poll_until(SOON, "the beginning of the end", async || {
                clock::sleep(LOOK).await;
                Ok((world.host.load_balancers().await?.len() < CROWD - 20).then_some(()))
            })
            .await?;
            next.process.kill9()?;
            let left = world.host.load_balancers().await?.len();
            ensure!(left > 0, "it was at the end");
            let _last = world.manager().await?;
            nothing_left(world, ALL).await
        },
    );
}

async fn create(world: &World, count: usize, ipam: &str) -> Result<()> {
    stream::iter(0..count)
        .map(async |number| {
            let name = format!("web-{number}");
            world.service(&name, json!({ IPAM: ipam })).await
        })
        .buffer_unordered(50)
        .try_for_each(async |_| Ok(()))
        .await
}

/// The addresses that Services have got so far, by their names.
async fn addresses(world: &World) -> Result<BTreeMap<String, String>> {
    let all = ListParams::default();
    let services = world.guest.services().list_metadata(&all).await?;
    let with_address = services.into_iter().filter_map(|service| {
        let address = service.annotations().get(ADDRESS)?.clone();
        (!address.is_empty()).then(|| (service.name_any(), address))
    });
    Ok(with_address.collect())
}

async fn all_addressed(
    world: &World,
    count: usize,
    within: Duration,
) -> Result<BTreeMap<String, String>> {
    let mut most = 0;
    let all = poll_until(within, &format!("{count} addresses"), async || {
        clock::sleep(LOOK).await;
        let addresses = addresses(world).await?;
        most = addresses.len();
        Ok((most == count).then_some(addresses))
    })
    .await;
    all.map_err(|error| error.context(format!("{most} have one")))
}

/// Some Services have their addresses, most do not.
async fn in_the_middle(world: &World) -> Result<()> {
    poll_until(SOON, "some addresses", async || {
        clock::sleep(LOOK).await;
        Ok((addresses(world).await?.len() > 20).then_some(()))
    })
    .await
}

async fn one_object_each(world: &World, count: usize) -> Result<()> {
    let objects = world.host.load_balancers().await?;
    let owners: BTreeSet<_> = objects
        .iter()
        .filter_map(|it| it.metadata.labels.as_ref()?.get(SERVICE))
        .collect();
    ensure!(
        objects.len() == count && owners.len() == count,
        "{} objects of {} Services",
        objects.len(),
        owners.len()
    );
    Ok(())
}

/// Asks for the end of every Service; each stays until it is cleaned up.
async fn delete_all(world: &World) -> Result<()> {
    let services = world.guest.services();
    let names = services.list(&ListParams::default()).await?.into_iter();
    let names = names
        .map(|it| it.name_any())
        .filter(|it| it != "kubernetes");
    stream::iter(names)
        .map(|name| {
            let services = &services;
            async move { services.delete(&name, &DeleteParams::default()).await }
        })
        .buffer_unordered(50)
        .try_for_each(async |_| Ok(()))
        .await?;
    Ok(())
}

async fn nothing_left(world: &World, within: Duration) -> Result<()> {
    let mut left = String::new();
    let gone = poll_until(within, "the end of all Services and objects", async || {
        clock::sleep(LOOK).await;
        let all = ListParams::default();
        let services = world.guest.services().list_metadata(&all).await?;
        let objects = world.host.load_balancers().await?;
        let services = services.iter().map(ResourceExt::name_any);
        let services: Vec<_> = services.filter(|it| it != "kubernetes").collect();
        let is_over = services.is_empty() && objects.is_empty();
        let objects = objects.iter().map(|it| &it.metadata);
        left = format!("{services:?}, {:?}", objects.collect::<Vec<_>>());
        Ok(is_over.then_some(()))
    })
    .await;
    gone.map_err(|error| error.context(format!("left: {left}")))
}
