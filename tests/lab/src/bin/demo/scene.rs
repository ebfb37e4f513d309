//! The cluster of the demo and what happens in it.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use lab::{
    Cluster, HarvesterHost, Node, Process, SpeakerSetup, clock,
    cluster::Service,
    harvester::{GuestAccess, Vm},
    poll_until,
    probe::Asker,
};

use crate::{
    screen::Screen,
    table::{self, Row},
    vip::{LINK, PORT, Vip, mac_of},
};

/// Addresses in the host's pool.
const POOL: u8 = 3;
const LEADERS_LEASE: &str = "kube-system/cloud-controller-manager";
const ADDRESSES: &str = "kube-vip.io/loadbalancerIPs";
const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
/// Of Services whose addresses the cloud controllers leave alone.
const CLASS: &str = "kube-vip.io/kube-vip-class";
/// The guest cluster's name on the host.
const CLUSTER: &str = "demo";
const POD_PORT: u16 = 8080;
const TICK: Duration = Duration::from_millis(200);
/// How long a quiet picture is shown.
const LOOK: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(15);
/// 15 s of the Lease, the 2 s of its last renewal, the retry, and room for a busy machine.
const TAKEOVER: Duration = Duration::from_secs(40);
const LOG_LINES: usize = 25;

/// The cluster, its speakers, and those who watch its VIPs.
#[derive(Debug)]
pub(crate) struct Scene {
    cluster: Cluster,
    host: HarvesterHost,
    /// The nodes' VMs on the host, and the ways there of what runs in them.
    vms: Vec<Vm>,
    ways: Vec<GuestAccess>,
    binary: PathBuf,
    /// By node.
    speakers: Vec<Process>,
    vips: Vec<Vip>,
    asker: Option<Asker>,
    gaps: Vec<Gaps>,
}

/// What the Services are, and on which nodes their Pods run.
const SERVICES: [(&str, &str, &[usize]); 3] = [
    ("web", "Cluster", &[0, 1]),
    ("shop", "Cluster", &[2, 0]),
    ("edge", "Local", &[1, 2]),
];

/// What the client of one VIP lost when its owner went; nothing is known of VIPs elsewhere.
#[derive(Debug)]
struct Gaps {
    vip: IpAddr,
    service: &'static str,
    stopped: Option<Duration>,
    powered_off: Option<Duration>,
}

impl Scene {
    /// Makes the cluster, up to running speakers.
    pub(crate) async fn set(speaker: &Path, screen: &mut Screen) -> Result<Self> {
        screen.head("A guest cluster and its Harvester host on this machine");
        let host = HarvesterHost::builder().cluster(CLUSTER).start().await?;
        screen.note("the host: etcd and kube-apiserver with Harvester's kinds; its controllers and webhooks simulated");
        let cluster = Cluster::builder("demo").nodes(3).cloud_controllers();
        let cluster = cluster.start().await?;
        screen.note("etcd, kube-apiserver, kube-controller-manager; 3 nodes with kube-proxy, a client, a router");
        let (mut vms, mut ways) = (Vec::new(), Vec::new());
        for node in cluster.nodes() {
            vms.push(node.vm_on(&host).await?);
            ways.push(node.access_to(&host)?);
        }
        let (first, last) = (
            cluster.vip(0).to_string(),
            cluster.vip(POOL - 1).to_string(),
        );
        let pool = host.pool("pool").range(&first, &last);
        pool.create().await?;
        screen.note(&format!(
            "on the host: a VM for each node, a pool {first} - {last}"
        ));
        for (service, _, nodes) in SERVICES {
            for (number, &node) in nodes.iter().enumerate() {
                let pod = cluster.pod(&format!("{service}-{number}"));
                let pod = pod.label("app", service).on(cluster.node(node));
                pod.serve_http(POD_PORT).await?;
            }
        }
        screen.note("6 Pods that answer HTTP with their name");
        let mut scene = Self {
            cluster,
            host,
            vms,
            ways,
            binary: speaker.to_owned(),
            speakers: Vec::new(),
            vips: Vec::new(),
            asker: None,
            gaps: Vec::new(),
        };
        scene.start_speakers(screen).await?;
        Ok(scene)
    }

    /// Starts a process on each node, and waits until the leader has initialised the nodes.
    async fn start_speakers(&mut self, screen: &mut Screen) -> Result<()> {
        for node in 0..self.cluster.nodes().len() {
            let process = self.start_speaker(node)?;
            self.speakers.push(process);
        }
        screen
            .note("a process on each node: harvester-cloud-provider --speaker --cloud-config=...");
        let nodes = Api::<NodeObject>::all(self.cluster.kube());
        for vm in &self.vms {
            let id = format!("harvester://{}", vm.uid().await?);
            let what = format!("provider ID of {}", vm.name());
            poll_until(SOON, &what, async || {
                let spec = nodes.get(vm.name()).await?.spec.unwrap_or_default();
                let mut taints = spec.taints.iter().flatten();
                let waits = taints.any(|it| it.key.ends_with("/uninitialized"));
                Ok((!waits && spec.provider_id.as_ref() == Some(&id)).then_some(()))
            })
            .await?;
        }
        let leader = self.leader(&[]).await?;
        screen.note(&format!(
            "{} leads the cloud controllers and has initialised the nodes",
            self.cluster.node(leader).name()
        ));
        Ok(())
    }

    /// Starts the process of a node.
    fn start_speaker(&self, node: usize) -> Result<Process> {
        let way = self.ways.get(node).context("a node without a host")?;
        let setup = SpeakerSetup {
            binary: self.binary.clone(),
            args: vec![
                "--speaker".to_owned(),
                format!("--cluster-name={CLUSTER}"),
                format!("--cloud-config={}", way.cloud_config().display()),
                "--v=2".to_owned(),
            ],
            env: Vec::new(),
        };
        self.cluster.node(node).start_speaker(&setup)
    }

    /// The three acts.
    pub(crate) async fn play(&mut self, screen: &mut Screen) -> Result<()> {
        self.create_services(screen).await?;
        self.stop_others(screen).await?;
        self.power_off_owner(screen).await?;
        self.summary(screen);
        Ok(())
    }

    async fn create_services(&mut self, screen: &mut Screen) -> Result<()> {
        screen.head("Three Services of type LoadBalancer");
        let of = self.cluster.addressing();
        let shop: [IpAddr; 2] = [of.vip(POOL).0.into(), of.vip(POOL).1.into()];
        let pool = (0..POOL).map(|number| of.vip(number).0.into());
        let all: Vec<IpAddr> = pool.chain(shop).collect();
        self.asker = Some(Asker::start(self.cluster.router(), LINK, &all)?);
        let mut created = BTreeMap::new();
        for (service, policy, _) in SERVICES {
            let mut object = self.cluster.service(service).port(PORT, POD_PORT);
            if service == "shop" {
                let text = shop.map(|it| it.to_string()).join(",");
                object = object
                    .class(CLASS)
                    .annotation(ADDRESSES, &text)
                    .dual_stack();
            } else {
                object = object.annotation(IPAM, "pool");
            }
            if policy == "Local" {
                object = object.etp_local();
            }
            created.insert(service, clock::now());
            let object = object.create().await?;
            for address in addresses(&object).await? {
                self.vips
                    .push(Vip::watch(&self.cluster, address, service, policy)?);
            }
        }
        screen.note("created: web, shop (its own IPv4 and IPv6 addresses), edge (externalTrafficPolicy: Local)");
        self.show_balancers(screen).await?;
        self.until_served(screen, SOON, "HTTP answers from every VIP", &[])
            .await?;
        let slowest = self.slowest_first_answer(&created);
        screen.note(&format!(
            "every VIP is served; the first answer on the wire came {} ms after the create at most",
            slowest.as_millis()
        ));
        self.look(screen).await
    }

    /// What the cloud controllers have made on the host.
    async fn show_balancers(&self, screen: &mut Screen) -> Result<()> {
        let head = ["LOADBALANCER ON THE HOST", "SERVICE", "IPAM", "ADDRESS"];
        let mut rows = vec![head.map(str::to_owned)];
        for it in self.host.load_balancers().await? {
            let labels = it.metadata.labels.unwrap_or_default();
            let service = labels.get("cloudprovider.harvesterhci.io/serviceName");
            rows.push([
                it.metadata.name.unwrap_or_default(),
                service.cloned().unwrap_or_default(),
                it.spec.ipam,
                it.status.unwrap_or_default().allocated_address.ip,
            ]);
        }
        for line in table::align(&rows) {
            screen.say(&format!("          {line}"));
        }
        Ok(())
    }

    /// All but one node are updated, the leader's first.
    async fn stop_others(&mut self, screen: &mut Screen) -> Result<()> {
        let leader = self.leader(&[]).await?;
        // A node with a Pod of `edge`, which does not lead.
        let stays = if leader == 1 { 2 } else { 1 };
        let mut others = vec![leader];
        others.extend((0..self.speakers.len()).filter(|it| ![leader, stays].contains(it)));
        let mut moving = vec![false; self.vips.len()];
        for &node in &others {
            let owned = self.owned_by(node)?;
            moving
                .iter_mut()
                .zip(owned)
                .for_each(|(it, owned)| *it |= owned);
        }
        let name = |node: usize| self.cluster.node(node).name().to_owned();
        let names: Vec<String> = others.iter().map(|&node| name(node)).collect();
        screen.head(&format!(
            "The processes of {} are stopped, as in an update; {} leads the cloud controllers",
            names.join(" and "),
            name(leader)
        ));
        let at = clock::now();
        for &node in &others {
            let begun = clock::now();
            let speaker = self.speakers.get(node).context("a node without speaker")?;
            speaker.terminate()?;
            speaker.wait(SOON).await?;
            screen.note(&format!(
                "SIGTERM; the process of {} has withdrawn its VIPs and ended within {} ms",
                name(node),
                begun.elapsed().as_millis()
            ));
        }
        let next = self.leader(&others).await?;
        screen.note(&format!("{} leads the cloud controllers", name(next)));
        let gone: Vec<&str> = names.iter().map(String::as_str).collect();
        let what = "HTTP answers after the stop of a speaker";
        self.until_served(screen, SOON, what, &gone).await?;
        self.look(screen).await?;
        let lost = self.lost(&moving, at);
        let gaps = self.vips.iter().zip(&lost).map(|(vip, lost)| Gaps {
            vip: vip.address,
            service: vip.service,
            stopped: *lost,
            powered_off: None,
        });
        self.gaps = gaps.collect();
        say_lost(screen, &lost);
        for &node in &others {
            let again = self.start_speaker(node)?;
            if let Some(slot) = self.speakers.get_mut(node) {
                *slot = again;
            }
        }
        screen.note(&format!("{} run again", names.join(" and ")));
        Ok(())
    }

    async fn power_off_owner(&mut self, screen: &mut Screen) -> Result<()> {
        let owner = self.owner_of_web()?;
        let moving = self.owned_by(owner)?;
        let name = self.cluster.node(owner).name().to_owned();
        screen.head(&format!(
            "The power of {name} is cut, which owns the VIPs and leads the cloud controllers"
        ));
        screen.note("its Leases are kube-vip's: the others wait 15 s after the last renewal");
        let at = clock::now();
        self.cluster.node(owner).power_off().await?;
        if let Some(way) = self.ways.get(owner) {
            way.api().close();
        }
        let what = "HTTP answers after a power-off";
        self.until_served(screen, TAKEOVER, what, &[&name]).await?;
        let leader = self.leader(&[owner]).await?;
        let leader = self.cluster.node(leader).name();
        screen.note(&format!("{leader} leads the cloud controllers"));
        self.look(screen).await?;
        let lost = self.lost(&moving, at);
        for (gaps, lost) in self.gaps.iter_mut().zip(&lost) {
            gaps.powered_off = *lost;
        }
        say_lost(screen, &lost);
        let begun = clock::now();
        let late = self.cluster.service("late").port(PORT, POD_PORT);
        let late = late.annotation(IPAM, "pool").create().await?;
        let given = addresses(&late).await?;
        let given: Vec<String> = given.iter().map(IpAddr::to_string).collect();
        screen.note(&format!(
            "a Service that is created now has the address {} after {} ms",
            given.join(","),
            begun.elapsed().as_millis()
        ));
        Ok(())
    }

    /// Waits until a node leads that is none of these.
    async fn leader(&self, gone: &[usize]) -> Result<usize> {
        poll_until(TAKEOVER, "a leader of the cloud controllers", async || {
            // The processes of all nodes have the machine's name, so the Lease does not tell.
            let leads = |process: &Process| {
                let log = process.log();
                log.lines()
                    .any(|it| it.contains("lease acquired") && it.contains(LEADERS_LEASE))
            };
            let mut running = self.speakers.iter().enumerate();
            let leader = running.find(|(node, process)| !gone.contains(node) && leads(process));
            Ok(leader.map(|(node, _)| node))
        })
        .await
    }

    fn summary(&self, screen: &mut Screen) {
        screen.head("What a client at 1 kHz lost (longest gap)");
        let head = ["VIP", "SERVICE", "STOPPED", "POWERED OFF"];
        let gap = |lost: Option<Duration>| lost.map_or_else(|| "-".to_owned(), table::gap);
        let rows = self.gaps.iter().map(|gaps| {
            [
                gaps.vip.to_string(),
                gaps.service.to_owned(),
                gap(gaps.stopped),
                gap(gaps.powered_off),
            ]
        });
        let cells: Vec<[String; 4]> = std::iter::once(head.map(str::to_owned))
            .chain(rows)
            .collect();
        for line in table::align(&cells) {
            screen.say(&format!("  {line}"));
        }
        screen.say("\n  -  the VIP was on another node at that time");
    }

    /// Makes the cluster whole again, and says how to play with it.
    pub(crate) async fn advice(&mut self, screen: &mut Screen) -> Result<()> {
        for index in 0..self.speakers.len() {
            let node = self.cluster.node(index);
            if node.host().is_on() {
                continue;
            }
            node.power_on().await?;
            let name = node.name().to_owned();
            let way = self.cluster.node(index).access_to(&self.host)?;
            if let Some(slot) = self.ways.get_mut(index) {
                *slot = way;
            }
            let speaker = self.start_speaker(index)?;
            if let Some(slot) = self.speakers.get_mut(index) {
                *slot = speaker;
            }
            screen.note(&format!("{name} is on again"));
        }
        let kubeconfig = self.cluster.lab().directory().join("admin.kubeconfig");
        self.cluster
            .control_plane()
            .write_admin_kubeconfig(&kubeconfig, self.cluster.namespace())?;
        screen.head("Try it by hand, in another terminal, as root");
        let client = self.cluster.client().namespace_name();
        let web = self.address_of_web()?;
        let mut commands = vec![
            format!("export KUBECONFIG={}", kubeconfig.display()),
            "kubectl get services,leases,events".to_owned(),
            format!("ip netns exec {client} curl -s http://{web}/"),
            format!("ip netns exec {client} ip neighbour"),
        ];
        let enter = |node: &Node| {
            let namespace = node.host().namespace_name();
            format!("ip netns exec {namespace} bash    # {}", node.name())
        };
        commands.extend(self.cluster.nodes().iter().map(enter));
        commands.push(format!(
            "ls {}    # logs",
            self.cluster.lab().directory().display()
        ));
        for command in commands {
            screen.say(&format!("  {command}"));
        }
        screen.say("\nCtrl-C ends it.");
        Ok(())
    }

    /// Shows the table until the caller has enough.
    pub(crate) async fn go_on(&mut self, screen: &mut Screen) {
        loop {
            // What goes wrong now is the user's doing, and shows in the table.
            if let Ok(rows) = self.rows() {
                screen.show(&rows);
            }
            clock::sleep(TICK).await;
        }
    }

    /// For whoever wonders why it failed.
    pub(crate) fn show_logs(&self) {
        for speaker in &self.speakers {
            let log = speaker.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines.get(lines.len().saturating_sub(LOG_LINES)..);
            let tail = tail.unwrap_or_default().join("\n");
            eprintln!("--- end of the log of {}\n{tail}", speaker.name());
        }
    }

    pub(crate) async fn end(self) -> Result<()> {
        self.cluster.stop().await
    }

    /// Shows the table until every VIP is served by a node that is not among the `gone`.
    async fn until_served(
        &mut self,
        screen: &mut Screen,
        within: Duration,
        what: &str,
        gone: &[&str],
    ) -> Result<()> {
        let deadline = clock::now() + within;
        loop {
            let rows = self.rows()?;
            screen.show(&rows);
            let is_fine = |row: &Row| {
                let owner = row.owner.as_ref();
                row.is_served() && owner.is_some_and(|it| !gone.contains(&it.node.as_str()))
            };
            if rows.iter().all(is_fine) {
                return Ok(());
            }
            if clock::now() > deadline {
                bail!("no {what} within {} s", within.as_secs());
            }
            clock::sleep(TICK).await;
        }
    }

    /// Shows the table for a while, then leaves it there.
    async fn look(&mut self, screen: &mut Screen) -> Result<()> {
        let end = clock::now() + LOOK;
        while clock::now() < end {
            let rows = self.rows()?;
            screen.show(&rows);
            clock::sleep(TICK).await;
        }
        screen.leave_table();
        Ok(())
    }

    fn rows(&mut self) -> Result<Vec<Row>> {
        for (speaker, node) in self.speakers.iter().zip(self.cluster.nodes()) {
            if node.host().is_on()
                && let Some(status) = speaker.ended()?
                && !status.success()
            {
                bail!("the speaker of {} ended with {status}", node.name());
            }
        }
        let (cluster, asker) = (&self.cluster, self.asker.as_ref().context("no asker")?);
        Ok(self
            .vips
            .iter_mut()
            .map(|vip| vip.row(cluster, asker))
            .collect())
    }

    fn address_of_web(&self) -> Result<IpAddr> {
        let web = self.vips.iter().find(|it| it.service == "web");
        web.map(|it| it.address).context("web has no address")
    }

    fn owner_of_web(&self) -> Result<usize> {
        let vip = self.address_of_web()?;
        let asker = self.asker.as_ref().context("no asker")?;
        let mac = asker.current_mac(vip);
        let owner = self
            .cluster
            .nodes()
            .iter()
            .position(|node| mac_of(node) == mac);
        owner.with_context(|| format!("nobody owns {vip}"))
    }

    /// Which VIPs a node owns, in their order.
    fn owned_by(&self, node: usize) -> Result<Vec<bool>> {
        let asker = self.asker.as_ref().context("no asker")?;
        let mac = mac_of(self.cluster.node(node));
        let owned = |vip: &Vip| asker.current_mac(vip.address) == mac;
        Ok(self.vips.iter().map(owned).collect())
    }

    /// What the clients of the moving VIPs have lost since.
    fn lost(&self, moving: &[bool], since: Instant) -> Vec<Option<Duration>> {
        let vips = self.vips.iter().zip(moving);
        vips.map(|(vip, moving)| moving.then(|| vip.lost_since(since)))
            .collect()
    }

    fn slowest_first_answer(&self, created: &BTreeMap<&str, Instant>) -> Duration {
        let answers = self.asker.as_ref().map(Asker::snapshot).unwrap_or_default();
        let took = self.vips.iter().filter_map(|vip| {
            let first = answers.get(&vip.address)?.first?;
            Some(first.saturating_duration_since(*created.get(vip.service)?))
        });
        took.max().unwrap_or_default()
    }
}

/// Waits for the addresses of a Service, its own or those that the cloud controllers give it.
async fn addresses(service: &Service) -> Result<Vec<IpAddr>> {
    let what = format!("addresses of {}", service.name());
    poll_until(SOON, &what, async || {
        let annotations = service.get().await?.metadata.annotations;
        let text = annotations.and_then(|mut it| it.remove(ADDRESSES));
        let addresses = text.map(|it| it.split(',').map(str::parse).collect());
        Ok(addresses.transpose()?)
    })
    .await
}

fn say_lost(screen: &mut Screen, lost: &[Option<Duration>]) {
    let most = lost.iter().flatten().max().copied().unwrap_or_default();
    let most = if most.is_zero() {
        "nothing".to_owned()
    } else {
        format!("{} at most", table::gap(most))
    };
    screen.note(&format!("a client at 1 kHz lost {most}"));
}
