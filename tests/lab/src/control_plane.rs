//! etcd, kube-apiserver and kube-controller-manager, the real ones.
//!
//! They run in the root namespace on loopback; the lab's hosts reach them only through an
//! [`ApiProxy`](crate::api_proxy::ApiProxy). One control plane serves all clusters of a process
//! ([`ControlPlane::shared`]); a scenario in which etcd or the server itself must stop starts its own.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use kube::Client;
use rustls::pki_types::CertificateDer;
use tokio::sync::OnceCell;

use crate::{
    access,
    api_proxy::Upstream,
    clock,
    kubeconfig::Access,
    pki::{self, Trust},
    process::Process,
    run::{Lab, lock},
    tools::Tools,
    wait::poll_until,
};

/// IPv4 and IPv6 addresses of Services, apart from every network of a cluster.
const SERVICE_NETWORKS: &str = "172.30.0.0/16,fd00:5e::/112";
const CONTROLLERS: &str = "endpointslice-controller,garbage-collector-controller,\
    namespace-controller,serviceaccount-controller,node-lifecycle-controller";
const START_BOUND: Duration = Duration::from_secs(90);
/// Lines of a log that go into an error.
const TAIL: usize = 15;

static SHARED: OnceCell<Arc<ControlPlane>> = OnceCell::const_new();

/// What differs between control planes.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long a node may be silent before it counts as not ready. Kubernetes' own default is 50 s.
    pub node_monitor_grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node_monitor_grace: Duration::from_secs(6),
        }
    }
}

/// A running control plane. Ends when dropped; the shared one with the process.
#[derive(Debug)]
pub struct ControlPlane {
    lab: Lab,
    tools: Tools,
    settings: Settings,
    folder: PathBuf,
    trust: Trust,
    admin_token: String,
    ports: Ports,
    running: Mutex<Running>,
}

#[derive(Debug)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    apiserver: u16,
}

#[derive(Debug)]
struct Running {
    etcd: Process,
    apiserver: Option<Process>,
    controllers: Option<Process>,
}

impl ControlPlane {
    /// The control plane of this process, started when first asked for.
    pub async fn shared() -> Result<Arc<Self>> {
        let start = async || Self::start(Settings::default()).await.map(Arc::new);
        SHARED.get_or_try_init(start).await.cloned()
    }

    /// Starts one; ready when this returns.
    pub async fn start(settings: Settings) -> Result<Self> {
        let tools = Tools::ready().await?;
        let lab = Lab::new("control-plane")?;
        let folder = lab.directory().join("control-plane");
        fs::create_dir(&folder).context("making the folder of the control plane")?;
        let trust = pki::generate(&folder)?;
        let admin_token = access::write_tokens(&folder.join("tokens.csv"))?;
        let ports = Ports {
            etcd: free_port()?,
            etcd_peer: free_port()?,
            apiserver: free_port()?,
        };
        let etcd = lab.spawn("etcd", etcd_command(&tools, &folder, &ports))?;
        let running = Mutex::new(Running {
            etcd,
            apiserver: None,
            controllers: None,
        });
        let plane = Self {
            lab,
            tools,
            settings,
            folder,
            trust,
            admin_token,
            ports,
            running,
        };
        plane.start_apiserver().await?;
        access::grant(&plane.admin().await?)
            .await
            .context("granting the speakers' rights")?;
        plane.start_controllers()?;
        Ok(plane)
    }

    /// A client that may do everything. It belongs to the runtime that it is made on.
    pub async fn admin(&self) -> Result<Client> {
        self.admin_access("default").client().await
    }

    /// Writes the administrator's kubeconfig.
    pub fn write_admin_kubeconfig(&self, file: &Path, namespace: &str) -> Result<()> {
        self.admin_access(namespace).write(file)
    }

    /// `https://…` of the API server, reachable in the root namespace.
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// The API server for a proxy whose clients are `token`'s owner unless they say otherwise.
    pub fn upstream(&self, token: &str) -> Upstream {
        Upstream {
            address: self.address(),
            tls: Arc::clone(&self.trust.tls),
            token: token.to_owned(),
        }
    }

    /// The programs it runs from.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Kills the API server: all connections break, new ones are refused.
    pub fn stop_apiserver(&self) -> Result<()> {
        let Some(apiserver) = lock(&self.running).apiserver.take() else {
            return Ok(());
        };
        apiserver.kill9()
    }

    /// Starts the API server, if it does not run, and waits until it is ready.
    pub async fn start_apiserver(&self) -> Result<()> {
        let started = {
            let mut running = lock(&self.running);
            if running.apiserver.is_some() {
                return Ok(());
            }
            let apiserver = self.lab.spawn("kube-apiserver", self.apiserver_command())?;
            running.apiserver = Some(apiserver.clone());
            apiserver
        };
        let client = self.admin().await?;
        let ready = poll_until(START_BOUND, "ready API server", async || {
            if let Err(ended) = self.check() {
                return Ok(Some(Err(ended)));
            }
            let request = http::Request::get("/readyz").body(Vec::new())?;
            client.request_text(request).await?;
            Ok(Some(Ok(())))
        });
        ready
            .await
            .and_then(|outcome| outcome)
            .with_context(|| tail(&started))
    }

    /// Freezes etcd: reads from the watch cache go on, everything else hangs.
    pub fn pause_etcd(&self) -> Result<()> {
        lock(&self.running).etcd.pause()
    }

    /// Lets a frozen etcd go on.
    pub fn resume_etcd(&self) -> Result<()> {
        lock(&self.running).etcd.resume()
    }

    /// For files that go with the control plane.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The CA of the certificate that the API server shows to the aggregated servers behind it.
    pub(crate) fn front_proxy(&self) -> &CertificateDer<'static> {
        &self.trust.front_proxy
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.apiserver).into()
    }

    fn admin_access(&self, namespace: &str) -> Access {
        Access {
            server: self.url(),
            ca_pem: Some(self.trust.ca_pem.clone()),
            token: self.admin_token.clone(),
            namespace: namespace.to_owned(),
        }
    }

    /// Fails, with the end of its log, if one of its programs has ended without being told to.
    pub fn check(&self) -> Result<()> {
        let Running {
            etcd,
            apiserver,
            controllers,
        } = &*lock(&self.running);
        for process in std::iter::once(etcd).chain(apiserver).chain(controllers) {
            if let Some(status) = process.ended()? {
                bail!("{} ended, {status}; {}", process.name(), tail(process));
            }
        }
        Ok(())
    }

    fn start_controllers(&self) -> Result<()> {
        let kubeconfig = self.folder.join("controllers.kubeconfig");
        self.write_admin_kubeconfig(&kubeconfig, "kube-system")?;
        let mut command = Command::new(&self.tools.kube_controller_manager);
        command
            .arg(option("kubeconfig", kubeconfig.display()))
            .arg(option("controllers", CONTROLLERS))
            .args([
                "--leader-elect=false",
                "--cloud-provider=external",
                "--secure-port=0",
            ])
            .args([
                "--kube-api-qps=1000",
                "--kube-api-burst=1000",
                "--profiling=false",
            ])
            .args(["--node-monitor-period=500ms"])
            .arg(option(
                "node-monitor-grace-period",
                format!("{}ms", self.settings.node_monitor_grace.as_millis()),
            ))
            // All quick: a scenario waits for these.
            .args([
                "--endpointslice-updates-batch-period=0",
                "--concurrent-namespace-syncs=20",
            ]);
        let controllers = self.lab.spawn("kube-controller-manager", command)?;
        lock(&self.running).controllers = Some(controllers);
        Ok(())
    }

    fn apiserver_command(&self) -> Command {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let mut command = Command::new(&self.tools.kube_apiserver);
        command
            .arg(option(
                "etcd-servers",
                format!("http://127.0.0.1:{}", self.ports.etcd),
            ))
            .arg(option("secure-port", self.ports.apiserver))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            // A loopback address is no endpoint that the `kubernetes` Service could have.
            .args(["--endpoint-reconciler-type=none"])
            .arg(option("service-cluster-ip-range", SERVICE_NETWORKS))
            .arg(option("cert-dir", self.folder.display()))
            .arg(option("client-ca-file", file(pki::CA_CERTIFICATE)))
            .arg(option("tls-cert-file", file(pki::SERVER_CERTIFICATE)))
            .arg(option("tls-private-key-file", file(pki::SERVER_KEY)))
            // Aggregated servers trust what these headers say from whoever has this certificate.
            .arg(option(
                "requestheader-client-ca-file",
                file(pki::FRONT_PROXY_CA),
            ))
            .arg(option("requestheader-allowed-names", pki::FRONT_PROXY_NAME))
            .args(["--requestheader-username-headers=X-Remote-User"])
            .args(["--requestheader-group-headers=X-Remote-Group"])
            .args(["--requestheader-extra-headers-prefix=X-Remote-Extra-"])
            .arg(option(
                "proxy-client-cert-file",
                file(pki::FRONT_PROXY_CERTIFICATE),
            ))
            .arg(option("proxy-client-key-file", file(pki::FRONT_PROXY_KEY)))
            .args(["--service-account-issuer=https://kubernetes.default.svc"])
            .arg(option(
                "service-account-signing-key-file",
                file(pki::SERVICE_ACCOUNT_KEY),
            ))
            .arg(option(
                "service-account-key-file",
                file(pki::SERVICE_ACCOUNT_PUBLIC_KEY),
            ))
            .arg(option("token-auth-file", file("tokens.csv")))
            .args(["--authorization-mode=RBAC", "--profiling=false"])
            // Pods of the lab mount no token, and need not wait for a namespace's default account.
            .args(["--disable-admission-plugins=ServiceAccount"])
            // Throttling is a fault like others: the proxies make it.
            .args(["--enable-priority-and-fairness=false"])
            .args([
                "--max-requests-inflight=0",
                "--max-mutating-requests-inflight=0",
            ]);
        command
    }
}

fn etcd_command(tools: &Tools, folder: &Path, ports: &Ports) -> Command {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    let mut command = Command::new(&tools.etcd);
    command
        .arg(option("name", "lab"))
        .arg(option("data-dir", folder.join("etcd").display()))
        .arg(option("listen-client-urls", &client))
        .arg(option("advertise-client-urls", &client))
        .arg(option("listen-peer-urls", &peer))
        .arg(option("initial-advertise-peer-urls", &peer))
        .arg(option("initial-cluster", format!("lab={peer}")))
        // Nobody needs the data after a crash of the machine.
        .args(["--unsafe-no-fsync", "--log-level=warn"]);
    command
}

fn option(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

fn tail(process: &Process) -> String {
    let log = process.log();
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(TAIL);
    format!(
        "end of the log of {}:\n{}",
        process.name(),
        lines[from..].join("\n")
    )
}

/// A port on loopback that nobody listens on, below those that the kernel gives to connections: an API
/// server that is started again must find its port free.
fn free_port() -> Result<u16> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static START: OnceLock<u16> = OnceLock::new();
    // Processes that run at once begin at different places; within one no port comes twice, because a port
    // that was given away may not be listened on yet.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is below COUNT"
    )]
    let start = *START.get_or_init(|| (clock::random_fraction() * f64::from(COUNT)) as u16);
    for _ in 0..COUNT {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(start) % COUNT;
        let port = FIRST + offset;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port on loopback from {FIRST} on is free")
}
