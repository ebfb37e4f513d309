//! How soon a new Service is reachable, with kube-proxy on every node: from its creation to the first
//! answered ARP request or neighbour solicitation (an asker on the router, every 2 ms), counted from the
//! request and from its answer; and, for a client that was already trying, from the status of the Service
//! to its first HTTP answer.
#![expect(clippy::print_stdout, reason = "what a benchmark says")]

mod stage;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, runtime::watcher};
use lab::{
    Cluster, clock, poll_until,
    probe::{Asker, HttpProbe},
};

use stage::{SOON, Stage};

/// VIPs of a cluster of the lab, but one for the warm-up.
const SERVICES: u8 = 50;
const WARM_UP: u8 = 50;
/// A client that tries again at once. Its first request waits in its kernel for the owner's MAC.
const HTTP_PERIOD: Duration = Duration::from_millis(5);
const HTTP_TIMEOUT: Duration = Duration::from_millis(500);
/// What a Service sets off (its status, its endpoints, the rules of three kube-proxies) is over after this
/// time, and disturbs the next one no more.
const CALM: Duration = Duration::from_millis(500);

fn main() -> Result<()> {
    stage::run("announce", async || {
        stage::show_head();
        let asked = Stage::set("announce", true).await?;
        answers(&asked.cluster).await?;
        asked.cluster.stop().await?;
        let tried = Stage::set("announce-http", true).await?;
        http(&tried.cluster).await?;
        tried.cluster.stop().await
    })
}

/// From the creation of a Service with one VIP to the first answer for it.
async fn answers(cluster: &Cluster) -> Result<()> {
    for (protocol, ipv6) in [("ARP reply", false), ("neighbour advertisement", true)] {
        // Connections, caches and elections are there before anything counts.
        answer(cluster, WARM_UP, ipv6).await?;
        let mut all = Vec::new();
        for number in 0..stage::in_full(SERVICES, 3) {
            all.push(answer(cluster, number, ipv6).await?);
        }
        let (since_sent, since_answered) = all.into_iter().unzip();
        stage::show(&format!("create sent -> first {protocol}"), since_sent);
        stage::show(
            &format!("create answered -> first {protocol}"),
            since_answered,
        );
    }
    Ok(())
}

/// The times since the creation was sent, and since it was answered.
async fn answer(cluster: &Cluster, number: u8, ipv6: bool) -> Result<(Duration, Duration)> {
    let vip = if ipv6 {
        IpAddr::from(cluster.vip6(number))
    } else {
        cluster.vip(number).into()
    };
    let asker = Asker::start(cluster.router(), "eth0", &[vip])?;
    let family = if ipv6 { "six" } else { "four" };
    let service = cluster
        .service(&format!("{family}-{number}"))
        .annotation("kube-vip.io/loadbalancerIPs", &vip.to_string())
        .port(80, 8080);
    let service = if ipv6 { service.ipv6_only() } else { service };
    clock::sleep(CALM).await;
    let sent = clock::now();
    service.create().await?;
    let answered = clock::now();
    let first = asker.wait_first(vip, SOON).await?;
    asker.stop()?;
    Ok((
        first.saturating_duration_since(sent),
        first.saturating_duration_since(answered),
    ))
}

/// From the status of a Service to the first answer of a Pod.
async fn http(cluster: &Cluster) -> Result<()> {
    let statuses = Statuses::watch(cluster);
    cluster.pod("web").serve_http(8080).await?;
    trying(cluster, &statuses, WARM_UP).await?;
    let mut all = Vec::new();
    for number in 0..stage::in_full(SERVICES, 3) {
        all.push(trying(cluster, &statuses, number).await?);
    }
    stage::show(
        "status -> first HTTP answer of a client already trying",
        all,
    );
    Ok(())
}

async fn trying(cluster: &Cluster, statuses: &Statuses, number: u8) -> Result<Duration> {
    let name = format!("web-{number}");
    let vip = cluster.vip(number);
    let url = format!("http://{}/", SocketAddr::from((vip, 80)));
    let client = HttpProbe::start(cluster.client(), &url, HTTP_PERIOD, HTTP_TIMEOUT)?;
    cluster
        .service(&name)
        .selects("web")
        .load_balancer_ip(vip)
        .port(80, 8080)
        .create()
        .await?;
    let first = client.snapshot().started + client.wait_first(SOON).await?;
    let status = poll_until(SOON, "status", async || Ok(statuses.of(&name))).await?;
    client.stop()?;
    Ok(first.saturating_duration_since(status))
}

/// When each Service got its first status.
struct Statuses {
    seen: Arc<Mutex<BTreeMap<String, Instant>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Statuses {
    fn watch(cluster: &Cluster) -> Self {
        let api = Api::<Service>::namespaced(cluster.kube(), cluster.namespace());
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let shared = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let events = watcher(api, watcher::Config::default()).try_for_each(async |event| {
                if let watcher::Event::Apply(service) = event
                    && let Some(name) = served(&service)
                {
                    let mut seen = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.entry(name).or_insert_with(clock::now);
                }
                Ok(())
            });
            if let Err(error) = events.await {
                println!("the watch of Services ended: {error}");
            }
        });
        Self { seen, task }
    }

    fn of(&self, name: &str) -> Option<Instant> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(name).copied()
    }
}

impl Drop for Statuses {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The name of a Service whose status has an address.
fn served(service: &Service) -> Option<String> {
    let balancer = service.status.as_ref()?.load_balancer.as_ref()?;
    balancer.ingress.as_ref()?.first()?;
    service.metadata.name.clone()
}
