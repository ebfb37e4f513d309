//! The cloud controller manager: its controllers, and what they share.

pub mod cache;
pub mod service;

use std::sync::Arc;

use kube::Client;

use crate::{config::CcmConfig, harvester::Host, runtime::Process};

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
