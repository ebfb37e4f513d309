//! The pass over all nodes: gathers, has it decided, and writes.
//!
//! Invariant: a node is deleted only after a complete list of machines, read from the host's store
//! in the same pass, and only if it still has the UID that was judged.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Node;
use kube::{Client, ResourceExt};
use tracing::{info, warn};

use super::{
    Metrics,
    plan::{self, Step, Verdict},
};
use crate::{
    ccm::{cache::Cache, instance, machines::MachineView},
    config::CcmConfig,
    harvester::kubevirt::{self, VirtualMachine},
    k8s::{
        Class, Error,
        events::{Event, Kind, ObjectRef, Recorder},
        node,
    },
    runtime::{backoff::Backoff, clock, shutdown::Shutdown},
};

/// Between attempts at a deletion that is refused.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(600), 0.2);
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);

/// What a controller is made of.
pub(super) struct Parts {
    pub(super) guest: Client,
    pub(super) host: Client,
    pub(super) namespace: String,
    pub(super) config: Arc<CcmConfig>,
    pub(super) nodes: Arc<Cache<Node>>,
    pub(super) machines: MachineView,
    pub(super) recorder: Recorder,
    pub(super) metrics: Metrics,
}

pub(super) struct Controller {
    parts: Parts,
    /// Deletions that were refused, by the node's UID.
    refused: HashMap<String, Refused>,
    /// The host did not answer when it was last asked; said once.
    is_unanswered: bool,
}

struct Refused {
    failures: u32,
    again: Instant,
}

type Machines = Vec<Arc<VirtualMachine>>;

impl Controller {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            parts,
            refused: HashMap::new(),
            is_unanswered: false,
        }
    }

    pub(super) async fn run(mut self, stop: Shutdown) {
        let period = self.parts.config.node_monitor_period.max(SHORTEST_PERIOD);
        let token = stop.token();
        if token
            .run_until_cancelled(self.parts.nodes.synced())
            .await
            .is_none()
        {
            return;
        }
        loop {
            self.pass(&stop).await;
            let pause = clock::sleep(period);
            if token.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    async fn pass(&mut self, stop: &Shutdown) {
        let nodes = self.parts.nodes.all();
        let is_there = |uid: &String| nodes.iter().any(|node| node.uid().as_ref() == Some(uid));
        self.refused.retain(|uid, _| is_there(uid));
        let mut suspects = Vec::new();
        for node in &nodes {
            if stop.is_requested() {
                return;
            }
            match plan::step(node) {
                Step::Nothing => {}
                Step::Untaint => self.change_taint(node, plan::remove_taint).await,
                Step::Ask if !self.parts.machines.is_current() => self.parts.unanswered(),
                Step::Ask => match plan::by_watch(node, self.find(node).as_ref()) {
                    Verdict::Taint => self.change_taint(node, plan::add_taint).await,
                    Verdict::List => suspects.push(node),
                    Verdict::Nothing | Verdict::Delete | Verdict::DeleteUntouched => {}
                },
            }
        }
        suspects.retain(|node| self.is_due(node));
        if suspects.is_empty() || stop.is_requested() {
            return;
        }
        let Some(machines) = self.list(&nodes).await else {
            return;
        };
        for node in suspects {
            if stop.is_requested() {
                return;
            }
            self.judge(node, &machines).await;
        }
    }

    fn find(&self, node: &Node) -> Option<instance::Found> {
        instance::find(node, &self.parts.machines, self.cluster(), &BTreeMap::new())
    }

    fn cluster(&self) -> Option<&str> {
        instance::cluster_label(&self.parts.config.cluster_name)
    }

    fn is_due(&self, node: &Node) -> bool {
        let refused = node.uid().and_then(|uid| self.refused.get(&uid));
        refused.is_none_or(|refused| refused.again <= clock::now())
    }

    /// One list for all nodes of the pass; `None` if it says nothing.
    async fn list(&mut self, nodes: &[Arc<Node>]) -> Option<Machines> {
        let listed = kubevirt::list_machines(&self.parts.host, &self.parts.namespace).await;
        let problem = match listed {
            Ok(machines) => {
                let machines: Machines = machines.into_iter().map(Arc::new).collect();
                if plan::is_plausible(&machines, nodes) {
                    self.is_unanswered = false;
                    return Some(machines);
                }
                "the host lists none of the machines that this cluster's nodes run on".to_owned()
            }
            Err(error) => error.to_string(),
        };
        self.parts.unanswered();
        if !std::mem::replace(&mut self.is_unanswered, true) {
            warn!(problem, "nodes whose VM is missing are kept");
        }
        None
    }

    async fn judge(&mut self, node: &Node, machines: &Machines) {
        let found = instance::find(node, machines.as_slice(), self.cluster(), &BTreeMap::new());
        match plan::by_list(node, found.as_ref()) {
            Verdict::Taint => self.change_taint(node, plan::add_taint).await,
            Verdict::Delete => self.delete(node, None).await,
            Verdict::DeleteUntouched => self.delete(node, node.resource_version()).await,
            Verdict::Nothing | Verdict::List => {}
        }
    }

    async fn change_taint(&self, node: &Node, decide: impl Fn(&Node) -> Option<serde_json::Value>) {
        match node::change(&self.parts.guest, node, decide).await {
            Ok(node::Change::Written) => info!(node = node.name_any(), "shutdown taint changed"),
            Ok(_) => {}
            Err(error) => warn!(node = node.name_any(), %error, "shutdown taint not changed"),
        }
    }

    async fn delete(&mut self, node: &Node, resource_version: Option<String>) {
        let uid = node.uid().unwrap_or_default();
        let failures = self.refused.get(&uid).map_or(0, |refused| refused.failures);
        if failures == 0 {
            self.publish(
                node,
                Kind::Normal,
                "DeletingNode",
                plan::deletion_message(node),
            );
        }
        let error = match node::delete(&self.parts.guest, node, resource_version).await {
            Ok(()) => {
                info!(node = node.name_any(), uid, "node deleted: its VM is gone");
                self.parts.metrics.deleted.inc();
                return;
            }
            Err(error) => error,
        };
        match error.class() {
            // Gone already, or not the node that was judged.
            Class::NotFound | Class::Conflict => {}
            _ => self.refuse(node, uid, failures + 1, &error),
        }
    }

    /// Says the first failure of a deletion, and tries again later.
    fn refuse(&mut self, node: &Node, uid: String, failures: u32, error: &Error) {
        let pause = REFUSED.delay(failures, clock::random_fraction());
        let again = clock::now() + pause;
        self.refused.insert(uid, Refused { failures, again });
        if failures > 1 {
            return;
        }
        warn!(node = node.name_any(), %error, "node not deleted although its VM is gone");
        self.publish(node, Kind::Warning, "DeletingNodeFailed", error.to_string());
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
}

impl Parts {
    fn unanswered(&self) {
        self.metrics.unanswered.inc();
    }
}

#[cfg(test)]
mod tests;
