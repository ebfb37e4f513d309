//! A real kube-proxy in nftables mode on a node.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::addressing::Addressing;
use crate::{api_proxy::ApiProxy, host::Host, http_client, process::Process, wait::poll_until};

const HEALTH_PORT: u16 = 10256;
const SYNC_BOUND: Duration = Duration::from_secs(60);

/// kube-proxy of one node with its own way to the API server.
#[derive(Debug)]
pub(super) struct KubeProxy {
    pub(super) api: ApiProxy,
    program: PathBuf,
    config: PathBuf,
}

impl KubeProxy {
    /// Writes the configuration of `node`'s kube-proxy into `folder`.
    pub(super) fn new(
        api: ApiProxy,
        program: &Path,
        folder: &Path,
        node: &str,
        addressing: Addressing,
    ) -> Result<Self> {
        let kubeconfig = folder.join(format!("{node}-kube-proxy.kubeconfig"));
        // No credentials: client-go sends none over plain HTTP, the proxy adds them.
        let access = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "lab", "cluster": { "server": api.url() } }],
            "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": "" } }],
            "current-context": "lab",
        });
        write(&kubeconfig, &access)?;
        let config = folder.join(format!("{node}-kube-proxy.json"));
        write(&config, &configuration(&kubeconfig, node, addressing))?;
        Ok(Self {
            api,
            program: program.to_owned(),
            config,
        })
    }

    pub(super) fn start(&self, host: &Host) -> Result<Process> {
        let program = self
            .program
            .to_str()
            .context("the path of kube-proxy is no text")?;
        let mut command = host.command(program)?;
        command.arg(format!("--config={}", self.config.display()));
        host.spawn("kube-proxy", command)
    }

    /// Waits until the rules of both families have been written once.
    pub(super) async fn synced(&self, host: &Host, process: &Process) -> Result<()> {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTH_PORT));
        let synced = poll_until(SYNC_BOUND, "rules of kube-proxy", async || {
            if let Some(status) = process.ended()? {
                return Ok(Some(Err(anyhow::anyhow!("kube-proxy ended, {status}"))));
            }
            let answer = http_client::get(host, to, "/healthz", Duration::from_secs(1)).await?;
            let health: Value = serde_json::from_str(&answer.body)?;
            let written = |family: &str| health["status"].get(family).is_some();
            Ok((written("IPv4") && written("IPv6")).then_some(Ok(())))
        });
        synced
            .await
            .and_then(|outcome| outcome)
            .with_context(|| format!("kube-proxy on {}:\n{}", host.name(), process.log()))
    }
}

fn configuration(kubeconfig: &Path, node: &str, addressing: Addressing) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        // Once a millisecond instead of once a second: scenarios measure in milliseconds.
        "nftables": { "minSyncPeriod": "1ms", "syncPeriod": "30s" },
        // The limits of conntrack belong to the machine, not to a namespace.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "clientConnection": { "kubeconfig": kubeconfig },
        "hostnameOverride": node,
        "clusterCIDR": addressing.cluster_cidr(),
        "detectLocalMode": "ClusterCIDR",
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": format!("0.0.0.0:{HEALTH_PORT}"),
        "metricsBindAddress": "127.0.0.1:10249",
    })
}

fn write(file: &Path, value: &Value) -> Result<()> {
    fs::write(file, format!("{value:#}\n")).with_context(|| format!("writing {}", file.display()))
}
