//! Which Services are ours, and which of their changes matter: pure.
//!
//! `wants`, `needs_cleanup` and `needs_update` are the Go framework's rules. [`is_due`] adds what the
//! framework does not notice and what this controller also depends on: a finalizer that somebody took
//! off, a status that changed, the label of those who share an address.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use kube::ResourceExt;

use crate::k8s::names::{finalizer, harvester};

/// Type `LoadBalancer` and no class: a class, even an empty one, is somebody else's.
pub(super) fn wants(service: &Service) -> bool {
    is_load_balancer(service) && !has_class(service)
}

pub(super) fn has_class(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.is_some_and(|spec| spec.load_balancer_class.is_some())
}

fn is_load_balancer(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
}

pub(super) fn has_finalizer(service: &Service) -> bool {
    let mut finalizers = service.finalizers().iter();
    finalizers.any(|name| name == finalizer::LOAD_BALANCER_CLEANUP)
}

pub(super) fn is_terminating(service: &Service) -> bool {
    service.metadata.deletion_timestamp.is_some()
}

/// It was ours and is no longer to be.
pub(super) fn needs_cleanup(service: &Service) -> bool {
    has_finalizer(service) && (is_terminating(service) || !is_load_balancer(service))
}

/// The framework's rule: whether a change concerns the load balancer.
pub(super) fn needs_update(old: &Service, new: &Service) -> bool {
    if !wants(old) && !wants(new) {
        return false;
    }
    let none = ServiceSpec::default();
    let a = old.spec.as_ref().unwrap_or(&none);
    let b = new.spec.as_ref().unwrap_or(&none);
    wants(old) != wants(new)
        || list(a.load_balancer_source_ranges.as_ref())
            != list(b.load_balancer_source_ranges.as_ref())
        || ports_differ(list(a.ports.as_ref()), list(b.ports.as_ref()))
        || a.session_affinity != b.session_affinity
        || a.session_affinity_config != b.session_affinity_config
        || a.load_balancer_ip.as_deref().unwrap_or_default()
            != b.load_balancer_ip.as_deref().unwrap_or_default()
        || list(a.external_ips.as_ref()) != list(b.external_ips.as_ref())
        || old.annotations() != new.annotations()
        || old.metadata.uid != new.metadata.uid
        || a.external_traffic_policy != b.external_traffic_policy
        || a.health_check_node_port.unwrap_or_default()
            != b.health_check_node_port.unwrap_or_default()
        || list(a.ip_families.as_ref()).len() != list(b.ip_families.as_ref()).len()
}

/// An absent list is an empty one.
fn list<T>(list: Option<&Vec<T>>) -> &[T] {
    list.map(Vec::as_slice).unwrap_or_default()
}

fn ports_differ(old: &[ServicePort], new: &[ServicePort]) -> bool {
    let same = |(a, b): (&ServicePort, &ServicePort)| {
        a.name.as_deref().unwrap_or_default() == b.name.as_deref().unwrap_or_default()
            && a.protocol == b.protocol
            && a.port == b.port
            && a.node_port.unwrap_or_default() == b.node_port.unwrap_or_default()
            && a.target_port == b.target_port
            && a.app_protocol == b.app_protocol
    };
    old.len() != new.len() || !old.iter().zip(new).all(same)
}

/// Whether a Service that was seen has to be looked at, `old` being what it was before.
pub(super) fn is_due(old: Option<&Service>, new: &Service) -> bool {
    let Some(old) = old else {
        return wants(new) || needs_cleanup(new);
    };
    let label = |service: &Service| service.labels().get(harvester::PRIMARY_SERVICE).cloned();
    let status = |service: &Service| {
        service
            .status
            .as_ref()
            .and_then(|s| s.load_balancer.clone())
    };
    needs_update(old, new)
        || needs_cleanup(new)
        || wants(new)
            && (label(old) != label(new)
                || status(old) != status(new)
                || has_finalizer(old) && !has_finalizer(new))
}

#[cfg(test)]
mod tests;
