//! One process per node: every one is a speaker, an elected one runs the cloud controllers too.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::{Api, ResourceExt};
use lab::{
    Cluster, HarvesterHost, Process, SpeakerSetup, clock,
    cluster::Service,
    harvester::{GuestAccess, LoadBalancer, Vm},
    poll_until, unavailable,
};

use crate::support::{LOADBALANCER_IPS, Stage, one_answerer};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
/// Ten times what a handover in good order takes.
const HAND_OVER: Duration = Duration::from_secs(5);
/// Both Leases end 15 s after their last renewal.
const EXPIRY: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(30);
const NODES: u8 = 4;
/// The node whose cloud-config does not exist.
const SPEAKER_ONLY: usize = 3;

/// A guest cluster, its host, and what runs on its nodes.
struct World {
    stage: Stage,
    host: HarvesterHost,
    /// The nodes' ways to the host, and their VMs.
    ways: Vec<GuestAccess>,
    vms: Vec<Vm>,
    running: BTreeMap<usize, Process>,
}

impl World {
    async fn set() -> Result<Self> {
        let host = HarvesterHost::builder().cluster("gc").start().await?;
        let builder = Cluster::builder("embedded").nodes(NODES);
        let cluster = builder.cloud_controllers().start().await?;
        let (mut ways, mut vms) = (Vec::new(), Vec::new());
        for node in cluster.nodes() {
            vms.push(node.vm_on(&host).await?);
            ways.push(node.access_to(&host)?);
        }
        let pool = host.pool("pool");
        let (first, last) = (cluster.vip(0).to_string(), cluster.vip(9).to_string());
        pool.range(&first, &last).create().await?;
        let stage = Stage {
            cluster,
            setup: SpeakerSetup::default(),
            speakers: Vec::new(),
        };
        Ok(Self {
            stage,
            host,
            ways,
            vms,
            running: BTreeMap::new(),
        })
    }

    /// Starts the process of a node.
    fn start(&mut self, node: usize) -> Result<()> {
        let way = self.ways.get(node).context("a way to the host")?;
        let cloud_config = match node {
            SPEAKER_ONLY => way.cloud_config().with_extension("missing"),
            _ => way.cloud_config().to_owned(),
        };
        let setup = SpeakerSetup {
            binary: env!("CARGO_BIN_EXE_harvester-cloud-provider").into(),
            args: vec![
                "--speaker".to_owned(),
                "--cluster-name=gc".to_owned(),
                format!("--cloud-config={}", cloud_config.display()),
                "--v=4".to_owned(),
            ],
            env: Vec::new(),
        };
        let process = self.stage.node(node).start_speaker(&setup)?;
        self.stage.speakers.push(process.clone());
        self.running.insert(node, process);
        Ok(())
    }

    /// Ends the process of a node in good order.
    async fn stop(&mut self, node: usize) -> Result<()> {
        let process = self.running.remove(&node).context("a running process")?;
        process.terminate()?;
        let status = process.wait(HAND_OVER).await?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }

    /// Whoever runs holds nothing but this node, which owns the VIP and leads; then the others start.
    async fn all_on(&mut self, node: usize, vip: IpAddr) -> Result<()> {
        let others: Vec<usize> = (0..usize::from(NODES)).filter(|it| *it != node).collect();
        for &other in &others {
            if self.running.contains_key(&other) {
                self.stop(other).await?;
            }
        }
        if !self.running.contains_key(&node) {
            self.start(node)?;
        }
        ensure!(self.stage.owner(vip).await? == node, "the only speaker");
        self.leader(&[], SOON).await?;
        for other in others {
            self.start(other)?;
        }
        for (other, process) in &self.running {
            if ![node, SPEAKER_ONLY].contains(other) {
                process.wait_for_log("another leads", SOON).await?;
            }
        }
        Ok(())
    }

    async fn holder(&self) -> Result<Option<String>> {
        let cluster = &self.stage.cluster;
        let lease = cluster.lease("kube-system", "cloud-controller-manager");
        let holder = lease.await?.and_then(|it| it.spec?.holder_identity);
        Ok(holder.filter(|it| !it.is_empty()))
    }

    /// Waits for a leader that is not among those of old; gives its node. The processes of all nodes
    /// say the machine's name, so the log tells which one it is.
    async fn leader(&self, of_old: &[usize], within: Duration) -> Result<usize> {
        poll_until(within, "a leader", async || {
            let leads = |(node, process): (&usize, &Process)| {
                let acquired =
                    |line: &str| line.contains("lease acquired") && line.contains(LEADERS_LEASE);
                let is_new = !of_old.contains(node) && process.log().lines().any(acquired);
                is_new.then_some(*node)
            };
            let leaders: Vec<usize> = self.running.iter().filter_map(leads).collect();
            ensure!(leaders.len() < 2, "several lead: {leaders:?}");
            let held = self.holder().await?.is_some();
            Ok(leaders.first().copied().filter(|_| held))
        })
        .await
    }

    async fn balancer(&self) -> Result<LoadBalancer> {
        let mut all = self.host.load_balancers().await?;
        ensure!(all.len() == 1, "{} LoadBalancers", all.len());
        all.pop().context("a LoadBalancer")
    }

    /// The Service is answered, and everything that speaks of its address says the same as before.
    async fn stands(&self, service: &Service, vip: IpAddr, before: &LoadBalancer) -> Result<()> {
        self.stage.ask(vip).await?;
        poll_until(SOON, "the VIP alone in the status", async || {
            Ok((service.status_ips().await? == [vip]).then_some(()))
        })
        .await?;
        let now = self.balancer().await?;
        ensure!(now.metadata.uid == before.metadata.uid, "another object");
        ensure!(address(&now) == vip.to_string(), "another address");
        let object = service.get().await?;
        let annotated = object.annotations().get(LOADBALANCER_IPS);
        ensure!(annotated == Some(&vip.to_string()), "{annotated:?}");
        Ok(())
    }

    /// Creates a Service and waits until the leader has got it an address.
    async fn addressed(&self, name: &str) -> Result<(Service, IpAddr)> {
        let service = self.stage.cluster.service(name).annotation(IPAM, "pool");
        let service = service.port(80, 8080).create().await?;
        let vip = poll_until(SOON, &format!("an address of {name}"), async || {
            let object = service.get().await?;
            let text = object.annotations().get(LOADBALANCER_IPS);
            Ok(text.map(|it| it.parse()).transpose()?)
        })
        .await?;
        Ok((service, vip))
    }

    /// Every node has been initialised from its VM.
    async fn initialised(&self) -> Result<()> {
        let nodes = Api::<NodeObject>::all(self.stage.cluster.kube());
        for vm in &self.vms {
            let wanted = format!("harvester://{}", vm.uid().await?);
            poll_until(SOON, &format!("{} initialised", vm.name()), async || {
                let spec = nodes.get(vm.name()).await?.spec.unwrap_or_default();
                let mut taints = spec.taints.iter().flatten();
                let waits = taints.any(|it| it.key.ends_with("/uninitialized"));
                let known = spec.provider_id.as_ref() == Some(&wanted);
                Ok((known && !waits).then_some(()))
            })
            .await?;
        }
        Ok(())
    }
}

const LEADERS_LEASE: &str = "kube-system/cloud-controller-manager";

fn address(balancer: &LoadBalancer) -> &str {
    let status = balancer.status.as_ref();
    status.map_or("", |it| &it.allocated_address.ip)
}

async fn scenario(world: &mut World) -> Result<()> {
    world.start(0)?;
    let (service, vip) = world.addressed("web").await?;
    let watch = world.stage.watch(&[vip])?;
    for node in [1, 2] {
        world.stage.pod("web", node).await?;
    }
    let balancer = world.balancer().await?;
    world.stands(&service, vip, &balancer).await?;
    world.initialised().await?;
    world.all_on(0, vip).await?;

    // An update of the node that leads and owns.
    let asked = clock::now();
    world.stop(0).await?;
    let owner = world.stage.next_owner(vip, 0).await?;
    let leader = world.leader(&[0], HAND_OVER).await?;
    let time = asked.elapsed();
    eprintln!("SIGTERM: VIP on node {owner}, node {leader} leads, after {time:?}");
    ensure!(time < HAND_OVER, "the handover took {time:?}");
    ensure!(leader != SPEAKER_ONLY, "a speaker leads");
    world.stands(&service, vip, &balancer).await?;
    one_answerer(watch)?;

    // Its power.
    world.all_on(1, vip).await?;
    let watch = world.stage.watch(&[vip])?;
    poll_until(SOON, "an answer before the power-off", async || {
        Ok(watch.answers(vip).first)
    })
    .await?;
    let cut = clock::now();
    let way = world.ways.get(1).context("a way to the host")?;
    way.api().set_plugged(false);
    world.stage.node(1).power_off().await?;
    world.running.remove(&1);
    let leader = world.leader(&[1], EXPIRY).await?;
    let owner = poll_until(EXPIRY, "the next owner", async || {
        Ok(match world.stage.owners(vip)?.as_slice() {
            [owner] if *owner != 1 => Some(*owner),
            _ => None,
        })
    })
    .await?;
    let time = cut.elapsed();
    eprintln!("power-off: VIP on node {owner}, node {leader} leads, after {time:?}");
    ensure!(leader != SPEAKER_ONLY, "a speaker leads");
    world.stands(&service, vip, &balancer).await?;
    one_answerer(watch)?;

    // The new leader works: it gives addresses and takes them back.
    let (more, another) = world.addressed("more").await?;
    ensure!(another != vip, "{vip} was given twice");
    world.stage.owner(another).await?;
    for (service, vip) in [(more, another), (service, vip)] {
        service.delete().await?;
        world.stage.nobody(vip).await?;
    }
    poll_until(SOON, "no LoadBalancer", async || {
        let left = world.host.load_balancers().await?;
        Ok(left.is_empty().then_some(()))
    })
    .await?;

    // Asked the host for nothing, and answered for VIPs as any other.
    let way = world.ways.get(SPEAKER_ONLY).context("a way to the host")?;
    ensure!(way.api().counts().total() == 0, "a speaker asked the host");
    let process = world.running.get(&SPEAKER_ONLY).context("the speaker")?;
    ensure!(
        process.log().contains("no usable cloud-config"),
        "it does not say that it has no cloud-config"
    );
    Ok(())
}

#[test]
fn one_process_per_node_gives_addresses_serves_them_and_hands_both_over() {
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
        let mut world = World::set().await?;
        let result = scenario(&mut world).await;
        if result.is_err() {
            world.stage.print_logs();
        }
        result?;
        world.stage.cluster.stop().await
    }));
    if let Err(error) = played {
        panic!("{error:?}");
    }
}
