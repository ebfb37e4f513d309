//! One sync: gathers the facts, asks the plan, makes the write, and asks again.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::ResourceExt;
use tracing::{info, warn};

use super::{
    controller::{Controller, Ended},
    due::{is_terminating, wants},
    failure::Failure,
    network, orphans,
    plan::{Balancer, Facts, Next, Publish, Step, is_cleanup, object_name, plan},
    recent::LIFE,
    sharing::{self, Primary, is_attached, label_value},
};
use crate::{
    ccm::cache::ObjectKey,
    harvester::loadbalancer::{self as host, LoadBalancer},
    k8s::{Class, Error, events::Kind, service as guest},
    runtime::{clock, shutdown::Shutdown},
};

/// A sync needs at most five; the rest is for others who write at the same time.
const STEPS: u32 = 12;
/// Without a watch of the host, what is waited for is looked at.
const UNWATCHED: Duration = Duration::from_secs(5);

/// The facts, owned.
struct Gathered {
    guest: Option<String>,
    service: Arc<Service>,
    balancer: Option<Arc<LoadBalancer>>,
    listed: bool,
    sharers: Vec<ObjectKey>,
    primary: Option<GatheredPrimary>,
    mapping: Option<Arc<ConfigMap>>,
}

struct GatheredPrimary {
    key: Result<ObjectKey, super::plan::Complaint>,
    service: Option<Arc<Service>>,
    balancer: Option<Arc<LoadBalancer>>,
    siblings: Vec<Arc<Service>>,
}

/// What a sync remembers between its steps.
#[derive(Debug, Default)]
struct Progress {
    /// The host was asked for the object and has none.
    absent: bool,
    announced: bool,
}

/// The Services that hold still for this sync.
struct Turn<'a> {
    controller: &'a Controller,
    keys: BTreeSet<ObjectKey>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let waiting = self.controller.memory().turns.free(&self.keys);
        for key in waiting {
            self.controller.enqueue(key);
        }
    }
}

impl Controller {
    pub(super) async fn sync(&self, key: &ObjectKey, stop: &Shutdown) -> Result<Ended, Failure> {
        let keys = self.latest_service(key).map_or_else(
            || BTreeSet::from([key.clone()]),
            |service| participants(&service),
        );
        if !self.memory().turns.take(&keys, key) {
            return Ok(Ended::Postponed);
        }
        let turn = Turn {
            controller: self,
            keys,
        };
        let orphans = self.sweep(key).await;
        let again = self.ensure(key, &turn, stop).await?;
        // An orphan that cannot be deleted does not hold up the Service.
        let later = orphans?;
        Ok(Ended::Rests(match (again, later) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }))
    }

    /// Brings the Service as far as it gets; returns when to look again without a change.
    async fn ensure(
        &self,
        key: &ObjectKey,
        turn: &Turn<'_>,
        stop: &Shutdown,
    ) -> Result<Option<Duration>, Failure> {
        let mut progress = Progress::default();
        self.doubt_answers(key);
        for _ in 0..STEPS {
            let Some(service) = self.latest_service(key) else {
                self.memory().notes.forget(key);
                return Ok(None);
            };
            if stop.is_requested() || !participants(&service).is_subset(&turn.keys) {
                self.enqueue(key.clone());
                return Ok(None);
            }
            let gathered = self.gather(service, progress.absent);
            let write = match plan(&gathered.facts(self, progress.absent)) {
                Next::Step(write) => write,
                rest => return Ok(self.rest(key, &gathered, &rest)),
            };
            self.announce(&gathered.service, &write, &mut progress);
            self.execute(&gathered, write, &mut progress).await?;
        }
        Err(Failure::Unsettled)
    }

    /// Without a watch nothing would overtake an answer of an earlier sync.
    fn doubt_answers(&self, key: &ObjectKey) {
        if self.balancers.status().synced {
            return;
        }
        if let Some(service) = self.latest_service(key) {
            let name = object_name(&self.parts.settings, &service);
            let object = ObjectKey::new(&*self.parts.host_namespace, name);
            self.memory().balancers.forget(&object);
        }
    }

    fn gather(&self, service: Arc<Service>, absent: bool) -> Gathered {
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
        target: Result<ObjectKey, super::plan::Complaint>,
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

    fn attached(&self, value: &str) -> Vec<Arc<Service>> {
        let members: Vec<ObjectKey> = self.memory().groups.members(value).cloned().collect();
        let services = members.iter().filter_map(|key| self.latest_service(key));
        services
            .filter(|service| is_attached(service, value))
            .collect()
    }

    /// The API server's own Service lives as long as the cluster.
    fn guest_uid(&self) -> Option<String> {
        let key = ObjectKey::new("default", "kubernetes");
        self.services.get(&key)?.uid()
    }

    /// What comes of a Service for which there is nothing to write.
    fn rest(&self, key: &ObjectKey, gathered: &Gathered, next: &Next) -> Option<Duration> {
        let service = &gathered.service;
        self.warn_without_nodes(key, service);
        let (text, patience) = match next {
            Next::Wait(pending) => (pending.to_string(), pending.patience()),
            Next::Refused(complaint) => (complaint.to_string(), Duration::ZERO),
            Next::Settled | Next::Step(_) => {
                self.memory().notes.settled(key);
                return None;
            }
        };
        let now = clock::now();
        let advice = self.memory().notes.unsettled(key, &text, patience, now);
        if advice.tell {
            let what = if is_cleanup(service) {
                "delete"
            } else {
                "ensure"
            };
            let message =
                format!("Error syncing load balancer: failed to {what} load balancer: {text}");
            info!(service = %key, reason = text, "load balancer is not settled");
            self.tell(service, Kind::Warning, "SyncLoadBalancerFailed", message);
        }
        let unwatched = !gathered.listed && matches!(next, Next::Wait(_));
        Some(if unwatched {
            advice.again.min(UNWATCHED)
        } else {
            advice.again
        })
    }

    /// The events that come before a write.
    fn announce(&self, service: &Service, step: &Step, progress: &mut Progress) {
        match step {
            Step::AddFinalizer(_) | Step::Create(_) if !progress.announced => {
                progress.announced = true;
                let text = "Ensuring load balancer";
                self.tell(service, Kind::Normal, "EnsuringLoadBalancer", text);
            }
            Step::Delete { .. } => {
                let text = "Deleting load balancer";
                self.tell(service, Kind::Normal, "DeletingLoadBalancer", text);
            }
            _ => {}
        }
    }

    fn warn_without_nodes(&self, key: &ObjectKey, service: &Service) {
        if !wants(service) || is_terminating(service) {
            return;
        }
        let news = {
            let mut memory = self.memory();
            let any = memory.any_node;
            memory.notes.nodes(key, any)
        };
        if news {
            let text = "There are no available nodes for LoadBalancer";
            self.tell(service, Kind::Warning, "UnAvailableLoadBalancer", text);
        }
    }

    async fn execute(
        &self,
        gathered: &Gathered,
        step: Step,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let service = &*gathered.service;
        let client = &self.parts.host;
        let namespace = &*self.parts.host_namespace;
        let key = ObjectKey::of(service);
        match step {
            Step::AddFinalizer(patch) => self.patch(service, &patch, Failure::AddFinalizer).await,
            Step::Release(patch) => {
                self.patch(service, &patch, Failure::Release).await?;
                let text = "Deleted load balancer";
                self.tell(service, Kind::Normal, "DeletedLoadBalancer", text);
                Ok(())
            }
            Step::Publish(publish) => self.publish(service, publish).await,
            Step::Look => {
                let wrap = if is_cleanup(service) {
                    Failure::Check
                } else {
                    Failure::Ensure
                };
                let name = object_name(&self.parts.settings, service);
                self.look(&key, &name, progress).await.map_err(wrap)
            }
            Step::Create(object) => {
                if self.parts.settings.is_ambiguous() {
                    let cluster = &self.parts.settings.cluster;
                    warn!(service = %key, cluster, "the cluster's name does not tell it from others");
                }
                progress.absent = false;
                let created = host::create(client, namespace, &object).await;
                self.stored(&key, &object.name_any(), created, progress)
                    .await
            }
            Step::Replace(object) => {
                let replaced = host::replace(client, namespace, &object).await;
                self.stored(&key, &object.name_any(), replaced, progress)
                    .await
            }
            Step::Delete { name, uid } => self
                .delete(&key, &name, &uid)
                .await
                .map_err(Failure::Delete),
        }
    }

    /// Takes the answer to a write of the object. Who was overtaken looks at what is there.
    async fn stored(
        &self,
        key: &ObjectKey,
        name: &str,
        answer: Result<LoadBalancer, Error>,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        match answer {
            Ok(object) => {
                self.stored_balancer(key, object);
                Ok(())
            }
            Err(error) => match error.class() {
                Class::AlreadyExists | Class::Conflict | Class::NotFound => self
                    .look(key, name, progress)
                    .await
                    .map_err(Failure::Ensure),
                _ => Err(Failure::Ensure(error)),
            },
        }
    }

    async fn look(
        &self,
        key: &ObjectKey,
        name: &str,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let found = host::get(&self.parts.host, &self.parts.host_namespace, name).await;
        match found {
            Ok(object) => {
                progress.absent = false;
                self.stored_balancer(key, object);
            }
            Err(error) if error.class() == Class::NotFound => progress.absent = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn delete(&self, key: &ObjectKey, name: &str, uid: &str) -> Result<(), Error> {
        let namespace = &*self.parts.host_namespace;
        let gone = || {
            let object = ObjectKey::new(namespace, name);
            let mut memory = self.memory();
            memory.balancers.gone(object, uid.to_owned(), clock::now());
        };
        match host::delete(&self.parts.host, namespace, name, uid).await {
            Ok(Some(object)) if object.is_terminating() => self.stored_balancer(key, object),
            Ok(_) => gone(),
            // Not this object: none any more, or a successor that the watch will show.
            Err(error) if matches!(error.class(), Class::NotFound | Class::Conflict) => gone(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Finalizers and status. A Service that is gone needs neither.
    async fn patch(
        &self,
        service: &Service,
        patch: &serde_json::Value,
        wrap: fn(Error) -> Failure,
    ) -> Result<(), Failure> {
        let namespace = service.namespace().unwrap_or_default();
        let name = service.name_any();
        let answer = guest::patch_finalizers(&self.parts.guest, &namespace, &name, patch).await;
        self.patched(service, answer).map_err(wrap)
    }

    async fn publish(&self, service: &Service, publish: Publish) -> Result<(), Failure> {
        let namespace = service.namespace().unwrap_or_default();
        let name = service.name_any();
        let client = &self.parts.guest;
        let answer = guest::patch_metadata(client, &namespace, &name, &publish.patch).await;
        self.patched(service, answer).map_err(Failure::Ensure)?;
        if let Some(wrong) = publish.wrong {
            let message = format!(
                "Address annotation was {wrong:?}, which is not what was allocated; put right"
            );
            self.tell(
                service,
                Kind::Warning,
                "LoadBalancerAddressRestored",
                message,
            );
        }
        let text = "Ensured load balancer";
        self.tell(service, Kind::Normal, "EnsuredLoadBalancer", text);
        Ok(())
    }

    fn patched(&self, service: &Service, answer: Result<Service, Error>) -> Result<(), Error> {
        let gone = || {
            let mut memory = self.memory();
            let uid = service.uid().unwrap_or_default();
            memory
                .services
                .gone(ObjectKey::of(service), uid, clock::now());
        };
        match answer {
            // The last finalizer of a Service that was being deleted.
            Ok(new) if is_terminating(&new) && new.finalizers().is_empty() => gone(),
            Ok(new) => self.stored_service(new),
            Err(error) if error.class() == Class::NotFound => gone(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Deletes the objects of Services of this name that are gone; returns when to look again.
    async fn sweep(&self, key: &ObjectKey) -> Result<Option<Duration>, Failure> {
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
            return Ok(Some(orphans::GRACE));
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
        self.delete(key, name, &uid).await.map_err(failed)?;
        self.parts.metrics.orphans.inc();
        Ok(None)
    }
}

/// The Services that a sync of this one reads and whose own syncs must not write meanwhile.
fn participants(service: &Service) -> BTreeSet<ObjectKey> {
    let target = sharing::target(service).and_then(Result::ok);
    [ObjectKey::of(service)].into_iter().chain(target).collect()
}

impl Gathered {
    fn facts<'a>(&'a self, controller: &'a Controller, absent: bool) -> Facts<'a> {
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
