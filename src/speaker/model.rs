//! The speaker's state: what the API's objects say, what was seen of the node and the wire, and what
//! is under way. One owner, changed by [`Model::apply`] and by noting the actions that were started;
//! every decision about it is in `desired` and `plan`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use k8s_openapi::api::core::v1::{Node, Service};

use super::{
    announcer::AnnouncerEvent,
    desired::Desired,
    endpoints::Endpoints,
    event::{Event, Outcome},
    nodes::NodeFacts,
    observed::{Failure, Observed, Phase, ToldFact},
    selection::{Selection, ServiceKey, select},
    status::{Served, StatusWish},
    wire::{Answer, Wire},
};
use crate::{
    config::SpeakerConfig,
    election::{LeaseKey, Notice},
    net::link::{AddressKey, LinkEvent, VipAddress},
    runtime::informer::Delta,
};

/// A Service of the cluster, as far as the speaker cares.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceState {
    pub selection: Selection,
    /// What the object says it is served with now.
    pub served: Served,
    pub uid: String,
}

/// What must have been listed once before anything is decided, and swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Services,
    Slices,
    Nodes,
    Links,
}

/// Everything the speaker knows.
#[derive(Debug)]
pub struct Model {
    pub config: Arc<SpeakerConfig>,
    pub services: BTreeMap<ServiceKey, ServiceState>,
    pub endpoints: Endpoints,
    pub nodes: BTreeMap<String, NodeFacts>,
    /// First lists that are still missing.
    pub missing: BTreeSet<Source>,
    pub observed: Observed,
    /// VIPs whose announcement depends on what the wire answers.
    pub wire: BTreeMap<IpAddr, Wire>,
    /// The Lease that each address stood under at the last decision.
    pub lease_of: BTreeMap<IpAddr, LeaseKey>,
    /// Leases that a neighbour of ours is about to take over from another Lease of the group.
    pub courtesies: BTreeSet<LeaseKey>,
    /// The loop stood still; nothing is known to be ours until the election has answered this
    /// question.
    pub doubt: Option<u64>,
    /// Everything is to be withdrawn.
    pub stopping: bool,
}

impl Model {
    pub fn new(config: Arc<SpeakerConfig>) -> Self {
        Self {
            config,
            services: BTreeMap::new(),
            endpoints: Endpoints::default(),
            nodes: BTreeMap::new(),
            missing: [
                Source::Services,
                Source::Slices,
                Source::Nodes,
                Source::Links,
            ]
            .into(),
            observed: Observed::default(),
            wire: BTreeMap::new(),
            lease_of: BTreeMap::new(),
            courtesies: BTreeSet::new(),
            doubt: None,
            stopping: false,
        }
    }

    /// Takes one input. Returns whether a decision may have changed.
    pub fn apply(&mut self, event: Event, now: Instant) -> bool {
        match event {
            Event::Service(delta) => self.apply_service(delta),
            Event::Slice(Delta::Upsert { old, new }) => self.endpoints.upsert(old.as_deref(), &new),
            Event::Slice(Delta::Delete(old)) => self.endpoints.remove(&old),
            Event::Slice(Delta::Synced) => self.missing.remove(&Source::Slices),
            Event::Node(delta) => self.apply_node(delta),
            Event::Link(event) => self.apply_link(&event),
            Event::Election(notice) => self.apply_notice(notice, now),
            Event::Announcer(event) => self.apply_announcer(event, now),
            Event::Outcome(outcome) => self.apply_outcome(outcome, now),
        }
    }

    fn apply_service(&mut self, delta: Delta<Service>) -> bool {
        match delta {
            Delta::Upsert { new, .. } => {
                let state = ServiceState {
                    selection: select(&new, &self.config),
                    served: Served::of(&new),
                    uid: new.metadata.uid.clone().unwrap_or_default(),
                };
                let key = ServiceKey::of(&new);
                let changed = self.services.get(&key) != Some(&state);
                self.services.insert(key, state);
                changed
            }
            Delta::Delete(old) => {
                let key = ServiceKey::of(&old);
                self.observed.writes.remove(&key);
                // Another Service of this name is told anew.
                self.observed
                    .facts
                    .retain(|(service, ..), _| *service != key);
                self.services.remove(&key).is_some()
            }
            Delta::Synced => self.missing.remove(&Source::Services),
        }
    }

    fn apply_node(&mut self, delta: Delta<Node>) -> bool {
        match delta {
            Delta::Upsert { new, .. } => {
                let name = new.metadata.name.clone().unwrap_or_default();
                let facts = NodeFacts::of(&new);
                let changed = self.nodes.get(&name) != Some(&facts);
                self.nodes.insert(name, facts);
                changed
            }
            Delta::Delete(old) => self
                .nodes
                .remove(old.metadata.name.as_deref().unwrap_or_default())
                .is_some(),
            Delta::Synced => self.missing.remove(&Source::Nodes),
        }
    }

    fn apply_link(&mut self, event: &LinkEvent) -> bool {
        self.observed.links.apply(event);
        if let LinkEvent::LinkGone(index) = event {
            self.observed.forget_link(*index);
        }
        if matches!(event, LinkEvent::Resync(_)) {
            self.missing.remove(&Source::Links);
        }
        true
    }

    fn apply_notice(&mut self, notice: Notice, now: Instant) -> bool {
        let contests = &mut self.observed.contests;
        match notice {
            Notice::Acquired { lease, how } => {
                let Some(contest) = contests.get_mut(&lease) else {
                    return false;
                };
                if contest.phase == Phase::Retiring {
                    return false;
                }
                contest.phase = Phase::Held { how, at: now };
            }
            Notice::Lost { lease, why } => {
                tracing::warn!(%lease, ?why, "lost the Lease");
                let Some(contest) = contests.get_mut(&lease) else {
                    return false;
                };
                if matches!(contest.phase, Phase::Held { .. }) {
                    contest.phase = Phase::Contending;
                }
            }
            Notice::Confirmed { round } => {
                if self.doubt == Some(round) {
                    self.doubt = None;
                }
            }
            Notice::Retired { lease } => {
                contests.remove(&lease);
                if !self.observed.holders.contains_key(&lease) {
                    self.observed.known.remove(&lease);
                }
            }
            Notice::Seen { lease, holder } => {
                self.observed.known.insert(lease.clone());
                let holders = &mut self.observed.holders;
                let before = match holder.clone() {
                    Some(holder) => holders.insert(lease, holder),
                    None => holders.remove(&lease),
                };
                return before != holder;
            }
        }
        true
    }

    fn apply_announcer(&mut self, event: AnnouncerEvent, now: Instant) -> bool {
        match event {
            AnnouncerEvent::Clear { link, vip } => {
                if let Some(wire) = self.wire.get_mut(&vip).filter(|w| w.link == link) {
                    wire.handle_clear(now);
                }
                if let Some(asking) = self.observed.asking.get_mut(&(link, vip)) {
                    asking.judged = true;
                }
            }
            AnnouncerEvent::Answered {
                link,
                vip,
                by,
                node,
            } => {
                if let Some(wire) = self.wire.get_mut(&vip).filter(|w| w.link == link) {
                    wire.handle_answer(Answer { by, node }, now);
                }
                self.observed.asking.remove(&(link, vip));
            }
            AnnouncerEvent::Conflict {
                link,
                vip,
                by,
                node,
            } => {
                tracing::warn!(%vip, %by, ?node, %link, "another host claims a VIP announced here");
                self.observed
                    .rivals
                    .insert((link, vip), (Answer { by, node }, now));
            }
            AnnouncerEvent::FirstAnnounced { .. } => return false,
            AnnouncerEvent::Stopped { link, reason } => {
                tracing::warn!(%link, reason, "announcer stopped");
                self.observed.forget_link(link);
                let failure =
                    Failure::after(self.observed.announcer_failures.get(&link), reason, now);
                self.observed.announcer_failures.insert(link, failure);
            }
        }
        true
    }

    fn apply_outcome(&mut self, outcome: Outcome, now: Instant) -> bool {
        match outcome {
            Outcome::Added(results) => {
                let mut changed = false;
                for (key, result) in results {
                    changed |= self.observed.added(key, result, now);
                }
                changed
            }
            Outcome::Removed(results) => {
                for (key, result) in results {
                    self.observed.removed(key, result, now);
                }
                true
            }
            Outcome::Written {
                service,
                uid,
                result,
            } => {
                // The end of a write to a predecessor says nothing about the write to its successor.
                let current = self.services.get(&service).is_some_and(|s| s.uid == uid);
                if current {
                    self.observed.written(&service, &result, now);
                }
                current
            }
        }
    }

    /// Takes over what the decision itself remembers.
    pub fn remember(&mut self, desired: &Desired, now: Instant) {
        for (vip, wire) in &desired.wire {
            // A question that begins anew is asked anew, even if it is the same as before.
            if wire.is_asking() && self.wire.get(vip).is_some_and(|before| !before.is_asking()) {
                self.observed.asking.remove(&(wire.link, *vip));
            }
        }
        self.wire.clone_from(&desired.wire);
        self.lease_of.clone_from(&desired.lease_of);
        self.courtesies.clone_from(&desired.courtesies);
        for (lease, wish) in &desired.contests {
            if let Some(contest) = self.observed.contests.get_mut(lease) {
                contest.reluctant &= wish.reluctant;
            }
        }
        for vip in desired.vips.values() {
            if let Some(lease) = self.observed.own.get_mut(&vip.address.key) {
                lease.clone_from(&vip.lease);
            }
        }
        self.note_served(desired);
        let placed: BTreeSet<AddressKey> = desired.vips.values().map(|v| v.address.key).collect();
        let observed = &mut self.observed;
        // A failure is remembered while its VIP is asked for, a place for it is looked for, or the
        // address must still go.
        observed.failures.retain(|key, _| {
            placed.contains(key)
                || desired.lease_of.contains_key(&key.address)
                || observed.own.contains_key(key)
                || observed.links.addresses.get(key).is_some_and(|a| a.marked)
        });
        let facts = &mut observed.facts;
        facts.retain(|key, _| desired.facts.contains_key(key));
        for key in desired.facts.keys() {
            facts.entry(key.clone()).or_insert(ToldFact {
                since: now,
                told: false,
            });
        }
    }

    /// Services whose status is ours to clear one day.
    fn note_served(&mut self, desired: &Desired) {
        for (service, wish) in &desired.statuses {
            if matches!(wish, StatusWish::Serve { .. }) {
                self.observed.served.insert(service.clone());
            }
        }
        let (services, here) = (&self.services, &self.config.node_name);
        self.observed.served.retain(|service| {
            services.get(service).is_some_and(|state| {
                desired.statuses.contains_key(service)
                    || state.served.vip_host.as_ref() == Some(here)
            })
        });
    }

    /// The key of a VIP as it is on the link, if it is ours and usable there.
    pub fn is_on_link(&self, key: &AddressKey) -> bool {
        self.observed.own.contains_key(key)
            && self
                .observed
                .links
                .addresses
                .get(key)
                .is_some_and(|a| a.usable)
    }

    /// Nothing of ours is left on the node, and no Lease is ours.
    pub fn is_withdrawn(&self) -> bool {
        let observed = &self.observed;
        observed.contests.is_empty() && observed.own.is_empty() && observed.kernel.is_empty()
    }

    /// Addresses whose lifetime is to be renewed.
    pub fn refreshable(&self, desired: &Desired) -> Vec<VipAddress> {
        desired
            .vips
            .values()
            .map(|vip| vip.address)
            .filter(|address| self.is_on_link(&address.key))
            .filter(|address| !self.observed.kernel.contains_key(&address.key))
            .collect()
    }
}
