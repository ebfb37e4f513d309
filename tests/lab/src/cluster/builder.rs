//! How a cluster comes to be: hosts and routes, namespaces and rights, then the nodes.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result};
use k8s_openapi::{Resource, api::core::v1::Namespace};
use kube::{Api, Client, api::PostParams};
use tokio::sync::watch;

use super::{
    Addressing, Background, Cluster, Node, addressing::on_link, kube_proxy::KubeProxy, node,
    number::Number,
};
use crate::{
    access::{self, Tokens},
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
    cloud_controllers: bool,
}

impl ClusterBuilder {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nodes: 3,
            kube_proxy: true,
            own_control_plane: None,
            cloud_controllers: false,
        }
    }

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

    /// For cloud controllers beside the speakers: nodes wait to be initialised, as those of a kubelet
    /// with `--cloud-provider=external` and `--node-ip`, and the speakers may do what the controllers do.
    /// They see to all Nodes and Services of their API server, so the cluster has a control plane of its
    /// own.
    #[must_use]
    pub fn cloud_controllers(mut self) -> Self {
        self.cloud_controllers = true;
        self.own_control_plane.get_or_insert_default();
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
        if self.cloud_controllers {
            access::promote(&kube, &name, &release).await?;
        }
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

        let background = Background::default();
        let cluster = Cluster {
            end: background.end.clone().drop_guard(),
            background,
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
            uninitialised: self.cloud_controllers,
            _number: number,
        };
        cluster.come_up().await?;
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
            kube_proxy_process: Mutex::default(),
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
