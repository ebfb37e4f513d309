//! The infrastructure cluster: where the VMs of the guest's nodes and its LoadBalancer objects are.
//!
//! In: the cloud-config, a complete kubeconfig. Out: a [`Host`] whose client stays the same while its
//! credentials and server follow the file ([`Reload`]), so that a rotated token needs no restart. Requests
//! under way end with the credentials they began with.

pub mod kubevirt;
pub mod loadbalancer;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use http::Request;
use kube::{
    Client,
    client::Body,
    config::{AuthInfo, Cluster, Kubeconfig},
};
use tokio::sync::watch;
use tower::service_fn;

use crate::{
    k8s::{self, ClientSource, ConnectError},
    runtime::{clock, shutdown::Shutdown},
};

/// In the User-Agent of what is asked of the infrastructure cluster.
const COMPONENT: &str = "cloud-controller-manager";
/// How often the files are looked at. A kubelet takes up to a minute to bring a changed Secret.
const RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// The connection to the infrastructure cluster: one client whose credentials and server follow the
/// cloud-config file, and the namespace that everything of this guest cluster is in.
#[derive(Clone)]
pub struct Host {
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Host {
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Of the VMs, the VMIs and the LoadBalancer objects.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Follows the cloud-config; must run for the [`Host`] it came with.
pub struct Reload {
    path: PathBuf,
    /// What the files said when they were last read.
    seen: Vec<Vec<u8>>,
    namespace: String,
    current: watch::Sender<Client>,
}

impl std::fmt::Debug for Reload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reload")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Reads the cloud-config. Whether its server can be reached is not tried.
pub async fn connect(path: &Path) -> Result<(Host, Reload), ConnectError> {
    let seen = contents(path).await;
    let client = client(path).await?;
    let namespace = namespace_of(&client);
    let (current, following) = watch::channel(client);
    let host = Host {
        client: follow(following, &namespace),
        namespace: namespace.clone(),
    };
    let reload = Reload {
        path: path.to_owned(),
        seen,
        namespace,
        current,
    };
    Ok((host, reload))
}

async fn client(path: &Path) -> Result<Client, ConnectError> {
    let source = ClientSource {
        kubeconfig: Some(path.to_owned()),
        ..ClientSource::default()
    };
    Ok(k8s::connect(&source, COMPONENT).await?.client)
}

/// That of the current context; an empty one counts as none.
fn namespace_of(client: &Client) -> String {
    match client.default_namespace() {
        "" => "default".to_owned(),
        namespace => namespace.to_owned(),
    }
}

/// A client that hands each request to the one that is current.
fn follow(current: watch::Receiver<Client>, namespace: &str) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let client = current.borrow().clone();
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
}

/// The cloud-config and the certificate files that it names. (Token files are read by the client.)
async fn contents(path: &Path) -> Vec<Vec<u8>> {
    let text = tokio::fs::read(path).await.unwrap_or_default();
    let parsed = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| Kubeconfig::from_yaml(text).ok());
    let mut all = vec![text];
    for file in parsed.iter().flat_map(certificates) {
        let file = path.parent().map(|folder| folder.join(&file));
        let file = file.unwrap_or_else(|| PathBuf::from("/"));
        all.push(tokio::fs::read(file).await.unwrap_or_default());
    }
    all
}

fn certificates(config: &Kubeconfig) -> Vec<String> {
    let authority = |cluster: &Cluster| cluster.certificate_authority.clone();
    let own = |user: &AuthInfo| [user.client_certificate.clone(), user.client_key.clone()];
    let clusters = config.clusters.iter().filter_map(|c| c.cluster.as_ref());
    let users = config
        .auth_infos
        .iter()
        .filter_map(|u| u.auth_info.as_ref());
    clusters
        .filter_map(authority)
        .chain(users.flat_map(own).flatten())
        .collect()
}

impl Reload {
    /// Runs until the process is asked to stop.
    pub async fn run(mut self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = clock::sleep(RELOAD_PERIOD) => self.look().await,
                () = shutdown.requested() => return,
            }
        }
    }

    /// A file that cannot be used leaves everything as it was: it may be half written.
    async fn look(&mut self) {
        let found = contents(&self.path).await;
        if found == self.seen {
            return;
        }
        let path = self.path.display();
        self.seen = found;
        match client(&self.path).await {
            Ok(client) if namespace_of(&client) == self.namespace => {
                tracing::info!(%path, "the cloud-config has changed; its credentials are used from now on");
                self.current.send_replace(client);
            }
            Ok(client) => tracing::error!(
                %path,
                now = namespace_of(&client),
                before = self.namespace,
                "the cloud-config names another namespace; it is used after a restart only"
            ),
            Err(error) => {
                tracing::error!(%path, %error, "the changed cloud-config cannot be used; the one before is kept");
            }
        }
    }
}

#[cfg(test)]
mod tests;
