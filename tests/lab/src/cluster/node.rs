//! A node: a host, its Node object, its kube-proxy, and its speaker's way to the API server.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node as NodeObject, Taint};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    addressing::Addressing,
    kube_proxy::KubeProxy,
    kubelet::{self, Heart},
    pods::Containers,
};
use crate::{
    api_proxy::ApiProxy,
    harvester::{GuestAccess, HarvesterHost, Vm},
    host::Host,
    process::Process,
    run::lock,
};

/// Where the speaker of a node finds its API server, in the node's namespace.
pub(super) const SPEAKER_API: SocketAddr = loopback(6443);
/// The same for kube-proxy.
pub(super) const KUBE_PROXY_API: SocketAddr = loopback(6444);
/// Where cloud controllers on a node find the Harvester host.
const HOST_API: SocketAddr = loopback(6445);

/// How long a change of a node waits for the API server.
const REPORT_BOUND: Duration = Duration::from_secs(1);

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The program under test on a node.
#[derive(Debug, Clone, Default)]
pub struct SpeakerSetup {
    pub binary: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
}

/// A node of a cluster.
pub struct Node {
    pub(super) index: u8,
    pub(super) name: String,
    pub(super) host: Host,
    pub(super) addressing: Addressing,
    pub(super) client: Client,
    /// The release namespace and the Services' namespace.
    pub(super) namespaces: (String, String),
    pub(super) api: ApiProxy,
    pub(super) kubeconfig: PathBuf,
    pub(super) kube_proxy: Option<KubeProxy>,
    pub(super) kube_proxy_process: Mutex<Option<Process>>,
    /// Whether the kubelet that the lab plays reaches the API server.
    pub(super) living: watch::Sender<bool>,
    pub(super) containers: Arc<Containers>,
    pub(super) pods: AtomicU8,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// The name of the Node object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The machine. Switch it by the node's own [`Self::power_off`] and [`Self::pause`], which also see
    /// to its ways to the API server.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The addresses of type `InternalIP`.
    pub fn addresses(&self) -> (Ipv4Addr, Ipv6Addr) {
        self.addressing.node(self.index)
    }

    /// The speaker's way to the API server.
    pub fn api(&self) -> &ApiProxy {
        &self.api
    }

    /// kube-proxy's way to the API server.
    pub fn kube_proxy_api(&self) -> Option<&ApiProxy> {
        self.kube_proxy.as_ref().map(|it| &it.api)
    }

    /// The running kube-proxy.
    pub fn kube_proxy(&self) -> Option<Process> {
        lock(&self.kube_proxy_process).clone()
    }

    /// The speaker's kubeconfig; it works within the node's namespace.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Makes the node's VM on a Harvester host.
    pub async fn vm_on(&self, host: &HarvesterHost) -> Result<Vm> {
        let (v4, v6) = self.addresses();
        let addresses = [v4.to_string(), v6.to_string()];
        let vm = host
            .vm(&self.name)
            .addresses(&addresses.each_ref().map(String::as_str));
        vm.create().await
    }

    /// Opens the node's way to the Harvester host. Its cloud-config works within the node's namespace.
    pub fn access_to(&self, host: &HarvesterHost) -> Result<GuestAccess> {
        host.access_at(&self.name, self.host.tcp_listener(HOST_API)?)
    }

    /// Starts the program under test: the flags that say where it is, then those of `setup`.
    pub fn start_speaker(&self, setup: &SpeakerSetup) -> Result<Process> {
        let binary = setup
            .binary
            .to_str()
            .context("the path of the speaker is no text")?;
        let (release, services) = &self.namespaces;
        let mut command = self.host.command(binary)?;
        command
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--speaker-node-name={}", self.name))
            .arg(format!("--speaker-namespace={release}"))
            .arg(format!("--speaker-service-namespace={services}"))
            .args(&setup.args)
            .envs(setup.env.iter().map(|(name, value)| (name, value)));
        self.host.spawn("speaker", command)
    }

    /// Pulls the node's plug: no frame, no process and no request of it is left.
    pub async fn power_off(&self) -> Result<()> {
        // Silent first: no process may see its API server leave before it is killed itself.
        self.plug(false).await;
        self.switch(Host::power_off).await?;
        self.apis().for_each(ApiProxy::close);
        lock(&self.kube_proxy_process).take();
        Ok(())
    }

    /// Boots the node: kube-proxy and pods run again, the speaker is the caller's to start.
    pub async fn power_on(&self) -> Result<()> {
        if self.host.is_on() {
            return Ok(());
        }
        self.switch(Host::power_on).await?;
        self.api.listen(self.host.tcp_listener(SPEAKER_API)?)?;
        if let Some(kube_proxy) = &self.kube_proxy {
            kube_proxy
                .api
                .listen(self.host.tcp_listener(KUBE_PROXY_API)?)?;
        }
        self.containers.start(&self.host)?;
        self.plug(true).await;
        self.start_kube_proxy().await
    }

    /// Pauses the node as a hypervisor pauses a VM.
    pub async fn pause(&self) -> Result<()> {
        self.plug(false).await;
        self.switch(Host::pause).await
    }

    /// Ends [`Self::pause`].
    pub async fn resume(&self) -> Result<()> {
        self.switch(Host::resume).await?;
        self.plug(true).await;
        Ok(())
    }

    /// Cuts everything on the node from the API server, its kubelet included.
    pub async fn cut_from_api(&self) -> Result<()> {
        self.plug(false).await;
        Ok(())
    }

    /// Ends [`Self::cut_from_api`].
    pub async fn restore_api(&self) -> Result<()> {
        self.plug(true).await;
        Ok(())
    }

    /// Ends the voice of the node's kubelet alone: the node is not ready any more and works on.
    pub fn silence_kubelet(&self) {
        self.living.send_replace(false);
    }

    /// Whether the API server has the node as Ready.
    pub async fn is_ready(&self) -> Result<bool> {
        let node = self
            .objects()
            .get(&self.name)
            .await
            .context("reading a Node")?;
        Ok(kubelet::is_ready(&node))
    }

    /// Makes the node unschedulable.
    pub async fn cordon(&self) -> Result<()> {
        self.patch(json!({ "spec": { "unschedulable": true } }))
            .await
    }

    /// Ends [`Self::cordon`].
    pub async fn uncordon(&self) -> Result<()> {
        self.patch(json!({ "spec": { "unschedulable": null } }))
            .await
    }

    pub async fn label(&self, key: &str, value: &str) -> Result<()> {
        self.patch(json!({ "metadata": { "labels": { key: value } } }))
            .await
    }

    pub async fn unlabel(&self, key: &str) -> Result<()> {
        self.patch(json!({ "metadata": { "labels": { key: null } } }))
            .await
    }

    /// Adds a taint, with effect `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub async fn taint(&self, key: &str, effect: &str) -> Result<()> {
        let taint = Taint {
            key: key.to_owned(),
            effect: effect.to_owned(),
            ..Taint::default()
        };
        self.change_taints(|taints| taints.push(taint.clone()))
            .await
    }

    /// Takes every taint of that key away.
    pub async fn untaint(&self, key: &str) -> Result<()> {
        self.change_taints(|taints| taints.retain(|taint| taint.key != key))
            .await
    }

    pub(super) fn heart(&self) -> Heart {
        Heart {
            name: self.name.clone(),
            living: self.living.subscribe(),
        }
    }

    pub(super) fn containers(&self) -> &Arc<Containers> {
        &self.containers
    }

    pub(super) fn next_pod_addresses(&self) -> (Ipv4Addr, Ipv6Addr) {
        self.addressing
            .pod(self.index, self.pods.fetch_add(1, Ordering::Relaxed))
    }

    /// Starts kube-proxy, if the node has one, and waits for its rules.
    pub(super) async fn start_kube_proxy(&self) -> Result<()> {
        let Some(kube_proxy) = &self.kube_proxy else {
            return Ok(());
        };
        let process = kube_proxy.start(&self.host)?;
        *lock(&self.kube_proxy_process) = Some(process.clone());
        kube_proxy.synced(&self.host, &process).await
    }

    /// Does something to the host that takes a while: it runs programs and waits for ends.
    async fn switch(&self, change: fn(&Host) -> Result<()>) -> Result<()> {
        let host = self.host.clone();
        tokio::task::spawn_blocking(move || change(&host))
            .await
            .context("a change of a host")?
    }

    /// Connects what runs on the node with the API server, or holds everything back.
    async fn plug(&self, plugged: bool) {
        for api in self.apis() {
            api.set_plugged(plugged);
        }
        self.living.send_replace(plugged);
        if plugged {
            // At once, to save a second; if the server is away, the kubelet's next try will do.
            let report = kubelet::report(&self.client, &self.name);
            drop(tokio::time::timeout(REPORT_BOUND, report).await);
        }
    }

    pub(super) fn apis(&self) -> impl Iterator<Item = &ApiProxy> {
        std::iter::once(&self.api).chain(self.kube_proxy_api())
    }

    /// Writes the whole list, as the API has it, and again if somebody else wrote it meanwhile.
    async fn change_taints(&self, change: impl Fn(&mut Vec<Taint>)) -> Result<()> {
        loop {
            let node = self
                .objects()
                .get(&self.name)
                .await
                .context("reading a Node")?;
            let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            change(&mut taints);
            let patch = Patch::Merge(json!({
                "metadata": { "resourceVersion": node.metadata.resource_version },
                "spec": { "taints": taints },
            }));
            match self
                .objects()
                .patch(&self.name, &PatchParams::default(), &patch)
                .await
            {
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                other => {
                    return other
                        .map(drop)
                        .with_context(|| format!("tainting {}", self.name));
                }
            }
        }
    }

    async fn patch(&self, patch: Value) -> Result<()> {
        let patch = Patch::Merge(patch);
        let patched = self
            .objects()
            .patch(&self.name, &PatchParams::default(), &patch)
            .await;
        patched
            .map(drop)
            .with_context(|| format!("changing {}", self.name))
    }

    fn objects(&self) -> Api<NodeObject> {
        Api::all(self.client.clone())
    }
}
