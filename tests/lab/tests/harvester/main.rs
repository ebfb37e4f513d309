//! The simulated Harvester host: what guests, webhooks and watchers see of it, for real.
//!
//! All tests share one host, each with a namespace of its own. Without root they are skipped, with the
//! reason.
#![expect(
    clippy::unwrap_used,
    reason = "a step of the tests' own that fails is a failed test"
)]

mod access;
mod admission;
mod allocation;
mod machines;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::{Stream, TryStreamExt};
use kube::{
    Api, Client, Config,
    api::{PostParams, WatchEvent},
    config::{KubeConfigOptions, Kubeconfig},
};
use lab::{
    HarvesterHost,
    harvester::{GuestAccess, LoadBalancer, LoadBalancerStatus, balancers_in, new_balancer},
    poll_until, unavailable,
};

const SOON: Duration = Duration::from_secs(20);

/// Whether the test can run; says why not.
fn possible() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_none()
}

/// What a cloud provider makes of its cloud-config.
async fn client(access: &GuestAccess) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(access.cloud_config())?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// A guest that knows nothing but its load balancers.
struct Guest {
    access: GuestAccess,
    client: Client,
    balancers: Api<LoadBalancer>,
    cluster: String,
}

impl Guest {
    async fn of(host: &HarvesterHost) -> Result<Self> {
        let access = host.access("guest")?;
        let client = client(&access).await?;
        Ok(Self {
            balancers: balancers_in(&client, host.namespace()),
            cluster: host.cluster().to_owned(),
            access,
            client,
        })
    }

    async fn create(&self, name: &str, ipam: &str) -> kube::Result<LoadBalancer> {
        self.post(&new_balancer(name, &self.cluster, ipam)).await
    }

    async fn post(&self, balancer: &LoadBalancer) -> kube::Result<LoadBalancer> {
        self.balancers
            .create(&PostParams::default(), balancer)
            .await
    }

    async fn put(&self, balancer: &LoadBalancer) -> kube::Result<LoadBalancer> {
        let name = balancer.metadata.name.clone().unwrap_or_default();
        let parameters = PostParams::default();
        self.balancers.replace(&name, &parameters, balancer).await
    }
}

/// The status of a LoadBalancer once it is as wanted.
async fn status_when(
    host: &HarvesterHost,
    name: &str,
    wanted: impl Fn(&LoadBalancerStatus) -> bool,
) -> Result<LoadBalancerStatus> {
    poll_until(SOON, &format!("status of {name}"), async || {
        let found = host.load_balancer(name).await?;
        let status = found.and_then(|it| it.status).unwrap_or_default();
        let right = wanted(&status);
        Ok(right.then_some(status))
    })
    .await
}

/// The message of a LoadBalancer that the host could not serve.
async fn refusal(host: &HarvesterHost, name: &str) -> Result<String> {
    let unready = |it: &LoadBalancerStatus| it.ready().is_some_and(|it| it.status == "False");
    let status = status_when(host, name, unready).await?;
    Ok(status.ready().unwrap().message.clone())
}

async fn gone(host: &HarvesterHost, name: &str) -> Result<()> {
    poll_until(SOON, &format!("end of {name}"), async || {
        Ok(host.load_balancer(name).await?.is_none().then_some(()))
    })
    .await
}

/// Waits for the host's last write about a new LoadBalancer.
async fn settled(host: &HarvesterHost, name: &str) -> Result<LoadBalancer> {
    poll_until(SOON, &format!("finalizer of {name}"), async || {
        let found = host.load_balancer(name).await?;
        Ok(found.filter(|it| it.metadata.finalizers.is_some()))
    })
    .await
}

/// What a watcher sees next.
async fn next_event(
    events: &mut (impl Stream<Item = kube::Result<WatchEvent<LoadBalancer>>> + Unpin),
) -> Result<(&'static str, LoadBalancer)> {
    loop {
        return Ok(match events.try_next().await?.context("the watch ended")? {
            WatchEvent::Added(it) => ("added", it),
            WatchEvent::Modified(it) => ("modified", it),
            WatchEvent::Deleted(it) => ("deleted", it),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(error) => bail!("{error}"),
        });
    }
}

/// The address that a LoadBalancer has been given.
async fn address(host: &HarvesterHost, name: &str) -> Result<String> {
    let balancer = host.allocated(name).await?;
    Ok(balancer.status.unwrap_or_default().allocated_address.ip)
}
