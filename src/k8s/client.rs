//! The client of the guest cluster's API.
//!
//! In: a kubeconfig, a server address, both, or neither (in-cluster). Out: a client whose
//! connections notice a dead server, and the server's own addresses. It has no retries
//! (`default_retry` would repeat election writes behind the election's back), no deadline of its
//! own (each verb has one) and no rate limit unless asked for.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderValue, Uri, header::USER_AGENT};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt},
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tower::{BoxError, ServiceBuilder, limit::RateLimitLayer};

use super::metrics::Counting;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A dead server must cost an election with default timings one renewal, not its renew deadline:
/// an idle connection is asked after 3 s, then each second, and is dead after 3 misses; one with
/// unacknowledged bytes is dead after 3 s. A server that is merely slow acknowledges.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(3);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_MISSES: u32 = 3;
const UNACKNOWLEDGED: Duration = Duration::from_secs(3);
const POOL_IDLE: Duration = Duration::from_secs(60);

/// Where the API server is and how to log in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientSource {
    /// An explicit kubeconfig; neither `KUBECONFIG` nor the home directory is looked at.
    pub kubeconfig: Option<PathBuf>,
    /// Overrides the server's address; alone, it is used without credentials.
    pub master: Option<String>,
    /// Requests a second and their burst; `None` is no limit.
    pub rate: Option<Rate>,
}

/// A limit of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f32,
    pub burst: u32,
}

/// Why there is no client. All of these are mistakes in the configuration; reaching the server is
/// not tried.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        path: PathBuf,
        source: Box<KubeconfigError>,
    },
    #[error("no kubeconfig given, and not in a cluster: {0}")]
    InCluster(#[from] InClusterError),
    #[error("master address {address:?}: {source}")]
    Master {
        address: String,
        source: http::uri::InvalidUri,
    },
    #[error("master address {0:?} is not http://… or https://…")]
    MasterScheme(String),
    #[error("component name {0:?} does not fit a header")]
    Component(String),
    #[error("client: {0}")]
    Client(Box<kube::Error>),
}

/// A client and what is known of its server.
#[derive(Clone)]
pub struct Connection {
    pub client: Client,
    /// The server's addresses where its URL names them literally.
    pub api_server: Vec<IpAddr>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("api_server", &self.api_server)
            .finish_non_exhaustive()
    }
}

/// Builds a client for `component`, which is named in the User-Agent.
///
/// The process's rustls crypto provider must be installed before the first request.
pub async fn connect(source: &ClientSource, component: &str) -> Result<Connection, ConnectError> {
    let mut config = load(source).await?;
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.headers.push((USER_AGENT, user_agent(component)?));
    let api_server = literal_address(&config.cluster_url).into_iter().collect();
    let client =
        build(config, source.rate).map_err(|error| ConnectError::Client(Box::new(error)))?;
    Ok(Connection { client, api_server })
}

async fn load(source: &ClientSource) -> Result<Config, ConnectError> {
    let master = source.master.as_deref().map(parse_master).transpose()?;
    let mut config = match (&source.kubeconfig, &master) {
        (Some(path), _) => load_kubeconfig(path).await?,
        (None, Some(master)) => Config::new(master.clone()),
        (None, None) => Config::incluster()?,
    };
    if let Some(master) = master {
        config.cluster_url = master;
    }
    Ok(config)
}

async fn load_kubeconfig(path: &Path) -> Result<Config, ConnectError> {
    let failed = |source| ConnectError::Kubeconfig {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(failed)
}

fn parse_master(address: &str) -> Result<Uri, ConnectError> {
    let uri: Uri = address.parse().map_err(|source| ConnectError::Master {
        address: address.to_owned(),
        source,
    })?;
    match uri.scheme_str() {
        Some("http" | "https") => Ok(uri),
        _ => Err(ConnectError::MasterScheme(address.to_owned())),
    }
}

fn user_agent(component: &str) -> Result<HeaderValue, ConnectError> {
    // Go's name of the architecture, as in every other client's User-Agent.
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let version = env!("CARGO_PKG_VERSION");
    let agent = format!("harvester-cloud-provider/{version} (linux/{architecture}) {component}");
    HeaderValue::try_from(agent).map_err(|_| ConnectError::Component(component.to_owned()))
}

fn literal_address(url: &Uri) -> Option<IpAddr> {
    url.host()?.trim_matches(['[', ']']).parse().ok()
}

fn build(config: Config, rate: Option<Rate>) -> kube::Result<Client> {
    let limit = rate.and_then(rate_limit);
    // A proxy's connections are kube's own; the keepalive below would only reach the proxy.
    if config.proxy_url.is_some() {
        let stack = ClientBuilder::try_from(config)?;
        return Ok(match limit {
            Some(limit) => stack.with_layer(&limit).build(),
            None => stack.build(),
        });
    }
    let connector = config.rustls_https_connector_with_connector(tcp())?;
    let http = HttpClient::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_timer(TokioTimer::new())
        .build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .option_layer(limit)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(Counting)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_MISSES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    tcp
}

/// `burst` requests in the time in which the rate allows as many.
fn rate_limit(rate: Rate) -> Option<RateLimitLayer> {
    let burst = u16::try_from(rate.burst.max(1)).unwrap_or(u16::MAX);
    let period = Duration::try_from_secs_f32(f32::from(burst) / rate.per_second).ok()?;
    (!period.is_zero()).then(|| RateLimitLayer::new(burst.into(), period))
}

#[cfg(test)]
mod tests;
