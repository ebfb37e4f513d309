//! The search for LoadBalancer objects whose Service is gone, as `orphans` decides it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use tracing::info;

use super::{
    controller::Controller, failure::Failure, orphans, plan::object_name, recent::LIFE,
    sharing::label_value,
};
use crate::{
    ccm::cache::ObjectKey, harvester::loadbalancer::LoadBalancer, k8s::service as guest,
    runtime::clock,
};

/// How soon the view is looked at again while a watch is down, as at the start between the first list
/// and the first watch. Costs no request.
const BLIND: Duration = Duration::from_secs(1);

impl Controller {
    /// Deletes the objects of Services of this name that are gone; returns when to look again.
    pub(super) async fn sweep(&self, key: &ObjectKey) -> Result<Option<Duration>, Failure> {
        let names = self.memory().owners.of(key);
        let mut again: Option<Duration> = None;
        for name in names {
            if let Some(later) = self.sweep_one(key, &name).await? {
                again = Some(again.map_or(later, |again| again.min(later)));
            }
        }
        Ok(again)
    }

    async fn sweep_one(&self, key: &ObjectKey, name: &str) -> Result<Option<Duration>, Failure> {
        let settings = &self.parts.settings;
        let guest = self.guest_uid();
        let is_orphan = |object: &LoadBalancer, service: Option<&Service>| {
            let current = service.map(|service| object_name(settings, service));
            orphans::is_orphan(settings, guest.as_deref(), object, key, current.as_deref())
        };
        let service = self.latest_service(key);
        let Some(object) = self.latest_balancer(name) else {
            return Ok(None);
        };
        let shared = !self.attached(&label_value(key)).is_empty();
        if !is_orphan(&object, service.as_deref()) || shared {
            self.memory().owners.acquit(name);
            return Ok(None);
        }
        // While either watch is down, what looks like an orphan may be a matter of the view.
        if !(self.services.status().connected && self.balancers.status().connected) {
            return Ok(Some(BLIND));
        }
        let grace = self.memory().owners.grace(name, clock::now());
        if !grace.is_zero() {
            return Ok(Some(grace));
        }
        let failed = |source| Failure::Orphan {
            object: name.to_owned(),
            source,
        };
        let client = &self.parts.guest;
        let real = guest::uid(client, &key.namespace, &key.name)
            .await
            .map_err(failed)?;
        if real != service.as_ref().map(|s| s.uid().unwrap_or_default()) {
            // The watch is behind; what it brings brings the Service back.
            return Ok(Some(LIFE));
        }
        info!(service = %key, object = name, "deleting a LoadBalancer whose Service is gone");
        let uid = object.uid().unwrap_or_default();
        self.delete(name, &uid).await.map_err(failed)?;
        self.parts.metrics.orphans.inc();
        // In case that the watch never shows the end.
        Ok(Some(LIFE))
    }
}
