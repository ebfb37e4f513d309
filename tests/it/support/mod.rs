//! A cluster of the lab with a speaker on each node, and what its tests ask of it.

pub(crate) mod https;
pub(crate) mod kube_vip;
mod observe;
mod scenery;
pub(crate) mod served;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lab::{
    Cluster, Node, Process, Settings,
    cluster::{PodAnswer, SpeakerSetup},
    http_client, poll_until,
    probe::{Answers, Asker},
    unavailable,
};

pub(crate) use self::{
    observe::{longest_silence, stayed_with},
    scenery::{LOADBALANCER_IPS, annotate, listed},
};

/// Ten times what anything here should take, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);
const HTTP: Duration = Duration::from_secs(1);

/// What a scenario needs.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) nodes: u8,
    pub(crate) kube_proxy: bool,
    /// Flags of every speaker.
    pub(crate) args: Vec<&'static str>,
    /// Environment of every speaker.
    pub(crate) env: Vec<(&'static str, &'static str)>,
    /// A speaker runs on each node from the start.
    pub(crate) speakers: bool,
    /// Nodes of other tests are no nodes of this cluster.
    pub(crate) alone: bool,
}

impl Scene {
    /// Three nodes with kube-proxy, an election for each Service.
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            nodes: 3,
            kube_proxy: true,
            args: Vec::new(),
            env: Vec::new(),
            speakers: true,
            alone: false,
        }
    }

    pub(crate) fn args(mut self, args: &[&'static str]) -> Self {
        self.args.extend(args);
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.env.push((name, value));
        self
    }

    /// Without kube-proxy: VIPs answer ARP, NDP and ping, but no HTTP.
    pub(crate) fn without_kube_proxy(mut self) -> Self {
        self.kube_proxy = false;
        self
    }

    /// The test starts its own speakers.
    pub(crate) fn without_speakers(mut self) -> Self {
        self.speakers = false;
        self
    }

    /// With a control plane of its own, for what depends on there being no other nodes.
    pub(crate) fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// One Lease for all VIPs, by kube-vip's variable.
    pub(crate) fn global_election(self) -> Self {
        self.env("svc_election", "false")
    }

    /// Leases of 3 s, by kube-vip's variables. A killed speaker's address outlives such a Lease.
    pub(crate) fn short_leases(self) -> Self {
        self.env("vip_leaseduration", "3")
            .env("vip_renewdeadline", "2")
            .env("vip_retryperiod", "1")
    }

    /// Leases of 7 s, by flags: a little longer than the address of a killed speaker stays.
    pub(crate) fn brief_leases(self) -> Self {
        self.args(&[
            "--speaker-lease-duration=7s",
            "--speaker-renew-deadline=5s",
            "--speaker-retry-period=1s",
        ])
    }

    /// Runs a test on this scene, or prints why it cannot.
    pub(crate) fn play(self, test: impl AsyncFnOnce(&mut Stage) -> Result<()>) {
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
            let mut stage = Stage::set(self).await?;
            let result = test(&mut stage).await;
            if result.is_err() {
                stage.print_logs();
            }
            result?;
            stage.cluster.stop().await
        });
        if let Err(error) = played {
            panic!("{error:?}");
        }
    }
}

/// The scene, set: every node has a running speaker.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) setup: SpeakerSetup,
    /// By node; those that were ended are still here.
    pub(crate) speakers: Vec<Process>,
}

impl Stage {
    async fn set(scene: Scene) -> Result<Self> {
        let mut builder = Cluster::builder(scene.name)
            .nodes(scene.nodes)
            .kube_proxy(scene.kube_proxy);
        if scene.alone {
            builder = builder.own_control_plane(Settings::default());
        }
        let cluster = builder.start().await?;
        let mut args = vec!["--speaker", "--controllers=-*", "--v=4"];
        args.extend(&scene.args);
        let setup = SpeakerSetup {
            binary: PathBuf::from(env!("CARGO_BIN_EXE_harvester-cloud-provider")),
            args: args.into_iter().map(str::to_owned).collect(),
            env: scene
                .env
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        };
        let mut stage = Self {
            cluster,
            setup,
            speakers: Vec::new(),
        };
        let running = if scene.speakers {
            stage.cluster.nodes().len()
        } else {
            0
        };
        for index in 0..running {
            let speaker = stage.node(index).start_speaker(&stage.setup)?;
            stage.speakers.push(speaker);
        }
        Ok(stage)
    }

    pub(crate) fn node(&self, index: usize) -> &Node {
        self.cluster.node(index)
    }

    /// The speaker that was last started on a node.
    pub(crate) fn speaker(&self, index: usize) -> &Process {
        self.speakers
            .get(index)
            .expect("a speaker was started on each node")
    }

    /// Starts the speaker of a node again.
    pub(crate) fn restart(&mut self, index: usize) -> Result<()> {
        let speaker = self.node(index).start_speaker(&self.setup)?;
        if let Some(slot) = self.speakers.get_mut(index) {
            *slot = speaker;
        }
        Ok(())
    }

    /// The nodes whose kernel has the address, by index.
    pub(crate) fn owners(&self, vip: IpAddr) -> Result<Vec<usize>> {
        let mut owners = Vec::new();
        for (index, node) in self.cluster.nodes().iter().enumerate() {
            if node.host().is_on() && node.host().has_address(vip)? {
                owners.push(index);
            }
        }
        Ok(owners)
    }

    /// Waits until exactly one node has the address.
    pub(crate) async fn owner(&self, vip: impl Into<IpAddr>) -> Result<usize> {
        let vip = vip.into();
        poll_until(SOON, &format!("single owner of {vip}"), async || {
            Ok(match self.owners(vip)?.as_slice() {
                [owner] => Some(*owner),
                _ => None,
            })
        })
        .await
    }

    /// Waits until exactly one node has the address, another than before.
    pub(crate) async fn next_owner(&self, vip: impl Into<IpAddr>, before: usize) -> Result<usize> {
        let vip = vip.into();
        poll_until(
            SOON,
            &format!("owner of {vip} other than node {before}"),
            async || {
                Ok(match self.owners(vip)?.as_slice() {
                    [owner] if *owner != before => Some(*owner),
                    _ => None,
                })
            },
        )
        .await
    }

    /// Waits until no node has the address.
    pub(crate) async fn nobody(&self, vip: impl Into<IpAddr>) -> Result<()> {
        let vip = vip.into();
        poll_until(SOON, &format!("end of {vip}"), async || {
            Ok(self.owners(vip)?.is_empty().then_some(()))
        })
        .await
    }

    /// Asks from the client, on port 80, until a Pod answers.
    pub(crate) async fn ask(&self, vip: impl Into<IpAddr>) -> Result<PodAnswer> {
        let to = SocketAddr::new(vip.into(), 80);
        poll_until(SOON, &format!("answer of {to}"), async || {
            let answer = http_client::get(self.cluster.client(), to, "/", HTTP).await?;
            Ok(Some(serde_json::from_str(&answer.body)?))
        })
        .await
    }

    /// Watches from the router who answers for the addresses, until [`one_answerer`] judges it.
    pub(crate) fn watch(&self, vips: &[IpAddr]) -> Result<Asker> {
        Asker::start(self.cluster.router(), "eth0", vips)
    }

    /// Waits until a Lease of the Services' namespace has this holder.
    pub(crate) async fn holder(&self, lease: &str, node: usize) -> Result<()> {
        let wanted = format!("{}_speaker", self.node(node).name());
        poll_until(SOON, &format!("{lease} held by {wanted}"), async || {
            let lease = self.cluster.lease(self.cluster.namespace(), lease).await?;
            let holder = lease.and_then(|l| l.spec).and_then(|s| s.holder_identity);
            Ok((holder.as_deref() == Some(&wanted)).then_some(()))
        })
        .await
    }

    pub(crate) fn print_logs(&self) {
        for speaker in &self.speakers {
            let log = speaker.log();
            // The Leases of tests that run at the same time are seen too.
            let own = format!("lease={}/", self.cluster.namespace());
            let tail: Vec<&str> = log
                .lines()
                .filter(|line| !line.contains("FLAG:"))
                .filter(|line| !line.contains("lease seen") || line.contains(&own))
                .collect();
            let tail = tail
                .get(tail.len().saturating_sub(120)..)
                .unwrap_or_default()
                .join("\n");
            eprintln!(
                "--- {} {}\n{tail}",
                speaker.name(),
                speaker.log_file().display()
            );
        }
    }
}

/// Ends a watch: every address was answered, and no request by two.
pub(crate) fn one_answerer(watch: Asker) -> Result<BTreeMap<IpAddr, Answers>> {
    let seen = watch.stop()?;
    for (vip, answers) in &seen {
        answers
            .first
            .with_context(|| format!("{vip} was never answered"))?;
        ensure!(
            answers.doubly.is_empty(),
            "{vip}: {} of {} requests were answered by two: {:?}",
            answers.doubly.len(),
            answers.asked,
            answers.macs
        );
    }
    Ok(seen)
}
