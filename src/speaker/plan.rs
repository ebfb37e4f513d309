//! From what should be and what is to the next steps: pure.
//!
//! The order is what keeps two nodes from answering for one VIP: *stop announcing → remove the
//! address → release the Lease* and *address on the link → announce → write the status*. A step that
//! depends on another's outcome is planned when that outcome has been seen, never before. Steps that
//! are under way are not planned again, and planning the result of a plan yields nothing.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    announcer::{LinkFacts, Question},
    desired::Desired,
    facts::{Fact, FactKey},
    model::Model,
    observed::Phase,
    selection::ServiceKey,
    status::{Patch, StatusWish, patch},
    wire::Wire,
};
use crate::{
    election::LeaseKey,
    k8s::names,
    net::link::{AddressKey, LinkAddress, LinkIndex, VipAddress},
};

/// Facts that are true for a moment in ordinary life are told after this time.
pub const FACT_SETTLES: Duration = Duration::from_secs(3);

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Stop announcing.
    Silence {
        link: LinkIndex,
        vip: IpAddr,
    },
    /// Stop asking.
    Forget {
        link: LinkIndex,
        vip: IpAddr,
    },
    Remove(AddressKey),
    /// Give up a Lease whose addresses are gone; delete it if nobody will want it again.
    Retire {
        lease: LeaseKey,
        delete: bool,
    },
    Contend {
        lease: LeaseKey,
        hesitation: Duration,
        reluctant: bool,
    },
    /// Have an announcer on this link, knowing this.
    Attend(LinkFacts),
    Ask {
        link: LinkIndex,
        vip: IpAddr,
        question: Question,
    },
    Add(VipAddress, LeaseKey),
    Announce {
        link: LinkIndex,
        vip: IpAddr,
        rival: bool,
    },
    /// No announcer is needed there any more.
    Leave(LinkIndex),
    Write {
        service: ServiceKey,
        uid: String,
        wish: StatusWish,
        patch: Patch,
    },
    Tell {
        key: FactKey,
        uid: String,
        fact: Fact,
    },
}

/// Plans the steps that can be taken now, in order.
pub fn plan(model: &Model, desired: &Desired, now: Instant) -> Vec<Action> {
    let mut actions = Vec::new();
    silence(model, desired, &mut actions);
    remove(model, desired, now, &mut actions);
    retire(model, desired, &mut actions);
    contend(model, desired, &mut actions);
    attend(model, desired, &mut actions);
    ask(model, desired, &mut actions);
    add(model, desired, now, &mut actions);
    announce(model, desired, &mut actions);
    leave(model, desired, &mut actions);
    write(model, desired, now, &mut actions);
    tell(model, desired, now, &mut actions);
    actions
}

fn silence(model: &Model, desired: &Desired, actions: &mut Vec<Action>) {
    let wanted = |link: LinkIndex, vip: IpAddr| {
        desired
            .vips
            .get(&vip)
            .is_some_and(|wish| wish.address.key.link == link)
    };
    for (link, vip) in model.observed.announcing.keys().copied() {
        if !wanted(link, vip) {
            actions.push(Action::Silence { link, vip });
        }
    }
    for (link, vip) in model.observed.asking.keys().copied() {
        if !desired.questions.contains_key(&(link, vip)) {
            actions.push(Action::Forget { link, vip });
        }
    }
}

/// Everything that carries our mark or was put there by this process, and is not wanted: the sweep of
/// what a predecessor left is the same rule, except that it waits where the election may still say
/// that it is ours.
fn remove(model: &Model, desired: &Desired, now: Instant, actions: &mut Vec<Action>) {
    let observed = &model.observed;
    let marked = observed
        .links
        .addresses
        .values()
        .filter(|a| a.marked)
        .map(LinkAddress::key);
    let ours: BTreeSet<AddressKey> = observed.own.keys().copied().chain(marked).collect();
    for key in ours {
        let wanted = desired
            .vips
            .get(&key.address)
            .is_some_and(|wish| wish.address.key == key);
        let resumable =
            !observed.own.contains_key(&key) && desired.resumable.contains(&key.address);
        let waits = observed
            .failures
            .get(&key)
            .is_some_and(|failure| now < failure.retry_at);
        if !wanted && !resumable && !waits && !observed.kernel.contains_key(&key) {
            actions.push(Action::Remove(key));
        }
    }
}

fn retire(model: &Model, desired: &Desired, actions: &mut Vec<Action>) {
    let observed = &model.observed;
    for (lease, contest) in &observed.contests {
        if contest.phase == Phase::Retiring || desired.contests.contains_key(lease) {
            continue;
        }
        if !observed.own.values().any(|under| under == lease) {
            let delete = !model.stopping && is_orphan(desired, lease);
            actions.push(Action::Retire {
                lease: lease.clone(),
                delete,
            });
        }
    }
}

/// The Lease of one Service that elects nobody any more: the Service is gone, asks for no VIP, or
/// shares the owner of an older one.
fn is_orphan(desired: &Desired, lease: &LeaseKey) -> bool {
    lease.name.starts_with(names::kube_vip::LEASE_PREFIX)
        && !desired.lease_of.values().any(|used| used == lease)
}

fn contend(model: &Model, desired: &Desired, actions: &mut Vec<Action>) {
    for (lease, wish) in &desired.contests {
        let is_new = match model.observed.contests.get(lease) {
            None => true,
            Some(contest) => {
                contest.phase == Phase::Contending
                    && (contest.hesitation != wish.hesitation
                        || contest.reluctant != wish.reluctant)
            }
        };
        if is_new {
            actions.push(Action::Contend {
                lease: lease.clone(),
                hesitation: wish.hesitation,
                reluctant: wish.reluctant,
            });
        }
    }
}

fn attend(model: &Model, desired: &Desired, actions: &mut Vec<Action>) {
    for (link, facts) in &desired.links {
        if model.observed.announcers.get(link) != Some(facts) {
            actions.push(Action::Attend(facts.clone()));
        }
    }
}

fn ask(model: &Model, desired: &Desired, actions: &mut Vec<Action>) {
    for ((link, vip), question) in &desired.questions {
        let attended = desired.links.contains_key(link);
        let needs_verdict = desired.wire.get(vip).is_some_and(Wire::is_asking);
        let asked = model
            .observed
            .asking
            .get(&(*link, *vip))
            .is_some_and(|a| a.question == *question && !(a.judged && needs_verdict));
        if attended && !asked {
            actions.push(Action::Ask {
                link: *link,
                vip: *vip,
                question: *question,
            });
        }
    }
}

fn add(model: &Model, desired: &Desired, now: Instant, actions: &mut Vec<Action>) {
    let observed = &model.observed;
    for wish in desired.vips.values() {
        let key = wish.address.key;
        let waits = observed
            .failures
            .get(&key)
            .is_some_and(|failure| now < failure.retry_at);
        if !model.is_on_link(&key) && !observed.kernel.contains_key(&key) && !waits {
            actions.push(Action::Add(wish.address, wish.lease.clone()));
        }
    }
}

fn announce(model: &Model, desired: &Desired, actions: &mut Vec<Action>) {
    let observed = &model.observed;
    for (vip, wish) in &desired.vips {
        let key = wish.address.key;
        let ready = model.is_on_link(&key)
            && !observed.kernel.contains_key(&key)
            && desired.links.contains_key(&key.link);
        if ready && observed.announcing.get(&(key.link, *vip)) != Some(&wish.rival) {
            actions.push(Action::Announce {
                link: key.link,
                vip: *vip,
                rival: wish.rival,
            });
        }
    }
}

fn leave(model: &Model, desired: &Desired, actions: &mut Vec<Action>) {
    for link in model.observed.announcers.keys() {
        if !desired.links.contains_key(link) {
            actions.push(Action::Leave(*link));
        }
    }
}

fn write(model: &Model, desired: &Desired, now: Instant, actions: &mut Vec<Action>) {
    for (service, wish) in &desired.statuses {
        let Some(state) = model.services.get(service) else {
            continue;
        };
        let patch = patch(&state.served, wish);
        let allowed = model
            .observed
            .writes
            .get(service)
            .is_none_or(|write| write.allows(wish, now));
        if patch != Patch::default() && allowed {
            actions.push(Action::Write {
                service: service.clone(),
                uid: state.uid.clone(),
                wish: wish.clone(),
                patch,
            });
        }
    }
}

fn tell(model: &Model, desired: &Desired, now: Instant, actions: &mut Vec<Action>) {
    for (key, fact) in &desired.facts {
        let known = model.observed.facts.get(key);
        let told = known.is_some_and(|known| known.told);
        let settled =
            known.is_some_and(|known| now.saturating_duration_since(known.since) >= FACT_SETTLES);
        let uid = model
            .services
            .get(&key.0)
            .map(|state| state.uid.clone())
            .unwrap_or_default();
        if !told && (!fact.settles || settled) {
            actions.push(Action::Tell {
                key: key.clone(),
                uid,
                fact: fact.clone(),
            });
        }
    }
}

#[cfg(test)]
mod tests;
