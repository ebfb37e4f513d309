//! What a client at 1 kHz loses when an owner's speaker is stopped (SIGTERM), and when the owner's
//! power is cut, with the default timings of the lease election.
#![expect(clippy::print_stdout, reason = "what a benchmark says")]

mod stage;

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use lab::{clock, probe::EchoProbe};

use stage::{SOON, Stage};

/// How long a client is watched after a change: longer than its kernel's retry of an ARP request.
const AFTER: Duration = Duration::from_millis(1_500);

fn main() -> Result<()> {
    stage::run("handover", async || {
        let mut stage = Stage::set("handover", false).await?;
        measure(&mut stage).await?;
        stage.cluster.stop().await
    })
}

async fn measure(stage: &mut Stage) -> Result<()> {
    let (vip, vip6) = (stage.cluster.vip(0), stage.cluster.vip6(0));
    stage
        .cluster
        .service("web")
        .annotation("kube-vip.io/loadbalancerIPs", &format!("{vip},{vip6}"))
        .dual_stack()
        .port(80, 8080)
        .create()
        .await?;
    let addresses = [IpAddr::from(vip), vip6.into()];
    let mut owner = stage.owner(addresses[0], None).await?;
    let mut stopped = Vec::new();
    for _ in 0..stage::in_full(10, 1) {
        stopped.push(stop(stage, addresses, &mut owner).await?);
    }
    let mut off = Vec::new();
    for _ in 0..stage::in_full(3, 0) {
        off.push(power_off(stage, addresses, &mut owner).await?);
    }
    stage::show_head();
    for (index, family) in ["IPv4", "IPv6"].into_iter().enumerate() {
        let of = |runs: &[[Duration; 2]]| {
            let family = runs.iter().filter_map(|run| run.get(index));
            family.copied().collect::<Vec<Duration>>()
        };
        stage::show(
            &format!("SIGTERM of the owner's speaker: longest gap, {family}"),
            of(&stopped),
        );
        if !off.is_empty() {
            stage::show(
                &format!("power-off of the owner: longest gap, {family}"),
                of(&off),
            );
        }
    }
    Ok(())
}

/// The gap of each family.
async fn stop(stage: &mut Stage, vips: [IpAddr; 2], owner: &mut usize) -> Result<[Duration; 2]> {
    let clients = Clients::start(stage, vips).await?;
    let at = clock::now();
    let speaker = stage.speakers.get(*owner).context("no speaker")?;
    speaker.terminate()?;
    speaker.wait(SOON).await?;
    let before = *owner;
    *owner = stage.owner(vips[0], Some(before)).await?;
    let gaps = clients.finish(at).await?;
    stage.restart(before)?;
    Ok(gaps)
}

async fn power_off(
    stage: &mut Stage,
    vips: [IpAddr; 2],
    owner: &mut usize,
) -> Result<[Duration; 2]> {
    let clients = Clients::start(stage, vips).await?;
    let at = clock::now();
    let before = *owner;
    stage.cluster.node(before).power_off().await?;
    *owner = stage.owner(vips[0], Some(before)).await?;
    let gaps = clients.finish(at).await?;
    stage.cluster.node(before).power_on().await?;
    stage.restart(before)?;
    Ok(gaps)
}

/// A client of each family.
struct Clients([EchoProbe; 2]);

impl Clients {
    async fn start(stage: &Stage, [vip, vip6]: [IpAddr; 2]) -> Result<Self> {
        let client = stage.cluster.client();
        let clients = [
            EchoProbe::start(client, vip)?,
            EchoProbe::start(client, vip6)?,
        ];
        for client in &clients {
            client.wait_first(SOON).await?;
        }
        Ok(Self(clients))
    }

    async fn finish(self, since: Instant) -> Result<[Duration; 2]> {
        for client in &self.0 {
            client.wait_after(clock::now(), SOON).await?;
        }
        // A change that comes late, such as a second owner, would show now.
        clock::sleep(AFTER).await;
        let longest = |client: EchoProbe| {
            let gaps = client.stop()?.gaps;
            let after = gaps.iter().filter(|gap| gap.start >= since);
            anyhow::Ok(after.map(|gap| gap.length).max().unwrap_or_default())
        };
        let [v4, v6] = self.0;
        Ok([longest(v4)?, longest(v6)?])
    }
}
