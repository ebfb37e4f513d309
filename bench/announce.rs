//! How soon a new Service is reachable: from its creation to the first answered ARP request and
//! neighbour solicitation (an asker on the router, every 2 ms), and, for a client that was already
//! trying, from the status of the Service to its first HTTP answer.
#![expect(clippy::print_stdout, reason = "what a benchmark says")]

mod stage;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
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

fn main() -> Result<()> {
    stage::run("announce", async || {
        let stage = Stage::set("announce", true).await?;
        measure(&stage.cluster).await?;
        stage.cluster.stop().await
    })
}

/// Times of one Service.
struct Times {
    arp: Duration,
    ndp: Duration,
    arp_after_response: Duration,
    http_after_status: Duration,
}

async fn measure(cluster: &Cluster) -> Result<()> {
    let statuses = Statuses::watch(cluster);
    cluster.pod("web").serve_http(8080).await?;
    // Connections, caches and elections are there before anything counts.
    one(cluster, &statuses, WARM_UP).await?;
    let mut all = Vec::new();
    for number in 0..stage::in_full(SERVICES, 3) {
        all.push(one(cluster, &statuses, number).await?);
    }
    let column = |of: fn(&Times) -> Duration| all.iter().map(of).collect();
    stage::show_head();
    stage::show("create sent -> first ARP reply", column(|it| it.arp));
    stage::show(
        "create sent -> first neighbour advertisement",
        column(|it| it.ndp),
    );
    stage::show(
        "create answered -> first ARP reply",
        column(|it| it.arp_after_response),
    );
    stage::show(
        "status -> first HTTP answer of a client already trying",
        column(|it| it.http_after_status),
    );
    Ok(())
}

async fn one(cluster: &Cluster, statuses: &Statuses, number: u8) -> Result<Times> {
    let name = format!("web-{number}");
    let (vip, vip6) = (cluster.vip(number), cluster.vip6(number));
    let asker = Asker::start(cluster.router(), "eth0", &[vip.into(), vip6.into()])?;
    let url = format!("http://{}/", SocketAddr::from((vip, 80)));
    let client = HttpProbe::start(cluster.client(), &url, HTTP_PERIOD, HTTP_TIMEOUT)?;
    let sent = clock::now();
    cluster
        .service(&name)
        .selects("web")
        .annotation("kube-vip.io/loadbalancerIPs", &format!("{vip},{vip6}"))
        .dual_stack()
        .port(80, 8080)
        .create()
        .await?;
    let answered = clock::now();
    let arp = asker.wait_first(vip.into(), SOON).await?;
    let ndp = asker.wait_first(vip6.into(), SOON).await?;
    let http = client.snapshot().started + client.wait_first(SOON).await?;
    let status = poll_until(SOON, "status", async || Ok(statuses.of(&name))).await?;
    client.stop()?;
    asker.stop()?;
    Ok(Times {
        arp: arp.saturating_duration_since(sent),
        ndp: ndp.saturating_duration_since(sent),
        arp_after_response: arp.saturating_duration_since(answered),
        http_after_status: http.saturating_duration_since(status),
    })
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
