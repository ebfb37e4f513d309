//! What the cloud controllers add to what their host takes: Services to their addresses, one by one and
//! in crowds, Nodes to their initialisation, the change of leaders, and the requests while nothing
//! happens.
//!
//! Times are taken by watches of this program on both API servers, so that a watch's own delay is on both
//! sides of a difference. `--only=WORD` leaves the other parts out: `services`, `crowds`, `nodes`,
//! `leaders`, `steady`.
#![expect(clippy::print_stdout, reason = "what a benchmark says")]

mod stage;

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Service},
};
use kube::{Api, Resource, ResourceExt, runtime::watcher};
use lab::{
    Companion, Counts, Guest, HarvesterHost, Manager, ManagerSetup, Rights, clock,
    harvester::{GuestAccess, LoadBalancer, Pace, Range, balancers_in},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use stage::SOON;

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
const PRIMARY: &str = "cloudprovider.harvesterhci.io/primary-service";
const SERVICE: &str = "cloudprovider.harvesterhci.io/serviceName";
const ADDRESS: &str = "kube-vip.io/loadbalancerIPs";
const UNINITIALISED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Between two Services of a row; all that follows from the one before is over.
const CALM: Duration = Duration::from_millis(500);
/// What a host in a crowd takes for each object.
const ALLOCATION: Duration = Duration::from_millis(100);

fn main() -> Result<()> {
    stage::run("cloud", async || {
        if is_asked("services") {
            play("services", one_by_one).await?;
        }
        if is_asked("crowds") {
            let (few, many) = stage::in_full((40, 500), (5, 20));
            play("few", async |world| crowd(world, few, "pool").await).await?;
            // A host books the addresses of a pool one after another.
            play("many", async |world| crowd(world, many, "dhcp").await).await?;
        }
        if is_asked("nodes") {
            play("nodes", nodes).await?;
        }
        if is_asked("leaders") {
            play("leaders", leaders).await?;
        }
        if is_asked("steady") {
            play("steady", steady).await?;
        }
        Ok(())
    })
}

fn is_asked(part: &str) -> bool {
    let only = std::env::args().find_map(|it| it.strip_prefix("--only=").map(str::to_owned));
    only.is_none_or(|only| only == part)
}

/// A guest with its host.
struct World {
    guest: Guest,
    host: HarvesterHost,
    access: GuestAccess,
}

async fn play(name: &str, part: impl AsyncFnOnce(&World) -> Result<()>) -> Result<()> {
    let host = HarvesterHost::builder().cluster("gc").start().await?;
    let world = World {
        access: host.access("manager")?,
        guest: Guest::start(name).await?,
        host,
    };
    part(&world).await?;
    world.guest.stop().await
}

impl World {
    /// Starts a manager of the cluster.
    async fn manager(&self) -> Result<Manager> {
        let setup = ManagerSetup {
            binary: stage::program(),
            cloud_config: self.access.cloud_config().to_owned(),
            rights: Rights::Full,
            args: ["--cluster-name=gc", "--v=2"].map(str::to_owned).into(),
        };
        self.guest.start_manager(&setup).await
    }

    /// Starts one that leads and has its watches.
    async fn leader(&self) -> Result<Manager> {
        let manager = self.manager().await?;
        manager.process.wait_for_log("lease acquired", SOON).await?;
        clock::sleep(CALM).await;
        Ok(manager)
    }

    /// A pool of a thousand addresses, and the VM that tells the network.
    async fn pool(&self) -> Result<()> {
        let vm = self.host.vm("vm").addresses(&["10.1.0.10"]);
        vm.create().await?;
        let range = Range {
            subnet: "10.1.0.0/16".to_owned(),
            range_start: "10.1.4.1".to_owned(),
            range_end: "10.1.7.254".to_owned(),
            gateway: String::new(),
        };
        let pool = self.host.pool("pool").addresses(range);
        pool.create().await.map(drop)
    }

    async fn service(&self, name: &str, annotations: Value, port: u16) -> Result<Service> {
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
}

/// When a watch first showed that something is so, by object.
struct Sightings {
    first: watch::Receiver<BTreeMap<String, Instant>>,
    _end: DropGuard,
}

impl Sightings {
    /// `name_if_so` gives the name of an object of which it is so.
    fn start<K>(api: Api<K>, name_if_so: impl Fn(&K) -> Option<String> + Send + 'static) -> Self
    where
        K: Resource + Clone + fmt::Debug + DeserializeOwned + Send + 'static,
    {
        let (seen, first) = watch::channel(BTreeMap::new());
        let end = CancellationToken::new();
        let ended = end.clone();
        let following = async move {
            let mut events = watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event
                else {
                    continue;
                };
                if let Some(name) = name_if_so(&object) {
                    seen.send_modify(|seen: &mut BTreeMap<_, _>| {
                        seen.entry(name).or_insert_with(clock::now);
                    });
                }
            }
        };
        tokio::spawn(async move { ended.run_until_cancelled(following).await });
        Self {
            first,
            _end: end.drop_guard(),
        }
    }

    /// Of the guest's Services: an address is on it.
    fn addresses(world: &World) -> Self {
        Self::start(world.guest.services(), |service| {
            let address = service.annotations().get(ADDRESS)?;
            (!address.is_empty()).then(|| service.name_any())
        })
    }

    /// Of the host's objects, by the name of their Service.
    fn objects(world: &World, is_so: impl Fn(&LoadBalancer) -> bool + Send + 'static) -> Self {
        let objects = balancers_in(&world.host.kube(), world.host.namespace());
        Self::start(objects, move |object| {
            let service = object.metadata.labels.as_ref()?.get(SERVICE)?;
            is_so(object).then(|| service.clone())
        })
    }

    async fn of(&self, name: &str) -> Result<Instant> {
        let mut first = self.first.clone();
        let seen = first.wait_for(|seen| seen.contains_key(name));
        let seen = tokio::time::timeout(SOON, seen).await;
        let seen = seen.with_context(|| format!("nothing of {name}"))??;
        seen.get(name).copied().context("it was there")
    }

    /// Waits until it is so of so many.
    async fn all(&self, count: usize) -> Result<()> {
        let mut first = self.first.clone();
        let seen = first.wait_for(|seen| seen.len() >= count);
        let seen = tokio::time::timeout(SOON, seen).await;
        seen.with_context(|| format!("not so of all {count}"))??;
        Ok(())
    }

    fn last(&self) -> Option<Instant> {
        self.first.borrow().values().max().copied()
    }
}

/// What the host takes: from the sight of an object to that of its address.
struct HostWatch {
    added: Sightings,
    allocated: Sightings,
}

impl HostWatch {
    fn start(world: &World) -> Self {
        Self {
            added: Sightings::objects(world, |_| true),
            allocated: Sightings::objects(world, |object| {
                let status = object.status.as_ref();
                status.is_some_and(|it| !it.allocated_address.ip.is_empty())
            }),
        }
    }

    async fn time_of(&self, service: &str) -> Result<Duration> {
        let added = self.added.of(service).await?;
        let allocated = self.allocated.of(service).await?;
        Ok(allocated.saturating_duration_since(added))
    }
}

async fn one_by_one(world: &World) -> Result<()> {
    world.pool().await?;
    let (addresses, host) = (Sightings::addresses(world), HostWatch::start(world));
    let _manager = world.leader().await?;
    let (mut whole, mut hosts, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..stage::in_full(20, 3) {
        let name = format!("web-{number}");
        let sent = clock::now();
        world.service(&name, json!({ IPAM: "pool" }), 80).await?;
        let at = addresses.of(&name).await?;
        let time = at.saturating_duration_since(sent);
        let by_host = host.time_of(&name).await?;
        whole.push(time);
        hosts.push(by_host);
        rest.push(time.saturating_sub(by_host));
        clock::sleep(CALM).await;
    }
    stage::show_head();
    stage::show("Service of a pool sent: address on it", whole);
    stage::show(
        "  of it the host: object there, address in its status",
        hosts,
    );
    stage::show("  beyond the host", rest);
    Ok(())
}

async fn crowd(world: &World, count: usize, ipam: &str) -> Result<()> {
    world.pool().await?;
    world.host.knobs().allocation(Pace::After(ALLOCATION));
    let (addresses, host) = (Sightings::addresses(world), HostWatch::start(world));
    let created = Sightings::start(world.guest.services(), |it: &Service| Some(it.name_any()));
    let manager = world.leader().await?;
    let before = requests(world, &manager);
    let sent = clock::now();
    let services = stream::iter(0..count).map(async |number| {
        let name = format!("web-{number}");
        world.service(&name, json!({ IPAM: ipam }), 80).await
    });
    let services = services.buffer_unordered(50);
    services.try_for_each(async |_| Ok(())).await?;
    addresses.all(count).await?;
    let (mut by_host, mut beyond) = (Vec::new(), Vec::new());
    for number in 0..count {
        let name = format!("web-{number}");
        let (from, to) = (created.of(&name).await?, addresses.of(&name).await?);
        let host = host.time_of(&name).await?;
        by_host.push(host);
        beyond.push(to.saturating_duration_since(from).saturating_sub(host));
    }
    let [to_guest, to_host] = requests(world, &manager).since(&before);
    stage::show_head();
    for (what, sightings) in [
        (
            &*format!("{count} Services ({ipam}) at once: all there"),
            &created,
        ),
        ("  all objects are on the host", &host.added),
        ("  all addresses are given by the host", &host.allocated),
        ("  all Services have their addresses", &addresses),
    ] {
        let last = sightings.last().context("nothing was seen")?;
        stage::show(what, vec![last.saturating_duration_since(sent)]);
    }
    stage::show("  each Service, from its sight on: of it the host", by_host);
    stage::show("  each Service: beyond the host", beyond);
    println!(
        "  requests of the manager: {} to the guest, {} to the host",
        to_guest.total(),
        to_host.total()
    );
    Ok(())
}

async fn nodes(world: &World) -> Result<()> {
    let initialised = Sightings::start(world.guest.nodes(), |node: &Node| {
        let taints = node.spec.as_ref().and_then(|it| it.taints.as_ref());
        let waits = taints.is_some_and(|it| it.iter().any(|taint| taint.key == UNINITIALISED));
        (!waits).then(|| node.name_any())
    });
    let _manager = world.leader().await?;
    let mut times = Vec::new();
    for number in 0..stage::in_full(20, 3) {
        let name = format!("node-{number}");
        let vm = world.host.vm(&name).node("host-a").region("r").zone("a");
        let address = format!("10.1.0.{}", 11 + number);
        vm.addresses(&[&address]).create().await?;
        clock::sleep(CALM).await;
        let sent = clock::now();
        world.guest.register(&name, json!({})).await?;
        let at = initialised.of(&name).await?;
        times.push(at.saturating_duration_since(sent));
    }
    stage::show_head();
    stage::show("Node registered: its taint is off", times);
    Ok(())
}

/// Who leads, by the watch of the Lease.
fn holders(world: &World) -> Sightings {
    let leases = Api::<Lease>::namespaced(world.guest.kube(), "kube-system");
    Sightings::start(leases, |lease| {
        let spec = lease.spec.as_ref()?;
        let holder = spec.holder_identity.clone().filter(|it| !it.is_empty())?;
        (lease.name_any() == "cloud-controller-manager").then_some(holder)
    })
}

async fn leaders(world: &World) -> Result<()> {
    let holders = holders(world);
    let mut leader = world.leader().await?;
    let (mut ends, mut terms, mut kills) = (Vec::new(), Vec::new(), Vec::new());
    let stops = stage::in_full(10, 1);
    let runs = stops + stage::in_full(1, 0);
    for run in 0..runs {
        let next = world.manager().await?;
        next.process.wait_for_log("another leads", SOON).await?;
        // The standby has looked at the Lease at least once.
        clock::sleep(CALM).await;
        let at = clock::now();
        if run < stops {
            leader.process.terminate()?;
            leader.process.wait(SOON).await?;
            ends.push(at.elapsed());
        } else {
            leader.process.kill9()?;
        }
        holders.all(run + 2).await?;
        let led = holders.last().context("no leader")?;
        let wait = led.saturating_duration_since(at);
        if run < stops { &mut terms } else { &mut kills }.push(wait);
        leader = next;
    }
    stage::show_head();
    stage::show("SIGTERM of the leader: it has ended", ends);
    stage::show("SIGTERM of the leader: the next leads", terms);
    if !kills.is_empty() {
        stage::show("SIGKILL of the leader: the next leads", kills);
    }
    Ok(())
}

/// The requests of a manager.
struct Requests([Counts; 2]);

fn requests(world: &World, manager: &Manager) -> Requests {
    Requests([manager.api.counts(), world.access.api().counts()])
}

impl Requests {
    /// To the guest, to the host.
    fn since(&self, earlier: &Self) -> [Counts; 2] {
        let ([guest, host], [earlier_guest, earlier_host]) = (&self.0, &earlier.0);
        [guest.since(earlier_guest), host.since(earlier_host)]
    }
}

async fn steady(world: &World) -> Result<()> {
    world.pool().await?;
    let _companion = Companion::start(world.guest.kube());
    let addresses = Sightings::addresses(world);
    let manager = world.leader().await?;
    for number in 0..3 {
        let name = format!("node-{number}");
        let vm = world.host.vm(&name).node("host-a").region("r").zone("a");
        let address = format!("10.1.0.{}", 11 + number);
        vm.addresses(&[&address]).create().await?;
        world.guest.register(&name, json!({})).await?;
    }
    for number in 0..10 {
        let name = format!("pool-{number}");
        world.service(&name, json!({ IPAM: "pool" }), 80).await?;
    }
    for number in 0..9 {
        let name = format!("dhcp-{number}");
        world.service(&name, json!({ IPAM: "dhcp" }), 80).await?;
    }
    addresses.of("pool-0").await?;
    let sharing = json!({ PRIMARY: "default/pool-0" });
    world.service("sharing", sharing, 81).await?;
    addresses.all(20).await?;
    // Leases of addresses, records of them and Events are written.
    clock::sleep(stage::in_full(
        Duration::from_secs(15),
        Duration::from_secs(1),
    ))
    .await;

    let pid = manager.process.pid();
    let before = (
        requests(world, &manager),
        stage::process_cpu(pid)?,
        clock::now(),
    );
    clock::sleep(stage::in_full(
        Duration::from_secs(600),
        Duration::from_secs(2),
    ))
    .await;
    let seconds = before.2.elapsed().as_secs_f64();
    let counts = requests(world, &manager).since(&before.0);
    println!("  3 Nodes, 20 Services, {seconds:.0} s");
    println!(
        "  {:<7} {:<36} {:<8} {:>8} {:>12}",
        "", "resource", "verb", "requests", "requests/s"
    );
    for (cluster, counts) in ["guest", "host"].into_iter().zip(&counts) {
        for (counted, count) in counts.iter() {
            #[expect(clippy::cast_precision_loss, reason = "counts are small")]
            let rate = count as f64 / seconds;
            println!(
                "  {cluster:<7} {:<36} {:<8} {count:>8} {rate:>12.2}",
                counted.resource, counted.verb
            );
        }
    }
    let cpu = stage::process_cpu(pid)?.saturating_sub(before.1);
    println!(
        "  the manager: {} MiB resident, {:.2} % of a CPU",
        stage::resident(pid)?,
        cpu.as_secs_f64() / seconds * 100.0
    );
    Ok(())
}
