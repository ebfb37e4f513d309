//! The cloud node lifecycle controller: nodes whose machine is shut down get a taint, nodes whose
//! machine is gone are deleted.
//!
//! In: watches of the guest's Nodes and the host's machines, and before a deletion a list read from
//! the host's store. Out: patches and deletions of Nodes, Events about them. As in the framework, a
//! pass over all nodes every `--node-monitor-period`, and only nodes that are not ready matter.

mod controller;
mod plan;

use k8s_openapi::api::core::v1::Node;
use prometheus_client::metrics::counter::Counter;

use super::{Context, cache::Feed, machines::MachineView};
use crate::{
    harvester::kubevirt::{VirtualMachine, VirtualMachineInstance},
    k8s::events::Recorder,
    runtime::{self, STOP_BUDGET, shutdown::Shutdown},
};
use controller::{Controller, Parts};

/// Source of the Events.
const COMPONENT: &str = "cloud-node-lifecycle-controller";

/// What the controller watches.
#[derive(Debug)]
pub struct Feeds {
    pub nodes: Feed<Node>,
    pub machines: Feed<VirtualMachine>,
    pub instances: Feed<VirtualMachineInstance>,
}

/// Counts of what cannot be undone, and of what kept it from being done.
#[derive(Debug, Clone)]
pub struct Metrics {
    deleted: Counter,
    unanswered: Counter,
}

impl Metrics {
    pub fn register(metrics: &runtime::metrics::Metrics) -> Self {
        let register = |name, help| {
            let counter = Counter::default();
            metrics.register(name, help, counter.clone());
            counter
        };
        Self {
            deleted: register(
                "harvester_cloud_provider_nodes_deleted",
                "Nodes deleted because their VM is gone",
            ),
            unanswered: register(
                "harvester_cloud_provider_node_checks_unanswered",
                "Checks of nodes that are not ready without an answer of the host",
            ),
        }
    }
}

/// Runs until `stop`, and then as long as the call under way takes.
pub async fn run(context: Context, feeds: Feeds, metrics: Metrics, stop: Shutdown) {
    let Context {
        guest,
        host,
        config,
        hostname,
        ..
    } = context;
    let (recorder, writer) = Recorder::new(guest.clone(), COMPONENT, &*hostname);
    // The passes read the caches; nobody waits for what changes.
    let machines = MachineView::new(
        host.namespace(),
        feeds.machines.cache,
        feeds.instances.cache,
    );
    let controller = Controller::new(Parts {
        guest,
        host: host.client(),
        namespace: host.namespace().to_owned(),
        config,
        nodes: feeds.nodes.cache,
        machines,
        recorder,
        metrics,
    });
    let events = writer.run(stop.token(), STOP_BUDGET);
    let work = Box::pin(controller.run(stop));
    tokio::join!(work, events);
}
