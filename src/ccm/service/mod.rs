//! The service controller: a LoadBalancer object on the infrastructure cluster for each Service that
//! wants a load balancer, and the address that it was given on the Service.
//!
//! ```text
//! Services, LoadBalancers, Nodes, network mapping ─▶ queue of Services ─▶ facts ─▶ plan ─▶ one write ─┐
//!                                                                          ▲                          │
//!                                                                          └──── the server's answer ─┘
//! ```
//!
//! It is driven by watches of both clusters and waits for nothing: a Service whose address has not
//! come is out of the queue until the watch of its object shows a change. A sync that finds everything
//! right reads caches and writes nothing. The order of writes, and what is never done, is in `plan`;
//! `recent` keeps a late watch from undoing what was just written.
//!
//! Deviations from the Go program: harvester-specific quirks are put right (nothing is deleted because
//! something failed; an object counts as existing whether or not it has an address; deletion waits
//! until the host's object is gone; objects of Services that are gone are found and deleted). Events
//! `EnsuringLoadBalancer` and `EnsuredLoadBalancer` come with changes only, and `UpdatedLoadBalancer`
//! never, because the infrastructure cluster is told nothing about nodes.

mod controller;
mod due;
mod failure;
mod gather;
mod loadbalancer;
mod metrics;
mod network;
mod nodes;
mod notes;
mod orphans;
mod plan;
mod recent;
mod sharing;
mod sweep;
mod sync;
mod turns;

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};

pub use metrics::Metrics;

use self::{
    controller::{Controller, Parts},
    loadbalancer::Settings,
};
use super::{Context, cache::Feed};
use crate::{
    harvester::loadbalancer::LoadBalancer, k8s::events::Recorder, runtime::shutdown::Shutdown,
};

/// The source of the controller's events.
const COMPONENT: &str = "service-controller";
/// Syncs at a time where no number was given.
const SYNCS: u32 = 32;
/// For events that are still to be written when a stop is requested.
const LAST_EVENTS: Duration = Duration::from_millis(500);

/// What the controller watches.
#[derive(Debug)]
pub struct Feeds {
    /// Of all namespaces.
    pub services: Feed<Service>,
    pub nodes: Feed<Node>,
    /// Of the host namespace. Objects are written back whole, so they must not be pruned.
    pub balancers: Feed<LoadBalancer>,
    /// At least `kube-system/harvester-nad-mapping`.
    pub network_map: Feed<ConfigMap>,
}

/// Runs until `stop`, then finishes the calls under way within a second. Being dropped is the other
/// way to stop it: every write leaves a state that the next leader goes on from.
pub async fn run(context: Context, feeds: Feeds, metrics: Metrics, stop: Shutdown) {
    let (recorder, writer) = Recorder::new(context.guest.clone(), COMPONENT, &*context.hostname);
    let config = &context.config;
    let controller = Controller::new(
        Parts {
            guest: context.guest.clone(),
            host: context.host.client(),
            host_namespace: context.host.namespace().to_owned(),
            settings: Settings::new(config),
            syncs: config.workers.service_syncs.unwrap_or(SYNCS),
            resync: config.min_resync_period,
            recorder,
            metrics,
        },
        &feeds,
    );
    let events = writer.run(stop.token(), LAST_EVENTS);
    tokio::join!(Box::pin(controller.run(feeds, &stop)), events);
}
