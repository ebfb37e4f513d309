//! The VIPs of one group: which have a place here, which may stand, and which must be asked for first.

use std::{
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
    key: AddressKey,
}

impl Decision<'_> {
    /// Addresses of the group that have a place here and are served from here, each once; and whether
    /// that is as much as another node could have: a link that is down here may be up there.
    pub(super) fn usable<'g>(
        &self,
        group: &'g Group,
        facts: &mut Vec<(ServiceKey, Fact)>,
    ) -> (Vec<Usable<'g>>, bool) {
        let mut usable: Vec<Usable<'g>> = Vec::new();
        let mut complete = true;
        for service in &group.services {
            let Some(request) = self.cluster.requests.get(service) else {
                continue;
            };
            let serves = self.cluster.serves_here(service);
            for vip in &request.addresses {
                match self.place(*vip, request) {
                    Ok(Some(key)) if serves => {
                        if !usable.iter().any(|u| u.key.address == *vip) {
                            usable.push(Usable { service, key });
                        }
                    }
                    Ok(place) => complete &= place.is_some() || !serves,
                    Err(fact) => {
                        complete &= group.global || fact.scope == Scope::Cluster || !serves;
                        facts.push((service.clone(), fact));
                    }
                }
            }
        }
        (usable, complete)
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
        if let Some(failure) = model.observed.failures.get(&key)
            && failure.attempts >= GIVE_UP_AFTER
            && self.now < failure.retry_at
        {
            let text = format!("node {here} cannot announce {vip}: {}", failure.message);
            return Err(Fact::warning(Reason::AddressFailed, text).seen_here());
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
        for Usable { service, key } in usable {
            let vip = key.address;
            let known = model.wire.get(&vip).filter(|wire| wire.link == key.link);
            let mut wire = match (known, owner) {
                (Some(wire), Some(owner)) if wire.is_asking() && self.succeeds_speaker(owner) => {
                    self.stand(*key, owner, false, desired);
                    continue;
                }
                // Nobody needs it yet: who gets the Lease later asks anew.
                (Some(wire), None) if wire.is_settled(self.now) => wire.clone(),
                (Some(wire), _) if !wire.is_settled(self.now) || !self.is_put(key) => {
                    self.reopened(wire, key)
                }
                (_, Some(owner)) => {
                    let Some(question) = self.first_question(*key, owner) else {
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
                    facts.extend(rival.map(|answer| ((*service).clone(), self.rival(vip, answer))));
                }
                (Verdict::Wait { until, answer }, Some(_)) => {
                    desired.wake_at(until);
                    facts.push(((*service).clone(), self.rival(vip, answer)));
                }
                (Verdict::Wait { until, .. }, None) => desired.wake_at(until),
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
    fn first_question(&self, key: AddressKey, owner: &Ownership<'_>) -> Option<Question> {
        let on_link = self.model.observed.links.addresses.get(&key);
        if self.model.observed.own.contains_key(&key) || on_link.is_some_and(|a| a.marked) {
            return None;
        }
        match owner.how {
            _ if self.succeeds_speaker(owner) => None,
            Acquisition::Released { by: Some(_) } if self.is_fresh(owner) => {
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

    /// The Lease has just been released by a speaker, which removes addresses first.
    fn succeeds_speaker(&self, owner: &Ownership<'_>) -> bool {
        matches!(owner.how, Acquisition::Released { by: Some(by) } if by.ends_with(IDENTITY_SUFFIX))
            && self.is_fresh(owner)
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
