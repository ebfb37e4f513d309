//! A guest cluster: nodes on a network, a client, a router, and the API server between them.
//!
//! Clusters of one process run side by side on its shared control plane. Each has a number that makes
//! its addresses, node names and namespaces its own: `c7-node0`, Services in `c7`, the release in
//! `c7-system`. [`Cluster::stop`] takes all of it back.

mod addressing;
mod events;
mod kube_proxy;
mod kubelet;
mod node;
mod number;
mod pods;
mod services;

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result, anyhow};
use futures_util::future::{join_all, try_join_all};
use k8s_openapi::{
    Resource,
    api::{
        coordination::v1::Lease,
        core::v1::{Namespace, Node as NodeObject, Pod as PodObject},
    },
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use tokio::sync::watch;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use self::{
    addressing::Addressing,
    events::Incident,
    node::{Node, SpeakerSetup},
    pods::{Pod, PodAnswer, PodBuilder},
    services::{Service, ServiceBuilder},
};
use self::{
    addressing::on_link, events::Events, kube_proxy::KubeProxy, kubelet::Identity, number::Number,
};
use crate::{
    access::{self, Tokens, is_absent},
    api_proxy::ApiProxy,
    control_plane::{ControlPlane, Settings},
    host::Host,
    kubeconfig::Access,
    network::Network,
    run::Lab,
};

/// A cluster that is being described.
#[derive(Debug, Clone)]
pub struct ClusterBuilder {
    name: String,
    nodes: u8,
    kube_proxy: bool,
    own_control_plane: Option<Settings>,
}

/// A running cluster.
pub struct Cluster {
    // Dropped in this order: the lab's tasks, then what they work on.
    end: DropGuard,
    tasks: TaskTracker,
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
    _number: Number,
}

impl ClusterBuilder {
    /// So many nodes, instead of three.
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// With a kube-proxy on each node, or without one.
    #[must_use]
    pub fn kube_proxy(mut self, wanted: bool) -> Self {
        self.kube_proxy = wanted;
        self
    }

    /// With a control plane of its own, which the scenario may stop.
    #[must_use]
    pub fn own_control_plane(mut self, settings: Settings) -> Self {
        self.own_control_plane = Some(settings);
        self
    }

    /// Starts it; nodes are Ready and kube-proxy has written its rules when this returns.
    pub async fn start(self) -> Result<Cluster> {
        let control_plane = match self.own_control_plane {
            Some(settings) => Arc::new(ControlPlane::start(settings).await?),
            None => ControlPlane::shared().await?,
        };
        let number = Number::take()?;
        let addressing = Addressing::new(number.value);
        let name = format!("c{}", number.value);
        let release = format!("{name}-system");
        let lab = Lab::new(&self.name)?;
        let network = lab.network("nodes")?;
        let router = station(&lab, &network, "router", addressing.router())?;
        router.forwarding()?;
        let client_host = station(&lab, &network, "client", addressing.client())?;
        default_route(&client_host, addressing)?;

        let kube = control_plane.admin().await?;
        create_namespace(&kube, &name).await?;
        create_namespace(&kube, &release).await?;
        let tokens = access::accounts(&kube, &name, &release).await?;
        let foundation = Foundation {
            lab: &lab,
            network: &network,
            control_plane: &control_plane,
            kube: &kube,
            tokens: &tokens,
            addressing,
            name: &name,
            release: &release,
        };
        let nodes: Vec<Node> = (0..self.nodes)
            .map(|index| foundation.node(index, self.nodes, self.kube_proxy))
            .collect::<Result<_>>()?;

        let end = CancellationToken::new();
        let tasks = TaskTracker::new();
        let cluster = Cluster {
            end: end.clone().drop_guard(),
            tasks,
            nodes,
            client_host,
            router,
            network,
            lab,
            name,
            release,
            addressing,
            kube,
            tokens,
            control_plane,
            _number: number,
        };
        cluster.come_up(end).await?;
        Ok(cluster)
    }
}

/// What the nodes of a cluster are made from.
struct Foundation<'a> {
    lab: &'a Lab,
    network: &'a Network,
    control_plane: &'a ControlPlane,
    kube: &'a Client,
    tokens: &'a Tokens,
    addressing: Addressing,
    name: &'a str,
    release: &'a str,
}

impl Foundation<'_> {
    fn node(&self, index: u8, nodes: u8, kube_proxy: bool) -> Result<Node> {
        let name = format!("{}-node{index}", self.name);
        let host = station(
            self.lab,
            self.network,
            &format!("node{index}"),
            self.addressing.node(index),
        )?;
        host.forwarding()?;
        default_route(&host, self.addressing)?;
        for other in (0..nodes).filter(|other| *other != index) {
            let (v4, v6) = self.addressing.node(other);
            let [pods_v4, pods_v6] = self.addressing.pod_networks(other);
            host.route(&pods_v4, v4.into())?;
            host.route(&pods_v6, v6.into())?;
        }
        let folder = self.lab.directory();
        let api = self.proxy(&name, &host, node::SPEAKER_API, &self.tokens.speaker)?;
        let kubeconfig = folder.join(format!("{name}.kubeconfig"));
        self.write_kubeconfig(&api, &kubeconfig)?;
        let kube_proxy = if kube_proxy {
            let client = format!("{name}-kube-proxy");
            let api = self.proxy(
                &client,
                &host,
                node::KUBE_PROXY_API,
                &self.tokens.kube_proxy,
            )?;
            let program = &self.control_plane.tools().kube_proxy;
            Some(KubeProxy::new(
                api,
                program,
                folder,
                &name,
                self.addressing,
            )?)
        } else {
            None
        };
        Ok(Node {
            index,
            name,
            host,
            addressing: self.addressing,
            client: self.kube.clone(),
            namespaces: (self.release.to_owned(), self.name.to_owned()),
            api,
            kubeconfig,
            kube_proxy,
            kube_proxy_process: std::sync::Mutex::default(),
            living: watch::Sender::new(true),
            containers: Arc::default(),
            pods: 0.into(),
        })
    }

    fn proxy(&self, name: &str, host: &Host, at: SocketAddr, token: &str) -> Result<ApiProxy> {
        ApiProxy::start(
            name,
            host.tcp_listener(at)?,
            &self.control_plane.upstream(token),
        )
    }

    fn write_kubeconfig(&self, api: &ApiProxy, file: &Path) -> Result<()> {
        let access = Access {
            server: api.url(),
            ca_pem: None,
            token: self.tokens.speaker.clone(),
            namespace: self.release.to_owned(),
        };
        access.write(file)
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
        ClusterBuilder {
            name: name.to_owned(),
            nodes: 3,
            kube_proxy: true,
            own_control_plane: None,
        }
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
        self.tasks.close();
        let mut outcomes = vec![self.lab.stop()];
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
        self.tasks.wait().await;
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

    pub(self) fn events(&self) -> Events {
        Events {
            api: Api::namespaced(self.kube(), &self.name),
        }
    }

    pub(self) fn tasks(&self) -> TaskTracker {
        self.tasks.clone()
    }

    /// Registers the nodes, starts their kubelet's voice and their kube-proxies.
    async fn come_up(&self, end: CancellationToken) -> Result<()> {
        let identities: Vec<Identity> = self.nodes.iter().map(|node| self.identity(node)).collect();
        let registered = identities
            .iter()
            .map(|node| kubelet::register(&self.kube, node));
        try_join_all(registered).await?;
        let hearts = self.nodes.iter().map(Node::heart).collect();
        self.tasks
            .spawn(kubelet::run(self.kube(), self.name.clone(), hearts, end));
        try_join_all(self.nodes.iter().map(Node::start_kube_proxy))
            .await
            .map(drop)
    }

    fn identity(&self, node: &Node) -> Identity {
        let (v4, v6) = node.addresses();
        Identity {
            cluster: self.name.clone(),
            name: node.name.clone(),
            addresses: vec![v4.into(), v6.into()],
            pod_networks: self.addressing.pod_networks(node.index).into(),
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

/// A host with one link, `eth0`, on the network.
fn station(
    lab: &Lab,
    network: &Network,
    name: &str,
    addresses: (Ipv4Addr, Ipv6Addr),
) -> Result<Host> {
    let host = lab.host(name)?;
    let [v4, v6] = on_link(addresses);
    host.connect(network, "eth0", &[&v4, &v6])?;
    Ok(host)
}

fn default_route(host: &Host, addressing: Addressing) -> Result<()> {
    let (v4, v6) = addressing.router();
    host.route("default", v4.into())?;
    host.route("default", v6.into())
}

async fn create_namespace(kube: &Client, name: &str) -> Result<()> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    let created = Api::all(kube.clone())
        .create(&PostParams::default(), &namespace)
        .await;
    created
        .map(drop)
        .with_context(|| format!("creating {} {name}", Namespace::KIND))
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
