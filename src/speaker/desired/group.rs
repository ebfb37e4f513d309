//! One group: does this node contend for its Lease, and does it own the group now?

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{ContestWish, Decision, Desired, IDENTITY_SUFFIX};
use crate::{
    config::ElectionScope,
    election::{Acquisition, LeaseKey},
    speaker::{
        candidates::{Candidacy, Standing, candidacy},
        facts::{Fact, Reason, Scope},
        groups::{Group, global_lease, groups, named_lease, service_lease},
        observed::Phase,
        selection::ServiceKey,
    },
};

/// How this node has a group.
pub(super) struct Ownership<'a> {
    pub(super) lease: &'a LeaseKey,
    pub(super) how: &'a Acquisition,
    pub(super) at: Instant,
    /// It is the Lease that the group has now, not one of before.
    pub(super) current: bool,
}

impl Decision<'_> {
    /// All groups. The owner of everything is elected even while there is nothing to own, as kube-vip
    /// does it.
    pub(super) fn groups(&self) -> Vec<Group> {
        let config = &self.model.config;
        let mut groups = groups(self.cluster.requests, config);
        if config.election_scope == ElectionScope::Global && !groups.iter().any(|g| g.global) {
            groups.push(Group {
                lease: global_lease(config),
                services: Vec::new(),
                global: true,
            });
        }
        groups
    }

    pub(super) fn group(&self, group: &Group, desired: &mut Desired) {
        let mut facts = Vec::new();
        let extent = self.extent(group, &mut facts);
        let mut verdict = candidacy(group, self.cluster);
        self.respect_kube_vip(group, &mut verdict);
        let nothing = extent.usable.is_empty() && (extent.down || extent.partial);
        let standing = match verdict.standing {
            Standing::No => Standing::No,
            _ if extent.usable.is_empty() && !group.global => Standing::No,
            Standing::Yes if extent.down || nothing => Standing::Reluctant,
            standing => standing,
        };

        if standing != Standing::No {
            let places = extent.usable.iter().map(|usable| usable.key.link);
            desired.places.extend(places);
        }
        self.courtesy(group, desired);
        let owner = self.ownership(group).filter(|_| standing != Standing::No);
        let yields = standing == Standing::Reluctant && self.held_willingly(&group.lease);
        if standing != Standing::No && !yields {
            let wish = self.contest(group, standing, extent.partial, desired);
            let at_once = wish.hesitation.is_zero();
            desired.contests.insert(group.lease.clone(), wish);
            if let Some(owner) = owner.as_ref().filter(|owner| *owner.lease != group.lease) {
                let wish = ContestWish {
                    hesitation: Duration::ZERO,
                    reluctant: false,
                };
                desired.contests.entry(owner.lease.clone()).or_insert(wish);
            }
            if owner.is_none() && self.may_resume(&group.lease) {
                desired.resumable.extend(self.group_addresses(group));
            }
            let unheld = !self.model.observed.holders.contains_key(&group.lease);
            if owner.is_some() || (at_once && unheld) {
                self.announce(&extent.usable, owner.as_ref(), desired, &mut facts);
            }
        }
        facts.extend(verdict.facts);
        self.tell(group, facts, desired);
    }

    /// A Lease of kube-vip on any Service of the group keeps us away from all of it. (The group's own
    /// Lease needs no word here: the elector respects every holder.)
    fn respect_kube_vip(&self, group: &Group, verdict: &mut Candidacy) {
        for service in &group.services {
            let named = self
                .cluster
                .requests
                .get(service)
                .and_then(|r| named_lease(r));
            for lease in named.into_iter().chain([service_lease(service)]) {
                if lease != group.lease && self.kube_vip_holds(&lease) {
                    verdict.standing = Standing::No;
                    let message = format!("kube-vip holds the Lease {lease}; waiting for it");
                    let fact = Fact::warning(Reason::ServedByKubeVip, message).once_settled();
                    verdict.facts.push((service.clone(), fact));
                }
            }
        }
    }

    pub(super) fn kube_vip_holds(&self, lease: &LeaseKey) -> bool {
        self.model
            .observed
            .holders
            .get(lease)
            .is_some_and(|holder| holder.live && !holder.identity.ends_with(IDENTITY_SUFFIX))
    }

    fn held_elsewhere(&self, lease: &LeaseKey) -> bool {
        self.model
            .observed
            .holders
            .get(lease)
            .is_some_and(|holder| holder.live && holder.identity != self.identity)
    }

    /// The Lease names this node, whose speaker has just been started again, or is not known yet.
    fn may_resume(&self, lease: &LeaseKey) -> bool {
        let observed = &self.model.observed;
        let identity = format!("{}{IDENTITY_SUFFIX}", self.model.config.node_name);
        match observed.holders.get(lease) {
            Some(holder) => holder.live && holder.identity == identity,
            None => !observed.known.contains(lease),
        }
    }

    fn may_be_held_elsewhere(&self, lease: &LeaseKey) -> bool {
        let unknown = !self.model.observed.known.contains(lease) && self.held(lease).is_none();
        unknown || self.held_elsewhere(lease)
    }

    fn held<'m>(&'m self, lease: &'m LeaseKey) -> Option<Ownership<'m>> {
        match &self.model.observed.contests.get(lease)?.phase {
            Phase::Held { how, at } => Some(Ownership {
                lease,
                how,
                at: *at,
                current: true,
            }),
            Phase::Contending | Phase::Retiring => None,
        }
    }

    fn held_willingly(&self, lease: &LeaseKey) -> bool {
        self.held(lease).is_some()
            && self
                .model
                .observed
                .contests
                .get(lease)
                .is_some_and(|contest| !contest.reluctant)
    }

    /// The Lease under which this node has the group: its own, or, until that has an owner, the one
    /// under which its addresses stand here already (its oldest Service went, or the group was split).
    fn ownership<'m>(&'m self, group: &'m Group) -> Option<Ownership<'m>> {
        if let Some(owner) = self.held(&group.lease) {
            return Some(owner);
        }
        if self.held_elsewhere(&group.lease) {
            return None;
        }
        self.group_addresses(group)
            .filter_map(|vip| self.own.get(&vip))
            .find(|lease| ***lease != group.lease)
            .and_then(|lease| self.held(lease))
            .map(|owner| Ownership {
                current: false,
                ..owner
            })
    }

    fn group_addresses<'g>(&'g self, group: &'g Group) -> impl Iterator<Item = IpAddr> + 'g {
        group
            .services
            .iter()
            .filter_map(|service| self.cluster.requests.get(service))
            .flat_map(|request| request.addresses.iter().copied())
    }

    /// A group whose Lease changed its name is left to the owner under the old name for a moment.
    fn courtesy(&self, group: &Group, desired: &mut Desired) {
        let mut courtesy = self.model.courtesies.contains(&group.lease);
        for vip in self.group_addresses(group) {
            if let Some(before) = self.model.lease_of.get(&vip) {
                courtesy |= *before != group.lease && self.may_be_held_elsewhere(before);
            }
            desired.lease_of.insert(vip, group.lease.clone());
        }
        if courtesy && !self.held_elsewhere(&group.lease) {
            desired.courtesies.insert(group.lease.clone());
        }
    }

    fn contest(
        &self,
        group: &Group,
        standing: Standing,
        partial: bool,
        desired: &Desired,
    ) -> ContestWish {
        let retry = self.model.config.lease.retry_period;
        let reluctant = standing == Standing::Reluctant;
        let hesitation = if reluctant || (partial && !group.global) {
            retry * 2
        } else if desired.courtesies.contains(&group.lease) {
            retry
        } else {
            Duration::ZERO
        };
        ContestWish {
            hesitation,
            reluctant,
        }
    }

    /// Facts that only this node can know are told only where nobody else serves the group.
    fn tell(&self, group: &Group, facts: Vec<(ServiceKey, Fact)>, desired: &mut Desired) {
        let elsewhere = self.held_elsewhere(&group.lease);
        for (service, fact) in facts {
            if fact.scope == Scope::Cluster || !elsewhere {
                desired.fact(service, fact);
            }
        }
    }
}
