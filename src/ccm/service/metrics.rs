//! The service controller's metrics: the framework's names where they mean something here, and the
//! state of the queue.

use prometheus_client::metrics::{
    counter::Counter,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};

use crate::runtime::metrics;

/// Handles; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Keys that wait for a worker.
    pub(super) depth: Gauge,
    pub(super) syncs: Counter,
    pub(super) failures: Counter,
    pub(super) latency: Histogram,
    /// Objects of Services that were gone.
    pub(super) orphans: Counter,
}

impl Metrics {
    pub fn register(metrics: &metrics::Metrics) -> Self {
        let new = Self {
            depth: Gauge::default(),
            syncs: Counter::default(),
            failures: Counter::default(),
            latency: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            orphans: Counter::default(),
        };
        metrics.register(
            "service_controller_queue_depth",
            "Services that wait for a worker",
            new.depth.clone(),
        );
        metrics.register(
            "service_controller_loadbalancer_sync",
            "Syncs of the load balancer of a Service",
            new.syncs.clone(),
        );
        metrics.register(
            "service_controller_loadbalancer_sync_error",
            "Syncs that failed and will be retried",
            new.failures.clone(),
        );
        metrics.register(
            "service_controller_loadbalancer_sync_latency_seconds",
            "Duration of a sync, calls included",
            new.latency.clone(),
        );
        metrics.register(
            "service_controller_orphans_deleted",
            "LoadBalancer objects deleted because their Service was gone",
            new.orphans.clone(),
        );
        new
    }
}
