//! The cluster of the demo and what happens in it.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use lab::{Cluster, Node, Process, Settings, SpeakerSetup, clock, probe::Asker};

use crate::{
    screen::Screen,
    table::{self, Row},
    vip::{LINK, PORT, Vip, mac_of},
};

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
    setup: SpeakerSetup,
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
        screen.head("A guest cluster on this machine");
        let cluster = Cluster::builder("demo")
            .nodes(3)
            .own_control_plane(Settings::default())
            .start()
            .await?;
        screen.note("etcd, kube-apiserver, kube-controller-manager; 3 nodes with kube-proxy, a client, a router");
        for (service, _, nodes) in SERVICES {
            for (number, &node) in nodes.iter().enumerate() {
                let pod = cluster.pod(&format!("{service}-{number}"));
                let pod = pod.label("app", service).on(cluster.node(node));
                pod.serve_http(POD_PORT).await?;
            }
        }
        screen.note("6 Pods that answer HTTP with their name");
        let setup = SpeakerSetup {
            binary: speaker.to_owned(),
            args: ["--speaker", "--controllers=-*"].map(str::to_owned).into(),
            env: Vec::new(),
        };
        let speakers = cluster
            .nodes()
            .iter()
            .map(|node| node.start_speaker(&setup))
            .collect::<Result<_>>()?;
        screen.note("a speaker on each node: harvester-cloud-provider --speaker --controllers=-*");
        Ok(Self {
            cluster,
            setup,
            speakers,
            vips: Vec::new(),
            asker: None,
            gaps: Vec::new(),
        })
    }

    /// The three acts.
    pub(crate) async fn play(&mut self, screen: &mut Screen) -> Result<()> {
        self.create_services(screen).await?;
        self.stop_owner(screen).await?;
        self.power_off_owner(screen).await?;
        self.summary(screen);
        Ok(())
    }

    async fn create_services(&mut self, screen: &mut Screen) -> Result<()> {
        screen.head("Three Services of type LoadBalancer");
        let of = self.cluster.addressing();
        let addresses = |service: &str| -> Vec<IpAddr> {
            match service {
                "web" => vec![of.vip(0).0.into()],
                "shop" => vec![of.vip(1).0.into(), of.vip(1).1.into()],
                _ => vec![of.vip(2).0.into()],
            }
        };
        let all: Vec<IpAddr> = SERVICES.iter().flat_map(|it| addresses(it.0)).collect();
        self.asker = Some(Asker::start(self.cluster.router(), LINK, &all)?);
        for (service, policy, _) in SERVICES {
            for address in addresses(service) {
                self.vips
                    .push(Vip::watch(&self.cluster, address, service, policy)?);
            }
        }
        let mut created = BTreeMap::new();
        for (service, policy, _) in SERVICES {
            let text: Vec<String> = addresses(service).iter().map(IpAddr::to_string).collect();
            let mut object = self.cluster.service(service).port(PORT, POD_PORT);
            object = object.annotation("kube-vip.io/loadbalancerIPs", &text.join(","));
            if text.len() > 1 {
                object = object.dual_stack();
            }
            if policy == "Local" {
                object = object.etp_local();
            }
            object.create().await?;
            created.insert(service, clock::now());
        }
        screen.note("created: web, shop (IPv4 and IPv6), edge (externalTrafficPolicy: Local)");
        self.until_served(screen, SOON, "HTTP answers from every VIP", &[])
            .await?;
        let slowest = self.slowest_first_answer(&created);
        screen.note(&format!(
            "every VIP is served; the first answer on the wire came {} ms after the create at most",
            slowest.as_millis()
        ));
        self.look(screen).await
    }

    async fn stop_owner(&mut self, screen: &mut Screen) -> Result<()> {
        let owner = self.owner_of_web()?;
        let moving = self.owned_by(owner)?;
        let name = self.cluster.node(owner).name().to_owned();
        screen.head(&format!(
            "The speaker of {name} is stopped, as in an update"
        ));
        let at = clock::now();
        let speaker = self.speakers.get(owner).context("a node without speaker")?;
        speaker.terminate()?;
        speaker.wait(SOON).await?;
        screen.note(&format!(
            "SIGTERM; the process has withdrawn its VIPs and ended within {} ms",
            at.elapsed().as_millis()
        ));
        let what = "HTTP answers after the stop of a speaker";
        self.until_served(screen, SOON, what, &[&name]).await?;
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
        let again = self.cluster.node(owner).start_speaker(&self.setup)?;
        if let Some(slot) = self.speakers.get_mut(owner) {
            *slot = again;
        }
        screen.note(&format!("the speaker of {name} runs again"));
        Ok(())
    }

    async fn power_off_owner(&mut self, screen: &mut Screen) -> Result<()> {
        let owner = self.owner_of_web()?;
        let moving = self.owned_by(owner)?;
        let name = self.cluster.node(owner).name().to_owned();
        screen.head(&format!("The power of {name} is cut"));
        screen.note("its Leases are kube-vip's: the others wait 15 s after the last renewal");
        let at = clock::now();
        self.cluster.node(owner).power_off().await?;
        let what = "HTTP answers after a power-off";
        self.until_served(screen, TAKEOVER, what, &[&name]).await?;
        self.look(screen).await?;
        let lost = self.lost(&moving, at);
        for (gaps, lost) in self.gaps.iter_mut().zip(&lost) {
            gaps.powered_off = *lost;
        }
        say_lost(screen, &lost);
        Ok(())
    }

    fn summary(&self, screen: &mut Screen) {
        screen.head("What a client at 1 kHz lost (longest gap)");
        let head = ["VIP", "SERVICE", "OWNER STOPPED", "OWNER POWERED OFF"];
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
        for (index, node) in self.cluster.nodes().iter().enumerate() {
            if !node.host().is_on() {
                node.power_on().await?;
                let speaker = node.start_speaker(&self.setup)?;
                if let Some(slot) = self.speakers.get_mut(index) {
                    *slot = speaker;
                }
                screen.note(&format!("{} is on again", node.name()));
            }
        }
        let kubeconfig = self.cluster.lab().directory().join("admin.kubeconfig");
        self.cluster
            .control_plane()
            .write_admin_kubeconfig(&kubeconfig, self.cluster.namespace())?;
        screen.head("Try it by hand, in another terminal, as root");
        let client = self.cluster.client().namespace_name();
        let web = self.cluster.vip(0);
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

    fn owner_of_web(&self) -> Result<usize> {
        let vip = self.cluster.vip(0).into();
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

fn say_lost(screen: &mut Screen, lost: &[Option<Duration>]) {
    let most = lost.iter().flatten().max().copied().unwrap_or_default();
    screen.note(&format!(
        "a client at 1 kHz lost {} at most",
        table::gap(most)
    ));
}
