//! What to do next for one Service: pure.
//!
//! In: [`Facts`], the Service and what it depends on as last seen. Out: [`Next`], one write, or why
//! there is none. After a write the question is asked again with what the server answered, so every
//! write is decided on the latest known state, and a sync that was cut short is resumed by whoever
//! asks next.
//!
//! Order: the finalizer is on before there is an object on the host, and goes off after the host said
//! that there is none. An object is never deleted because something failed, and an address is never
//! taken off a Service that wants one. What cannot be fulfilled is a [`Complaint`]; it holds up
//! nothing else.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::{
    due::{has_class, has_finalizer, is_terminating, needs_cleanup, wants},
    loadbalancer::{
        self, Ipam, Settings, annotation, conflict, desired, ingress, is_incomplete, is_ours,
        revised,
    },
    network,
    sharing::{self, Primary},
};
use crate::{
    ccm::cache::ObjectKey,
    harvester::loadbalancer::LoadBalancer,
    k8s::names::{finalizer, harvester, kube_vip},
};

/// How long what usually passes by itself is not worth an event.
const PATIENCE: Duration = Duration::from_secs(10);
/// The host's own word may be the first of several tries.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);

/// What is known of the host's object for the Service.
#[derive(Debug, Clone, Copy)]
pub(super) enum Balancer<'a> {
    /// The host's objects have not been listed.
    Unknown,
    /// The watch shows none.
    Unlisted,
    /// The host was asked in this sync and has none.
    Absent,
    Present(&'a LoadBalancer),
}

#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub settings: &'a Settings,
    /// UID of something that lives as long as the guest cluster.
    pub guest: Option<&'a str>,
    pub service: &'a Service,
    pub balancer: Balancer<'a>,
    /// The object was written a moment ago.
    pub just_sent: bool,
    /// Services with this one's address.
    pub sharers: &'a [ObjectKey],
    /// Whose address the Service asks to share.
    pub primary: Option<Primary<'a>>,
    pub mapping: Option<&'a ConfigMap>,
}

/// One write, or a look that must come before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    AddFinalizer(Value),
    Create(Box<LoadBalancer>),
    Replace(Box<LoadBalancer>),
    Delete {
        name: String,
        uid: String,
    },
    /// Ask the host for the object.
    Look,
    Publish(Publish),
    /// The last one: finalizer off, status empty.
    Release(Value),
}

/// A change of the Service's own metadata.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Publish {
    pub patch: Value,
    /// An address that is not what the host allocated, which the patch puts right.
    pub wrong: Option<String>,
}

/// What is next.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Next {
    Step(Step),
    /// All is as it should be.
    Settled,
    /// Somebody else's turn; their change brings the Service back.
    Wait(Pending),
    /// Its author's turn.
    Refused(Complaint),
}

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Pending {
    #[error("the infrastructure cluster has not processed LoadBalancer {0} yet")]
    Unprocessed(String),
    #[error("no address yet ({ipam}): {message}")]
    NoAddress { ipam: Ipam, message: String },
    #[error("LoadBalancer {0} is being deleted on the infrastructure cluster")]
    Terminating(String),
    #[error("the primary Service {0} has no address yet")]
    NoPrimaryAddress(ObjectKey),
    #[error("LoadBalancer {0} stays until its address is no longer announced")]
    StillAnnounced(String),
}

impl Pending {
    /// How long it may last before the Service's author is told.
    pub(super) fn patience(&self) -> Duration {
        match self {
            Self::NoAddress { .. } => SHORT_PATIENCE,
            _ => PATIENCE,
        }
    }
}

/// What is wrong with what a Service asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Complaint {
    #[error("annotation {key}: {0:?} is neither pool nor dhcp", key = harvester::IPAM)]
    Ipam(String),
    #[error("IPAM cannot change from {ipam} to {wished} in the life of a load balancer")]
    IpamChanged { ipam: Ipam, wished: Ipam },
    #[error(
        "the network cannot change from {network:?} to {wished:?} in the life of a load balancer"
    )]
    NetworkChanged { network: String, wished: String },
    #[error("the infrastructure cluster uses network {used:?} instead of {wished:?}")]
    NetworkOverridden { used: String, wished: String },
    #[error("the existing LoadBalancer has workload type {0:?}")]
    WorkloadType(String),
    #[error("LoadBalancer {0} belongs to another guest cluster")]
    Foreign(String),
    #[error("the infrastructure cluster allocated {0:?}, which is no IP address")]
    NoIp(String),
    #[error("the nodes have no network in common")]
    NoCommonNetwork,
    #[error("the mapping of networks to interfaces is not readable")]
    MappingUnreadable,
    #[error("network {0:?} is not on the same interface of every node")]
    NetworkNotCommon(String),
    #[error("annotation {key}: {0:?} is not namespace/name", key = harvester::PRIMARY_SERVICE)]
    PrimaryName(String),
    #[error("the primary Service {0} does not exist")]
    PrimaryMissing(ObjectKey),
    #[error("the primary Service {0} is being deleted")]
    PrimaryTerminating(ObjectKey),
    #[error("the primary Service {0} has no load balancer of its own")]
    PrimaryUnfit(ObjectKey),
    #[error("port {port}/{protocol} is also one of Service {holder}")]
    PortTaken {
        port: i32,
        protocol: String,
        holder: ObjectKey,
    },
    #[error("network {wished:?} is not {network:?}, the primary Service's")]
    SharedNetwork { network: String, wished: String },
    #[error("the address is shared by {}", join(.0))]
    Shared(Vec<ObjectKey>),
}

fn join(keys: &[ObjectKey]) -> String {
    let texts: Vec<String> = keys.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// Whether the Service is to lose its load balancer. One that is being deleted gets none, also while
/// others' finalizers hold it after ours is off.
pub(super) fn is_cleanup(service: &Service) -> bool {
    !wants(service) || needs_cleanup(service) || is_terminating(service)
}

pub(super) fn plan(facts: &Facts<'_>) -> Next {
    if is_cleanup(facts.service) {
        return clean_up(facts);
    }
    if !has_finalizer(facts.service) {
        return Next::Step(Step::AddFinalizer(add_finalizer(facts.service)));
    }
    match &facts.primary {
        Some(primary) => sharing::share(facts, primary),
        None => serve(facts),
    }
}

fn clean_up(facts: &Facts<'_>) -> Next {
    match facts.balancer {
        Balancer::Present(object) if is_ours(facts.settings, object) => {
            let name = object.name_any();
            if object.is_terminating() {
                Next::Wait(Pending::Terminating(name))
            } else if !facts.sharers.is_empty() {
                Next::Refused(Complaint::Shared(facts.sharers.to_vec()))
            } else {
                Next::Step(delete(object))
            }
        }
        _ if !has_finalizer(facts.service) => Next::Settled,
        Balancer::Unknown | Balancer::Unlisted => Next::Step(Step::Look),
        Balancer::Absent | Balancer::Present(_) => {
            Next::Step(Step::Release(release(facts.service)))
        }
    }
}

pub(super) fn delete(object: &LoadBalancer) -> Step {
    Step::Delete {
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
    }
}

fn serve(facts: &Facts<'_>) -> Next {
    let object = match facts.balancer {
        Balancer::Unknown => return Next::Step(Step::Look),
        Balancer::Unlisted | Balancer::Absent => return create(facts),
        Balancer::Present(object) => object,
    };
    if !is_ours(facts.settings, object) {
        return Next::Refused(Complaint::Foreign(object.name_any()));
    }
    if object.is_terminating() {
        return Next::Wait(Pending::Terminating(object.name_any()));
    }
    let mut complaint = conflict(facts.service, object);
    if let Some(complaint @ Complaint::WorkloadType(_)) = complaint {
        return Next::Refused(complaint);
    }
    match object.allocated() {
        Some(ip) if ip.parse::<IpAddr>().is_err() => {
            complaint.get_or_insert_with(|| Complaint::NoIp(ip.to_owned()));
        }
        Some(ip) => match publish(facts, object, ip) {
            Ok(Some(publish)) => return Next::Step(Step::Publish(publish)),
            Ok(None) => {}
            Err(reason) => {
                complaint.get_or_insert(reason);
            }
        },
        None => {}
    }
    if let Some(object) = revised(facts.settings, facts.service, object) {
        return Next::Step(Step::Replace(Box::new(object)));
    }
    match complaint {
        Some(complaint) => Next::Refused(complaint),
        None if object.allocated().is_none() => {
            if is_incomplete(object) && !facts.just_sent {
                // As it is, past the webhook that it missed.
                return Next::Step(Step::Replace(Box::new(object.clone())));
            }
            Next::Wait(unallocated(object))
        }
        None => Next::Settled,
    }
}

fn create(facts: &Facts<'_>) -> Next {
    let service = facts.service;
    let wish = Ipam::wished(service).and_then(|ipam| interface(facts).map(|_| ipam));
    match wish {
        Ok(ipam) => {
            let object = desired(facts.settings, service, ipam, facts.guest);
            Next::Step(Step::Create(Box::new(object)))
        }
        Err(complaint) => Next::Refused(complaint),
    }
}

fn interface(facts: &Facts<'_>) -> Result<Option<String>, Complaint> {
    match annotation(facts.service, harvester::NETWORK) {
        "" => Ok(None),
        network => network::interface(facts.mapping, network),
    }
}

/// The annotations of a Service with an address of its own, put right.
fn publish(
    facts: &Facts<'_>,
    object: &LoadBalancer,
    ip: &str,
) -> Result<Option<Publish>, Complaint> {
    let service = facts.service;
    let shown = annotation(service, kube_vip::LOADBALANCER_IPS);
    let interface = match interface(facts) {
        // What is announced already stays so while the mapping is in doubt.
        Err(_) if !shown.is_empty() => None,
        other => other?,
    };
    let mut annotations = Map::new();
    if shown != ip {
        annotations.insert(kube_vip::LOADBALANCER_IPS.to_owned(), ip.into());
    }
    if let Some(interface) = interface
        && annotation(service, kube_vip::SERVICE_INTERFACE) != interface
    {
        annotations.insert(kube_vip::SERVICE_INTERFACE.to_owned(), interface.into());
    }
    let mut labels = Map::new();
    let label = service.labels().get(harvester::PRIMARY_SERVICE);
    let was_shared = label.is_some_and(|label| !label.is_empty());
    if was_shared {
        labels.insert(harvester::PRIMARY_SERVICE.to_owned(), "".into());
    }
    // An address that the host itself took back, or that was shared, was right once.
    let moved =
        Ipam::of(object) == Ipam::Pool && object.recorded_address().is_some_and(|old| old != ip);
    let is_wrong = !shown.is_empty() && shown != ip && !was_shared && !moved;
    Ok(
        metadata_patch(service, annotations, labels).map(|patch| Publish {
            patch,
            wrong: is_wrong.then(|| shown.to_owned()),
        }),
    )
}

/// A merge patch of annotations and labels, for this Service and no later one of its name.
pub(super) fn metadata_patch(
    service: &Service,
    annotations: Map<String, Value>,
    labels: Map<String, Value>,
) -> Option<Value> {
    let mut metadata = Map::new();
    for (key, values) in [("annotations", annotations), ("labels", labels)] {
        if !values.is_empty() {
            metadata.insert(key.to_owned(), Value::Object(values));
        }
    }
    if metadata.is_empty() {
        return None;
    }
    metadata.insert("uid".to_owned(), service.uid().unwrap_or_default().into());
    Some(json!({"metadata": metadata}))
}

/// A strategic merge patch: only the new item and the order of all.
fn add_finalizer(service: &Service) -> Value {
    let ours = finalizer::LOAD_BALANCER_CLEANUP;
    let order: Vec<&str> = service
        .finalizers()
        .iter()
        .map(String::as_str)
        .chain([ours])
        .collect();
    json!({"metadata": {
        "uid": service.uid(),
        "finalizers": [ours],
        "$setElementOrder/finalizers": order,
    }})
}

/// A strategic merge patch: finalizer, status and address go in one write. Without its address a
/// Service that asks for a load balancer again is not announced at one that has become another's; on one
/// that is being deleted the address stays, for whoever still reads it there. What a Service with a class
/// shows is somebody else's.
fn release(service: &Service) -> Value {
    let mut patch = json!({"metadata": {
        "uid": service.uid(),
        "$deleteFromPrimitiveList/finalizers": [finalizer::LOAD_BALANCER_CLEANUP],
    }});
    let shows = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref())
        .is_some_and(|ingress| !ingress.is_empty());
    if shows && !has_class(service) {
        patch["status"] = json!({"loadBalancer": {"ingress": null}});
    }
    let asks = !annotation(service, kube_vip::LOADBALANCER_IPS).is_empty();
    if asks && !is_terminating(service) && !has_class(service) {
        patch["metadata"]["annotations"] = json!({ kube_vip::LOADBALANCER_IPS: null });
    }
    patch
}

fn unallocated(object: &LoadBalancer) -> Pending {
    let message = object
        .ready()
        .filter(|ready| ready.status == "False")
        .and_then(|ready| ready.message.clone())
        .filter(|message| !message.is_empty());
    match message {
        Some(message) => Pending::NoAddress {
            ipam: Ipam::of(object),
            message,
        },
        None => Pending::Unprocessed(object.name_any()),
    }
}

/// Whether the Service still shows the address that the object reserves.
pub(super) fn is_announced(service: &Service, object: &LoadBalancer) -> bool {
    object
        .allocated()
        .is_some_and(|allocated| ingress(service).any(|ip| ip == allocated))
}

/// The name of the Service's object.
pub(super) fn object_name(settings: &Settings, service: &Service) -> String {
    loadbalancer::name(
        &settings.cluster,
        &service.namespace().unwrap_or_default(),
        &service.name_any(),
        &service.uid().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests;
