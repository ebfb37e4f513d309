//! The VIPs of one group: which have a place here, which may stand, and which must be asked for first.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{Decision, Desired, DesiredVip, IDENTITY_SUFFIX, group::Ownership};
use crate::{
    config::ElectionScope,
    election::Acquisition,
    net::link::{AddressKey, VipAddress},
    speaker::{
        announcer::Question,
        facts::{Fact, Reason, Scope},
        groups::{Group, global_lease},
        placement::{self, Refusal},
        selection::{ServiceKey, VipRequest},
        wire::{Answer, Judge, KUBE_VIP_LIMIT, Verdict, Wire},
    },
};

/// A foreign claim for a VIP that stands here is reported as long after it was last heard.
const RIVAL_MATTERS: Duration = Duration::from_secs(60);
/// The good order of a release lets a successor announce without asking within this time.
const SUCCESSION: Duration = Duration::from_secs(1);
/// A kernel that refused a VIP this often makes the node no candidate for it.
const GIVE_UP_AFTER: u32 = 2;

/// A VIP that this node could announce.
pub(super) struct Usable<'a> {
    service: &'a ServiceKey,
    pub(super) key: AddressKey,
    /// The node that the status of a Service names for it.
    served_by: Option<&'a str>,
}

/// What of a group this node could announce.
pub(super) struct Extent<'a> {
    pub(super) usable: Vec<Usable<'a>>,
    /// A link is down here, which may be up on another node.
    pub(super) down: bool,
    /// Something has no place here, or the kernel refused it; another node may do better.
    pub(super) partial: bool,
}

impl Decision<'_> {
    /// Addresses of the group that have a place here and are served from here, each once.
    pub(super) fn extent<'g>(
        &'g self,
        group: &'g Group,
        facts: &mut Vec<(ServiceKey, Fact)>,
    ) -> Extent<'g> {
        let mut extent = Extent {
            usable: Vec::new(),
            down: false,
            partial: false,
        };
        let mut seen = BTreeSet::new();
        for service in &group.services {
            let Some(request) = self.cluster.requests.get(service) else {
                continue;
            };
            let serves = self.cluster.serves_here(service);
            for vip in &request.addresses {
                match self.place(*vip, request) {
                    Ok(Some(key)) if serves && seen.insert(*vip) => {
                        if let Some(fact) = self.refused_by_kernel(&key) {
                            extent.partial = true;
                            facts.push((service.clone(), fact));
                        }
                        let served_by = self.served_by(group, *vip);
                        extent.usable.push(Usable {
                            service,
                            key,
                            served_by,
                        });
                    }
                    Ok(place) => extent.down |= serves && place.is_none(),
                    Err(fact) => {
                        extent.partial |= serves && fact.scope == Scope::Node;
                        facts.push((service.clone(), fact));
                    }
                }
            }
        }
        extent
    }

    fn served_by(&self, group: &Group, vip: IpAddr) -> Option<&str> {
        let vip = vip.to_string();
        group
            .services
            .iter()
            .filter_map(|service| self.model.services.get(service))
            .filter(|state| state.served.ingress.iter().any(|entry| entry.ip == vip))
            .find_map(|state| state.served.vip_host.as_deref())
    }

    /// The kernel refuses a VIP: told until it takes it.
    fn refused_by_kernel(&self, key: &AddressKey) -> Option<Fact> {
        let failure = self.model.observed.failures.get(key)?;
        (failure.attempts >= GIVE_UP_AFTER).then(|| {
            let here = &self.model.config.node_name;
            let text = format!(
                "node {here} cannot announce {}: {}",
                key.address, failure.message
            );
            Fact::warning(Reason::AddressFailed, text).seen_here()
        })
    }

    /// The place of a VIP; `None` where it is unusable for a moment (no carrier).
    fn place(&self, vip: IpAddr, request: &VipRequest) -> Result<Option<AddressKey>, Fact> {
        let model = self.model;
        let refused = |refusal: &Refusal| {
            Fact::warning(Reason::AddressRefused, format!("not announced: {refusal}"))
        };
        if let Some(refusal) = placement::refusal_by_kind(vip, &model.config) {
            return Err(refused(&refusal));
        }
        if let Some(node) = self.node_of.get(&vip) {
            return Err(refused(&Refusal::Node(vip, (*node).to_owned())));
        }
        if let Some(refusal) = placement::refusal_here(vip, &self.ground) {
            return Err(refused(&refusal).seen_here().once_settled());
        }
        let no_link = |text: String| {
            Fact::warning(Reason::NoLink, text)
                .seen_here()
                .once_settled()
        };
        let here = &model.config.node_name;
        let place = placement::place(vip, request.interface.as_ref(), &model.config, &self.ground)
            .map_err(|error| no_link(format!("no place for {vip} on node {here}: {error}")))?;
        let key = AddressKey {
            link: place.link,
            address: vip,
            prefix_len: place.prefix_len,
        };
        let waits = model
            .observed
            .failures
            .get(&key)
            .is_some_and(|f| self.now < f.retry_at);
        if let Some(fact) = self.refused_by_kernel(&key).filter(|_| waits) {
            return Err(fact);
        }
        Ok(place.running.then_some(key))
    }

    /// VIPs that stand, and questions. Without ownership (nobody has the Lease yet) only what the wire
    /// says is prepared: a new VIP is asked for beside the API's writes.
    pub(super) fn announce(
        &self,
        usable: &[Usable<'_>],
        owner: Option<&Ownership<'_>>,
        desired: &mut Desired,
        facts: &mut Vec<(ServiceKey, Fact)>,
    ) {
        let model = self.model;
        for Usable {
            service,
            key,
            served_by,
        } in usable
        {
            let vip = key.address;
            // Under the Lease of before only what stood under it goes on; the rest has other owners.
            let stands_under = self.own.get(&vip).copied();
            if owner.is_some_and(|o| !o.current && stands_under != Some(o.lease)) {
                continue;
            }
            let known = model.wire.get(&vip).filter(|wire| wire.link == key.link);
            let mut wire = match (known, owner) {
                (Some(wire), Some(owner))
                    if wire.is_asking() && self.succeeds_speaker(owner, *served_by) =>
                {
                    self.stand(*key, owner, false, desired);
                    continue;
                }
                // Nobody needs it yet: who gets the Lease later asks anew.
                (Some(wire), None) if wire.is_settled(self.now) => wire.clone(),
                (Some(wire), _) if !wire.is_settled(self.now) || !self.is_put(key) => {
                    self.reopened(wire, key)
                }
                (_, Some(owner)) => {
                    let Some(question) = self.first_question(*key, owner, *served_by) else {
                        self.stand(*key, owner, false, desired);
                        continue;
                    };
                    Wire::asking(key.link, question)
                }
                (_, None) => Wire::asking(key.link, Question::New),
            };
            match (wire.verdict(self.judge(), self.now), owner) {
                (Verdict::Go { rival }, Some(owner)) => {
                    self.stand(*key, owner, rival.is_some(), desired);
                    // One that answered late is about to notice its loss: nothing to tell.
                    let lasting = rival.and_then(|_| wire.last_answer());
                    facts.extend(lasting.map(|by| ((*service).clone(), self.rival(vip, by))));
                }
                (Verdict::Wait { until, answer }, Some(_)) => {
                    desired.wake_at(until);
                    facts.push(((*service).clone(), self.rival(vip, answer)));
                }
                (Verdict::Wait { until, .. }, None) => desired.wake_at(until),
                // What was answered before is told until the new answer comes.
                (Verdict::Ask(Question::New), Some(_)) => facts.extend(
                    wire.last_answer()
                        .map(|answer| ((*service).clone(), self.rival(vip, answer))),
                ),
                (Verdict::Go { .. } | Verdict::Ask(_), _) => {}
            }
            if let Some(question) = wire.question(self.now) {
                desired.questions.insert((key.link, vip), question);
            }
            if let Some(deadline) = wire.next_deadline().filter(|at| *at > self.now) {
                desired.wake_at(deadline);
            }
            desired.wire.insert(vip, wire);
        }
    }

    /// The VIP is on the link, or on its way there.
    fn is_put(&self, key: &AddressKey) -> bool {
        self.model.is_on_link(key) || self.model.observed.kernel.get(key) == Some(&true)
    }

    /// A clear verdict that was not used in time is worth nothing any more.
    fn reopened(&self, wire: &Wire, key: &AddressKey) -> Wire {
        if wire.is_settled(self.now) {
            Wire::asking(key.link, Question::New)
        } else {
            wire.clone()
        }
    }

    /// Whether and how to ask before a VIP is put on a link. No question: it stands there already, or
    /// its last owner was a speaker that removed it before it released the Lease.
    fn first_question(
        &self,
        key: AddressKey,
        owner: &Ownership<'_>,
        served_by: Option<&str>,
    ) -> Option<Question> {
        let on_link = self.model.observed.links.addresses.get(&key);
        if self.model.observed.own.contains_key(&key) || on_link.is_some_and(|a| a.marked) {
            return None;
        }
        match owner.how {
            _ if self.succeeds_speaker(owner, served_by) => None,
            Acquisition::Released { by: Some(by) }
                if self.is_fresh(owner) && !by.ends_with(IDENTITY_SUFFIX) =>
            {
                Some(Question::UntilSilent {
                    limit: KUBE_VIP_LIMIT,
                })
            }
            _ => Some(Question::New),
        }
    }

    fn is_fresh(&self, owner: &Ownership<'_>) -> bool {
        self.now.saturating_duration_since(owner.at) < SUCCESSION
    }

    /// The Lease has just been released by the speaker that announced this VIP, and that removes
    /// addresses first. A VIP that it did not announce, because another host has it say, is asked for.
    fn succeeds_speaker(&self, owner: &Ownership<'_>, served_by: Option<&str>) -> bool {
        let Acquisition::Released { by: Some(by) } = owner.how else {
            return false;
        };
        let node = by.strip_suffix(IDENTITY_SUFFIX);
        node.is_some() && node == served_by && self.is_fresh(owner)
    }

    fn judge(&self) -> Judge {
        let config = &self.model.config;
        let global = config.election_scope == ElectionScope::Service
            && self.kube_vip_holds(&global_lease(config));
        Judge {
            kube_vip_serves: global,
            policy: config.conflict,
        }
    }

    /// Who claimed a VIP that stands here of late, and until when that counts.
    pub(super) fn present_rival(&self, key: &AddressKey) -> Option<(Answer, Instant)> {
        let (answer, at) = self.model.observed.rivals.get(&(key.link, key.address))?;
        let until = *at + RIVAL_MATTERS;
        (self.now < until).then_some((*answer, until))
    }

    fn stand(&self, key: AddressKey, owner: &Ownership<'_>, rival: bool, desired: &mut Desired) {
        if let Some((_, until)) = self.present_rival(&key) {
            desired.wake_at(until);
        }
        let address = VipAddress {
            key,
            lifetime: self.model.config.address_lifetime,
        };
        let vip = DesiredVip {
            address,
            lease: owner.lease.clone(),
            rival,
        };
        desired.vips.insert(key.address, vip);
    }

    pub(super) fn rival(&self, vip: IpAddr, answer: Answer) -> Fact {
        let node = answer.node.and_then(|ip| self.node_of.get(&ip).copied());
        match node {
            Some(node) if self.judge().kube_vip_serves => Fact::warning(
                Reason::ServedByKubeVip,
                format!("node {node} answers for {vip} and kube-vip holds its Lease; waiting for it"),
            ),
            Some(node) => Fact::warning(
                Reason::NodesAnswer,
                format!(
                    "node {node} ({}) answers for {vip} too: kube-proxy in IPVS mode needs strictARP",
                    answer.by
                ),
            ),
            None => Fact::warning(
                Reason::AddressConflict,
                format!("a host with MAC {} answers for {vip}", answer.by),
            ),
        }
        .seen_here()
    }
}
