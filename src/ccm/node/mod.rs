//! The cloud node controller: initialises nodes, keeps their labels and their addresses.
//!
//! In: watches of the guest's Nodes and Services and of the host's machines and instances. Out:
//! patches of Nodes, Events about them. Follows the framework's node controller with these
//! differences: everything is caused by watches, so a node is initialised when its machine is ready
//! and its addresses follow the guest agent at once; a node without a known IP address waits instead
//! of losing its taint or its last addresses; the periodic pass reads nothing from the host that the
//! watches have brought.

mod addresses;
mod controller;
mod hostnames;
pub(in crate::ccm) mod plan;
mod provided;
#[cfg(test)]
pub(in crate::ccm) mod testing;
mod vips;
pub(in crate::ccm) mod workers;

use k8s_openapi::api::core::v1::{Node, Service};
use prometheus_client::metrics::histogram::Histogram;

use super::{Context, cache::Feed, machines::MachineView};
use crate::{
    harvester::kubevirt::{VirtualMachine, VirtualMachineInstance},
    k8s::events::Recorder,
    runtime::{self, STOP_BUDGET, shutdown::Shutdown},
};
use controller::{Controller, Parts};

/// Source of the Events.
const COMPONENT: &str = "cloud-node-controller";
/// Seconds since a node's creation.
const BUCKETS: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];

/// What the controller watches.
#[derive(Debug)]
pub struct Feeds {
    pub nodes: Feed<Node>,
    /// For the addresses that are VIPs.
    pub services: Feed<Service>,
    pub machines: Feed<VirtualMachine>,
    pub instances: Feed<VirtualMachineInstance>,
}

/// How long new nodes wait for their cloud provider.
#[derive(Debug, Clone)]
pub struct Metrics {
    taint_removal: Histogram,
    initial_sync: Histogram,
}

impl Metrics {
    pub fn register(metrics: &runtime::metrics::Metrics) -> Self {
        let register = |name, help| {
            let histogram = Histogram::new(BUCKETS);
            metrics.register(name, help, histogram.clone());
            histogram
        };
        Self {
            taint_removal: register(
                "node_controller_cloud_provider_taint_removal_delay_seconds",
                "From a node's creation to the removal of its uninitialized taint",
            ),
            initial_sync: register(
                "node_controller_initial_node_sync_delay_seconds",
                "From a node's creation to the end of its initialisation",
            ),
        }
    }
}

/// Runs until `stop`, and then as long as the calls under way take.
pub async fn run(context: Context, feeds: Feeds, metrics: Metrics, stop: Shutdown) {
    let Context {
        guest,
        host,
        config,
        hostname,
        ..
    } = context;
    if config.node_ip_cidr.is_empty() && !config.node_exclude_ip_ranges.is_empty() {
        tracing::warn!("--node-exclude-ip-ranges has no effect without --node-ip-cidr");
    }
    let (recorder, writer) = Recorder::new(guest.clone(), COMPONENT, &*hostname);
    let machines = MachineView::new(
        host.namespace(),
        feeds.machines.cache.clone(),
        feeds.instances.cache.clone(),
    );
    let controller = Controller::new(Parts {
        guest,
        host: host.client(),
        config,
        nodes: feeds.nodes.cache.clone(),
        services: feeds.services.cache.clone(),
        machines,
        recorder,
        metrics,
    });
    let events = writer.run(stop.token(), STOP_BUDGET);
    let work = Box::pin(controller.run(feeds, stop));
    tokio::join!(work, events);
}
