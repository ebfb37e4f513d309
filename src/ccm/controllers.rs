//! The controllers of a leader: the watches that they share, and which of them run.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::Api;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};

use super::{COMPONENT, Context, cache::Source, node, nodelifecycle, service, topology};
use crate::{
    config::controllers::Controller,
    harvester::{
        kubevirt::{VirtualMachine, VirtualMachineInstance},
        loadbalancer::LoadBalancer,
    },
    runtime::{clock, informer::Selection, shutdown::Shutdown},
};

/// What outlives a leadership: metrics are registered once.
#[derive(Debug)]
pub(super) struct Controllers {
    context: Context,
    node: node::Metrics,
    nodelifecycle: nodelifecycle::Metrics,
    service: service::Metrics,
    running: Family<Labels, Gauge>,
}

/// A controller by the name that the framework's metric gives it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    manager: &'static str,
    name: &'static str,
}

/// The watches of one leadership.
#[derive(Debug, Default)]
struct Watches {
    services: Source<Service>,
    nodes: Source<Node>,
    network_map: Source<ConfigMap>,
    balancers: Source<LoadBalancer>,
    machines: Source<VirtualMachine>,
    instances: Source<VirtualMachineInstance>,
}

/// What the enabled controllers read; the rest is not watched.
#[derive(Debug)]
struct Feeds {
    node: Option<node::Feeds>,
    nodelifecycle: Option<nodelifecycle::Feeds>,
    service: Option<service::Feeds>,
    topology: Option<topology::Feeds>,
}

impl Controllers {
    pub(super) fn new(context: &Context) -> Self {
        let metrics = &context.process.metrics;
        let running = Family::default();
        metrics.register(
            "running_managed_controllers",
            "Whether a controller runs in this process",
            Family::clone(&running),
        );
        Self {
            running,
            context: context.clone(),
            node: node::Metrics::register(metrics),
            nodelifecycle: nodelifecycle::Metrics::register(metrics),
            service: service::Metrics::register(metrics),
        }
    }

    /// Runs from fresh watches on. Returns soon after `stop`; dropped, it does nothing more.
    pub(super) async fn run(&self, stop: Shutdown) {
        let mut watches = Watches::default();
        let feeds = self.subscribe(&mut watches);
        let watching = Box::pin(watches.run(&self.context));
        let working = Box::pin(self.work(feeds, &stop));
        tokio::select! {
            () = watching => {}
            () = working => {}
        }
    }

    fn enables(&self, controller: Controller) -> bool {
        self.context
            .config
            .controllers
            .enabled
            .contains(&controller)
    }

    fn subscribe(&self, watches: &mut Watches) -> Feeds {
        let node = self.enables(Controller::CloudNode).then(|| node::Feeds {
            nodes: watches.nodes.subscribe(),
            services: watches.services.subscribe(),
            machines: watches.machines.subscribe(),
            instances: watches.instances.subscribe(),
        });
        let nodelifecycle =
            self.enables(Controller::CloudNodeLifecycle)
                .then(|| nodelifecycle::Feeds {
                    nodes: watches.nodes.subscribe(),
                    machines: watches.machines.subscribe(),
                    instances: watches.instances.subscribe(),
                });
        let service = self.enables(Controller::Service).then(|| service::Feeds {
            services: watches.services.subscribe(),
            nodes: watches.nodes.subscribe(),
            balancers: watches.balancers.subscribe(),
            network_map: watches.network_map.subscribe(),
        });
        let topology = self.context.config.vmi_controller.then(|| topology::Feeds {
            nodes: watches.nodes.subscribe(),
            machines: watches.machines.subscribe(),
            instances: watches.instances.subscribe(),
            network_map: watches.network_map.subscribe(),
        });
        Feeds {
            node,
            nodelifecycle,
            service,
            topology,
        }
    }

    /// Runs a controller if it has feeds; `name` is that of the framework's metric.
    async fn run_if<F, W: Future<Output = ()>>(
        &self,
        feeds: Option<F>,
        after: Duration,
        name: &'static str,
        run: impl FnOnce(F) -> W,
    ) {
        let Some(feeds) = feeds else {
            tracing::info!(controller = name, "not enabled");
            return;
        };
        if !after.is_zero() {
            clock::sleep(after).await;
        }
        tracing::info!(controller = name, "starts");
        let labels = Labels {
            manager: COMPONENT,
            name,
        };
        let _running = Running::new(self.running.get_or_create(&labels).clone());
        Box::pin(run(feeds)).await;
    }

    async fn work(&self, feeds: Feeds, stop: &Shutdown) {
        let context = || self.context.clone();
        let mut starts = Starts::new(self.context.config.controller_start_interval);
        let node = self.run_if(feeds.node, starts.next(), "cloud-node", |feeds| {
            node::run(context(), feeds, self.node.clone(), stop.clone())
        });
        let name = "cloud-node-lifecycle";
        let nodelifecycle = self.run_if(feeds.nodelifecycle, starts.next(), name, |feeds| {
            nodelifecycle::run(context(), feeds, self.nodelifecycle.clone(), stop.clone())
        });
        let service = self.run_if(feeds.service, starts.next(), "service", |feeds| {
            service::run(context(), feeds, self.service.clone(), stop.clone())
        });
        let topology = self.run_if(feeds.topology, starts.next(), "vmi", |feeds| {
            topology::run(context(), feeds, stop.clone())
        });
        if self.enables(Controller::Route) {
            let name = Controller::Route.name();
            tracing::warn!("{name}: Harvester has no routes to configure, nothing to do");
        }
        let all = async {
            tokio::join!(node, nodelifecycle, service, topology);
            // With none enabled there is still a leader.
            stop.requested().await;
        };
        all.await;
    }
}

/// When each controller starts.
struct Starts {
    interval: Duration,
    next: Duration,
}

impl Starts {
    fn new(interval: Duration) -> Self {
        Self {
            interval,
            next: Duration::ZERO,
        }
    }

    fn next(&mut self) -> Duration {
        let this = self.next;
        self.next += self.interval;
        this
    }
}

/// Says that a controller runs as long as it is not dropped.
struct Running(Gauge);

impl Running {
    fn new(gauge: Gauge) -> Self {
        gauge.set(1);
        Self(gauge)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

impl Watches {
    /// Runs those that somebody has subscribed to.
    async fn run(self, context: &Context) {
        let guest = || context.guest.clone();
        let host = || context.host.client();
        let namespace = context.host.namespace();
        let all = Selection::default;
        let network_map = Selection::fields(format!("metadata.name={}", topology::MAP_NAME));
        tokio::join!(
            self.services.run(Api::all(guest()), all(), |_| {}),
            self.nodes.run(Api::all(guest()), all(), prune_node),
            self.network_map.run(
                Api::namespaced(guest(), topology::MAP_NAMESPACE),
                network_map,
                |_| {}
            ),
            self.balancers
                .run(Api::namespaced(host(), namespace), all(), |_| {}),
            self.machines
                .run(Api::namespaced(host(), namespace), all(), |_| {}),
            self.instances
                .run(Api::namespaced(host(), namespace), all(), |_| {}),
        );
    }
}

/// Lists of images are the larger part of a Node, and nobody reads them.
fn prune_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}
