//! What the monitor knows and what it has told: the differences, coalesced. Pure.
//!
//! Reports go in as fast as the kernel sends them; events come out as fast as the receiver takes
//! them. Between the two nothing piles up but the names of what changed, so memory is bounded by
//! the number of links and addresses, and a link that goes up in four messages is one event.

use std::collections::{HashSet, VecDeque};

use super::{
    decode::{self, Report},
    link::{AddressKey, DefaultRoute, LinkEvent, LinkIndex, Snapshot},
};

/// What may differ between the two states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Subject {
    Everything,
    Link(LinkIndex),
    Address(AddressKey),
    DefaultRoutes,
}

#[derive(Debug, Default)]
pub(super) struct Tracker {
    known: Snapshot,
    told: Snapshot,
    /// In the order of the first change.
    changed: VecDeque<Subject>,
    queued: HashSet<Subject>,
    routes_in_doubt: bool,
}

impl Tracker {
    /// Takes the state of everything as the kernel has dumped it.
    pub(super) fn handle_snapshot(&mut self, all: Snapshot) {
        self.known = all;
        self.changed.clear();
        self.queued.clear();
        self.routes_in_doubt = false;
        self.note(Subject::Everything);
    }

    pub(super) fn handle_report(&mut self, report: Report) {
        match report {
            Report::Link(link) => {
                // IPv4 routes vanish without a word when their link goes down.
                self.routes_in_doubt |= !link.up;
                self.note(Subject::Link(link.index));
                self.known.links.insert(link.index, link);
            }
            Report::LinkGone(index) => {
                self.routes_in_doubt = true;
                self.note(Subject::Link(index));
                self.known.apply(&LinkEvent::LinkGone(index));
            }
            Report::Address(address) => {
                self.note(Subject::Address(address.key()));
                self.known.addresses.insert(address.key(), address);
            }
            Report::AddressGone(key) => {
                // And with the address that they prefer as source. VIPs are never that.
                let removed = self.known.addresses.remove(&key);
                self.routes_in_doubt |= removed.is_none_or(|address| !address.marked);
                self.note(Subject::Address(key));
            }
            Report::DefaultRoutes(_) | Report::DefaultRouteGone => self.routes_in_doubt = true,
        }
    }

    /// The default routes have to be read again. Notifications alone do not tell: of several
    /// next hops one may be gone, and some changes are silent.
    pub(super) fn routes_in_doubt(&self) -> bool {
        self.routes_in_doubt
    }

    /// The routes are being read; later reports raise new doubt.
    pub(super) fn begin_routes(&mut self) {
        self.routes_in_doubt = false;
    }

    pub(super) fn handle_default_routes(&mut self, mut routes: Vec<DefaultRoute>) {
        decode::sort(&mut routes);
        self.known.default_routes = routes;
        self.note(Subject::DefaultRoutes);
    }

    /// Whether [`Self::poll_event`] may have something to say.
    pub(super) fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The next difference; applying all of them makes the receiver's state equal to ours.
    pub(super) fn poll_event(&mut self) -> Option<LinkEvent> {
        while let Some(subject) = self.changed.pop_front() {
            self.queued.remove(&subject);
            if let Some(event) = self.difference(subject) {
                self.told.apply(&event);
                return Some(event);
            }
        }
        None
    }

    fn difference(&self, subject: Subject) -> Option<LinkEvent> {
        match subject {
            Subject::Everything => Some(LinkEvent::Resync(self.known.clone())),
            Subject::Link(index) => {
                match (self.known.links.get(&index), self.told.links.get(&index)) {
                    (Some(now), before) if Some(now) != before => {
                        Some(LinkEvent::Link(now.clone()))
                    }
                    (None, Some(_)) => Some(LinkEvent::LinkGone(index)),
                    _ => None,
                }
            }
            Subject::Address(key) => {
                let (now, before) = (
                    self.known.addresses.get(&key),
                    self.told.addresses.get(&key),
                );
                match (now, before) {
                    (Some(now), before) if Some(now) != before => {
                        Some(LinkEvent::Address(now.clone()))
                    }
                    (None, Some(_)) => Some(LinkEvent::AddressGone(key)),
                    _ => None,
                }
            }
            Subject::DefaultRoutes => (self.known.default_routes != self.told.default_routes)
                .then(|| LinkEvent::DefaultRoutes(self.known.default_routes.clone())),
        }
    }

    fn note(&mut self, subject: Subject) {
        // A pending resync will tell it anyway.
        if !self.queued.contains(&Subject::Everything) && self.queued.insert(subject) {
            self.changed.push_back(subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::link::{Link, LinkAddress};

    fn link(index: u32, up: bool) -> Link {
        Link {
            index: LinkIndex(index),
            name: format!("link{index}"),
            alias: None,
            mac: None,
            parent: None,
            loopback: false,
            up,
            carrier: up,
            mtu: 1500,
        }
    }

    fn address(last: u8, marked: bool) -> LinkAddress {
        LinkAddress {
            link: LinkIndex(2),
            address: [192, 0, 2, last].into(),
            prefix_len: 32,
            marked,
            usable: true,
            deprecated: true,
        }
    }

    /// A tracker that has told its first resync.
    fn settled() -> Tracker {
        let mut tracker = Tracker::default();
        tracker.handle_snapshot(Snapshot::default());
        assert_eq!(
            tracker.poll_event(),
            Some(LinkEvent::Resync(Snapshot::default()))
        );
        tracker
    }

    #[test]
    fn several_messages_about_one_link_are_one_event() {
        let mut tracker = settled();
        for up in [false, false, true, true] {
            tracker.handle_report(Report::Link(link(2, up)));
        }
        assert_eq!(tracker.poll_event(), Some(LinkEvent::Link(link(2, true))));
        assert_eq!(tracker.poll_event(), None);
        tracker.handle_report(Report::Link(link(2, true)));
        assert_eq!(
            tracker.poll_event(),
            None,
            "nothing that we show has changed"
        );
    }

    #[test]
    fn a_renewed_address_is_no_event_and_one_that_came_and_went_neither() {
        let mut tracker = settled();
        tracker.handle_report(Report::Address(address(1, true)));
        assert_eq!(
            tracker.poll_event(),
            Some(LinkEvent::Address(address(1, true)))
        );
        tracker.handle_report(Report::Address(address(1, true)));
        tracker.handle_report(Report::Address(address(2, true)));
        tracker.handle_report(Report::AddressGone(address(2, true).key()));
        assert_eq!(tracker.poll_event(), None);
        assert!(!tracker.routes_in_doubt());
    }

    #[test]
    fn a_link_that_is_gone_takes_its_addresses_with_it() {
        let mut tracker = settled();
        tracker.handle_report(Report::Link(link(2, true)));
        tracker.handle_report(Report::Address(address(1, true)));
        while tracker.poll_event().is_some() {}
        tracker.handle_report(Report::LinkGone(LinkIndex(2)));
        assert_eq!(
            tracker.poll_event(),
            Some(LinkEvent::LinkGone(LinkIndex(2)))
        );
        tracker.handle_report(Report::AddressGone(address(1, true).key()));
        assert_eq!(tracker.poll_event(), None);
    }

    #[test]
    fn routes_are_in_doubt_after_what_the_kernel_does_not_report() {
        for report in [
            Report::Link(link(2, false)),
            Report::LinkGone(LinkIndex(2)),
            Report::AddressGone(address(1, false).key()),
            Report::DefaultRouteGone,
        ] {
            let mut tracker = settled();
            tracker.handle_report(report);
            assert!(tracker.routes_in_doubt());
        }
    }

    #[test]
    fn a_resync_swallows_what_waits_behind_it() {
        let mut tracker = settled();
        tracker.handle_report(Report::Link(link(2, true)));
        let mut all = Snapshot::default();
        all.links.insert(LinkIndex(3), link(3, true));
        tracker.handle_snapshot(all.clone());
        tracker.handle_report(Report::Link(link(4, true)));
        all.links.insert(LinkIndex(4), link(4, true));
        assert_eq!(tracker.poll_event(), Some(LinkEvent::Resync(all)));
        assert_eq!(tracker.poll_event(), None);
    }
}
