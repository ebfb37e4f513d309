//! One sync: gathers the facts, asks the plan, makes the write, and asks again.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use tracing::{info, warn};

use super::{
    controller::{Controller, Ended},
    due::{is_terminating, wants},
    failure::Failure,
    gather::Gathered,
    notes::RESEND,
    plan::{Next, Publish, Step, is_cleanup, object_name, plan},
    recent::LIFE,
    sharing,
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

    /// When a Service for which there is nothing to write is looked at again, if nothing happens.
    fn rest(&self, key: &ObjectKey, gathered: &Gathered, next: &Next) -> Option<Duration> {
        let again = self.judge(key, gathered, next);
        let name = object_name(&self.parts.settings, &gathered.service);
        let object = ObjectKey::new(&*self.parts.host_namespace, name);
        if !self.memory().balancers.is_ahead(&object) {
            return again;
        }
        // If the watch never shows what the host answered, nothing else brings the Service back.
        Some(again.map_or(LIFE, |again| again.min(LIFE)))
    }

    /// What is told of it, and when it is told again.
    fn judge(&self, key: &ObjectKey, gathered: &Gathered, next: &Next) -> Option<Duration> {
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
        let longest = match next {
            Next::Wait(_) if !gathered.listed => UNWATCHED,
            Next::Wait(_) if gathered.is_incomplete() => RESEND,
            _ => Duration::MAX,
        };
        Some(advice.again.min(longest))
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
                self.look(&name, progress).await.map_err(wrap)
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
            Step::Delete { name, uid } => self.delete(&name, &uid).await.map_err(Failure::Delete),
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
        self.memory().notes.sent(key, clock::now());
        match answer {
            Ok(object) => {
                self.stored_balancer(object);
                Ok(())
            }
            Err(error) => match error.class() {
                Class::AlreadyExists | Class::Conflict | Class::NotFound => {
                    self.look(name, progress).await.map_err(Failure::Ensure)
                }
                _ => Err(Failure::Ensure(error)),
            },
        }
    }

    async fn look(&self, name: &str, progress: &mut Progress) -> Result<(), Error> {
        let found = host::get(&self.parts.host, &self.parts.host_namespace, name).await;
        match found {
            Ok(object) => {
                progress.absent = false;
                self.stored_balancer(object);
            }
            Err(error) if error.class() == Class::NotFound => progress.absent = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(super) async fn delete(&self, name: &str, uid: &str) -> Result<(), Error> {
        let namespace = &*self.parts.host_namespace;
        let gone = || {
            let object = ObjectKey::new(namespace, name);
            let mut memory = self.memory();
            memory.balancers.gone(object, uid.to_owned(), clock::now());
        };
        match host::delete(&self.parts.host, namespace, name, uid).await {
            Ok(Some(object)) if object.is_terminating() => self.stored_balancer(object),
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
}

/// The Services that a sync of this one reads and whose own syncs must not write meanwhile.
fn participants(service: &Service) -> BTreeSet<ObjectKey> {
    let target = sharing::target(service).and_then(Result::ok);
    [ObjectKey::of(service)].into_iter().chain(target).collect()
}
