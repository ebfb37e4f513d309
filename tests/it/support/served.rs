//! A Service that is served, and what must be true of it after a fault and all through it.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    coordination::v1::{Lease, LeaseSpec},
    core::v1::Service as ServiceObject,
};
use kube::{Api, api::ListParams};
use lab::{
    clock,
    cluster::{Pod, Service, ServiceBuilder},
    poll_until,
};

use super::{SOON, Stage};

/// How often something is looked at that must not change.
const LOOK: Duration = Duration::from_millis(20);

/// A Service with a VIP of each family.
pub(crate) struct Served {
    pub(crate) service: Service,
    pub(crate) vips: [IpAddr; 2],
    /// On the nodes that were asked for, in their order.
    pub(crate) pods: Vec<Pod>,
    /// Who had the VIPs first.
    pub(crate) owner: usize,
}

impl Served {
    /// The Lease that elects its owner.
    pub(crate) fn lease(&self) -> String {
        format!("kubevip-{}", self.service.name())
    }
}

impl Stage {
    /// Serves HTTP on the cluster's VIPs of this number, from a Pod on each of these nodes.
    pub(crate) async fn serve_http<'a>(
        &'a self,
        name: &str,
        vip: u8,
        pods: &[usize],
        shape: impl FnOnce(ServiceBuilder<'a>) -> ServiceBuilder<'a>,
    ) -> Result<Served> {
        let cluster = &self.cluster;
        let vips = [
            IpAddr::from(cluster.vip(vip)),
            IpAddr::from(cluster.vip6(vip)),
        ];
        let mut running = Vec::new();
        for node in pods {
            let pod = cluster
                .pod(&format!("{name}-{node}"))
                .label("app", name)
                .on(cluster.node(*node));
            running.push(pod.serve_http(8080).await?);
        }
        let [v4, v6] = vips;
        let service = cluster
            .service(name)
            .annotation("kube-vip.io/loadbalancerIPs", &format!("{v4},{v6}"))
            .dual_stack()
            .port(80, 8080);
        let service = shape(service).create().await?;
        for vip in vips {
            self.ask(vip).await?;
        }
        let owner = self.owner(v4).await?;
        Ok(Served {
            service,
            vips,
            pods: running,
            owner,
        })
    }

    /// All is well with a Service: one speaker holds its Lease and has all its VIPs, and they serve
    /// HTTP. Returns the owner.
    pub(crate) async fn healthy(&self, lease: &str, vips: &[IpAddr]) -> Result<usize> {
        let what = format!("holder of {lease} with {vips:?}");
        let owner = poll_until(SOON, &what, async || {
            let Some(holder) = self.speaker_of(lease).await? else {
                return Ok(None);
            };
            let owners: Vec<_> = vips
                .iter()
                .map(|vip| self.owners(*vip))
                .collect::<Result<_>>()?;
            Ok(owners
                .iter()
                .all(|owners| *owners == [holder])
                .then_some(holder))
        })
        .await?;
        for vip in vips {
            self.ask(*vip).await?;
        }
        Ok(owner)
    }

    /// What a Lease of the Services' namespace says.
    pub(crate) async fn lease(&self, name: &str) -> Result<LeaseSpec> {
        let lease = self.cluster.lease(self.cluster.namespace(), name).await?;
        lease
            .and_then(|lease| lease.spec)
            .with_context(|| format!("there is no Lease {name}"))
    }

    /// The node whose speaker holds a Lease of the Services' namespace.
    pub(crate) async fn speaker_of(&self, lease: &str) -> Result<Option<usize>> {
        let lease = self.cluster.lease(self.cluster.namespace(), lease).await?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        Ok(self
            .cluster
            .nodes()
            .iter()
            .position(|node| holder.as_deref() == Some(&format!("{}_speaker", node.name()))))
    }

    /// The Leases of the Services' namespace that have a holder.
    pub(crate) async fn held_leases(&self) -> Result<Vec<String>> {
        let leases = self.leases().list(&ListParams::default()).await?;
        let held = leases.items.into_iter().filter(|lease| {
            let holder = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.as_ref());
            holder.is_some_and(|holder| !holder.is_empty())
        });
        Ok(held.filter_map(|lease| lease.metadata.name).collect())
    }

    /// Leases of the Services' namespace, for whoever interferes with them.
    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.cluster.kube(), self.cluster.namespace())
    }
}

/// Looks for a while whether something goes on being true.
pub(crate) async fn throughout(
    period: Duration,
    mut check: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let end = clock::now() + period;
    while clock::now() < end {
        check().await?;
        clock::sleep(LOOK).await;
    }
    Ok(())
}

/// The VIP stays where it is, and only there, for so long.
pub(crate) async fn stays(
    stage: &Stage,
    vip: IpAddr,
    owner: usize,
    period: Duration,
) -> Result<()> {
    throughout(period, async || {
        let owners = stage.owners(vip)?;
        ensure!(owners == [owner], "{vip} is on {owners:?}, not on {owner}");
        Ok(())
    })
    .await
}

/// Services made at the same time.
const AT_ONCE: usize = 20;

impl Stage {
    /// Makes so many Services `many-<n>`, each with an IPv4 VIP of its own and no Pods. The VIPs are
    /// outside the nodes' network, where there is room for them.
    pub(crate) async fn many(&self, count: u16) -> Result<Vec<IpAddr>> {
        let [_, cluster, ..] = self.cluster.vip(0).octets();
        let vips: Vec<IpAddr> = (0..count)
            .map(|n| {
                let [high, low] = (n / 250 * 256 + n % 250 + 1).to_be_bytes();
                IpAddr::from([10, cluster, 64 + high, low])
            })
            .collect();
        let services = vips
            .iter()
            .enumerate()
            .map(|(number, vip)| self.bare(format!("many-{number}"), *vip));
        stream::iter(services)
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<_>>()
            .await?;
        Ok(vips)
    }

    /// Makes a Service with one VIP and no Pods.
    pub(crate) async fn bare(&self, name: impl AsRef<str>, vip: IpAddr) -> Result<Service> {
        let service = self.cluster.service(name.as_ref());
        let service = if vip.is_ipv6() {
            service.ipv6_only()
        } else {
            service
        };
        service
            .load_balancer_ip(vip)
            .port(80, 8080)
            .with(|service| {
                let spec = service.spec.get_or_insert_default();
                spec.allocate_load_balancer_node_ports = Some(false);
            })
            .create()
            .await
    }

    /// Waits until so many Services say that they are served.
    pub(crate) async fn all_have_status(&self, count: usize) -> Result<()> {
        let services =
            Api::<ServiceObject>::namespaced(self.cluster.kube(), self.cluster.namespace());
        poll_until(SOON * 2, "all statuses", async || {
            let list = services.list(&ListParams::default()).await?;
            let served = list.items.into_iter().filter(|service| {
                let status = service
                    .status
                    .as_ref()
                    .and_then(|s| s.load_balancer.as_ref());
                status.is_some_and(|status| status.ingress.as_ref().is_some_and(|i| !i.is_empty()))
            });
            Ok((served.count() == count).then_some(()))
        })
        .await
    }
}
