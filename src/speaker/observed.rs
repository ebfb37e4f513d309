//! What was seen of the node, the wire and the elections, and what is under way.
//!
//! The model notes every action that was handed over ([`Observed::started`]) and how it ended, so that
//! a plan never repeats a step, and a step that failed is planned again after a pause.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    announcer::{LinkFacts, Question},
    facts::FactKey,
    plan::Action,
    selection::ServiceKey,
    status::StatusWish,
    wire::Answer,
};
use crate::{
    election::{Acquisition, Holder, LeaseKey},
    k8s, net,
    net::link::{AddressKey, LinkAddress, LinkIndex, Snapshot},
};

/// Pauses after failures of the kernel, of a writer or of an announcer: doubling between these.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// A written status is expected back from the watch within this time; then it is judged again.
const WRITE_SETTLES: Duration = Duration::from_secs(1);
/// Writes of one status that follow each other within this time are a fight with another writer:
/// each waits longer than the one before.
const RIVAL_WRITER: Duration = Duration::from_secs(60);

/// Our part in one election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contest {
    pub phase: Phase,
    pub hesitation: Duration,
    /// Soft conditions failed here when the Lease was contended for (and perhaps acquired).
    pub reluctant: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    Contending,
    Held {
        how: Acquisition,
        at: Instant,
    },
    /// Given up; the release is under way.
    Retiring,
}

/// A repeated failure and when to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub attempts: u32,
    pub retry_at: Instant,
    pub message: String,
}

/// The writes of one Service's status.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// What was written last, or is being written.
    pub wish: StatusWish,
    pub in_flight: bool,
    /// The same wish is not written again before this, nor any after a failure.
    pub not_before: Instant,
    pub failed: bool,
    attempts: u32,
    last: Instant,
}

impl Write {
    fn start(before: Option<&Self>, wish: StatusWish, now: Instant) -> Self {
        let attempts = before
            .filter(|write| now.saturating_duration_since(write.last) < RIVAL_WRITER)
            .map_or(0, |write| write.attempts);
        Self {
            wish,
            in_flight: true,
            not_before: now,
            failed: false,
            attempts,
            last: now,
        }
    }

    /// `patience`: the server asked to be left alone for so long.
    fn end(&mut self, failed: bool, patience: Duration, now: Instant) {
        self.in_flight = false;
        self.failed = failed;
        self.attempts = self.attempts.saturating_add(1);
        self.last = now;
        let (first, most) = RETRY;
        let pause = first
            .saturating_mul(1 << (self.attempts - 1).min(10))
            .min(most);
        self.not_before = now
            + if failed {
                pause.max(patience.min(most))
            } else {
                pause.max(WRITE_SETTLES)
            };
    }

    /// May `wish` be written now?
    pub fn allows(&self, wish: &StatusWish, now: Instant) -> bool {
        !self.in_flight && (now >= self.not_before || (!self.failed && self.wish != *wish))
    }
}

/// A question that was put to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asking {
    pub question: Question,
    /// It was answered by silence. Late answers still come, but no second verdict: who needs one
    /// asks anew.
    pub judged: bool,
}

/// What was seen, and what is under way.
#[derive(Debug, Default)]
pub struct Observed {
    pub links: Snapshot,
    /// Addresses with an operation that the kernel has not answered yet; true while being added.
    pub kernel: BTreeMap<AddressKey, bool>,
    /// Addresses that this process put on a link, by the Lease they stand under.
    pub own: BTreeMap<AddressKey, LeaseKey>,
    pub failures: BTreeMap<AddressKey, Failure>,
    pub announcers: BTreeMap<LinkIndex, LinkFacts>,
    pub announcer_failures: BTreeMap<LinkIndex, Failure>,
    /// VIPs being announced; true while somebody else may answer too.
    pub announcing: BTreeMap<(LinkIndex, IpAddr), bool>,
    pub asking: BTreeMap<(LinkIndex, IpAddr), Asking>,
    pub contests: BTreeMap<LeaseKey, Contest>,
    /// Leases of which it was seen once whether anybody holds them.
    pub known: BTreeSet<LeaseKey>,
    /// Every Lease's holder, as last seen.
    pub holders: BTreeMap<LeaseKey, Holder>,
    pub writes: BTreeMap<ServiceKey, Write>,
    /// Facts that hold: since when, and whether they were told.
    pub facts: BTreeMap<FactKey, ToldFact>,
    /// Services that this process served, until their status is cleared.
    pub served: BTreeSet<ServiceKey>,
    /// Who last claimed a VIP that stands here, and when.
    pub rivals: BTreeMap<(LinkIndex, IpAddr), (Answer, Instant)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToldFact {
    pub since: Instant,
    pub told: bool,
}

impl Observed {
    /// Notes an action that was handed to its executor.
    pub fn started(&mut self, action: &Action, now: Instant) {
        match action {
            Action::Silence { link, vip } => {
                self.announcing.remove(&(*link, *vip));
                self.rivals.remove(&(*link, *vip));
            }
            Action::Forget { link, vip } => {
                self.asking.remove(&(*link, *vip));
            }
            Action::Remove(key) => {
                self.kernel.insert(*key, false);
            }
            Action::Add(address, lease) => {
                self.kernel.insert(address.key, true);
                self.own.insert(address.key, lease.clone());
            }
            Action::Announce { link, vip, rival } => {
                self.announcing.insert((*link, *vip), *rival);
            }
            Action::Ask {
                link,
                vip,
                question,
            } => {
                let asking = Asking {
                    question: *question,
                    judged: false,
                };
                self.asking.insert((*link, *vip), asking);
            }
            Action::Attend(facts) => {
                self.announcers.insert(facts.index, facts.clone());
            }
            Action::Leave(link) => {
                self.announcers.remove(link);
            }
            Action::Contend {
                lease,
                hesitation,
                reluctant,
            } => {
                let contest = self.contests.entry(lease.clone()).or_insert(Contest {
                    phase: Phase::Contending,
                    hesitation: *hesitation,
                    reluctant: *reluctant,
                });
                contest.hesitation = *hesitation;
                contest.reluctant = *reluctant;
            }
            Action::Retire { lease, .. } => {
                if let Some(contest) = self.contests.get_mut(lease) {
                    contest.phase = Phase::Retiring;
                }
            }
            Action::Write { service, wish, .. } => {
                let write = Write::start(self.writes.get(service), wish.clone(), now);
                self.writes.insert(service.clone(), write);
            }
            Action::Tell { key, .. } => {
                if let Some(fact) = self.facts.get_mut(key) {
                    fact.told = true;
                }
            }
        }
    }

    pub(super) fn forget_link(&mut self, link: LinkIndex) {
        self.announcers.remove(&link);
        self.announcing.retain(|(on, _), _| *on != link);
        self.asking.retain(|(on, _), _| *on != link);
        if !self.links.links.contains_key(&link) {
            self.own.retain(|key, _| key.link != link);
            self.failures.retain(|key, _| key.link != link);
        }
    }

    /// Returns whether anything is different from what was believed.
    pub(super) fn added(
        &mut self,
        key: AddressKey,
        result: Result<(), net::netlink::Error>,
        now: Instant,
    ) -> bool {
        let was_adding = self.kernel.get(&key) == Some(&true);
        if was_adding {
            self.kernel.remove(&key);
        }
        match result {
            Ok(()) => {
                let failed_before = self.failures.remove(&key).is_some();
                // The monitor will tell the same a moment later; waiting for it would cost that moment.
                if was_adding {
                    self.links.addresses.insert(key, as_marked(key));
                }
                was_adding || failed_before
            }
            Err(error) => {
                tracing::warn!(address = %key.address, link = %key.link, %error, "cannot put the VIP on the link");
                let on_link = self.links.addresses.contains_key(&key);
                if !on_link {
                    self.own.remove(&key);
                }
                let failure = Failure::after(self.failures.get(&key), error.to_string(), now);
                self.failures.insert(key, failure);
                true
            }
        }
    }

    pub(super) fn removed(
        &mut self,
        key: AddressKey,
        result: Result<(), net::netlink::Error>,
        now: Instant,
    ) {
        self.kernel.remove(&key);
        match result {
            Ok(()) => {
                self.own.remove(&key);
                self.failures.remove(&key);
                self.links.addresses.remove(&key);
            }
            Err(error) => {
                tracing::warn!(address = %key.address, link = %key.link, %error, "cannot remove the VIP from the link");
                let failure = Failure::after(self.failures.get(&key), error.to_string(), now);
                self.failures.insert(key, failure);
            }
        }
    }

    pub(super) fn written(
        &mut self,
        service: &ServiceKey,
        result: &Result<(), k8s::Error>,
        now: Instant,
    ) {
        let gone = matches!(result, Err(error) if error.class() == k8s::Class::NotFound);
        if let Err(error) = result
            && !gone
        {
            tracing::warn!(%service, %error, "cannot write the status");
        }
        if let Some(write) = self.writes.get_mut(service) {
            let patience = match result.as_ref().map_err(k8s::Error::class) {
                Err(k8s::Class::Retry { after }) => after.unwrap_or_default(),
                _ => Duration::ZERO,
            };
            write.end(result.is_err(), patience, now);
        }
    }
}

fn as_marked(key: AddressKey) -> LinkAddress {
    LinkAddress {
        link: key.link,
        address: key.address,
        prefix_len: key.prefix_len,
        marked: true,
        usable: true,
        deprecated: true,
    }
}

impl Failure {
    /// One more failure, and a longer pause.
    pub fn after(before: Option<&Self>, message: String, now: Instant) -> Self {
        let attempts = before
            .map_or(0, |failure| failure.attempts)
            .saturating_add(1);
        let (first, most) = RETRY;
        let pause = first.saturating_mul(1 << (attempts - 1).min(10)).min(most);
        Self {
            attempts,
            retry_at: now + pause,
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speaker::{
        event::{Event, Outcome},
        testing::World,
    };

    #[test]
    fn a_server_that_asks_for_patience_gets_it_and_no_more_than_the_longest_pause() {
        let start = crate::runtime::clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut write = Write::start(None, StatusWish::Clear, start);
        write.end(true, Duration::from_secs(4), start);
        assert!(!write.allows(&StatusWish::Clear, at(3)));
        assert!(write.allows(&StatusWish::Clear, at(4)));
        write.end(true, Duration::from_secs(3_600), start);
        assert!(write.allows(&StatusWish::Clear, at(30)));
    }

    #[test]
    fn the_end_of_a_write_to_a_deleted_service_does_not_end_that_to_its_successor() {
        let mut world = World::new();
        world.serve("web", "10.0.0.100");
        let service = ServiceKey::new("shop", "web");
        let start = world.now;
        let write = Write::start(None, StatusWish::Clear, start);
        world.model.observed.writes.insert(service.clone(), write);
        let mut written = |uid: &str| {
            let (service, uid) = (service.clone(), uid.to_owned());
            let result = Ok(());
            world.apply(Event::Outcome(Outcome::Written {
                service: service.clone(),
                uid,
                result,
            }));
            !world.model.observed.writes[&service].in_flight
        };
        assert!(!written("uid of its predecessor"));
        assert!(written("uid-web"));
    }
}
