//! A cluster that stands until it is taken down: what the command `lab` does.
//!
//! A keeper process holds the cluster in the background. It claims a name for as long as it lives, so
//! that whether a cluster stands is never a guess from a process id, and a keeper that was killed leaves
//! nothing that looks alive (its hosts and processes are reaped with it).

use std::{
    fmt,
    fs::{self, File},
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    claim::Claim,
    cluster::{Cluster, Node, SpeakerSetup},
    control_plane::Settings,
    iproute, pki, syscall,
    tools::Tools,
    wait::poll_until,
};

const START_BOUND: Duration = Duration::from_secs(120);
const STOP_BOUND: Duration = Duration::from_secs(60);

/// What kind of cluster to keep.
#[derive(Debug, Clone, clap::Args)]
pub struct Wanted {
    /// Number of nodes
    #[arg(long, default_value_t = 3)]
    pub nodes: u8,
    /// Program to start on every node, with --kubeconfig and the --speaker-… flags that say where it is
    #[arg(long, value_name = "PATH")]
    pub speaker: Option<PathBuf>,
    /// Further arguments of that program
    #[arg(last = true, requires = "speaker")]
    pub speaker_args: Vec<String>,
}

/// A standing cluster, as its keeper describes it; displays as advice for its user.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Standing {
    keeper: i32,
    kubeconfig: PathBuf,
    logs: PathBuf,
    service_namespace: String,
    release_namespace: String,
    vips: String,
    hosts: Vec<Station>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Station {
    /// The Node's name, or the host's role.
    name: String,
    namespace: String,
    addresses: String,
}

/// Starts a keeper and waits until its cluster stands.
pub async fn up(wanted: &Wanted) -> Result<Standing> {
    if let Some(reason) = iproute::unavailable() {
        bail!("no lab on this machine: {reason}");
    }
    let files = Files::new();
    if let Some(standing) = files.standing()? {
        bail!(
            "a cluster stands already (keeper {}): `lab status`, `lab down`",
            standing.keeper
        );
    }
    // Here and not by the keeper, so that the user sees what takes so long the first time.
    Tools::ready().await?;
    files.prepare()?;
    let log = File::create(&files.log).context("creating the keeper's log")?;
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.arg("keep").arg(format!("--nodes={}", wanted.nodes));
    if let Some(speaker) = &wanted.speaker {
        let speaker = speaker.canonicalize();
        let speaker = speaker.with_context(|| format!("finding {:?}", wanted.speaker))?;
        command
            .arg("--speaker")
            .arg(speaker)
            .arg("--")
            .args(&wanted.speaker_args);
    }
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("sharing the keeper's log")?)
        .stderr(log)
        .current_dir("/")
        // Ctrl-C in this terminal is not for the keeper.
        .process_group(0);
    let mut keeper = command.spawn().context("starting the keeper")?;
    poll_until(START_BOUND, "standing cluster", async || {
        if let Some(status) = keeper.try_wait()? {
            let said = fs::read_to_string(&files.log).unwrap_or_default();
            return Ok(Some(Err(anyhow::anyhow!(
                "the keeper ended, {status}:\n{said}"
            ))));
        }
        Ok(files.standing()?.map(Ok))
    })
    .await?
}

/// Holds a cluster until SIGTERM or SIGINT.
pub async fn keep(wanted: Wanted) -> Result<()> {
    let files = Files::new();
    let _claim = files.claim()?.context("another keeper is at work")?;
    // Registered before there is anything to lose. A terminal that closes is no reason to end.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let _hangup = signal(SignalKind::hangup())?;

    let builder = Cluster::builder("standing").nodes(wanted.nodes);
    let cluster = builder
        .own_control_plane(Settings::default())
        .start()
        .await?;
    if let Some(binary) = wanted.speaker {
        let setup = SpeakerSetup {
            binary,
            args: wanted.speaker_args,
            env: Vec::new(),
        };
        cluster
            .nodes()
            .iter()
            .try_for_each(|node| node.start_speaker(&setup).map(drop))?;
    }
    let kubeconfig = cluster.lab().directory().join("admin.kubeconfig");
    cluster
        .control_plane()
        .write_admin_kubeconfig(&kubeconfig, cluster.namespace())?;
    files.publish(&describe(&cluster, kubeconfig)?)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let stopped = cluster.stop().await;
    if stopped.is_ok() {
        // What `down` takes for a good end.
        fs::remove_file(&files.state).context("removing the description")?;
    }
    stopped
}

/// Ends the standing cluster; returns when all of it is gone.
pub async fn down() -> Result<()> {
    let files = Files::new();
    let Some(standing) = files.standing()? else {
        bail!("no cluster stands")
    };
    syscall::signal(standing.keeper, libc::SIGTERM).context("telling the keeper")?;
    poll_until(STOP_BOUND, "end of the keeper", async || {
        Ok((!files.is_kept()?).then_some(()))
    })
    .await?;
    let said = fs::read_to_string(&files.log).unwrap_or_default();
    ensure!(!files.state.exists(), "the keeper ended badly:\n{said}");
    fs::remove_dir_all(&files.folder).context("removing the keeper's files")
}

/// The standing cluster, if there is one, and which of its nodes are Ready.
pub async fn status() -> Result<Option<(Standing, Vec<(String, bool)>)>> {
    let Some(standing) = Files::new().standing()? else {
        return Ok(None);
    };
    pki::install_provider();
    let kubeconfig = Kubeconfig::read_from(&standing.kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    let client = kube::Client::try_from(config).context("making a client")?;
    let ready = crate::cluster::readiness(&client).await?;
    Ok(Some((standing, ready)))
}

/// The keeper's files.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    state: PathBuf,
    log: PathBuf,
}

impl Files {
    fn new() -> Self {
        let folder = std::env::temp_dir().join("harvester-lab-standing");
        let (state, log) = (folder.join("cluster.json"), folder.join("keeper.log"));
        Self { folder, state, log }
    }

    /// Makes the folder; for nobody else's eyes, as it says where the administrator's token is.
    fn prepare(&self) -> Result<()> {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder);
        made.with_context(|| format!("creating {}", self.folder.display()))?;
        // A keeper that was killed left its description; it is not that of the one that comes.
        if self.state.exists() {
            fs::remove_file(&self.state).context("removing an old description")?;
        }
        Ok(())
    }

    /// A keeper of other files, with another folder for what is temporary, is another matter.
    fn claim(&self) -> Result<Option<Claim>> {
        Claim::take(&format!("keeper/{}", self.folder.display()))
    }

    fn is_kept(&self) -> Result<bool> {
        Ok(self.claim()?.is_none())
    }

    fn standing(&self) -> Result<Option<Standing>> {
        // In this order: to ask is to claim for a moment, which a keeper that starts must not meet.
        if !self.state.exists() || !self.is_kept()? {
            return Ok(None);
        }
        let text = fs::read(&self.state).context("reading the keeper's description")?;
        Ok(Some(serde_json::from_slice(&text)?))
    }

    /// Whole or not at all: `up` waits for this file.
    fn publish(&self, standing: &Standing) -> Result<()> {
        let partial = self.state.with_extension("partial");
        fs::write(&partial, serde_json::to_vec_pretty(standing)?)?;
        fs::rename(&partial, &self.state).context("publishing the description")
    }
}

fn describe(cluster: &Cluster, kubeconfig: PathBuf) -> Result<Standing> {
    let station = |name: &str, namespace: String, (v4, v6): (_, _)| {
        let (v4, v6): (std::net::Ipv4Addr, std::net::Ipv6Addr) = (v4, v6);
        Station {
            name: name.to_owned(),
            namespace,
            addresses: format!("{v4} {v6}"),
        }
    };
    let node = |node: &Node| station(node.name(), node.host().namespace_name(), node.addresses());
    let of = cluster.addressing();
    let mut hosts: Vec<Station> = cluster.nodes().iter().map(node).collect();
    hosts.push(station(
        "client",
        cluster.client().namespace_name(),
        of.client(),
    ));
    hosts.push(station(
        "router",
        cluster.router().namespace_name(),
        of.router(),
    ));
    let (first, first6) = of.vip(0);
    Ok(Standing {
        keeper: i32::try_from(std::process::id())?,
        kubeconfig,
        logs: cluster.lab().directory().to_owned(),
        service_namespace: cluster.namespace().to_owned(),
        release_namespace: cluster.release_namespace().to_owned(),
        vips: format!("{first} {first6} and the 50 after each"),
        hosts,
    })
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = Path::display;
        writeln!(f, "export KUBECONFIG={}", show(&self.kubeconfig))?;
        writeln!(f)?;
        writeln!(f, "Services          namespace {}", self.service_namespace)?;
        writeln!(f, "release           namespace {}", self.release_namespace)?;
        writeln!(f, "free addresses    {}", self.vips)?;
        writeln!(f, "logs              {}", show(&self.logs))?;
        writeln!(f, "keeper            process {}", self.keeper)?;
        writeln!(f)?;
        for Station {
            name,
            namespace,
            addresses,
        } in &self.hosts
        {
            writeln!(
                f,
                "{name:<12}  {addresses:<36}  ip netns exec {namespace} bash"
            )?;
        }
        Ok(())
    }
}
