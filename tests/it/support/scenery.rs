//! Objects that many tests put on their stage.

use std::net::IpAddr;

use anyhow::Result;
use k8s_openapi::api::core::v1::Service as ServiceObject;
use lab::cluster::{Pod, Service, ServiceBuilder};

use super::Stage;

pub(crate) const LOADBALANCER_IPS: &str = "kube-vip.io/loadbalancerIPs";

impl Stage {
    /// The VIPs of this number, IPv4 first.
    pub(crate) fn pair(&self, number: u8) -> [IpAddr; 2] {
        [
            self.cluster.vip(number).into(),
            self.cluster.vip6(number).into(),
        ]
    }

    /// The client's own addresses.
    pub(crate) fn pair_of_client(&self) -> [IpAddr; 2] {
        let (v4, v6) = self.cluster.addressing().client();
        [v4.into(), v6.into()]
    }

    /// Describes a Service for these VIPs, with cluster addresses of their families in their order,
    /// and port 80 for port 8080 of its Pods.
    pub(crate) fn service(&self, name: &str, vips: &[IpAddr]) -> ServiceBuilder<'_> {
        let families: Vec<String> = vips.iter().map(|vip| family(*vip).to_owned()).collect();
        let dual = families.len() > 1;
        self.cluster
            .service(name)
            .annotation(LOADBALANCER_IPS, &listed(vips))
            .port(80, 8080)
            .with(|service| {
                let spec = service.spec.get_or_insert_default();
                let policy = if dual {
                    "RequireDualStack"
                } else {
                    "SingleStack"
                };
                spec.ip_family_policy = Some(policy.to_owned());
                spec.ip_families = Some(families);
            })
    }

    /// Creates the dual-stack Service `name` on the VIPs of this number, and returns both.
    pub(crate) async fn serve(&self, name: &str, number: u8) -> Result<(Service, [IpAddr; 2])> {
        let vips = self.pair(number);
        Ok((self.service(name, &vips).create().await?, vips))
    }

    /// A Pod of the Service `app` on a node.
    pub(crate) async fn pod(&self, app: &str, node: usize) -> Result<Pod> {
        self.extra_pod(app, "", node).await
    }

    /// A further Pod of the Service `app` on a node.
    pub(crate) async fn extra_pod(&self, app: &str, suffix: &str, node: usize) -> Result<Pod> {
        self.cluster
            .pod(&format!("{app}-{node}{suffix}"))
            .label("app", app)
            .on(self.node(node))
            .serve_http(8080)
            .await
    }

    /// A Pod of the Service `app` on each node.
    pub(crate) async fn pods(&self, app: &str) -> Result<Vec<Pod>> {
        let mut pods = Vec::new();
        for node in 0..self.cluster.nodes().len() {
            pods.push(self.pod(app, node).await?);
        }
        Ok(pods)
    }
}

fn family(vip: IpAddr) -> &'static str {
    if vip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// As kube-vip's annotation wants it.
pub(crate) fn listed(vips: &[IpAddr]) -> String {
    let texts: Vec<String> = vips.iter().map(ToString::to_string).collect();
    texts.join(",")
}

/// Sets or removes an annotation.
pub(crate) fn annotate(service: &mut ServiceObject, key: &str, value: Option<&str>) {
    let annotations = service.metadata.annotations.get_or_insert_default();
    match value {
        Some(value) => annotations.insert(key.to_owned(), value.to_owned()),
        None => annotations.remove(key),
    };
}
