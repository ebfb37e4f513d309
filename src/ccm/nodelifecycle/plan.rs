//! What becomes of a node by its condition and its machine's. Pure.
//!
//! In: the Node, the host's machines, seen by the watch or just listed. Out: the next [`Step`], then
//! a [`Verdict`]. The rules are the framework's node lifecycle controller's, with a stricter proof
//! that a machine is gone:
//!
//! * only nodes with a provider ID of ours have an identity, and others are never deleted;
//! * a machine is gone when a complete list, read through to the host's store, has neither its UID
//!   nor another machine that the node could run on (by name or host name);
//! * a machine that was replaced under the same name takes the node over if its kubelet already
//!   reports (Ready is False); otherwise (Unknown) the node is the old machine's and is deleted,
//!   provided that nobody touches it in between.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{
    ccm::instance::{self, Found, Proof},
    harvester::kubevirt::VirtualMachine,
    k8s::names::taint,
};

const EFFECT: &str = "NoSchedule";

/// The condition Ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// The kubelet itself says that the node is not ready.
    NotReady,
    /// The kubelet says nothing.
    Unknown,
}

/// What to do with a node, by its own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// It is ready: no taint of ours any more.
    Untaint,
    /// Look for its machine.
    Ask,
}

/// What to do with a node that is not ready, by its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Nothing,
    /// The machine is shut down.
    Taint,
    /// Read the machines from the host's store: the watch shows none with the node's UID.
    List,
    /// The machine is gone.
    Delete,
    /// Another machine has its place: delete the node only if nobody has written it since.
    DeleteUntouched,
}

pub(super) fn readiness(node: &Node) -> Readiness {
    let status = node.status.as_ref();
    let ready = status
        .into_iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "Ready");
    match ready.map(|condition| condition.status.as_str()) {
        Some("True") => Readiness::Ready,
        Some("False") => Readiness::NotReady,
        _ => Readiness::Unknown,
    }
}

pub(super) fn step(node: &Node) -> Step {
    if node.metadata.deletion_timestamp.is_some() {
        return Step::Nothing;
    }
    match readiness(node) {
        Readiness::Ready if has_taint(node) => Step::Untaint,
        Readiness::Ready => Step::Nothing,
        Readiness::NotReady | Readiness::Unknown => Step::Ask,
    }
}

/// By what the watch of machines shows, which must be current.
pub(super) fn by_watch(node: &Node, found: Option<&Found>) -> Verdict {
    let has_identity = instance::machine_uid(node).is_some();
    match found {
        Some(found) if found.proof == Proof::Uid || !has_identity => by_power(&found.machine),
        _ if has_identity => Verdict::List,
        _ => Verdict::Nothing,
    }
}

/// By a complete list read from the host's store. Only for nodes with an identity.
pub(super) fn by_list(node: &Node, found: Option<&Found>) -> Verdict {
    match (found, readiness(node)) {
        (_, Readiness::Ready) => Verdict::Nothing,
        _ if instance::machine_uid(node).is_none() => Verdict::Nothing,
        (None, _) => Verdict::Delete,
        (Some(found), Readiness::Unknown) if found.proof != Proof::Uid => Verdict::DeleteUntouched,
        (Some(found), _) => by_power(&found.machine),
    }
}

/// A list that knows the machine of no ready node is of another namespace or another host,
/// whatever it says of the others.
pub(super) fn is_plausible(machines: &[Arc<VirtualMachine>], nodes: &[Arc<Node>]) -> bool {
    let ready: Vec<&str> = nodes
        .iter()
        .filter(|node| readiness(node) == Readiness::Ready)
        .filter_map(|node| instance::machine_uid(node))
        .collect();
    let is_listed = |uid: &&str| {
        machines
            .iter()
            .any(|machine| machine.metadata.uid.as_deref() == Some(*uid))
    };
    ready.is_empty() || ready.iter().any(is_listed)
}

fn by_power(machine: &VirtualMachine) -> Verdict {
    let is_up = machine.status.as_ref().is_some_and(|status| status.ready);
    if is_up {
        Verdict::Nothing
    } else {
        Verdict::Taint
    }
}

/// The shutdown taint, if the node is still not ready and has none.
pub(super) fn add_taint(node: &Node) -> Option<Value> {
    if readiness(node) == Readiness::Ready || has_taint(node) {
        return None;
    }
    let mut taints = taints(node).to_vec();
    taints.push(Taint {
        key: taint::SHUTDOWN.to_owned(),
        effect: EFFECT.to_owned(),
        ..Taint::default()
    });
    Some(json!({"spec": {"taints": taints}}))
}

/// The shutdown taint's end, if the node is still ready and has it.
pub(super) fn remove_taint(node: &Node) -> Option<Value> {
    if readiness(node) != Readiness::Ready || !has_taint(node) {
        return None;
    }
    let kept: Vec<&Taint> = taints(node)
        .iter()
        .filter(|taint| !is_ours(taint))
        .collect();
    let kept = if kept.is_empty() {
        Value::Null
    } else {
        json!(kept)
    };
    Some(json!({"spec": {"taints": kept}}))
}

fn has_taint(node: &Node) -> bool {
    taints(node).iter().any(is_ours)
}

/// A taint is its key and its effect.
fn is_ours(taint: &Taint) -> bool {
    taint.key == taint::SHUTDOWN && taint.effect == EFFECT
}

fn taints(node: &Node) -> &[Taint] {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

/// What the Event of a deletion says.
pub(super) fn deletion_message(node: &Node) -> String {
    format!(
        "Deleting node {} because it does not exist in the cloud provider",
        node.name_any()
    )
}

#[cfg(test)]
mod tests;
