//! Gathers what is known of a node, has it decided, and writes.
//!
//! One queue of node names; several nodes at a time, each by one worker. A second queue asks guests
//! for their names, only while a node waits whose machine has another name. Invariant: every write is
//! either a compare-and-swap or names the Node's UID, so views may be old.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Client, Resource, ResourceExt};
use tracing::{debug, info, warn};

use super::{
    Feeds, Metrics,
    addresses::{self, Rules},
    hostnames::Hostnames,
    plan, vips,
    vips::Vips,
    workers,
};
use crate::{
    ccm::{
        cache::{Cache, ObjectKey},
        instance::{self, Machines, Metadata},
        machines::MachineView,
    },
    config::CcmConfig,
    harvester::kubevirt::{self, VirtualMachineInstance},
    k8s::{
        Error,
        events::{Event, Kind, ObjectRef, Recorder},
        node::{self, Change},
    },
    runtime::{backoff::Backoff, clock, informer::Delta, shutdown::Shutdown, workqueue::WorkQueue},
};

/// Of a node that waits or whose write failed; events of its objects come sooner.
const NODE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(30), 0.5);
/// Of a guest that does not tell its name.
const QUESTION_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(2), Duration::from_secs(60), 0.5);
/// Guests asked at a time.
const QUESTIONS: usize = 4;
/// Failed attempts, more than a minute of them, before a node that waits is worth an Event.
const PATIENCE: u32 = 10;
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// What a controller is made of.
pub(super) struct Parts {
    pub(super) guest: Client,
    pub(super) host: Client,
    pub(super) config: Arc<CcmConfig>,
    pub(super) nodes: Arc<Cache<Node>>,
    pub(super) services: Arc<Cache<Service>>,
    pub(super) machines: MachineView,
    pub(super) recorder: Recorder,
    pub(super) metrics: Metrics,
}

pub(super) struct Controller {
    parts: Parts,
    queue: WorkQueue<String>,
    /// Names of instances whose guests are to be asked for their name.
    questions: WorkQueue<String>,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    vips: Vips,
    hostnames: Hostnames,
    /// The last complaint about each node, and whether it became an Event.
    said: HashMap<String, (String, bool)>,
}

/// How a sync ended.
enum Outcome {
    Done,
    /// Nothing more can be done now; the mistake is worth an Event.
    Faulty(String),
    /// Try again when something changes, or later.
    Wait(String),
    /// As `Wait`, because of a mistake.
    Refused(String),
}

impl Controller {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            parts,
            queue: WorkQueue::named("Nodes", NODE_BACKOFF),
            questions: WorkQueue::named("guest-os-info", QUESTION_BACKOFF),
            memory: Mutex::default(),
        }
    }

    pub(super) async fn run(self, feeds: Feeds, stop: Shutdown) {
        let limit = workers::limit(self.parts.config.workers.node_syncs);
        let work = async {
            // Without the guest's view there is nothing to decide about, and without the Services
            // a VIP would pass for a node's address.
            tokio::join!(self.parts.nodes.synced(), self.parts.services.synced());
            workers::work_off(&self.queue, limit, |name| self.work(name)).await;
        };
        let ask = workers::work_off(&self.questions, QUESTIONS, |name| self.ask(name));
        let end = async {
            stop.requested().await;
            self.queue.shut_down();
            self.questions.shut_down();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = async { tokio::join!(work, ask) } => {}
            _ = async { tokio::join!(self.listen(feeds), self.refresh(), end) } => {}
        }
    }

    /// Turns what the watches bring into keys.
    async fn listen(&self, feeds: Feeds) {
        let Feeds {
            mut nodes,
            mut services,
            mut machines,
            mut instances,
        } = feeds;
        loop {
            tokio::select! {
                Some(delta) = nodes.deltas.recv() => self.on_node(delta),
                Some(delta) = services.deltas.recv() => self.on_service(delta),
                Some(delta) = machines.deltas.recv() => match delta {
                    Delta::Upsert { new: machine, .. } | Delta::Delete(machine) => {
                        self.touch(&machine.name_any(), machine.meta().uid.as_deref());
                    }
                    Delta::Synced => self.touch_all(),
                },
                Some(delta) = instances.deltas.recv() => self.on_instance(delta),
                else => return,
            }
        }
    }

    /// The periodic pass: everything is looked at again, and guests may have new names.
    async fn refresh(&self) {
        let period = self.parts.config.node_status_update_frequency;
        loop {
            clock::sleep(period.max(SHORTEST_PERIOD)).await;
            self.memory().hostnames.forget_all();
            self.touch_all();
        }
    }

    fn on_node(&self, delta: Delta<Node>) {
        match delta {
            Delta::Upsert { new, .. } => self.queue.add(new.name_any()),
            Delta::Delete(node) => {
                let name = node.name_any();
                self.queue.forget(&name);
                self.memory().said.remove(&name);
            }
            Delta::Synced => {}
        }
    }

    fn on_service(&self, delta: Delta<Service>) {
        let (service, addresses) = match delta {
            Delta::Upsert { new, .. } => {
                let addresses = vips::of_service(&new);
                (new, addresses)
            }
            Delta::Delete(old) => (old, BTreeSet::new()),
            Delta::Synced => return,
        };
        let key = ObjectKey::of(&*service);
        let new = self
            .memory()
            .vips
            .handle_service(key, addresses, clock::now());
        if new.is_empty() {
            return;
        }
        // Some node may have been faster to report the address than its Service was to come.
        let reports = |node: &Node| {
            let listed = addresses::listed(node).iter();
            let mut ips = listed.filter_map(|entry| entry.address.parse::<IpAddr>().ok());
            ips.any(|ip| new.contains(&ip))
        };
        for node in self.parts.nodes.all().iter().filter(|node| reports(node)) {
            self.queue.add(node.name_any());
        }
    }

    fn on_instance(&self, delta: Delta<VirtualMachineInstance>) {
        let (old, instance) = match delta {
            Delta::Upsert { old, new } => (old, new),
            Delta::Delete(gone) => (None, gone),
            Delta::Synced => return self.touch_all(),
        };
        let name = instance.name_any();
        // The guest agent has come, or has more to say: it may now know the guest's name.
        if old.is_none_or(|old| old.interfaces() != instance.interfaces()) {
            self.questions.forget(&name);
        }
        let machine = self.parts.machines.named(&name);
        let uid = machine.as_ref().and_then(|machine| machine.uid());
        self.touch(&name, uid.as_deref().or_else(|| instance.machine_uid()));
    }

    /// Queues the nodes that a machine concerns: its own, and all that still look for theirs.
    fn touch(&self, machine: &str, uid: Option<&str>) {
        for node in self.parts.nodes.all() {
            let is_its = node.name_any() == machine
                || uid.is_some_and(|uid| instance::machine_uid(&node) == Some(uid));
            if is_its || plan::is_uninitialized(&node) {
                self.queue.add(node.name_any());
            }
        }
    }

    fn touch_all(&self) {
        for node in self.parts.nodes.all() {
            self.queue.add(node.name_any());
        }
    }

    async fn work(&self, name: String) {
        let Some(node) = self.parts.nodes.get(&ObjectKey::new("", name.as_str())) else {
            return self.queue.forget(&name);
        };
        match self.sync(&node).await {
            Ok(Outcome::Done) => {
                self.queue.forget(&name);
                self.memory().said.remove(&name);
            }
            Ok(Outcome::Faulty(message)) => {
                self.queue.forget(&name);
                self.complain(&node, message, true);
            }
            Ok(Outcome::Wait(message)) => {
                self.queue.retry(name.clone());
                let is_long = self.queue.failures(&name) >= PATIENCE;
                self.complain(&node, message, is_long);
            }
            Ok(Outcome::Refused(message)) => {
                self.queue.retry(name);
                self.complain(&node, message, true);
            }
            Err(error) => {
                let again = self.queue.retry(name.clone());
                warn!(node = name, %error, ?again, "node not written");
            }
        }
    }

    async fn sync(&self, node: &Node) -> Result<Outcome, Error> {
        let waits = plan::is_uninitialized(node);
        if !waits {
            node::change(&self.parts.guest, node, plan::label_reconciliation).await?;
        }
        let machines = &self.parts.machines;
        if node.metadata.deletion_timestamp.is_some() || !machines.is_synced() {
            // The end of the host's first list queues all nodes.
            return Ok(Outcome::Done);
        }
        // A provider ID is for ever, so it does not come from a view that may be hours old.
        if waits && !machines.is_current() {
            return Ok(Outcome::Wait("the host is not reached".to_owned()));
        }
        let cluster = instance::cluster_label(&self.parts.config.cluster_name);
        let hostnames = self.memory().hostnames.by_machine();
        let Some(found) = instance::find(node, machines, cluster, &hostnames) else {
            if !waits {
                return Ok(Outcome::Done);
            }
            self.question_guests(cluster);
            return Ok(Outcome::Wait("no VM has its name or host name".to_owned()));
        };
        let instance = machines.instance(&found.machine.name_any());
        let management = self.parts.config.management_network.as_deref();
        let metadata = instance::metadata(&found.machine, instance.as_deref(), management);
        self.write(node, waits, &metadata).await
    }

    /// Initialises a node that waits, and writes its addresses. A node whose addresses nobody knows
    /// keeps those that it has.
    async fn write(&self, node: &Node, waits: bool, metadata: &Metadata) -> Result<Outcome, Error> {
        let reported = match &metadata.addresses {
            Ok(reported) => reported,
            Err(silence) if waits => return Ok(Outcome::Wait(silence.to_string())),
            Err(_) => return Ok(Outcome::Done),
        };
        let now = clock::now();
        let rules = Rules::of(&self.parts.config);
        let decided = {
            let memory = self.memory();
            let is_vip = |address: &IpAddr| memory.vips.contains(address, now);
            addresses::desired(node, reported, is_vip, &rules)
        };
        let desired = match decided {
            Ok(desired) => desired,
            Err(refusal) if waits => return Ok(Outcome::Refused(refusal.to_string())),
            Err(refusal) => return Ok(Outcome::Faulty(refusal.to_string())),
        };
        let guest = &self.parts.guest;
        let mut changed = Change::Unneeded;
        if waits {
            changed =
                node::change(guest, node, |node| plan::initialisation(node, metadata)).await?;
            if changed == Change::Written {
                observe(&self.parts.metrics.taint_removal, node);
            }
        }
        if let Some(patch) =
            plan::address_update(node, &desired).filter(|_| changed != Change::Gone)
        {
            node::patch_status(guest, node, patch).await?;
        }
        if changed == Change::Written {
            observe(&self.parts.metrics.initial_sync, node);
            info!(
                node = node.name_any(),
                id = metadata.provider_id,
                "node initialised"
            );
            let message = "Node synced successfully".to_owned();
            self.publish(node, Kind::Normal, "Synced", message);
        }
        Ok(match addresses::hidden(node) {
            Ok(_) => Outcome::Done,
            Err(error) => Outcome::Faulty(format!("annotation additional-internal-ips: {error}")),
        })
    }

    /// Has the guests asked that may be the node nobody knows; each is asked once, and again only
    /// after its back-off or when its agent has news.
    fn question_guests(&self, cluster: Option<&str>) {
        let nodes = self.parts.nodes.all();
        let taken: BTreeSet<&str> = nodes
            .iter()
            .filter(|node| is_ready(node))
            .filter_map(|node| instance::machine_uid(node))
            .collect();
        for instance in self.parts.machines.instances() {
            let name = instance.name_any();
            let uid = instance.uid().unwrap_or_default();
            let is_open =
                !self.memory().hostnames.knows(&name, &uid) && self.questions.failures(&name) == 0;
            if is_open && instance::may_be_asked(&instance, cluster, &taken) {
                self.questions.add(name);
            }
        }
    }

    async fn ask(&self, name: String) {
        let waiting: Vec<String> = self
            .parts
            .nodes
            .all()
            .iter()
            .filter(|node| plan::is_uninitialized(node))
            .map(|node| node.name_any())
            .collect();
        let Some(instance) = self.parts.machines.instance(&name) else {
            self.memory().hostnames.forget(&name);
            return self.questions.forget(&name);
        };
        if waiting.is_empty() {
            return self.questions.forget(&name);
        }
        let namespace = instance.namespace().unwrap_or_default();
        let answer = kubevirt::guest_os_info(&self.parts.host, &namespace, &name).await;
        let hostname = answer.map(|info| info.hostname.unwrap_or_default());
        match hostname {
            Ok(hostname) if !hostname.is_empty() => {
                self.questions.forget(&name);
                let uid = instance.uid().unwrap_or_default();
                self.memory().hostnames.handle_answer(name, uid, hostname);
                for node in waiting {
                    self.queue.add(node);
                }
            }
            Ok(_) => {
                self.questions.retry(name);
            }
            Err(error) => {
                let again = self.questions.retry(name.clone());
                debug!(instance = name, %error, ?again, "the guest does not tell its name");
            }
        }
    }

    /// Says once what is wrong with a node.
    fn complain(&self, node: &Node, message: String, as_event: bool) {
        let name = node.name_any();
        let mut memory = self.memory();
        let last = memory.said.get(&name);
        let is_known = last.is_some_and(|(said, _)| *said == message);
        let was_event = last.is_some_and(|(_, was_event)| is_known && *was_event);
        if is_known && (was_event || !as_event) {
            return;
        }
        memory
            .said
            .insert(name.clone(), (message.clone(), as_event));
        drop(memory);
        let reason = if plan::is_uninitialized(node) {
            "NodeNotInitialized"
        } else {
            "NodeAddressesNotUpdated"
        };
        if as_event {
            warn!(node = name, message, reason);
            self.publish(node, Kind::Warning, reason, message);
        } else {
            info!(node = name, message, reason);
        }
    }

    fn publish(&self, node: &Node, kind: Kind, reason: &'static str, message: String) {
        self.parts.recorder.publish(Event {
            regarding: ObjectRef::of(node),
            kind,
            reason,
            message,
            shared: false,
        });
    }

    /// Never held across an await.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let mut conditions = status
        .into_iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Only a figure for people, so wall time will do.
fn observe(histogram: &prometheus_client::metrics::histogram::Histogram, node: &Node) {
    if let Some(created) = node.creation_timestamp() {
        let age = clock::wall().duration_since(created.0).as_secs_f64();
        histogram.observe(age.max(0.0));
    }
}

#[cfg(test)]
mod tests;
