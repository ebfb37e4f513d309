//! The Harvester host of a guest cluster: a second real API server, and a simulator that plays what a
//! host runs on it.
//!
//! Played are the LoadBalancer controller with its pools, the webhooks before it (real admission
//! webhooks over TLS), the clean-up after a guest cluster, and KubeVirt's `guestosinfo` (a real
//! aggregated API). VMs are objects that a scenario moves by hand. Not played are load balancers of
//! workload type `vm`, `v1alpha1`, and what the host does for its own sake.
//!
//! The hosts of a process share one control plane ([`HarvesterHost::start`]); each has a namespace,
//! pools, knobs and an account of its own, and sees nothing of the others. It ends when dropped; what it
//! had in the API server goes with the control plane.

mod account;
mod admission;
mod agent;
mod controllers;
mod ground;
mod kinds;
mod knobs;
mod listener;
mod names;
mod pool;
mod ranges;
mod resolution;
mod review;
mod scenario;
mod selection;
mod vm;

use std::{
    fmt,
    net::{Ipv4Addr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::{account::Account, ground::Ground, scenario::Scenario};
pub use self::{
    account::GuestAccess,
    agent::GuestAgent,
    kinds::{
        AllocatedAddress, Condition, IpPool, IpPoolSpec, IpPoolStatus, LoadBalancer,
        LoadBalancerSpec, LoadBalancerStatus, Machine, Range, Scope, Selector, balancers_in,
        instances_in, machines_in, new_balancer,
    },
    knobs::{Knobs, MachineOrder, Pace, Profile, Webhook},
    pool::{Pool, PoolBuilder},
    vm::{Interface, Migration, Place, Vm, VmBuilder},
};
use crate::{
    access::is_absent, api_proxy::ApiProxy, control_plane::ControlPlane, wait::poll_until,
};

/// The network of VMs and pools that do not say another.
pub const DEFAULT_NETWORK: &str = "default/nodes";
/// The name of a guest cluster that the scenario gives no other.
pub const DEFAULT_CLUSTER: &str = "guest";

/// How long the host may take for anything.
const SOON: Duration = Duration::from_secs(30);

static HOSTS: AtomicU32 = AtomicU32::new(0);

/// A Harvester host, from the point of view of one guest cluster.
pub struct HarvesterHost {
    // Dropped first: the controllers, then what they work on.
    _end: DropGuard,
    running: CancellationToken,
    scenario: Arc<Scenario>,
    client: Client,
    cluster: String,
    account: Account,
    ways: AtomicU32,
    ground: Arc<Ground>,
}

impl fmt::Debug for HarvesterHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HarvesterHost")
            .field("namespace", &self.scenario.name)
            .finish_non_exhaustive()
    }
}

/// A host that is being described.
#[derive(Debug, Clone)]
pub struct HostBuilder {
    cluster: String,
    project: Option<String>,
    profile: Profile,
    own_control_plane: bool,
}

impl HostBuilder {
    /// The name of the guest cluster.
    #[must_use]
    pub fn cluster(mut self, name: &str) -> Self {
        name.clone_into(&mut self.cluster);
        self
    }

    /// The project of the guest's namespace, in Rancher's form `<cluster>:<project>`.
    #[must_use]
    pub fn project(mut self, id: &str) -> Self {
        self.project = Some(id.to_owned());
        self
    }

    /// The release that the host behaves as.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// With a control plane of its own, which the scenario may stop.
    #[must_use]
    pub fn own_control_plane(mut self) -> Self {
        self.own_control_plane = true;
        self
    }

    /// Starts it; controllers, webhooks and the guest's account are there when this returns.
    pub async fn start(self) -> Result<HarvesterHost> {
        let ground = if self.own_control_plane {
            Arc::new(Box::pin(Ground::start()).await?)
        } else {
            Box::pin(Ground::shared()).await?
        };
        let name = format!("guest-{}", HOSTS.fetch_add(1, Ordering::Relaxed));
        let client = ground.control_plane.admin().await?;
        create_namespace(&client, &name, self.project.as_deref()).await?;
        let simulated = ground.client.clone();
        let scenario = Arc::new(Scenario::new(&name, self.profile, simulated));
        let account = Account::create(&client, &name, &self.cluster).await?;
        let running = CancellationToken::new();
        ground.spawn(&running, controllers::of_pools(Arc::clone(&scenario)));
        let host = HarvesterHost {
            _end: running.clone().drop_guard(),
            running,
            scenario,
            client,
            cluster: self.cluster,
            account,
            ways: AtomicU32::new(0),
            ground,
        };
        host.attend(&name);
        Ok(host)
    }
}

impl HarvesterHost {
    /// A host on the control plane that the hosts of this process share.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Describes a host.
    pub fn builder() -> HostBuilder {
        HostBuilder {
            cluster: DEFAULT_CLUSTER.to_owned(),
            project: None,
            profile: Profile::default(),
            own_control_plane: false,
        }
    }

    /// The namespace of the guest cluster's VMs and load balancers.
    pub fn namespace(&self) -> &str {
        &self.scenario.name
    }

    /// The name of the guest cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The administrator's client, of the runtime that the host was started on.
    pub fn kube(&self) -> Client {
        self.client.clone()
    }

    pub fn control_plane(&self) -> &ControlPlane {
        &self.ground.control_plane
    }

    /// How slow, how broken and how old it is.
    pub fn knobs(&self) -> &Knobs {
        &self.scenario.knobs
    }

    /// Describes a VM of the guest cluster.
    pub fn vm(&self, name: &str) -> VmBuilder<'_> {
        VmBuilder::new(self, name)
    }

    /// Describes a pool that this scenario alone sees. Its name in the API is [`Pool::name`].
    pub fn pool(&self, name: &str) -> PoolBuilder<'_> {
        PoolBuilder::new(self, name)
    }

    /// Makes another namespace, whose load balancers and pools are this host's, too; the guest has no
    /// rights there.
    pub async fn further_namespace(&self, name: &str) -> Result<String> {
        let name = format!("{}-{name}", self.scenario.name);
        create_namespace(&self.client, &name, None).await?;
        self.attend(&name);
        Ok(name)
    }

    /// A way of the guest to its host from this process, with the guest's rights.
    pub fn access(&self, name: &str) -> Result<GuestAccess> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a port on loopback")?;
        self.access_at(name, listener)
    }

    /// The same behind a listener that may be in another network namespace.
    pub fn access_at(&self, name: &str, listener: TcpListener) -> Result<GuestAccess> {
        let upstream = self.ground.control_plane.upstream(&self.account.token());
        let api = ApiProxy::start(name, listener, &upstream)?;
        let number = self.ways.fetch_add(1, Ordering::Relaxed);
        let file = format!("{}-{number}.cloud-config", self.scenario.name);
        let cloud_config = self.ground.control_plane.folder().join(file);
        self.account.add_file(&cloud_config, &api.url())?;
        Ok(GuestAccess { api, cloud_config })
    }

    /// Gives the guest a new token, in every cloud-config. The API server forgets the old one within
    /// 10 s.
    pub async fn rotate_token(&self) -> Result<()> {
        self.account.rotate(&self.client).await
    }

    /// Withdraws the guest's token, which is refused within 10 s; [`Self::rotate_token`] gives another.
    pub async fn revoke_token(&self) -> Result<()> {
        self.account.revoke(&self.client).await
    }

    /// Whether the guest may ask guest agents, which old hosts do not allow. At first it may.
    pub async fn allow_guest_agents(&self, allowed: bool) -> Result<()> {
        self.account.allow_guest_agents(&self.client, allowed).await
    }

    /// A LoadBalancer of the guest, if it exists.
    pub async fn load_balancer(&self, name: &str) -> Result<Option<LoadBalancer>> {
        let found = self.balancers().get_opt(name).await;
        found.with_context(|| format!("reading LoadBalancer {name}"))
    }

    /// Every LoadBalancer of the guest.
    pub async fn load_balancers(&self) -> Result<Vec<LoadBalancer>> {
        let all = self.balancers().list(&ListParams::default()).await;
        Ok(all.context("listing LoadBalancers")?.items)
    }

    /// The LoadBalancer of a Service, once it has an address.
    pub async fn allocated(&self, name: &str) -> Result<LoadBalancer> {
        poll_until(SOON, &format!("address of {name}"), async || {
            let found = self.load_balancer(name).await?;
            Ok(found.filter(|it| {
                let status = it.status.as_ref();
                status.is_some_and(|it| !it.allocated_address.ip.is_empty())
            }))
        })
        .await
    }

    /// Deletes a LoadBalancer behind the guest's back; the host takes its time.
    pub async fn delete_load_balancer(&self, name: &str) -> Result<()> {
        match self
            .balancers()
            .delete(name, &DeleteParams::default())
            .await
        {
            Err(error) if !is_absent(&error) => Err(error).context(format!("deleting {name}")),
            _ => Ok(()),
        }
    }

    /// Sends a LoadBalancer to another pool, as an administrator can.
    pub async fn assign_pool(&self, name: &str, pool: &Pool) -> Result<()> {
        let patch = json!({ "spec": { "ipPool": pool.name() } });
        self.patch_load_balancer(name, &patch).await
    }

    /// Erases the status of a LoadBalancer, as a careless client does.
    pub async fn erase_status(&self, name: &str) -> Result<()> {
        let patch = json!({ "status": null });
        self.patch_load_balancer(name, &patch).await
    }

    /// Changes a LoadBalancer by a merge patch, as an administrator can.
    pub async fn patch_load_balancer(&self, name: &str, patch: &serde_json::Value) -> Result<()> {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.balancers().patch(name, &parameters, &patch).await;
        patched
            .map(drop)
            .with_context(|| format!("changing {name}"))
    }

    fn balancers(&self) -> Api<LoadBalancer> {
        balancers_in(&self.client, &self.scenario.name)
    }

    /// Lets webhooks and controllers see to a namespace.
    fn attend(&self, namespace: &str) {
        self.ground.scenarios.add(namespace, &self.scenario);
        let (scenario, namespace) = (Arc::clone(&self.scenario), namespace.to_owned());
        let part = controllers::of_namespace(scenario, namespace);
        self.ground.spawn(&self.running, part);
    }
}

impl Drop for HarvesterHost {
    fn drop(&mut self) {
        self.ground.scenarios.remove(&self.scenario);
    }
}

async fn create_namespace(kube: &Client, name: &str, project: Option<&str>) -> Result<()> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    namespace.metadata.annotations =
        project.map(|it| [(names::PROJECT_OF_NAMESPACE.to_owned(), it.to_owned())].into());
    let created = Api::all(kube.clone())
        .create(&PostParams::default(), &namespace)
        .await;
    created
        .map(drop)
        .with_context(|| format!("creating namespace {name}"))
}
