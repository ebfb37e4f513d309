//! The cloud controller manager: its controllers, what they share, and when they run.
//!
//! ```text
//! guest watches ─┐                  ┌─▶ node            (cloud-node-controller)
//! host watches ──┼─▶ caches, feeds ─┼─▶ nodelifecycle   (cloud-node-lifecycle-controller)
//!                │                  ├─▶ service         (service-lb-controller)
//! leadership ────┘                  └─▶ topology        (VMI controller)
//! ```
//!
//! Watches and controllers exist only while this process leads.

pub mod cache;
mod controllers;
pub mod instance;
mod leadership;
pub mod machines;
pub mod node;
pub mod nodelifecycle;
pub mod service;
pub mod topology;

use std::{path::PathBuf, sync::Arc, time::Duration};

use kube::Client;

use crate::{
    config::CcmConfig,
    harvester::{self, Host, Reload},
    k8s::{self, ClientSource, ConnectError, events::Recorder},
    runtime::{Process, clock, shutdown::Shutdown},
};
use controllers::Controllers;
use leadership::Leadership;

/// The component in the User-Agent, and in the Events about the election.
pub const COMPONENT: &str = "cloud-controller-manager";
/// How often a speaker without a cloud-config looks for one.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Kubernetes Events still waiting at the stop are written for at most this long.
const EVENTS_BUDGET: Duration = Duration::from_millis(500);

/// What every controller works with. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Of the guest cluster.
    pub guest: Client,
    pub host: Host,
    pub config: Arc<CcmConfig>,
    /// Name of the machine, for the source of Events.
    pub hostname: Arc<str>,
    pub process: Process,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("host", &self.host)
            .field("hostname", &self.hostname)
            .finish_non_exhaustive()
    }
}

/// How to run the cloud controllers.
#[derive(Debug)]
pub struct Setup {
    pub config: CcmConfig,
    /// The guest cluster.
    pub guest: ClientSource,
    pub hostname: String,
    /// Beside a speaker a missing cloud-config is no error: there are speakers on nodes that shall never
    /// lead the controllers.
    pub beside_speaker: bool,
}

/// Why the cloud controllers cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no client for the guest cluster")]
    Guest(#[source] ConnectError),
    #[error("--cloud-config is required: a kubeconfig of the Harvester cluster")]
    NoCloudConfig,
    #[error("the cloud-config cannot be used")]
    CloudConfig(#[source] ConnectError),
}

/// Runs the cloud controllers, whenever this process leads, until it is asked to stop.
pub async fn run(setup: Setup, process: Process) -> Result<(), Error> {
    let Some((host, reload)) = host(&setup, &process.shutdown).await? else {
        return Ok(());
    };
    let guest = k8s::connect(&setup.guest, COMPONENT).await;
    let guest = guest.map_err(Error::Guest)?.client;
    let following = reload.run(process.shutdown.clone());
    process.tasks.spawn("cloud-config", following);
    let context = Context {
        guest,
        host,
        config: Arc::new(setup.config),
        hostname: setup.hostname.into(),
        process,
    };
    let controllers = Controllers::new(&context);
    let lead = async |stop| controllers.run(stop).await;
    match &context.config.leader_election {
        None => lead(context.process.shutdown.clone()).await,
        Some(election) => {
            let (recorder, recording) =
                Recorder::new(context.guest.clone(), COMPONENT, &*context.hostname);
            let stop = context.process.shutdown.token();
            let recording = recording.run(stop, EVENTS_BUDGET);
            context.process.tasks.spawn("leadership-events", recording);
            let leadership = Leadership::new(election, &context, recorder);
            leadership.run(&context, lead).await;
        }
    }
    Ok(())
}

/// `None` once the process is asked to stop.
async fn host(setup: &Setup, shutdown: &Shutdown) -> Result<Option<(Host, Reload)>, Error> {
    let path: &PathBuf = match &setup.config.cloud_config {
        Some(path) => path,
        None if setup.beside_speaker => {
            tracing::info!("no --cloud-config: the cloud controllers are left to other nodes");
            shutdown.requested().await;
            return Ok(None);
        }
        None => return Err(Error::NoCloudConfig),
    };
    let mut told = false;
    loop {
        let error = match harvester::connect(path).await {
            Ok(host) => return Ok(Some(host)),
            Err(error) => error,
        };
        if !setup.beside_speaker {
            return Err(Error::CloudConfig(error));
        }
        if !std::mem::replace(&mut told, true) {
            let path = path.display();
            tracing::info!(%path, %error, "no usable cloud-config: the cloud controllers are left to other nodes");
        }
        tokio::select! {
            () = clock::sleep(LOOK_AGAIN) => {}
            () = shutdown.requested() => return Ok(None),
        }
    }
}
