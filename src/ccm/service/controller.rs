//! The controller's queue and workers: which change makes which Service due, and what follows from
//! the end of a sync. What a sync does is in `sync`.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::{Client, ResourceExt};
use tracing::{info, warn};

use super::{
    Feeds,
    due::{has_finalizer, is_due, needs_cleanup, wants},
    failure::{Failure, OUTAGE_CAP, Retry},
    loadbalancer::{Settings, annotation},
    metrics::Metrics,
    network,
    nodes::is_eligible,
    notes::Notes,
    orphans::{Owners, owner},
    recent::Recent,
    sharing::Groups,
    turns::Turns,
};
use crate::{
    ccm::cache::{Cache, ObjectKey},
    harvester::loadbalancer::LoadBalancer,
    k8s::{
        events::{Event, Kind, ObjectRef, Recorder},
        names::harvester,
    },
    runtime::{backoff::Backoff, clock, informer::Delta, shutdown::Shutdown, workqueue::WorkQueue},
};

const BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300), 0.0);
/// How long the first list of the host may hold up the work at the start; Services that need no host,
/// and errors of those that do, must not wait for ever.
const HOST_GRACE: Duration = Duration::from_secs(5);
/// For the calls that are under way when a stop is requested.
const FINISH: Duration = Duration::from_secs(1);

/// What a controller is made of.
pub(super) struct Parts {
    pub guest: Client,
    pub host: Client,
    pub host_namespace: String,
    pub settings: Settings,
    pub syncs: u32,
    pub resync: Duration,
    pub recorder: Recorder,
    pub metrics: Metrics,
}

pub(super) struct Controller {
    pub(super) parts: Parts,
    pub(super) services: Arc<Cache<Service>>,
    pub(super) nodes: Arc<Cache<Node>>,
    pub(super) balancers: Arc<Cache<LoadBalancer>>,
    pub(super) network_map: Arc<Cache<ConfigMap>>,
    pub(super) queue: WorkQueue<ObjectKey>,
    /// Of the futures of this controller, which run in one task; never held across an await.
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub groups: Groups,
    pub owners: Owners,
    pub services: Recent<Service>,
    pub balancers: Recent<LoadBalancer>,
    pub notes: Notes,
    pub turns: Turns,
    /// Whether there is a node to serve from.
    pub any_node: bool,
}

/// How a sync ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Until the next change, or for so long.
    Rests(Option<Duration>),
    /// Another sync that it depends on is under way and will bring it back.
    Postponed,
}

impl Controller {
    pub(super) fn new(parts: Parts, feeds: &Feeds) -> Self {
        Self {
            parts,
            services: Arc::clone(&feeds.services.cache),
            nodes: Arc::clone(&feeds.nodes.cache),
            balancers: Arc::clone(&feeds.balancers.cache),
            network_map: Arc::clone(&feeds.network_map.cache),
            queue: WorkQueue::named("service", BACKOFF),
            memory: Mutex::default(),
        }
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn run(&self, feeds: Feeds, stop: &Shutdown) {
        let stopping = stop.token();
        let work = async {
            if stopping.run_until_cancelled(self.ready()).await.is_some() {
                self.know_everything();
                join_all((0..self.parts.syncs).map(|_| self.work(stop))).await;
            }
        };
        let over = async {
            stop.requested().await;
            self.queue.shut_down();
            clock::sleep(FINISH).await;
        };
        tokio::select! {
            () = work => {}
            () = self.follow(feeds) => {}
            () = self.resync() => {}
            () = over => {}
        }
    }

    /// Nothing is decided on half a view of the guest cluster.
    async fn ready(&self) {
        tokio::join!(
            self.services.synced(),
            self.nodes.synced(),
            self.network_map.synced()
        );
        if tokio::time::timeout(HOST_GRACE, self.balancers.synced())
            .await
            .is_err()
        {
            warn!(
                "the infrastructure cluster's LoadBalancers are not listed yet; starting without"
            );
        }
    }

    /// What was there before the first delta was followed.
    fn know_everything(&self) {
        let objects = self.balancers.all();
        let services = self.services.all();
        {
            let mut memory = self.memory();
            memory.any_node = self.nodes.all().iter().any(|node| is_eligible(node));
            for object in &objects {
                if let Some(service) = owner(&self.parts.settings, object) {
                    memory.owners.add(service, object.name_any());
                }
            }
            for service in &services {
                memory.groups.set(&ObjectKey::of(&**service), Some(service));
            }
        }
        self.enqueue_all();
    }

    pub(super) fn enqueue_all(&self) {
        for service in self.services.all() {
            if wants(&service) || needs_cleanup(&service) {
                self.enqueue(ObjectKey::of(&*service));
            }
        }
        let owners: Vec<ObjectKey> = self.memory().owners.services().cloned().collect();
        for key in owners {
            self.enqueue(key);
        }
    }

    pub(super) fn enqueue(&self, key: ObjectKey) {
        self.queue.add(key);
        self.measure();
    }

    fn measure(&self) {
        let depth = i64::try_from(self.queue.len()).unwrap_or(i64::MAX);
        self.parts.metrics.depth.set(depth);
    }

    /// Looks at every Service again in each period; what is right costs no request.
    async fn resync(&self) {
        loop {
            let period = self.parts.resync.max(Duration::from_secs(1));
            clock::sleep(period.mul_f64(1.0 + clock::random_fraction())).await;
            self.enqueue_all();
        }
    }

    /// Turns changes into due Services; ends when a watch does.
    async fn follow(&self, mut feeds: Feeds) {
        loop {
            tokio::select! {
                Some(delta) = feeds.services.deltas.recv() => self.on_service(&delta),
                Some(delta) = feeds.balancers.deltas.recv() => self.on_balancer(&delta),
                Some(delta) = feeds.nodes.deltas.recv() => self.on_node(&delta),
                Some(delta) = feeds.network_map.deltas.recv() => self.on_mapping(&delta),
                else => return,
            }
        }
    }

    pub(super) fn on_service(&self, delta: &Delta<Service>) {
        let (key, due, related) = match delta {
            Delta::Upsert { old, new } => {
                let key = ObjectKey::of(&**new);
                let latest = self.latest_service(&key);
                let mut memory = self.memory();
                let mut related = memory.groups.related(&key);
                memory.groups.set(&key, latest.as_deref());
                related.extend(memory.groups.related(&key));
                (key, is_due(old.as_deref(), new), related)
            }
            Delta::Delete(old) => {
                let key = ObjectKey::of(&**old);
                let mut memory = self.memory();
                memory.services.deleted(old, clock::now());
                memory.notes.forget(&key);
                let related = memory.groups.related(&key);
                memory.groups.set(&key, None);
                (key, wants(old) || has_finalizer(old), related)
            }
            Delta::Synced => return,
        };
        if due {
            self.enqueue(key);
            for key in related {
                self.enqueue(key);
            }
        }
    }

    pub(super) fn on_balancer(&self, delta: &Delta<LoadBalancer>) {
        let settings = &self.parts.settings;
        let due: BTreeSet<ObjectKey> = match delta {
            Delta::Upsert { old, new } => {
                let before = old.as_deref().and_then(|old| owner(settings, old));
                let after = owner(settings, new);
                let mut memory = self.memory();
                if let Some(service) = before.as_ref().filter(|_| before != after) {
                    memory.owners.remove(service, &new.name_any());
                }
                if let Some(service) = &after {
                    memory.owners.add(service.clone(), new.name_any());
                }
                before.into_iter().chain(after).collect()
            }
            Delta::Delete(old) => {
                let service = owner(settings, old);
                let mut memory = self.memory();
                memory.balancers.deleted(old, clock::now());
                if let Some(service) = &service {
                    memory.owners.remove(service, &old.name_any());
                }
                service.into_iter().collect()
            }
            // Those that had to do without the list.
            Delta::Synced => return self.enqueue_all(),
        };
        for key in due {
            self.enqueue(key);
        }
    }

    fn on_node(&self, delta: &Delta<Node>) {
        let changed = match delta {
            Delta::Upsert { old, new } => {
                old.as_deref().is_some_and(is_eligible) != is_eligible(new)
            }
            Delta::Delete(old) => is_eligible(old),
            Delta::Synced => false,
        };
        if !changed {
            return;
        }
        let any = self.nodes.all().iter().any(|node| is_eligible(node));
        let flipped = std::mem::replace(&mut self.memory().any_node, any) != any;
        if flipped && self.nodes.status().synced {
            self.enqueue_all();
        }
    }

    fn on_mapping(&self, delta: &Delta<ConfigMap>) {
        let (Delta::Upsert { new: map, .. } | Delta::Delete(map)) = delta else {
            return;
        };
        if ObjectKey::of(&**map) != ObjectKey::new(network::NAMESPACE, network::NAME) {
            return;
        }
        for service in self.services.all() {
            if wants(&service) && !annotation(&service, harvester::NETWORK).is_empty() {
                self.enqueue(ObjectKey::of(&*service));
            }
        }
    }

    async fn work(&self, stop: &Shutdown) {
        while let Some(key) = self.queue.next().await {
            self.measure();
            let started = clock::now();
            let ended = self.sync(&key, stop).await;
            let metrics = &self.parts.metrics;
            metrics.syncs.inc();
            let took = clock::now().saturating_duration_since(started);
            metrics.latency.observe(took.as_secs_f64());
            self.settle(&key, ended);
            self.queue.done(&key);
        }
    }

    pub(super) fn settle(&self, key: &ObjectKey, ended: Result<Ended, Failure>) {
        let failure = match ended {
            Ok(Ended::Postponed) => return,
            Ok(Ended::Rests(again)) => {
                self.queue.forget(key);
                if let Some(again) = again {
                    self.queue.add_after(key.clone(), again);
                }
                return;
            }
            Err(failure) => failure,
        };
        self.parts.metrics.failures.inc();
        let delay = match failure.retry() {
            Retry::After(delay) => {
                self.queue.add_after(key.clone(), delay);
                delay
            }
            Retry::Slowly => self.queue.retry(key.clone()),
            Retry::Soon => {
                let delay = self.queue.retry(key.clone());
                // The earlier of two delayed adds counts.
                self.queue.add_after(key.clone(), delay.min(OUTAGE_CAP));
                delay.min(OUTAGE_CAP)
            }
        };
        info!(service = %key, ?delay, error = %failure, "sync failed");
        let Some(service) = self.latest_service(key) else {
            return;
        };
        let (reason, what) = match failure {
            Failure::Orphan { .. } => ("DeleteLoadBalancerFailed", "deleting"),
            _ => ("SyncLoadBalancerFailed", "syncing"),
        };
        let message = format!("Error {what} load balancer: {failure}");
        self.tell(&service, Kind::Warning, reason, message);
    }

    pub(super) fn tell(
        &self,
        service: &Service,
        kind: Kind,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.parts.recorder.publish(Event {
            regarding: ObjectRef::of(service),
            kind,
            reason,
            message: message.into(),
            shared: false,
        });
    }

    /// The Service as last seen or written.
    pub(super) fn latest_service(&self, key: &ObjectKey) -> Option<Arc<Service>> {
        let cached = self.services.get(key);
        self.memory().services.latest(key, cached, clock::now())
    }

    /// The object as last seen or written.
    pub(super) fn latest_balancer(&self, name: &str) -> Option<Arc<LoadBalancer>> {
        let key = ObjectKey::new(&*self.parts.host_namespace, name);
        let cached = self.balancers.get(&key);
        self.memory().balancers.latest(&key, cached, clock::now())
    }

    /// The answer counts from now on.
    pub(super) fn stored_service(&self, service: Service) {
        let (key, service) = (ObjectKey::of(&service), Arc::new(service));
        let mut memory = self.memory();
        if memory.services.stored(Arc::clone(&service), clock::now()) {
            memory.groups.set(&key, Some(&service));
        }
    }

    /// The answer counts from now on.
    pub(super) fn stored_balancer(&self, object: LoadBalancer) {
        let mut memory = self.memory();
        memory.balancers.stored(Arc::new(object), clock::now());
    }
}

#[cfg(test)]
mod tests;
