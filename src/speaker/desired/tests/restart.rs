//! What takes its time: a process that begins or stood still, an election that is slow or moves on.

use super::*;

#[test]
fn a_restarted_owner_keeps_what_stands_without_asking() {
    let mut world = World::new();
    world.model.missing.insert(Source::Services);
    let mut left = host_address(2, "10.0.0.9/32");
    left.marked = true;
    world.link(LinkEvent::Address(left));
    assert_eq!(
        world.drain(),
        Vec::<String>::new(),
        "nothing is swept before the first lists"
    );
    world.seen(LEASE, Some("node0_speaker"));
    world.service("web", VIP);
    world.apply(Event::Service(crate::runtime::informer::Delta::Synced));
    world.settle();
    assert!(!world.drain().iter().any(|l| l.starts_with("ask")));
}

#[test]
fn after_a_standstill_nothing_is_put_back_before_the_election_has_answered() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.drain();
    world.model.doubt = Some(1);
    world.link(LinkEvent::AddressGone(AddressKey {
        link: LinkIndex(2),
        address: ip(VIP),
        prefix_len: 32,
    }));
    assert_eq!(world.drain(), Vec::<String>::new());
    world.lost(LEASE);
    world.apply(Event::Election(Notice::Confirmed { round: 0 }));
    assert_eq!(world.drain(), Vec::<String>::new(), "an older question");
    world.apply(Event::Election(Notice::Confirmed { round: 1 }));
    world.settle();
    assert!(!world.drain().iter().any(|l| l.starts_with("add")));
    assert!(world.standing().is_empty());
}

#[test]
fn what_a_predecessor_left_stays_until_the_election_says_whose_it_is() {
    let restarted = |holder: Option<&str>| {
        let mut world = World::new();
        world.model.missing.insert(Source::Services);
        let mut left = host_address(2, "10.0.0.9/32");
        left.marked = true;
        world.link(LinkEvent::Address(left));
        if holder.is_some() {
            world.seen(LEASE, holder);
        }
        world.service("web", VIP);
        world.apply(Event::Service(crate::runtime::informer::Delta::Synced));
        world.settle();
        world
    };
    let swept = |world: &mut World| world.drain().contains(&format!("remove {VIP}"));
    let mut unknown = restarted(None);
    assert!(!swept(&mut unknown));
    unknown.seen(LEASE, None);
    assert!(swept(&mut unknown));
    let mut ours = restarted(Some("node0_speaker"));
    assert!(!swept(&mut ours));
    ours.acquired(LEASE, Acquisition::Resumed);
    assert_eq!(ours.standing(), [VIP]);
    assert!(!swept(&mut ours));
    assert!(swept(&mut restarted(Some("node1_speaker"))));
}

#[test]
fn the_lease_of_a_service_that_comes_to_share_an_owner_is_deleted() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.seen(LEASE, Some("node0_speaker"));
    world.service("younger", "10.0.0.10");
    world.clear("10.0.0.10");
    world.acquired("kubevip-younger", Acquisition::Created);
    world.drain();
    world.service("younger", VIP);
    let log = world.drain();
    assert!(
        log.contains(&"retire and delete kubevip-younger".to_owned()),
        "{log:?}"
    );
    assert_eq!(world.standing(), [VIP]);
    assert_eq!(world.contending(), [LEASE]);
}

#[test]
fn a_group_whose_lease_changes_its_name_is_left_to_an_owner_that_was_not_seen_yet() {
    let mut world = World::new();
    world.service("web", VIP);
    world.service("younger", VIP);
    world.drain();
    world.delete_service("web");
    let log = world.drain();
    assert!(
        !log.contains(&"contend kubevip-younger".to_owned()),
        "at once: {log:?}"
    );
    assert_eq!(world.contending(), ["kubevip-younger"]);
}
