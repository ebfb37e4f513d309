//! Gathers what concerns a node or the map of networks, has it decided, and writes.
//!
//! One queue; its keys are nodes and the map. Invariant: Node writes are compare-and-swaps, the map
//! is read before it is written, so views may be old.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Client, ResourceExt};
use tracing::{info, warn};

use super::{Feeds, MAP_KEY, MAP_NAME, MAP_NAMESPACE, network_map, plan};
use crate::{
    ccm::{
        cache::{Cache, ObjectKey},
        instance::{self, Machines},
        machines::MachineView,
        node::workers,
    },
    config::CcmConfig,
    harvester::kubevirt::VirtualMachineInstance,
    k8s::{
        Error, config_map,
        events::{Event, Kind, ObjectRef, Recorder},
        node::{self, Change},
    },
    runtime::{backoff::Backoff, clock, informer::Delta, shutdown::Shutdown, workqueue::WorkQueue},
};

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30), 0.5);
/// How long the host may take to annotate an instance that is new.
const ANNOTATION_GRACE: Duration = Duration::from_secs(60);
/// A silent watch or a lost write is made good then at the latest.
const RESYNC: Duration = Duration::from_secs(600);

/// What a controller is made of.
pub(super) struct Parts {
    pub(super) guest: Client,
    pub(super) config: Arc<CcmConfig>,
    pub(super) nodes: Arc<Cache<Node>>,
    pub(super) network_map: Arc<Cache<ConfigMap>>,
    pub(super) machines: MachineView,
    pub(super) recorder: Recorder,
}

pub(super) struct Controller {
    parts: Parts,
    queue: WorkQueue<Item>,
    /// By an instance's UID, from when on a missing annotation counts.
    trusted: Mutex<HashMap<String, Instant>>,
}

/// What the queue holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Item {
    Node(String),
    NetworkMap,
}

impl Controller {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            parts,
            queue: WorkQueue::named("vmi", BACKOFF),
            trusted: Mutex::default(),
        }
    }

    pub(super) async fn run(self, feeds: Feeds, stop: Shutdown) {
        if self.cluster().is_none() {
            warn!("the cluster name tells no cluster apart: no map of networks is kept");
        }
        let work = async {
            tokio::join!(self.parts.nodes.synced(), self.parts.network_map.synced());
            workers::work_off(&self.queue, workers::DEFAULT_LIMIT, |item| self.work(item)).await;
        };
        let end = async {
            stop.requested().await;
            self.queue.shut_down();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = work => {}
            _ = async { tokio::join!(self.listen(feeds), self.resync(), end) } => {}
        }
    }

    async fn listen(&self, feeds: Feeds) {
        let Feeds {
            mut nodes,
            mut machines,
            mut instances,
            mut network_map,
        } = feeds;
        loop {
            tokio::select! {
                Some(delta) = nodes.deltas.recv() => if let Delta::Upsert { new, .. } = delta {
                    self.queue.add(Item::Node(new.name_any()));
                },
                Some(delta) = machines.deltas.recv() => match delta {
                    Delta::Upsert { new: machine, .. } | Delta::Delete(machine) => {
                        self.touch(&machine.name_any(), machine.uid().as_deref());
                    }
                    Delta::Synced => self.touch_all(),
                },
                Some(delta) = instances.deltas.recv() => self.on_instance(delta),
                Some(_) = network_map.deltas.recv() => self.queue.add(Item::NetworkMap),
                else => return,
            }
        }
    }

    async fn resync(&self) {
        loop {
            clock::sleep(RESYNC).await;
            self.touch_all();
        }
    }

    fn on_instance(&self, delta: Delta<VirtualMachineInstance>) {
        let instance = match delta {
            Delta::Upsert { old, new } => {
                self.note(&new, old.as_deref().is_some_and(plan::is_annotated));
                new
            }
            Delta::Delete(gone) => {
                let uid = gone.uid().unwrap_or_default();
                self.trusted().remove(&uid);
                gone
            }
            Delta::Synced => return self.touch_all(),
        };
        self.queue.add(Item::NetworkMap);
        let name = instance.name_any();
        let machine = self.parts.machines.named(&name);
        let uid = machine.as_ref().and_then(|machine| machine.uid());
        self.touch(&name, uid.as_deref().or_else(|| instance.machine_uid()));
    }

    /// From now on, or after a while, a missing annotation is one that the host took away.
    fn note(&self, instance: &VirtualMachineInstance, was_annotated: bool) {
        let now = clock::now();
        let is_known = was_annotated || plan::is_annotated(instance);
        let from = if is_known {
            now
        } else {
            now + ANNOTATION_GRACE
        };
        let uid = instance.uid().unwrap_or_default();
        let mut trusted = self.trusted();
        let known = trusted.entry(uid).or_insert(from);
        *known = (*known).min(from);
    }

    fn touch(&self, machine: &str, uid: Option<&str>) {
        for node in self.parts.nodes.all() {
            let has_uid = uid.is_some_and(|uid| instance::machine_uid(&node) == Some(uid));
            if has_uid || node.name_any() == machine {
                self.queue.add(Item::Node(node.name_any()));
            }
        }
    }

    fn touch_all(&self) {
        self.queue.add(Item::NetworkMap);
        for node in self.parts.nodes.all() {
            self.queue.add(Item::Node(node.name_any()));
        }
    }

    async fn work(&self, item: Item) {
        // The end of the host's first list queues everything.
        if !self.parts.machines.is_synced() {
            return self.queue.forget(&item);
        }
        let result = match &item {
            Item::Node(name) => self.sync_node(name).await,
            Item::NetworkMap => self.sync_network_map().await,
        };
        match result {
            Ok(()) => self.queue.forget(&item),
            Err(error) => {
                let again = self.queue.retry(item.clone());
                warn!(?item, %error, ?again, "topology not written");
            }
        }
    }

    async fn sync_node(&self, name: &str) -> Result<(), Error> {
        let Some(node) = self.parts.nodes.get(&ObjectKey::new("", name)) else {
            return Ok(());
        };
        let machines = &self.parts.machines;
        let Some(found) = instance::find(&node, machines, self.cluster(), &BTreeMap::new()) else {
            return Ok(());
        };
        let machine = &found.machine;
        let known = machines.instance(&machine.name_any());
        let Some(instance) = instance::of_machine(known.as_deref(), machine) else {
            return Ok(());
        };
        let may_remove = self.may_remove(name, instance);
        let decide = |node: &Node| plan::labels(node, instance, may_remove);
        if node::change(&self.parts.guest, &node, decide).await? == Change::Written {
            let place = instance::topology(instance);
            info!(node = name, zone = ?place.zone, region = ?place.region, "node labels follow its VM");
            self.parts.recorder.publish(Event {
                regarding: ObjectRef::of(&*node),
                kind: Kind::Normal,
                reason: "Synced",
                message: "Zone and region labels follow the node's VM".to_owned(),
                shared: false,
            });
        }
        Ok(())
    }

    /// Whether the host has had time to annotate; comes back when it has.
    fn may_remove(&self, node: &str, instance: &VirtualMachineInstance) -> bool {
        let uid = instance.uid().unwrap_or_default();
        let Some(from) = self.trusted().get(&uid).copied() else {
            return false;
        };
        let left = from.saturating_duration_since(clock::now());
        if !left.is_zero() {
            self.queue.add_after(Item::Node(node.to_owned()), left);
        }
        left.is_zero()
    }

    async fn sync_network_map(&self) -> Result<(), Error> {
        let Some(cluster) = self.cluster() else {
            return Ok(());
        };
        let instances = self.parts.machines.instances();
        let value = network_map::value(instances.iter().map(|instance| &**instance), cluster);
        let key = ObjectKey::new(MAP_NAMESPACE, MAP_NAME);
        let map = self.parts.network_map.get(&key);
        let value = match (value, &map) {
            (Some(value), _) => value,
            (None, None) => String::new(),
            (None, Some(_)) => return Ok(()),
        };
        if map.is_some_and(|map| config_map::has(&map, MAP_KEY, &value)) {
            return Ok(());
        }
        let guest = &self.parts.guest;
        if config_map::ensure_key(guest, MAP_NAMESPACE, MAP_NAME, MAP_KEY, &value).await? {
            info!(map = value, "networks on the same interface of all nodes");
        }
        Ok(())
    }

    fn cluster(&self) -> Option<&str> {
        instance::cluster_label(&self.parts.config.cluster_name)
    }

    /// Never held across an await.
    fn trusted(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.trusted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
