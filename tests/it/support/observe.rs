//! What a test sees of its stage: who has an address, who answers for it, what objects say.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Service as ServiceObject;
use lab::{
    MacAddress, clock,
    cluster::{Incident, PodAnswer, Service},
    http_client, poll_until,
    probe::{Answers, Asker},
};

use super::{SOON, Stage, one_answerer};

const HTTP: Duration = Duration::from_secs(1);
/// How often something is looked at that must not happen.
const LOOK: Duration = Duration::from_millis(100);
const IDENTITY_SUFFIX: &str = "_speaker";

impl Stage {
    /// Waits until one and the same node has all the addresses.
    pub(crate) async fn owner_of(&self, vips: &[IpAddr]) -> Result<usize> {
        self.single(vips, |_| true, &format!("single owner of {vips:?}"))
            .await
    }

    /// Waits until one node has all the addresses, another than before.
    pub(crate) async fn next_owner_of(&self, vips: &[IpAddr], before: usize) -> Result<usize> {
        let what = format!("owner of {vips:?} other than node {before}");
        self.single(vips, |owner| owner != before, &what).await
    }

    /// Waits until this node alone has all the addresses.
    pub(crate) async fn owned_by(&self, vips: &[IpAddr], node: usize) -> Result<()> {
        let what = format!("{vips:?} on node {node}");
        self.single(vips, |owner| owner == node, &what)
            .await
            .map(drop)
    }

    async fn single(
        &self,
        vips: &[IpAddr],
        accept: impl Fn(usize) -> bool,
        what: &str,
    ) -> Result<usize> {
        poll_until(SOON, what, async || {
            let owners: BTreeSet<Vec<usize>> = vips
                .iter()
                .map(|vip| self.owners(*vip))
                .collect::<Result<_>>()?;
            let common = owners.first().filter(|_| owners.len() == 1);
            Ok(match common.map(Vec::as_slice) {
                Some([owner]) if accept(*owner) => Some(*owner),
                _ => bail!("they are on nodes {owners:?}"),
            })
        })
        .await
    }

    /// Waits until no node has any of the addresses.
    pub(crate) async fn gone(&self, vips: &[IpAddr]) -> Result<()> {
        poll_until(SOON, &format!("end of {vips:?}"), async || {
            for vip in vips {
                let owners = self.owners(*vip)?;
                ensure!(owners.is_empty(), "{vip} is on nodes {owners:?}");
            }
            Ok(Some(()))
        })
        .await
    }

    /// For a while, exactly this node has the addresses, each time that one looks.
    pub(crate) async fn stays(&self, vips: &[IpAddr], node: usize, time: Duration) -> Result<()> {
        self.always(vips, &[node], time).await
    }

    /// For a while, no node has the addresses, each time that one looks.
    pub(crate) async fn stays_away(&self, vips: &[IpAddr], time: Duration) -> Result<()> {
        self.always(vips, &[], time).await
    }

    async fn always(&self, vips: &[IpAddr], wanted: &[usize], time: Duration) -> Result<()> {
        let end = clock::now() + time;
        while clock::now() < end {
            for vip in vips {
                let owners = self.owners(*vip)?;
                ensure!(owners == wanted, "{vip} is on {owners:?}, not {wanted:?}");
            }
            clock::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Asks from the client until a Pod answers.
    pub(crate) async fn ask_port(&self, vip: IpAddr, port: u16) -> Result<PodAnswer> {
        let to = SocketAddr::new(vip, port);
        poll_until(SOON, &format!("answer of {to}"), async || {
            let answer = http_client::get(self.cluster.client(), to, "/", HTTP).await?;
            Ok(Some(serde_json::from_str(&answer.body)?))
        })
        .await
    }

    /// Asks each address until a Pod answers.
    pub(crate) async fn ask_all(&self, vips: &[IpAddr]) -> Result<()> {
        for vip in vips {
            self.ask(*vip).await?;
        }
        Ok(())
    }

    /// The Ethernet address of a node.
    pub(crate) fn mac(&self, node: usize) -> Result<MacAddress> {
        let port = self.node(node).host().port("eth0");
        Ok(port.context("a node without eth0")?.mac())
    }

    /// The holder of a Lease: a node, by index.
    async fn holder_now(&self, namespace: &str, lease: &str) -> Result<Option<usize>> {
        let found = self.cluster.lease(namespace, lease).await?;
        let holder = found
            .and_then(|it| it.spec?.holder_identity)
            .filter(|holder| !holder.is_empty());
        let Some(holder) = holder else {
            return Ok(None);
        };
        let node = holder
            .strip_suffix(IDENTITY_SUFFIX)
            .with_context(|| format!("{lease} is held by {holder}"))?;
        let position = self.cluster.nodes().iter().position(|n| n.name() == node);
        position
            .map(Some)
            .with_context(|| format!("{lease} is held by {holder}, no node"))
    }

    /// Waits until a Lease of the Services' namespace has a holder: a node, by index.
    pub(crate) async fn holder_of(&self, lease: &str) -> Result<usize> {
        self.holder_in(self.cluster.namespace(), lease).await
    }

    /// Waits until the Lease that elects one node for everything has a holder.
    pub(crate) async fn global_holder(&self) -> Result<usize> {
        let release = self.cluster.release_namespace();
        self.holder_in(release, "plndr-svcs-lock").await
    }

    async fn holder_in(&self, namespace: &str, lease: &str) -> Result<usize> {
        poll_until(SOON, &format!("holder of {lease}"), async || {
            self.holder_now(namespace, lease).await
        })
        .await
    }

    /// Waits until the Lease has no holder, or does not exist.
    pub(crate) async fn released(&self, lease: &str) -> Result<()> {
        poll_until(SOON, &format!("release of {lease}"), async || {
            let holder = self.holder_now(self.cluster.namespace(), lease).await?;
            ensure!(holder.is_none(), "it is held by {holder:?}");
            Ok(Some(()))
        })
        .await
    }

    /// Waits until the Lease object does not exist.
    pub(crate) async fn no_lease(&self, lease: &str) -> Result<()> {
        poll_until(SOON, &format!("end of Lease {lease}"), async || {
            let found = self.cluster.lease(self.cluster.namespace(), lease).await?;
            Ok(found.is_none().then_some(()))
        })
        .await
    }

    /// Waits until the Service says that the node serves these addresses, in this order.
    pub(crate) async fn says(&self, service: &Service, vips: &[IpAddr], node: usize) -> Result<()> {
        let node = self.node(node).name();
        poll_until(
            SOON,
            &format!("{vips:?} by {node} in the status"),
            async || {
                let (ips, host) = (service.status_ips().await?, vip_host(&service.get().await?));
                ensure!(
                    ips == vips && host.as_deref() == Some(node),
                    "it says {ips:?} by {host:?}"
                );
                Ok(Some(()))
            },
        )
        .await
    }

    /// Waits until the Service says nothing of any VIP.
    pub(crate) async fn says_nothing(&self, service: &Service) -> Result<()> {
        poll_until(SOON, "status without VIPs", async || {
            let (ips, host) = (service.status_ips().await?, vip_host(&service.get().await?));
            ensure!(
                ips.is_empty() && host.is_none(),
                "it says {ips:?} by {host:?}"
            );
            Ok(Some(()))
        })
        .await
    }

    /// Waits for an Event about the Service.
    pub(crate) async fn told(&self, service: &Service, reason: &str) -> Result<Incident> {
        poll_until(SOON, &format!("Event {reason}"), async || {
            let events = service.events().await?;
            let found = events.iter().find(|it| it.reason == reason).cloned();
            found
                .map(Some)
                .with_context(|| format!("the Events are {events:?}"))
        })
        .await
    }
}

fn vip_host(service: &ServiceObject) -> Option<String> {
    let annotations = service.metadata.annotations.as_ref()?;
    annotations.get("kube-vip.io/vipHost").cloned()
}

/// Ends a watch as [`one_answerer`]; moreover nobody but `mac` has ever answered.
pub(crate) fn stayed_with(watch: Asker, mac: MacAddress) -> Result<()> {
    for (vip, answers) in one_answerer(watch)? {
        ensure!(
            answers.macs == BTreeSet::from([mac]),
            "{vip} was answered by {:?}, not by {mac} alone",
            answers.macs
        );
    }
    Ok(())
}

/// The longest time in which one of the addresses was not answered after it once was.
pub(crate) fn longest_silence(seen: &BTreeMap<IpAddr, Answers>) -> Duration {
    let silences = seen.values().map(|answers| answers.longest_silence);
    silences.max().unwrap_or_default()
}
