//! A guest cluster: nodes on a network, a client, a router, and the API server between them.
//!
//! Clusters of one process run side by side on its shared control plane. Each has a number that makes
//! its addresses, node names and namespaces its own: `c7-node0`, Services in `c7`, the release in
//! `c7-system`. [`Cluster::stop`] takes all of it back.

mod addressing;
mod builder;
mod events;
mod kube_proxy;
mod kubelet;
mod node;
mod number;
mod pods;
mod services;

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, Ipv6Addr, TcpListener},
    sync::Arc,
};

use anyhow::{Context, Result, anyhow};
use futures_util::future::{join_all, try_join_all};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Node as NodeObject, Pod as PodObject},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use self::{
    addressing::Addressing,
    builder::ClusterBuilder,
    events::Incident,
    node::{Node, SpeakerSetup},
    pods::{Pod, PodAnswer, PodBuilder},
    services::{Service, ServiceBuilder},
};
use self::{events::Events, kubelet::Identity, number::Number};
use crate::{
    access::{self, Tokens, is_absent},
    api_proxy::{ApiProxy, Counts},
    control_plane::ControlPlane,
    host::Host,
    network::Network,
    run::Lab,
};

/// A running cluster.
pub struct Cluster {
    // Dropped in this order: the lab's tasks, then what they work on.
    end: DropGuard,
    background: Background,
    nodes: Vec<Node>,
    client_host: Host,
    router: Host,
    network: Network,
    lab: Lab,
    name: String,
    release: String,
    addressing: Addressing,
    kube: Client,
    tokens: Tokens,
    control_plane: Arc<ControlPlane>,
    /// Nodes register as those that a cloud provider initialises.
    uninitialised: bool,
    _number: Number,
}

/// The tasks of a cluster; they end with it.
#[derive(Debug, Clone, Default)]
struct Background {
    tasks: TaskTracker,
    end: CancellationToken,
}

impl Background {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = task => {}
            }
        });
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster of so many nodes with kube-proxy, on the shared control plane.
    pub async fn start(nodes: u8) -> Result<Self> {
        Self::builder("cluster").nodes(nodes).start().await
    }

    /// Describes a cluster; `name` says in logs and folders what it is for.
    pub fn builder(name: &str) -> ClusterBuilder {
        ClusterBuilder::new(name)
    }

    /// The node with this number, from 0.
    pub fn node(&self, index: usize) -> &Node {
        self.nodes
            .get(index)
            .expect("the scenario knows how many nodes it has asked for")
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The host from which users come.
    pub fn client(&self) -> &Host {
        &self.client_host
    }

    /// The default gateway of nodes and client.
    pub fn router(&self) -> &Host {
        &self.router
    }

    /// The network of nodes, client and router.
    pub fn network(&self) -> &Network {
        &self.network
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// The administrator's client.
    pub fn kube(&self) -> Client {
        self.kube.clone()
    }

    /// `c<number>`: the namespace of Services and pods.
    pub fn namespace(&self) -> &str {
        &self.name
    }

    /// `c<number>-system`: where the speakers' Leases and Secrets are.
    pub fn release_namespace(&self) -> &str {
        &self.release
    }

    pub fn addressing(&self) -> Addressing {
        self.addressing
    }

    /// An address for a Service, by number from 0.
    pub fn vip(&self, number: u8) -> Ipv4Addr {
        self.addressing.vip(number).0
    }

    pub fn vip6(&self, number: u8) -> Ipv6Addr {
        self.addressing.vip(number).1
    }

    /// Describes a pod, by default on the first node.
    pub fn pod(&self, name: &str) -> PodBuilder<'_> {
        PodBuilder::new(self, name)
    }

    /// Describes a Service of type `LoadBalancer` for the pods of `app: <name>`.
    pub fn service(&self, name: &str) -> ServiceBuilder<'_> {
        ServiceBuilder::new(self, name)
    }

    /// A further way to the API server with a speaker's rights, in the root namespace: for a client in
    /// the test's own process.
    pub fn speaker_proxy(&self, name: &str) -> Result<ApiProxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a port on loopback")?;
        ApiProxy::start(
            name,
            listener,
            &self.control_plane.upstream(&self.tokens.speaker),
        )
    }

    /// The requests so far of each client on a node, by the name of its proxy.
    pub fn requests(&self) -> BTreeMap<String, Counts> {
        let proxies = self.nodes.iter().flat_map(Node::apis);
        proxies
            .map(|proxy| (proxy.name().to_owned(), proxy.counts()))
            .collect()
    }

    /// The Lease, if it exists.
    pub async fn lease(&self, namespace: &str, name: &str) -> Result<Option<Lease>> {
        let leases = Api::<Lease>::namespaced(self.kube(), namespace);
        leases
            .get_opt(name)
            .await
            .with_context(|| format!("reading Lease {namespace}/{name}"))
    }

    /// What was reported about an object in the Services' namespace.
    pub async fn events_about(&self, kind: &str, name: &str) -> Result<Vec<Incident>> {
        self.events().about(kind, name).await
    }

    /// Takes everything back, as far as possible even if something fails on the way.
    pub async fn stop(self) -> Result<()> {
        drop(self.end);
        self.background.tasks.close();
        self.background.tasks.wait().await;
        let lab = tokio::task::spawn_blocking(|| self.lab.stop());
        let mut outcomes = vec![lab.await.context("ending the lab").and_then(|it| it)];
        let pods = Api::<PodObject>::namespaced(self.kube.clone(), &self.name);
        // Nobody plays the kubelet any more: gracefully they would never go.
        let at_once = DeleteParams::default().grace_period(0);
        outcomes.push(
            pods.delete_collection(&at_once, &ListParams::default())
                .await
                .map(drop)
                .context("deleting the pods"),
        );
        let nodes = self
            .nodes
            .iter()
            .map(|node| kubelet::deregister(&self.kube, &node.name));
        outcomes.extend(join_all(nodes).await);
        outcomes.push(access::withdraw(&self.kube, &self.name).await);
        for namespace in [&self.name, &self.release] {
            outcomes.push(delete_namespace(&self.kube, namespace).await);
        }
        let failures: Vec<String> = outcomes
            .into_iter()
            .filter_map(Result::err)
            .map(|it| format!("{it:#}"))
            .collect();
        if failures.is_empty() {
            Ok(())
        } else {
            Err(anyhow!("{}", failures.join("; ")))
        }
    }

    fn events(&self) -> Events {
        Events {
            api: Api::namespaced(self.kube(), &self.name),
        }
    }

    /// Registers the nodes, starts their kubelet's voice and their kube-proxies.
    async fn come_up(&self) -> Result<()> {
        let identities: Vec<Identity> = self.nodes.iter().map(|node| self.identity(node)).collect();
        let registered = identities
            .iter()
            .map(|node| kubelet::register(&self.kube, node));
        try_join_all(registered).await?;
        let hearts = self.nodes.iter().map(Node::heart).collect();
        let kubelets = kubelet::run(self.kube(), self.name.clone(), hearts);
        self.background.spawn(kubelets);
        try_join_all(self.nodes.iter().map(Node::start_kube_proxy)).await?;
        self.control_plane.check()
    }

    fn identity(&self, node: &Node) -> Identity {
        let (v4, v6) = node.addresses();
        Identity {
            cluster: self.name.clone(),
            name: node.name.clone(),
            addresses: vec![v4.into(), v6.into()],
            pod_networks: self.addressing.pod_networks(node.index).into(),
            uninitialised: self.uninitialised,
        }
    }
}

/// Every node that the API server knows, and whether it is Ready.
pub(crate) async fn readiness(kube: &Client) -> Result<Vec<(String, bool)>> {
    let nodes = Api::<NodeObject>::all(kube.clone())
        .list(&ListParams::default())
        .await?;
    let entry = |node: NodeObject| {
        let ready = kubelet::is_ready(&node);
        (node.metadata.name.unwrap_or_default(), ready)
    };
    Ok(nodes.items.into_iter().map(entry).collect())
}

async fn delete_namespace(kube: &Client, name: &str) -> Result<()> {
    match Api::<Namespace>::all(kube.clone())
        .delete(name, &DeleteParams::default())
        .await
    {
        Err(error) if !is_absent(&error) => Err(error).context(format!("deleting {name}")),
        _ => Ok(()),
    }
}
