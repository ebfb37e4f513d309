//! The facts of a sync, from caches and from answers that the caches do not show yet.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;

use super::{
    controller::Controller,
    loadbalancer::is_incomplete,
    network,
    plan::{Balancer, Complaint, Facts, is_cleanup, object_name},
    sharing::{self, Primary, is_attached, label_value},
};
use crate::{ccm::cache::ObjectKey, harvester::loadbalancer::LoadBalancer, runtime::clock};

/// The facts, owned.
pub(super) struct Gathered {
    guest: Option<String>,
    pub(super) service: Arc<Service>,
    balancer: Option<Arc<LoadBalancer>>,
    /// Whether the watch of the host has had a first list.
    pub(super) listed: bool,
    sharers: Vec<ObjectKey>,
    primary: Option<GatheredPrimary>,
    mapping: Option<Arc<ConfigMap>>,
}

struct GatheredPrimary {
    key: Result<ObjectKey, Complaint>,
    service: Option<Arc<Service>>,
    balancer: Option<Arc<LoadBalancer>>,
    siblings: Vec<Arc<Service>>,
}

impl Controller {
    /// Without a watch nothing would overtake an answer of an earlier sync.
    pub(super) fn doubt_answers(&self, key: &ObjectKey) {
        if self.balancers.status().synced {
            return;
        }
        if let Some(service) = self.latest_service(key) {
            let name = object_name(&self.parts.settings, &service);
            let object = ObjectKey::new(&*self.parts.host_namespace, name);
            self.memory().balancers.forget(&object);
        }
    }

    pub(super) fn gather(&self, service: Arc<Service>, absent: bool) -> Gathered {
        let key = ObjectKey::of(&*service);
        let name = object_name(&self.parts.settings, &service);
        let listed = self.balancers.status().synced;
        let balancer = self.latest_balancer(&name).filter(|_| !absent);
        let value = label_value(&key);
        let mut sharers: Vec<ObjectKey> = self
            .attached(&value)
            .iter()
            .map(|sharer| ObjectKey::of(&**sharer))
            .collect();
        sharers.retain(|sharer| *sharer != key);
        let primary = (!is_cleanup(&service))
            .then(|| sharing::target(&service))
            .flatten()
            .map(|target| self.gather_primary(&key, target));
        let mapping = ObjectKey::new(network::NAMESPACE, network::NAME);
        Gathered {
            guest: self.guest_uid(),
            balancer,
            listed,
            sharers,
            primary,
            mapping: self.network_map.get(&mapping),
            service,
        }
    }

    fn gather_primary(
        &self,
        key: &ObjectKey,
        target: Result<ObjectKey, Complaint>,
    ) -> GatheredPrimary {
        let service = target
            .as_ref()
            .ok()
            .and_then(|key| self.latest_service(key));
        let balancer = service
            .as_ref()
            .and_then(|service| self.latest_balancer(&object_name(&self.parts.settings, service)));
        let siblings = target.as_ref().map(|key| self.attached(&label_value(key)));
        let mut siblings = siblings.unwrap_or_default();
        siblings.retain(|sibling| ObjectKey::of(&**sibling) != *key);
        GatheredPrimary {
            key: target,
            service,
            balancer,
            siblings,
        }
    }

    pub(super) fn attached(&self, value: &str) -> Vec<Arc<Service>> {
        let members: Vec<ObjectKey> = self.memory().groups.members(value).cloned().collect();
        let services = members.iter().filter_map(|key| self.latest_service(key));
        services
            .filter(|service| is_attached(service, value))
            .collect()
    }

    /// The API server's own Service lives as long as the cluster.
    pub(super) fn guest_uid(&self) -> Option<String> {
        let key = ObjectKey::new("default", "kubernetes");
        self.services.get(&key)?.uid()
    }
}

impl Gathered {
    /// Whether the host's object waits for another write.
    pub(super) fn is_incomplete(&self) -> bool {
        self.balancer.as_deref().is_some_and(is_incomplete)
    }

    pub(super) fn facts<'a>(&'a self, controller: &'a Controller, absent: bool) -> Facts<'a> {
        let balancer = match &self.balancer {
            Some(object) => Balancer::Present(object),
            None if absent => Balancer::Absent,
            None if self.listed => Balancer::Unlisted,
            None => Balancer::Unknown,
        };
        Facts {
            settings: &controller.parts.settings,
            guest: self.guest.as_deref(),
            service: &self.service,
            balancer,
            just_sent: controller
                .memory()
                .notes
                .is_just_sent(&ObjectKey::of(&*self.service), clock::now()),
            sharers: &self.sharers,
            primary: self.primary.as_ref().map(|primary| Primary {
                key: primary.key.clone(),
                service: primary.service.as_deref(),
                balancer: primary.balancer.as_deref(),
                siblings: primary.siblings.iter().map(|sibling| &**sibling).collect(),
            }),
            mapping: self.mapping.as_deref(),
        }
    }
}
