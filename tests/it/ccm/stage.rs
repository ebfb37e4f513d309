//! What the scenarios of the cloud controller manager have in common.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Service, Taint};
use kube::{ResourceExt, api::DeleteParams, runtime::watcher};
use lab::{
    ApiProxy, Companion, Guest, HarvesterHost, Manager, ManagerSetup, Rights, clock,
    harvester::{GuestAccess, HostBuilder, LoadBalancer, Pool},
    poll_until, unavailable,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Far more than anything here takes.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// Plays a scenario in a guest cluster, or prints why it cannot.
pub(super) fn play(name: &str, scenario: impl AsyncFnOnce(&Guest) -> Result<()>) {
    if let Some(reason) = unavailable() {
        eprintln!("skipped: {reason}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let played = runtime.block_on(async {
        let guest = Guest::start(name).await?;
        if let Err(error) = scenario(&guest).await {
            show_logs(&guest);
            return Err(error);
        }
        guest.stop().await
    });
    if let Err(error) = played {
        panic!("{error:?}");
    }
}

fn show_logs(guest: &Guest) {
    for entry in fs::read_dir(guest.lab().directory())
        .into_iter()
        .flatten()
        .flatten()
    {
        let file = entry.path();
        if file.extension().is_some_and(|it| it == "log") {
            let log = fs::read_to_string(&file).unwrap_or_default();
            eprintln!("--- {}\n{log}", file.display());
        }
    }
}

/// A guest with a host and, once started, a cloud controller manager between them.
pub(super) struct World {
    pub(super) guest: Guest,
    pub(super) host: HarvesterHost,
    /// The manager's way to the host.
    pub(super) access: GuestAccess,
    /// What answers for VIPs.
    pub(super) companion: Companion,
    args: Vec<String>,
}

/// Plays a scenario between a guest cluster and its host, or prints why it cannot.
pub(super) fn play_with_host(name: &str, scenario: impl AsyncFnOnce(&World) -> Result<()>) {
    play_on(name, HarvesterHost::builder(), &[], scenario);
}

/// The same with a host of another kind, and further flags for the manager.
pub(super) fn play_on(
    name: &str,
    host: HostBuilder,
    args: &[&str],
    scenario: impl AsyncFnOnce(&World) -> Result<()>,
) {
    if let Some(reason) = unavailable() {
        eprintln!("skipped: {reason}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let played = runtime.block_on(Box::pin(async {
        let host = host.cluster("gc").start().await?;
        let access = host.access("manager")?;
        let guest = Guest::start(name).await?;
        let world = World {
            companion: Companion::start(guest.kube()),
            guest,
            access,
            host,
            args: args.iter().map(|&it| it.to_owned()).collect(),
        };
        if let Err(error) = scenario(&world).await {
            show_logs(&world.guest);
            return Err(error);
        }
        world.guest.stop().await
    }));
    if let Err(error) = played {
        panic!("{error:?}");
    }
}

impl World {
    /// Starts a manager of the cluster `gc`.
    pub(super) async fn manager(&self) -> Result<Manager> {
        let mut setup = setup(
            self.access.cloud_config().to_owned(),
            &["--cluster-name=gc", "--v=2"],
        );
        setup.args.extend(self.args.iter().cloned());
        self.guest.start_manager(&setup).await
    }

    /// A pool that every Service of the guest may have an address of, and a VM by whose network the host
    /// knows that.
    pub(super) async fn pool(&self) -> Result<Pool> {
        let vm = self.host.vm("vm").addresses(&["10.1.0.10"]);
        vm.create().await?;
        let pool = self.host.pool("pool");
        pool.range("10.1.0.192", "10.1.0.250").create().await
    }

    /// Creates a `LoadBalancer` Service with port 80 and these annotations.
    pub(super) async fn service(&self, name: &str, annotations: Value) -> Result<Service> {
        self.service_on(name, annotations, 80).await
    }

    pub(super) async fn service_on(
        &self,
        name: &str,
        annotations: Value,
        port: u16,
    ) -> Result<Service> {
        let service = json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": {
                "type": "LoadBalancer",
                "selector": { "app": name },
                "ports": [{ "port": port }],
            },
        });
        self.guest.create(&self.guest.services(), service).await
    }

    /// The Service as it is now.
    pub(super) async fn get(&self, name: &str) -> Result<Service> {
        Ok(self.guest.services().get(name).await?)
    }

    /// The address that the manager wrote on a Service, if it did.
    pub(super) async fn address(&self, name: &str) -> Result<Option<String>> {
        let service = self.get(name).await?;
        let address = service.annotations().get("kube-vip.io/loadbalancerIPs");
        Ok(address.filter(|it| !it.is_empty()).cloned())
    }

    /// Waits for the address of a Service.
    pub(super) async fn addressed(&self, name: &str) -> Result<String> {
        poll_until(SOON, &format!("an address of {name}"), async || {
            self.address(name).await
        })
        .await
    }

    /// The host's objects for this Service, by its name.
    pub(super) async fn balancers_of(&self, name: &str) -> Result<Vec<LoadBalancer>> {
        let mut all = self.host.load_balancers().await?;
        all.retain(|it| {
            it.metadata.labels.as_ref().is_some_and(|labels| {
                let label = labels.get("cloudprovider.harvesterhci.io/serviceName");
                label.is_some_and(|it| it == name)
            })
        });
        Ok(all)
    }

    /// Waits until the host has no object for this Service.
    pub(super) async fn no_balancer_of(&self, name: &str) -> Result<()> {
        poll_until(SOON, &format!("no LoadBalancer of {name}"), async || {
            Ok(self.balancers_of(name).await?.is_empty().then_some(()))
        })
        .await
    }

    /// Deletes a Service and waits until it is gone.
    pub(super) async fn delete(&self, name: &str) -> Result<()> {
        let services = self.guest.services();
        services.delete(name, &DeleteParams::default()).await?;
        poll_until(SOON, &format!("Service {name} gone"), async || {
            Ok(services.get_opt(name).await?.is_none().then_some(()))
        })
        .await
    }

    /// Waits for an Event about a Service.
    pub(super) async fn told(&self, name: &str, reason: &str) -> Result<String> {
        poll_until(SOON, &format!("Event {reason} about {name}"), async || {
            let events = self.guest.events("Service", name).await?;
            let found = events.into_iter().find(|it| it.0 == reason);
            Ok(found.map(|it| it.1))
        })
        .await
    }

    /// The addresses in the status of a Service.
    pub(super) async fn ingress(&self, name: &str) -> Result<Vec<String>> {
        let status = self.get(name).await?.status.unwrap_or_default();
        let ingress = status.load_balancer.and_then(|it| it.ingress);
        let ips = ingress.into_iter().flatten().filter_map(|it| it.ip);
        Ok(ips.collect())
    }

    /// Waits until the status of a Service names this address alone.
    pub(super) async fn serves(&self, name: &str, address: &str) -> Result<()> {
        poll_until(
            SOON,
            &format!("{address} in the status of {name}"),
            async || Ok((self.ingress(name).await? == [address]).then_some(())),
        )
        .await
    }

    /// Waits until a node has been initialised.
    pub(super) async fn initialised(&self, name: &str) -> Result<Node> {
        poll_until(SOON, &format!("node {name} initialised"), async || {
            let node = self.guest.nodes().get(name).await?;
            let waits = node.spec.as_ref().is_none_or(|spec| {
                let uninitialised = |taint: &Taint| taint.key == UNINITIALISED;
                spec.taints.iter().flatten().any(uninitialised)
            });
            // The status is written after the taint is taken off.
            Ok((!waits && !addresses(&node).is_empty()).then_some(node))
        })
        .await
    }
}

const UNINITIALISED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The addresses of a node, as `type address`.
pub(super) fn addresses(node: &Node) -> Vec<String> {
    let status = node.status.as_ref();
    let all = status.and_then(|status| status.addresses.as_ref());
    all.into_iter()
        .flatten()
        .map(|it| format!("{} {}", it.type_, it.address))
        .collect()
}

/// A cloud-config of a host that nobody reaches: its address takes no connection.
pub(super) fn cloud_config_of_nobody(guest: &Guest) -> Result<PathBuf> {
    let file = guest.lab().directory().join("nobody.kubeconfig");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "host", "cluster": { "server": "http://127.0.0.1:1/k8s/clusters/c-1" } }],
        "users": [{ "name": "host", "user": { "token": "x" } }],
        "contexts": [{ "name": "host", "context": { "cluster": "host", "user": "host", "namespace": "vms" } }],
        "current-context": "host",
    });
    fs::write(&file, config.to_string())?;
    Ok(file)
}

/// The program under test, with these flags.
pub(super) fn setup(cloud_config: PathBuf, args: &[&str]) -> ManagerSetup {
    ManagerSetup {
        binary: env!("CARGO_BIN_EXE_harvester-cloud-provider").into(),
        cloud_config,
        rights: Rights::Full,
        args: args.iter().map(|&it| it.to_owned()).collect(),
    }
}

/// Short enough for a test to see an expiry.
pub(super) const BRIEF_LEASES: [&str; 3] = [
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=1s",
];

/// Who holds the Lease of the managers.
pub(super) async fn leader(guest: &Guest) -> Result<Option<String>> {
    let lease = guest.lease().await?;
    let holder = lease.and_then(|it| it.spec?.holder_identity);
    Ok(holder.filter(|it| !it.is_empty()))
}

/// Waits until the manager ends, as it was asked to.
pub(super) async fn stop(manager: &Manager, within: Duration) -> Result<()> {
    manager.process.terminate()?;
    let status = manager.process.wait(within).await?;
    anyhow::ensure!(status.success(), "it ended with {status}");
    Ok(())
}

impl World {
    /// The one object that the host has for this Service.
    pub(super) async fn balancer_of(&self, name: &str) -> Result<LoadBalancer> {
        let mut all = self.balancers_of(name).await?;
        anyhow::ensure!(all.len() == 1, "{} objects of {name}", all.len());
        all.pop().context("an object")
    }

    /// Waits until the host's object of a Service says that this address is in use.
    pub(super) async fn recorded(&self, name: &str, address: &str) -> Result<()> {
        poll_until(SOON, &format!("{address} recorded of {name}"), async || {
            let object = self.balancer_of(name).await?;
            Ok((recorded_address(&object) == address).then_some(()))
        })
        .await
    }

    /// Waits until the Service has this address on it.
    pub(super) async fn shows(&self, name: &str, address: &str) -> Result<()> {
        poll_until(SOON, &format!("{address} on {name}"), async || {
            let now = self.address(name).await?;
            Ok((now.as_deref() == Some(address)).then_some(()))
        })
        .await
    }

    /// Waits until a Service has its address everywhere and the host has written all that it will.
    pub(super) async fn settled(&self, name: &str) -> Result<String> {
        let address = self.addressed(name).await?;
        self.serves(name, &address).await?;
        self.recorded(name, &address).await?;
        poll_until(
            SOON,
            &format!("the host's finalizer of {name}"),
            async || {
                let object = self.balancer_of(name).await?;
                Ok((!object.finalizers().is_empty()).then_some(()))
            },
        )
        .await?;
        Ok(address)
    }

    /// Changes a Service by a merge patch.
    pub(super) async fn change(&self, name: &str, patch: Value) -> Result<Service> {
        let services = self.guest.services();
        self.guest.patch(&services, name, patch).await
    }

    /// Whether an Event with this reason was told about a Service.
    pub(super) async fn was_told(&self, name: &str, reason: &str) -> Result<bool> {
        let events = self.guest.events("Service", name).await?;
        Ok(events.iter().any(|it| it.0 == reason))
    }

    /// Follows what a Service shows, from now on.
    pub(super) fn follow(&self, name: &str) -> Followed {
        let seen: Arc<Mutex<Vec<Shown>>> = Arc::default();
        let noted = Arc::clone(&seen);
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = watcher(self.guest.services(), config).boxed();
        let task = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let Ok(watcher::Event::Apply(it) | watcher::Event::InitApply(it)) = event else {
                    continue;
                };
                let annotation = it.annotations().get("kube-vip.io/loadbalancerIPs");
                let shown = Shown {
                    annotation: annotation.cloned(),
                    ingress: ingress_of(&it),
                };
                let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                if noted.last() != Some(&shown) {
                    noted.push(shown);
                }
            }
        });
        Followed { seen, task }
    }

    /// Starts another guest cluster in the host's namespace, with a manager of its own.
    pub(super) async fn neighbour(&self, cluster: &str) -> Result<Neighbour> {
        let access = self.host.access(cluster)?;
        let guest = Guest::start(cluster).await?;
        let cloud_config = access.cloud_config().to_owned();
        let setup = setup(
            cloud_config,
            &[&format!("--cluster-name={cluster}"), "--v=2"],
        );
        let manager = guest.start_manager(&setup).await?;
        Ok(Neighbour {
            companion: Companion::start(guest.kube()),
            access,
            guest,
            _manager: manager,
        })
    }
}

/// A second guest cluster.
pub(super) struct Neighbour {
    pub(super) guest: Guest,
    pub(super) access: GuestAccess,
    pub(super) companion: Companion,
    _manager: Manager,
}

/// What a Service shows in one of its versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    /// The address that it asks for.
    pub(super) annotation: Option<String>,
    pub(super) ingress: Vec<String>,
}

/// What a Service has shown so far. Ends when dropped.
pub(super) struct Followed {
    seen: Arc<Mutex<Vec<Shown>>>,
    task: JoinHandle<()>,
}

impl Followed {
    pub(super) fn seen(&self) -> Vec<Shown> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }

    /// The addresses that the Service asked for, one after the other.
    pub(super) fn annotations(&self) -> Vec<Option<String>> {
        let mut all: Vec<_> = self.seen().into_iter().map(|it| it.annotation).collect();
        all.dedup();
        all
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The address that the guest says is in use.
pub(super) fn recorded_address(object: &LoadBalancer) -> &str {
    let status = object.status.as_ref();
    status.map(|it| it.address.as_str()).unwrap_or_default()
}

/// The address that the host gave.
pub(super) fn allocated_address(object: &LoadBalancer) -> &str {
    let status = object.status.as_ref();
    status.map_or("", |it| it.allocated_address.ip.as_str())
}

fn ingress_of(service: &Service) -> Vec<String> {
    let status = service.status.as_ref();
    let balancer = status.and_then(|it| it.load_balancer.as_ref());
    let ingress = balancer.and_then(|it| it.ingress.as_ref());
    let ips = ingress.into_iter().flatten().filter_map(|it| it.ip.clone());
    ips.collect()
}

/// For so long nothing may happen where nothing should.
const QUIET: Duration = Duration::from_secs(2);

/// Sees that nobody writes by this way for a while, but for the leader's Lease.
pub(super) async fn quiet(way: &ApiProxy) -> Result<()> {
    let before = way.counts();
    clock::sleep(QUIET).await;
    let since = way.counts().since(&before);
    let writes = since.writes() - since.of("update", "leases");
    anyhow::ensure!(writes == 0, "writes in quiet times:\n{since}");
    Ok(())
}

impl Neighbour {
    /// Ends it, and keeps its control plane.
    pub(super) async fn stop(self) -> Result<()> {
        drop(self.companion);
        self.guest.stop().await
    }
}
