//! Which addresses a node reports, and of which type. Pure.
//!
//! In: the Node, the addresses that its machine has on the management network, and which of all
//! addresses are VIPs. Out: the whole list for `status.addresses`, or why the list must stay as it
//! is. The order of types and addresses is the Go program's (its address pipeline, then the
//! framework's filter by the provided-node-ip annotation).
//!
//! Deviations: the annotation may hold a pair and is compared by number; VIPs are left out; a list
//! without any IP address is no answer.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kube::ResourceExt;

use super::provided::{self, Unsatisfied};
use crate::{
    config::CcmConfig,
    k8s::names::{annotation, harvester},
};

pub(super) const INTERNAL: &str = "InternalIP";
const EXTERNAL: &str = "ExternalIP";
const HOSTNAME: &str = "Hostname";

/// What the configuration says of addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    /// Where internal addresses are; empty: not given.
    pub(super) internal: &'a [IpNet],
    /// External addresses not to report; only with `internal`.
    pub(super) excluded: &'a [IpNet],
    pub(super) ignore_annotations: bool,
}

impl<'a> Rules<'a> {
    pub(super) fn of(config: &'a CcmConfig) -> Self {
        Self {
            internal: &config.node_ip_cidr,
            excluded: &config.node_exclude_ip_ranges,
            ignore_annotations: config.ignore_address_annotations,
        }
    }
}

/// Why a node's addresses stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("annotation alpha.kubernetes.io/provided-node-ip: {0}")]
    Provided(#[from] Unsatisfied),
    #[error("none of the VM's addresses is to be reported")]
    NothingLeft,
}

/// How addresses are told apart.
enum Mode {
    /// The kubelet was told its addresses.
    Provided(Vec<IpAddr>),
    Prefixes,
    First,
}

/// The addresses that the node should have.
pub(super) fn desired(
    node: &Node,
    reported: &[IpAddr],
    is_vip: impl Fn(&IpAddr) -> bool,
    rules: &Rules<'_>,
) -> Result<Vec<NodeAddress>, Refusal> {
    let provided = node.annotations().get(annotation::PROVIDED_NODE_IP);
    let wanted = provided.map(|text| provided::parse(text));
    let known = match &wanted {
        Some(Ok(wanted)) => wanted.as_slice(),
        _ => &[],
    };
    let own = |address: &IpAddr| is_same_as_any(address, known) || is_internal(node, address);
    let reported: Vec<IpAddr> = reported
        .iter()
        .copied()
        .filter(|address| own(address) || !is_vip(address))
        .collect();
    let mode = match &wanted {
        Some(_) if !rules.ignore_annotations => Mode::Provided(known.to_vec()),
        _ if !rules.internal.is_empty() => Mode::Prefixes,
        _ => Mode::First,
    };
    let mut addresses = classify(&reported, &mode, rules.internal);
    hide(&mut addresses, node, &mode, rules);
    if addresses.is_empty() {
        return Err(Refusal::NothingLeft);
    }
    addresses.push(address(HOSTNAME, node.name_any()));
    match wanted {
        Some(wanted) => Ok(provided::filter(addresses, &wanted?)?),
        None => Ok(addresses),
    }
}

/// The additional-internal-ips annotation, which despite its name hides addresses. `Err`: it is no
/// list of texts.
pub(super) fn hidden(node: &Node) -> Result<Vec<IpAddr>, serde_json::Error> {
    let key = harvester::ADDITIONAL_INTERNAL_IPS;
    let text = node.annotations().get(key).map_or("", String::as_str);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let listed: Option<Vec<String>> = serde_json::from_str(text)?;
    let listed = listed.unwrap_or_default();
    Ok(listed.iter().filter_map(|text| text.parse().ok()).collect())
}

/// The first address of each family that qualifies is the internal one.
fn classify(reported: &[IpAddr], mode: &Mode, prefixes: &[IpNet]) -> Vec<NodeAddress> {
    let (mut v4, mut v6) = (false, false);
    let typed = reported.iter().map(|candidate| {
        let qualifies = match mode {
            Mode::Provided(wanted) => is_same_as_any(candidate, wanted),
            Mode::Prefixes => prefixes.iter().any(|prefix| prefix.contains(candidate)),
            Mode::First => true,
        };
        let taken = if candidate.is_ipv4() {
            &mut v4
        } else {
            &mut v6
        };
        let is_first = qualifies && !std::mem::replace(taken, *taken || qualifies);
        let kind = if is_first { INTERNAL } else { EXTERNAL };
        address(kind, candidate.to_string())
    });
    typed.collect()
}

/// Removes the external addresses that are not to be seen.
fn hide(addresses: &mut Vec<NodeAddress>, node: &Node, mode: &Mode, rules: &Rules<'_>) {
    let listed = match mode {
        Mode::Prefixes => Vec::new(),
        _ if rules.ignore_annotations => Vec::new(),
        _ => hidden(node).unwrap_or_default(),
    };
    let ranges = match mode {
        Mode::Prefixes => rules.excluded,
        _ => &[],
    };
    addresses.retain(|entry| {
        let Ok(ip) = entry.address.parse::<IpAddr>() else {
            return true;
        };
        let is_hidden = listed.contains(&ip) || ranges.iter().any(|range| range.contains(&ip));
        entry.type_ == INTERNAL || !is_hidden
    });
}

/// What is the node's internal address already is no VIP, whatever a Service claims: who may write
/// Services must not be able to take a node's address away.
fn is_internal(node: &Node, address: &IpAddr) -> bool {
    listed(node)
        .iter()
        .any(|entry| entry.type_ == INTERNAL && entry.address.parse() == Ok(*address))
}

/// The addresses in the node's status.
pub(super) fn listed(node: &Node) -> &[NodeAddress] {
    let status = node.status.as_ref();
    status
        .and_then(|status| status.addresses.as_deref())
        .unwrap_or_default()
}

fn is_same_as_any(address: &IpAddr, others: &[IpAddr]) -> bool {
    let canonical = address.to_canonical();
    others.iter().any(|other| other.to_canonical() == canonical)
}

fn address(kind: &str, address: String) -> NodeAddress {
    NodeAddress {
        address,
        type_: kind.to_owned(),
    }
}

#[cfg(test)]
mod tests;
