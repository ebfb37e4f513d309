//! Pods: real objects whose "container" is an HTTP server of the lab on the node's host.
//!
//! The lab plays the kubelet: it writes the status, answers on the pod's addresses (on the host's `lo`),
//! and after a graceful deletion takes the container and then the object away. A host that boots again
//! has its pods again.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use anyhow::{Context, Result};
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use k8s_openapi::{api::core::v1::Pod as PodObject, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Background, Cluster, Node, kubelet};
use crate::{access::is_absent, clock, host::Host, iproute, run::lock};

/// What a pod answers to every request, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAnswer {
    pub pod: String,
    pub node: String,
    /// From where the request came, as the pod sees it.
    pub client: IpAddr,
}

/// A pod that is being described; [`Cluster::pod`] begins one.
#[derive(Debug)]
pub struct PodBuilder<'a> {
    cluster: &'a Cluster,
    name: String,
    node: &'a Node,
    labels: BTreeMap<String, String>,
}

/// A running pod.
#[derive(Debug)]
pub struct Pod {
    name: String,
    api: Api<PodObject>,
    host: Host,
    container: Arc<Container>,
    /// The node's list, from which a pod that has gone is removed.
    containers: Arc<Containers>,
}

/// The containers of a node, for its next boot.
#[derive(Debug, Default)]
pub(super) struct Containers(Mutex<Vec<Weak<Container>>>);

#[derive(Debug)]
struct Container {
    pod: String,
    node: String,
    addresses: (Ipv4Addr, Ipv6Addr),
    port: u16,
    background: Background,
    running: Mutex<Option<DropGuard>>,
}

impl<'a> PodBuilder<'a> {
    pub(super) fn new(cluster: &'a Cluster, name: &str) -> Self {
        Self {
            cluster,
            name: name.to_owned(),
            node: cluster.node(0),
            labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
        }
    }

    /// On this node, instead of the first.
    #[must_use]
    pub fn on(mut self, node: &'a Node) -> Self {
        self.node = node;
        self
    }

    /// With a label, besides `app: <name>`.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Starts it: an HTTP server on this port that answers with a [`PodAnswer`]. Ready on return.
    pub async fn serve_http(self, port: u16) -> Result<Pod> {
        let (name, node) = (self.name, self.node);
        let container = Arc::new(Container {
            pod: name.clone(),
            node: node.name().to_owned(),
            addresses: node.next_pod_addresses(),
            port,
            background: self.cluster.background.clone(),
            running: Mutex::default(),
        });
        container
            .start(node.host())
            .with_context(|| format!("starting pod {name}"))?;
        let containers = Arc::clone(node.containers());
        lock(&containers.0).push(Arc::downgrade(&container));
        let api = Api::namespaced(self.cluster.kube(), self.cluster.namespace());
        let object: PodObject = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": self.labels },
            "spec": {
                "nodeName": node.name(),
                "containers": [{
                    "name": "http",
                    "image": "lab.invalid/http",
                    "ports": [{ "containerPort": port }],
                }],
            },
        }))?;
        let created = api.create(&PostParams::default(), &object).await;
        created.with_context(|| format!("creating pod {name}"))?;
        let pod = Pod {
            name,
            api,
            host: node.host().clone(),
            container,
            containers,
        };
        pod.post_status(true).await?;
        Ok(pod)
    }
}

impl Pod {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pod's addresses.
    pub fn addresses(&self) -> (Ipv4Addr, Ipv6Addr) {
        self.container.addresses
    }

    /// Passes or fails the readiness probe.
    pub async fn set_ready(&self, ready: bool) -> Result<()> {
        self.post_status(ready).await
    }

    /// Deletes the pod gracefully: for `grace` it goes on serving, `terminating` in its slice.
    ///
    /// Returns at the beginning of that time; the end comes by itself.
    pub async fn terminate(self, grace: Duration) -> Result<()> {
        let seconds = u32::try_from(grace.as_secs().max(1)).context("a very long grace period")?;
        let delete = DeleteParams {
            grace_period_seconds: Some(seconds),
            ..DeleteParams::default()
        };
        let deleted = self.api.delete(&self.name, &delete).await;
        deleted.with_context(|| format!("terminating pod {}", self.name))?;
        let background = self.container.background.clone();
        background.spawn(async move {
            clock::sleep(grace).await;
            // If this fails, the object stays, and the scenario that waits for its end says so.
            let _ = self.delete_now().await;
        });
        Ok(())
    }

    /// Ends the container and deletes the pod at once.
    pub async fn delete_now(self) -> Result<()> {
        self.container.stop(&self.host);
        self.containers.forget(&self.container);
        match self
            .api
            .delete(&self.name, &DeleteParams::default().grace_period(0))
            .await
        {
            Err(error) if !is_absent(&error) => {
                Err(error).with_context(|| format!("deleting pod {}", self.name))
            }
            _ => Ok(()),
        }
    }

    async fn post_status(&self, ready: bool) -> Result<()> {
        let (v4, v6) = self.container.addresses;
        let at = Time(kubelet::now());
        let condition = |kind: &str, status: bool| {
            let status = if status { "True" } else { "False" };
            json!({ "type": kind, "status": status, "lastTransitionTime": at })
        };
        let status = json!({ "status": {
            "phase": "Running",
            "podIP": v4,
            "podIPs": [{ "ip": v4 }, { "ip": v6 }],
            "startTime": at,
            "conditions": [
                condition("PodScheduled", true),
                condition("Initialized", true),
                condition("ContainersReady", ready),
                condition("Ready", ready),
            ],
        }});
        self.api
            .patch_status(
                &self.name,
                &PatchParams::default(),
                &Patch::Strategic(status),
            )
            .await
            .map(drop)
            .with_context(|| format!("posting the status of pod {}", self.name))
    }
}

impl Containers {
    /// Starts them all, in a host that has just booted.
    pub(super) fn start(&self, host: &Host) -> Result<()> {
        let containers: Vec<_> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        containers
            .iter()
            .try_for_each(|container| container.start(host))
    }

    fn forget(&self, gone: &Arc<Container>) {
        lock(&self.0).retain(|it| it.upgrade().is_some_and(|it| !Arc::ptr_eq(&it, gone)));
    }
}

impl Container {
    fn start(self: &Arc<Self>, host: &Host) -> Result<()> {
        let (v4, v6) = self.addresses;
        let lines = format!("addr replace {v4}/32 dev lo\naddr replace {v6}/128 dev lo nodad\n");
        iproute::ip(Some(&*host.namespace()?), &lines)?;
        let end = CancellationToken::new();
        for address in [IpAddr::from(v4), IpAddr::from(v6)] {
            let listener = host.tcp_listener(SocketAddr::new(address, self.port))?;
            let listener = TcpListener::from_std(listener).context("taking over a listener")?;
            let serving = accept(listener, Arc::clone(self), end.clone());
            self.background.spawn(serving);
        }
        *lock(&self.running) = Some(end.drop_guard());
        Ok(())
    }

    fn stop(&self, host: &Host) {
        lock(&self.running).take();
        let (v4, v6) = self.addresses;
        let lines = format!("addr del {v4}/32 dev lo\naddr del {v6}/128 dev lo\n");
        // A host that is off has no addresses.
        if let Ok(namespace) = host.namespace() {
            let _ = iproute::ip(Some(&namespace), &lines);
        }
    }
}

async fn accept(listener: TcpListener, container: Arc<Container>, end: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = end.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                let (background, end) = (container.background.clone(), end.clone());
                let container = Arc::clone(&container);
                background.spawn(async move {
                    tokio::select! {
                        () = end.cancelled() => {}
                        () = serve(stream, from.ip(), &container) => {}
                    }
                });
            }
            // Out of descriptors, most likely: not worth more than another try.
            Err(_) => clock::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(stream: TcpStream, client: IpAddr, container: &Container) {
    let answer = PodAnswer {
        pod: container.pod.clone(),
        node: container.node.clone(),
        client,
    };
    let body = Bytes::from(serde_json::to_vec(&answer).expect("it is plain text"));
    let service = service_fn(|_: Request<hyper::body::Incoming>| {
        let body = body.clone();
        async move { Ok::<_, Infallible>(Response::new(Full::new(body))) }
    });
    // A client that breaks off is its own business.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
