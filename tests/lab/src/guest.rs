//! A guest cluster as its cloud controller manager sees it: objects without machines behind them.
//!
//! A cloud controller manager works on all Nodes and Services of its cluster, so every scenario has a
//! control plane to itself. Starting one takes seconds: when a scenario ends well, the next one gets its
//! control plane, with everything that the scenario left taken away.

use std::{
    fmt,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Node, Service},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    access::{self, Rights},
    api_proxy::ApiProxy,
    control_plane::{ControlPlane, Settings},
    kubeconfig::Access,
    process::Process,
    run::{Lab, lock},
    wait::poll_until,
};

/// Where scenarios have their Services.
pub const NAMESPACE: &str = "default";
const SYSTEM: &str = "kube-system";
const SOON: Duration = Duration::from_secs(30);

/// Control planes that are free, clean, and wait for the next scenario.
static FREE: Mutex<Vec<Arc<ControlPlane>>> = Mutex::new(Vec::new());

/// A running guest cluster without machines.
pub struct Guest {
    lab: Lab,
    kube: Client,
    control_plane: Arc<ControlPlane>,
    managers: AtomicU32,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest")
            .field("lab", &self.lab.prefix())
            .finish_non_exhaustive()
    }
}

/// A started cloud controller manager.
#[derive(Debug)]
pub struct Manager {
    pub process: Process,
    /// Its way to the guest's API server.
    pub api: ApiProxy,
}

/// How to start one.
#[derive(Debug, Clone)]
pub struct ManagerSetup {
    pub binary: PathBuf,
    pub cloud_config: PathBuf,
    pub rights: Rights,
    pub args: Vec<String>,
}

impl Guest {
    /// Takes a free control plane, or starts one.
    pub async fn start(name: &str) -> Result<Self> {
        let free = lock(&FREE).pop();
        let control_plane = if let Some(plane) = free {
            plane
        } else {
            let plane = ControlPlane::start(Settings::default()).await?;
            access::grant_managers(&plane.admin().await?).await?;
            Arc::new(plane)
        };
        Ok(Self {
            lab: Lab::new(name)?,
            kube: control_plane.admin().await?,
            control_plane,
            managers: AtomicU32::new(0),
        })
    }

    /// The administrator's client.
    pub fn kube(&self) -> Client {
        self.kube.clone()
    }

    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.kube(), NAMESPACE)
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.kube())
    }

    /// The objects of kind `ConfigMap` of the system's namespace.
    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.kube(), SYSTEM)
    }

    /// The Lease by which managers elect their leader.
    pub async fn lease(&self) -> Result<Option<Lease>> {
        let leases = Api::<Lease>::namespaced(self.kube(), SYSTEM);
        leases
            .get_opt("cloud-controller-manager")
            .await
            .context("reading the managers' Lease")
    }

    /// Creates an object from its JSON, less `apiVersion` and `kind`.
    pub async fn create<K>(&self, api: &Api<K>, object: Value) -> Result<K>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + fmt::Debug,
    {
        let object: K = serde_json::from_value(object).context("an object of the scenario")?;
        api.create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("creating {} {}", K::kind(&()), object.name_any()))
    }

    /// Changes an object by a merge patch.
    pub async fn patch<K>(&self, api: &Api<K>, name: &str, patch: Value) -> Result<K>
    where
        K: Resource + DeserializeOwned + Clone + fmt::Debug,
    {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("patching {name}"))
    }

    /// Registers a node as a kubelet with an external cloud provider does: with the taint, ready, and
    /// with its host name as its only address.
    pub async fn register(&self, name: &str, annotations: Value) -> Result<Node> {
        let nodes = self.nodes();
        let node = json!({
            "metadata": {
                "name": name,
                "labels": { "kubernetes.io/hostname": name },
                "annotations": annotations,
            },
            "spec": { "taints": [{
                "key": "node.cloudprovider.kubernetes.io/uninitialized",
                "value": "true",
                "effect": "NoSchedule",
            }] },
        });
        self.create(&nodes, node).await?;
        self.ready(name, true).await
    }

    /// Says in a node's status whether it is ready.
    pub async fn ready(&self, name: &str, ready: bool) -> Result<Node> {
        let status = if ready { "True" } else { "False" };
        let patch = json!({ "status": { "conditions": [{
            "type": "Ready",
            "status": status,
            "reason": "Lab",
            "message": "",
            "lastHeartbeatTime": null,
            "lastTransitionTime": null,
        }] } });
        self.nodes()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("writing the status of node {name}"))
    }

    /// Events about an object: reason, message, source component.
    pub async fn events(&self, kind: &str, name: &str) -> Result<Vec<(String, String, String)>> {
        let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
        let events = Api::<Event>::all(self.kube())
            .list(&ListParams::default().fields(&selector))
            .await
            .context("listing Events")?;
        let told = events.into_iter().map(|event| {
            (
                event.reason.unwrap_or_default(),
                event.message.unwrap_or_default(),
                event.source.and_then(|it| it.component).unwrap_or_default(),
            )
        });
        Ok(told.collect())
    }

    /// Starts a cloud controller manager in the root namespace.
    pub async fn start_manager(&self, setup: &ManagerSetup) -> Result<Manager> {
        let number = self.managers.fetch_add(1, Ordering::Relaxed);
        let name = format!("manager{number}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a port on loopback")?;
        let token = access::manager_token(&self.kube, setup.rights).await?;
        let api = ApiProxy::start(&name, listener, &self.control_plane.upstream(&token))?;
        let kubeconfig = self.lab.directory().join(format!("{name}.kubeconfig"));
        let access = Access {
            server: api.url(),
            ca_pem: None,
            token,
            namespace: SYSTEM.to_owned(),
        };
        access.write(&kubeconfig)?;
        let mut command = Command::new(&setup.binary);
        command
            .arg(flag("kubeconfig", &kubeconfig))
            .arg(flag("cloud-config", &setup.cloud_config))
            .args(["--secure-port=0", "--cloud-provider=harvester"])
            .args(&setup.args);
        let process = self.lab.spawn(&name, command)?;
        Ok(Manager { process, api })
    }

    /// Takes everything back, and keeps the control plane for the next scenario.
    pub async fn stop(self) -> Result<()> {
        let Self {
            lab,
            kube,
            control_plane,
            ..
        } = self;
        tokio::task::spawn_blocking(|| lab.stop())
            .await
            .context("ending the lab")??;
        clean(&kube).await?;
        lock(&FREE).push(control_plane);
        Ok(())
    }
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

async fn clean(kube: &Client) -> Result<()> {
    remove_all::<Service>(&Api::namespaced(kube.clone(), NAMESPACE)).await?;
    remove_all::<Node>(&Api::all(kube.clone())).await?;
    remove_all::<Lease>(&Api::namespaced(kube.clone(), SYSTEM)).await?;
    let maps = Api::<ConfigMap>::namespaced(kube.clone(), SYSTEM);
    for map in maps.list(&ListParams::default()).await? {
        if map.name_any().starts_with("harvester-") {
            maps.delete(&map.name_any(), &DeleteParams::default())
                .await?;
        }
    }
    let events = Api::<Event>::namespaced(kube.clone(), NAMESPACE);
    events
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .context("deleting Events")?;
    Ok(())
}

/// Deletes all of a kind, whoever holds them.
async fn remove_all<K>(api: &Api<K>) -> Result<()>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + fmt::Debug,
{
    let what = K::plural(&());
    for object in api.list(&ListParams::default()).await? {
        let name = object.name_any();
        if name == "kubernetes" {
            continue;
        }
        if !object.finalizers().is_empty() {
            let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            api.patch(&name, &PatchParams::default(), &free).await?;
        }
        match api.delete(&name, &DeleteParams::default()).await {
            Err(error) if !access::is_absent(&error) => {
                return Err(error).with_context(|| format!("deleting {what} {name}"));
            }
            _ => {}
        }
    }
    poll_until(SOON, &format!("no {what}"), async || {
        let left = api.list(&ListParams::default()).await?;
        let all_gone = left.iter().all(|it| it.name_any() == "kubernetes");
        Ok(all_gone.then_some(()))
    })
    .await
}
