//! What 100 Services on 3 nodes cost while nothing happens: API requests by verb and resource, counted
//! at the proxies through which the speakers reach the API server, and memory and CPU of a speaker.
#![expect(clippy::print_stdout, reason = "what a benchmark says")]

mod stage;

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use anyhow::Result;
use lab::{Cluster, clock, poll_until};

use stage::{SOON, Stage};

fn main() -> Result<()> {
    stage::run("load", async || {
        let stage = Stage::set("load", false).await?;
        measure(&stage).await?;
        stage.cluster.stop().await
    })
}

async fn measure(stage: &Stage) -> Result<()> {
    let each = stage::in_full(50, 3);
    let settle = stage::in_full(Duration::from_secs(15), Duration::from_secs(1));
    let window = stage::in_full(Duration::from_secs(60), Duration::from_secs(3));
    create_services(&stage.cluster, each).await?;
    // The burst of announcements, of events and of first renewals is over.
    clock::sleep(settle).await;

    let cpu = |stage: &Stage| {
        let speakers = stage.speakers.iter();
        speakers
            .map(|it| stage::process_cpu(it.pid()))
            .collect::<Result<Vec<_>>>()
    };
    let before = (stage.cluster.requests(), cpu(stage)?, clock::now());
    clock::sleep(window).await;
    let seconds = before.2.elapsed().as_secs_f64();
    let (requests, used) = (stage.cluster.requests(), cpu(stage)?);

    let mut table: BTreeMap<(String, String), u64> = BTreeMap::new();
    for (client, counts) in requests {
        let earlier = before.0.get(&client).cloned().unwrap_or_default();
        for (counted, count) in counts.since(&earlier).iter() {
            let key = (counted.resource.clone(), counted.verb.clone());
            *table.entry(key).or_default() += count;
        }
    }
    println!(
        "  {} Services, 3 nodes, {seconds:.0} s",
        u32::from(each) * 2
    );
    println!("  {:<24} {:<8} {:>12}", "resource", "verb", "requests/s");
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let rate = |count: u64| count as f64 / seconds;
    for ((resource, verb), count) in &table {
        println!("  {resource:<24} {verb:<8} {:>12.2}", rate(*count));
    }
    println!(
        "  {:<24} {:<8} {:>12.2}",
        "total",
        "",
        rate(table.values().sum())
    );
    for (index, speaker) in stage.speakers.iter().enumerate() {
        let cpu = used.get(index).zip(before.1.get(index));
        let cpu = cpu.map_or(0.0, |(now, then)| now.saturating_sub(*then).as_secs_f64());
        println!(
            "  speaker of node {index}: {} MiB resident, {:.1} % of a CPU",
            stage::resident(speaker.pid())?,
            cpu / seconds * 100.0
        );
    }
    Ok(())
}

/// So many Services of each family, all served on return.
async fn create_services(cluster: &Cluster, each: u8) -> Result<()> {
    let mut services = Vec::new();
    for number in 0..each {
        for vip in [
            IpAddr::from(cluster.vip(number)),
            cluster.vip6(number).into(),
        ] {
            let family = if vip.is_ipv4() { "v4" } else { "v6" };
            let mut service = cluster
                .service(&format!("{family}-{number}"))
                .annotation("kube-vip.io/loadbalancerIPs", &vip.to_string())
                .port(80, 8080);
            if vip.is_ipv6() {
                service = service.ipv6_only();
            }
            services.push(service.create().await?);
        }
    }
    for service in services {
        poll_until(SOON, service.name(), async || {
            Ok((!service.status_ips().await?.is_empty()).then_some(()))
        })
        .await?;
    }
    Ok(())
}
