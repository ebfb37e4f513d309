//! What the controllers cost while nothing happens, counted at both ways to an API server.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::ListParams;
use lab::{Counts, HarvesterHost, Manager, api_proxy::Counted, clock, poll_until};
use serde_json::json;

use super::stage::{SOON, World, play_on};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
const PRIMARY: &str = "cloudprovider.harvesterhci.io/primary-service";

/// Nothing is written for so long: all has settled.
const QUIET: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_secs(60);
/// Reads in the window besides watches and the Lease: one a second.
const READS: u64 = 60;

#[test]
fn in_steady_state_nothing_is_written_and_little_is_read() {
    // Every periodic look comes several times in the window.
    let periods = [
        "--min-resync-period=10s",
        "--node-status-update-frequency=10s",
        "--node-monitor-period=5s",
    ];
    play_on(
        "steady",
        HarvesterHost::builder(),
        &periods,
        async |world| {
            world.pool().await?;
            let manager = world.manager().await?;
            nodes(world).await?;
            services(world).await?;
            settled(world, &manager).await?;

            let before = counts(world, &manager);
            clock::sleep(WINDOW).await;
            let after = counts(world, &manager);
            let [guest, host] = [0, 1].map(|way| after[way].since(&before[way]));
            let table = format!("guest\n{guest}\nhost\n{host}");
            ensure!(writes(&guest) + writes(&host) == 0, "{table}");
            ensure!(guest.of("update", "leases") > 0, "no renewal: {table}");
            ensure!(reads(&guest) + reads(&host) <= READS, "{table}");
            Ok(())
        },
    );
}

async fn nodes(world: &World) -> Result<()> {
    for number in 0..3 {
        let name = format!("node-{number}");
        let vm = world.host.vm(&name).node("host-a").region("r").zone("a");
        vm.addresses(&[&format!("10.1.0.{}", 11 + number)])
            .create()
            .await?;
        world.guest.register(&name, json!({})).await?;
        world.initialised(&name).await?;
    }
    Ok(())
}

/// Twenty: of a pool, by DHCP, and one that shares the address of another.
async fn services(world: &World) -> Result<()> {
    for number in 0..10 {
        let name = format!("pool-{number}");
        world.service(&name, json!({ IPAM: "pool" })).await?;
    }
    for number in 0..9 {
        let name = format!("dhcp-{number}");
        world.service(&name, json!({ IPAM: "dhcp" })).await?;
    }
    world.addressed("pool-0").await?;
    let sharing = json!({ PRIMARY: "default/pool-0" });
    world.service_on("sharing", sharing, 81).await.map(drop)
}

/// Waits until every Service is served and the manager has written nothing for a while.
async fn settled(world: &World, manager: &Manager) -> Result<()> {
    poll_until(SOON, "twenty Services that are served", async || {
        let services = world.guest.services().list(&ListParams::default()).await?;
        let served = services.iter().filter(|service| {
            let status = service.status.as_ref();
            let balancer = status.and_then(|it| it.load_balancer.as_ref());
            balancer.is_some_and(|it| it.ingress.is_some())
        });
        Ok((served.count() == 20).then_some(()))
    })
    .await?;
    let mut last = (clock::now(), 0);
    poll_until(SOON, "end of all writes", async || {
        let written = counts(world, manager).iter().map(writes).sum();
        if written != last.1 {
            last = (clock::now(), written);
        }
        Ok((last.0.elapsed() > QUIET).then_some(()))
    })
    .await
}

/// To the guest, to the host.
fn counts(world: &World, manager: &Manager) -> [Counts; 2] {
    [manager.api.counts(), world.access.api().counts()]
}

/// All but the renewals of the Lease.
fn writes(counts: &Counts) -> u64 {
    let renewals = counts.matching(|it| it.resource == "leases" && is_write(it));
    counts.writes() - renewals
}

fn is_write(counted: &Counted) -> bool {
    !matches!(counted.verb.as_str(), "get" | "list" | "watch")
}

/// All but watches and the Lease.
fn reads(counts: &Counts) -> u64 {
    counts.matching(|it| !is_write(it) && it.verb != "watch" && it.resource != "leases")
}
