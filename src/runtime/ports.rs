//! The ports of a process: opened before anything else starts, served on a thread of their own, kept
//! until everything else has ended.

use std::{io, net::Ipv6Addr, path::Path, sync::Arc, thread::JoinHandle, time::Duration};

use axum::Router;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use super::{
    Process,
    auth::{self, Delegates, Gate, Lookup},
    clock, endpoints,
    server::{self, BindError},
    shutdown::Shutdown,
    tls::{self, Certificates},
};
use crate::config::{Config, ServingConfig};

/// How often certificates and authorities are read again.
const REFRESH: Duration = Duration::from_secs(30);

/// Why the ports are not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("cannot set up TLS for the secure port")]
    Tls(#[from] tls::Error),
    #[error("cannot set up authentication for the secure port")]
    Auth(#[from] auth::Error),
    #[error("cannot start the thread of the ports")]
    Thread(#[source] io::Error),
    #[error("a listener failed")]
    Listener(#[source] io::Error),
    #[error("the thread of the ports is gone")]
    Gone,
}

/// Ports that are open and not served yet: a conflict shows before anything is done.
#[derive(Debug)]
pub struct Ports {
    secure: Option<(std::net::TcpListener, ServingConfig, Arc<Certificates>)>,
    lookup: Lookup,
    health: Option<std::net::TcpListener>,
    metrics: Option<std::net::TcpListener>,
}

/// Ports that are served.
#[derive(Debug)]
pub struct Served {
    stop: Shutdown,
    ended: oneshot::Receiver<Result<(), Error>>,
    /// `ended` has told what it had to tell.
    over: bool,
    thread: JoinHandle<()>,
}

impl Ports {
    /// Opens the ports that the configuration names.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let all = |port: u16| server::bind((Ipv6Addr::UNSPECIFIED, port).into(), false);
        let speaker = config.speaker.as_ref();
        let secure = match &config.serving {
            None => None,
            Some(serving) => {
                let listener = server::bind(serving.address, serving.port_sharing)?;
                let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
                if !serving.address.ip().is_unspecified() {
                    names.push(serving.address.ip().to_string());
                }
                names.dedup();
                let certificates = Certificates::load(serving.tls.clone(), names)?;
                Some((listener, serving.clone(), certificates))
            }
        };
        Ok(Self {
            secure,
            // A speaker has VIPs to hold while the API server is away.
            lookup: match speaker {
                Some(_) => Lookup::Later,
                None => Lookup::First,
            },
            health: speaker.and_then(|s| s.health_port).map(all).transpose()?,
            metrics: speaker
                .and_then(|s| s.metrics_address)
                .map(|address| server::bind(address, false))
                .transpose()?,
        })
    }

    /// Serves them. Returns when authentication is set up, for which a process without a speaker may
    /// have to ask the API server.
    pub async fn serve(self, process: &Process) -> Result<Served, Error> {
        let stop = Shutdown::new();
        let (ready, set_up) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (process, stopped) = (process.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let outcome = match runtime {
                    Ok(runtime) => runtime.block_on(self.run(&process, &stopped, ready)),
                    Err(error) => Err(Error::Thread(error)),
                };
                // Nobody waits any more once the process has ended for another reason.
                let _ = end.send(outcome);
            })
            .map_err(Error::Thread)?;
        let served = Served {
            stop,
            ended,
            over: false,
            thread,
        };
        match set_up.await {
            Ok(()) => Ok(served),
            // It ended before it was set up, and says why.
            Err(_) => match served.ended.await {
                Ok(Err(error)) => Err(error),
                _ => Err(Error::Gone),
            },
        }
    }

    async fn run(
        self,
        process: &Process,
        stop: &Shutdown,
        ready: oneshot::Sender<()>,
    ) -> Result<(), Error> {
        let health = endpoints::health(&process.health);
        let metrics = endpoints::metrics(&process.metrics);
        let secure = match self.secure {
            None => None,
            Some((listener, config, certificates)) => {
                let delegates = delegates(&config).await;
                let gate = Gate::new(
                    config.authentication,
                    config.authorization,
                    delegates,
                    self.lookup,
                );
                let gate = Arc::new(gate.await?);
                let router =
                    endpoints::guarded(health.clone().merge(metrics.clone()), gate.clone());
                let acceptor = TlsAcceptor::from(certificates.server_config()?);
                let port = listen(Some(listener), Some(acceptor), router, stop);
                Some((port, certificates, gate))
            }
        };
        let plain_health = listen(self.health, None, health, stop);
        let plain_metrics = listen(self.metrics, None, metrics, stop);
        // Nobody waits any more if the process was asked to stop meanwhile.
        let _ = ready.send(());
        let secure = async {
            match secure {
                None => {
                    stop.requested().await;
                    Ok(())
                }
                Some((port, certificates, gate)) => tokio::select! {
                    ended = port => ended,
                    never = refresh(&certificates) => match never {},
                    never = follow(&gate, self.lookup) => match never {},
                },
            }
        };
        tokio::try_join!(secure, plain_health, plain_metrics)
            .map(|_| ())
            .map_err(Error::Listener)
    }
}

impl Served {
    /// Returns only if serving fails before a stop is asked for. Cancel safe.
    pub async fn failed(&mut self) -> Error {
        if self.over {
            return Error::Gone;
        }
        let ended = (&mut self.ended).await;
        self.over = true;
        match ended {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => Error::Gone,
        }
    }

    /// Closes the ports. What hangs is left to the end of the process.
    pub async fn stop(mut self) {
        self.stop.request();
        let limit = Duration::from_millis(200);
        if self.over || tokio::time::timeout(limit, &mut self.ended).await.is_ok() {
            // The thread has sent its last word and returns.
            let _ = self.thread.join();
        }
    }
}

async fn listen(
    listener: Option<std::net::TcpListener>,
    tls: Option<TlsAcceptor>,
    router: Router,
    stop: &Shutdown,
) -> io::Result<()> {
    let Some(listener) = listener else {
        stop.requested().await;
        return Ok(());
    };
    server::serve(listener, tls, router, stop.clone()).await
}

async fn refresh(certificates: &Certificates) -> std::convert::Infallible {
    loop {
        clock::sleep(REFRESH).await;
        match certificates.refresh() {
            Ok(true) => tracing::info!("the serving certificate changed"),
            Ok(false) => {}
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                tracing::warn!(
                    error,
                    "a serving certificate cannot be read; the old one stays"
                );
            }
        }
    }
}

/// Keeps the authorities as they are in files and cluster.
async fn follow(gate: &Gate, lookup: Lookup) -> std::convert::Infallible {
    let mut pause = match lookup {
        Lookup::First => REFRESH,
        Lookup::Later => Duration::ZERO,
    };
    loop {
        clock::sleep(pause).await;
        if let Err(error) = gate.refresh().await {
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::warn!(error, "authorities cannot be read; the old ones stay");
        }
        pause = REFRESH;
    }
}

/// Clients for reviews: of the given kubeconfig, else of the pod.
async fn delegates(config: &ServingConfig) -> Delegates {
    let (tokens, access) = (&config.authentication, &config.authorization);
    if tokens.kubeconfig == access.kubeconfig {
        let both = delegate(tokens.kubeconfig.as_deref(), "access").await;
        return Delegates {
            authentication: both.clone(),
            authorization: both,
        };
    }
    Delegates {
        authentication: delegate(
            config.authentication.kubeconfig.as_deref(),
            "authentication",
        )
        .await,
        authorization: delegate(config.authorization.kubeconfig.as_deref(), "authorization").await,
    }
}

async fn delegate(kubeconfig: Option<&Path>, purpose: &'static str) -> Option<kube::Client> {
    match reviewing_client(kubeconfig).await {
        Ok(client) => Some(client),
        Err(error) => {
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::warn!(
                error,
                purpose,
                "no client for reviews: only open paths are served on the secure port"
            );
            None
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum DelegateError {
    #[error("the kubeconfig is unusable")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("this process runs in no pod")]
    InCluster(#[from] kube::config::InClusterError),
    #[error("no client can be made of the configuration")]
    Client(#[from] kube::Error),
}

async fn reviewing_client(kubeconfig: Option<&Path>) -> Result<kube::Client, DelegateError> {
    let config = match kubeconfig {
        None => kube::Config::incluster()?,
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path)?;
            let options = kube::config::KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(file, &options).await?
        }
    };
    Ok(kube::Client::try_from(config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ports_that_failed_can_be_stopped() {
        let (end, ended) = oneshot::channel();
        drop(end);
        let mut served = Served {
            stop: Shutdown::new(),
            ended,
            over: false,
            thread: std::thread::spawn(|| {}),
        };
        for _ in 0..2 {
            assert!(matches!(served.failed().await, Error::Gone));
        }
        served.stop().await;
    }
}
