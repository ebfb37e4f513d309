//! From everything known to what should be: pure.
//!
//! For each group of Services: does this node contend for its Lease; if it holds it, which VIPs stand
//! on which link, which may not, and which must be asked for first; and what the Services should say.
//! The result never depends on what is under way; `plan` finds the steps.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    announcer::{LinkFacts, Question},
    candidates::Cluster,
    facts::{Fact, FactKey, Reason},
    model::Model,
    placement::Ground,
    selection::{ServiceKey, VipRequest},
    status::{Ingress, StatusWish},
    wire::Wire,
};
use crate::{
    election::LeaseKey,
    net::link::{LinkIndex, MacAddress, Snapshot, VipAddress},
};

mod group;
mod vips;

/// The suffix of every speaker's identity in an election; kube-vip's is the bare node name.
pub const IDENTITY_SUFFIX: &str = "_speaker";
/// What should be.
#[derive(Debug, Default)]
pub struct Desired {
    pub vips: BTreeMap<IpAddr, DesiredVip>,
    pub questions: BTreeMap<(LinkIndex, IpAddr), Question>,
    /// Where VIPs that this node may come to own have their place. Announcers stand ready there: to open
    /// one when a VIP is to be asked for takes longer than its first answer.
    pub places: BTreeSet<LinkIndex>,
    /// The links to listen on, with what their announcers need to know.
    pub links: BTreeMap<LinkIndex, LinkFacts>,
    pub contests: BTreeMap<LeaseKey, ContestWish>,
    pub statuses: BTreeMap<ServiceKey, StatusWish>,
    pub facts: BTreeMap<FactKey, Fact>,
    pub wire: BTreeMap<IpAddr, Wire>,
    pub lease_of: BTreeMap<IpAddr, LeaseKey>,
    pub courtesies: BTreeSet<LeaseKey>,
    /// VIPs that a predecessor of this process may have left here, and that may still be ours.
    pub resumable: BTreeSet<IpAddr>,
    /// When to decide again even if nothing happens.
    pub wake: Option<Instant>,
}

/// A VIP that stands on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredVip {
    pub address: VipAddress,
    pub lease: LeaseKey,
    /// Somebody else answers for it, or may: announce often.
    pub rival: bool,
}

/// How to stand for a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContestWish {
    pub hesitation: Duration,
    pub reluctant: bool,
}

/// Decides. `None` while the first full lists are missing, or after a pause of which the consequences
/// are not known yet: then nothing is done and nothing swept.
pub fn desired(model: &Model, now: Instant) -> Option<Desired> {
    let mut desired = Desired::default();
    if model.stopping {
        // What could not be removed is tried again within the budget.
        desired.wake = model.observed.failures.values().map(|f| f.retry_at).min();
        desired.wake = desired.wake.filter(|at| *at > now);
        return Some(desired);
    }
    if !model.missing.is_empty() || model.doubt.is_some() {
        return None;
    }
    let requests: BTreeMap<ServiceKey, &VipRequest> = model
        .services
        .iter()
        .filter_map(|(key, state)| Some((key.clone(), state.selection.request.as_ref()?)))
        .collect();
    let decision = Decision {
        model,
        now,
        cluster: Cluster::new(
            &requests,
            &model.endpoints,
            &model.nodes,
            &model.config.node_name,
        ),
        ground: Ground::new(&model.observed.links, |key| {
            model.observed.own.contains_key(key)
        }),
        identity: format!("{}{IDENTITY_SUFFIX}", model.config.node_name),
        own: own_addresses(model),
        node_of: node_addresses(model),
    };
    for group in decision.groups() {
        decision.group(&group, &mut desired);
    }
    decision.services(&mut desired);
    decision.links(&mut desired);
    decision.wake(&mut desired);
    Some(desired)
}

/// The MACs of links with addresses of their own, which the veth ends of Pods have not.
fn host_macs(links: &Snapshot, ground: &Ground<'_>) -> Vec<MacAddress> {
    let addressed: BTreeSet<LinkIndex> = ground
        .own()
        .iter()
        .filter(|a| !matches!(a.address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .map(|a| a.link)
        .collect();
    addressed
        .iter()
        .filter_map(|index| links.links.get(index)?.mac)
        .filter(|mac| *mac != MacAddress::ZERO)
        .collect()
}

fn own_addresses(model: &Model) -> BTreeMap<IpAddr, &LeaseKey> {
    let own = model.observed.own.iter();
    own.map(|(key, lease)| (key.address, lease)).collect()
}

/// Every Node's addresses, by address.
fn node_addresses(model: &Model) -> BTreeMap<IpAddr, &str> {
    model
        .nodes
        .iter()
        .flat_map(|(name, node)| node.addresses.iter().map(|a| (*a, name.as_str())))
        .collect()
}

/// What one decision works with; the parts are in `group` and `vips`.
struct Decision<'a> {
    model: &'a Model,
    now: Instant,
    cluster: Cluster<'a>,
    node_of: BTreeMap<IpAddr, &'a str>,
    ground: Ground<'a>,
    /// Ours, in elections.
    identity: String,
    /// Addresses that this process put on a link, and the Lease they stand under.
    own: BTreeMap<IpAddr, &'a LeaseKey>,
}

impl Decision<'_> {
    /// Statuses, and what the Services' authors are told.
    fn services(&self, desired: &mut Desired) {
        let config = &self.model.config;
        for (service, state) in &self.model.services {
            for fact in &state.selection.facts {
                desired.fact(service.clone(), fact.clone());
            }
            let wish = match &state.selection.request {
                Some(request) => self.status(request, desired, service),
                // Only what this process served, and nobody took over: kube-vip on this node writes the
                // same name, and repairs nothing.
                None => (state.served.vip_host.as_deref() == Some(&config.node_name)
                    && self.model.observed.served.contains(service))
                .then_some(StatusWish::Clear),
            };
            if let Some(wish) = wish.filter(|_| !config.disable_service_updates) {
                desired.statuses.insert(service.clone(), wish);
            }
        }
    }

    /// The status of a Service whose VIPs stand here, once all of them are announced or known to be
    /// impossible; until then what the Service says is left alone.
    fn status(
        &self,
        request: &VipRequest,
        desired: &mut Desired,
        service: &ServiceKey,
    ) -> Option<StatusWish> {
        if !self.cluster.serves_here(service) {
            return None;
        }
        let mut ingress = Vec::new();
        let mut announced = Vec::new();
        for vip in &request.addresses {
            let Some(wish) = desired.vips.get(vip) else {
                if desired
                    .wire
                    .get(vip)
                    .is_some_and(|w| w.question(self.now).is_some())
                {
                    return None;
                }
                continue;
            };
            let key = wish.address.key;
            if !self
                .model
                .observed
                .announcing
                .contains_key(&(key.link, *vip))
            {
                return None;
            }
            ingress.push(Ingress::new(*vip, &request.ports));
            announced.push((*vip, key.link));
            if let Some((answer, _)) = self.present_rival(&key) {
                desired.fact(service.clone(), self.rival(*vip, answer));
            }
        }
        if ingress.is_empty() {
            return None;
        }
        let here = &self.model.config.node_name;
        for (vip, link) in announced {
            let name = self
                .model
                .observed
                .links
                .links
                .get(&link)
                .map_or("?", |l| l.name.as_str());
            let message = format!("{vip} is announced by node {here} on link {name}");
            desired.fact(
                service.clone(),
                Fact::normal(Reason::Announced, message).seen_here(),
            );
        }
        Some(StatusWish::Serve {
            vip_host: here.clone(),
            ingress,
        })
    }

    /// The links with VIPs, questions, or a place for VIPs.
    fn links(&self, desired: &mut Desired) {
        let used: BTreeSet<LinkIndex> = desired
            .vips
            .values()
            .map(|vip| vip.address.key.link)
            .chain(desired.questions.keys().map(|(link, _)| *link))
            .chain(desired.places.iter().copied())
            .collect();
        for index in used {
            if let Some(failure) = self.model.observed.announcer_failures.get(&index)
                && self.now < failure.retry_at
            {
                desired.wake_at(failure.retry_at);
            } else if let Some(facts) = self.link_facts(index) {
                desired.links.insert(index, facts);
            }
        }
    }

    fn link_facts(&self, index: LinkIndex) -> Option<LinkFacts> {
        let links = &self.model.observed.links;
        let link = links.links.get(&index)?;
        let on_link: Vec<_> = self.ground.on(index).collect();
        let link_local = on_link.iter().find_map(|a| match a.address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() && a.usable => Some(v6),
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        });
        let here = &self.model.config.node_name;
        let neighbours = self
            .node_of
            .iter()
            .filter(|(_, node)| *node != here)
            .map(|(address, _)| *address)
            .filter(|address| {
                on_link.iter().any(|a| {
                    ipnet::IpNet::new(a.address, a.prefix_len)
                        .is_ok_and(|net| net.contains(address))
                })
            })
            .collect();
        Some(LinkFacts {
            index,
            name: link.name.clone(),
            mac: link.mac?,
            link_local,
            neighbours,
            host_macs: host_macs(links, &self.ground),
        })
    }

    /// Retries and settling facts.
    fn wake(&self, desired: &mut Desired) {
        let observed = &self.model.observed;
        let failures = observed.failures.values().map(|failure| failure.retry_at);
        let writes = desired.statuses.keys().filter_map(|service| {
            let write = observed.writes.get(service)?;
            (!write.in_flight).then_some(write.not_before)
        });
        let facts = desired
            .facts
            .iter()
            .filter(|(_, fact)| fact.settles)
            .filter_map(|(key, _)| observed.facts.get(key))
            .filter(|told| !told.told)
            .map(|told| told.since + super::plan::FACT_SETTLES);
        let next = failures
            .chain(writes)
            .chain(facts)
            .filter(|at| *at > self.now)
            .min();
        if let Some(at) = next {
            desired.wake_at(at);
        }
        if desired
            .facts
            .iter()
            .any(|(key, f)| f.settles && !observed.facts.contains_key(key))
        {
            desired.wake_at(self.now + super::plan::FACT_SETTLES);
        }
    }
}

impl Desired {
    fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn fact(&mut self, service: ServiceKey, fact: Fact) {
        self.facts
            .insert((service, fact.reason, fact.message.clone()), fact);
    }
}

#[cfg(test)]
mod tests;
