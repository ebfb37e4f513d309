//! The VMI controller: node labels follow machines that migrate, and the map of networks to guest
//! interfaces is kept.
//!
//! In: watches of the guest's Nodes and the map's `ConfigMap`, and of the host's machines and
//! instances. Out: patches of Node labels, one key of one `ConfigMap`. It has no place in
//! `--controllers`; `--disable-vmi-controller` switches it off.

mod controller;
mod network_map;
mod plan;

use k8s_openapi::api::core::v1::{ConfigMap, Node};

use super::{Context, cache::Feed, machines::MachineView};
use crate::{
    harvester::kubevirt::{VirtualMachine, VirtualMachineInstance},
    k8s::events::Recorder,
    runtime::{STOP_BUDGET, shutdown::Shutdown},
};
use controller::{Controller, Parts};

/// Source of the Events.
const COMPONENT: &str = "harvester-cloudprovider-resync-topology";

/// Where the map of networks is.
pub const MAP_NAMESPACE: &str = "kube-system";
pub const MAP_NAME: &str = "harvester-nad-mapping";
pub const MAP_KEY: &str = "interface-nad-mapping";

/// What the controller watches.
#[derive(Debug)]
pub struct Feeds {
    pub nodes: Feed<Node>,
    pub machines: Feed<VirtualMachine>,
    pub instances: Feed<VirtualMachineInstance>,
    /// The one `ConfigMap` [`MAP_NAMESPACE`]/[`MAP_NAME`], or more.
    pub network_map: Feed<ConfigMap>,
}

/// Runs until `stop`, and then as long as the calls under way take.
pub async fn run(context: Context, feeds: Feeds, stop: Shutdown) {
    let Context {
        guest,
        host,
        config,
        hostname,
        ..
    } = context;
    let (recorder, writer) = Recorder::new(guest.clone(), COMPONENT, &*hostname);
    let machines = MachineView::new(
        host.namespace(),
        feeds.machines.cache.clone(),
        feeds.instances.cache.clone(),
    );
    let controller = Controller::new(Parts {
        guest,
        config,
        nodes: feeds.nodes.cache.clone(),
        network_map: feeds.network_map.cache.clone(),
        machines,
        recorder,
    });
    let events = writer.run(stop.token(), STOP_BUDGET);
    let work = Box::pin(controller.run(feeds, stop));
    tokio::join!(work, events);
}
