//! What other owners, other hosts and kube-vip have to do with a VIP.

use super::*;

fn released_by(node: &str) -> Acquisition {
    Acquisition::Released {
        by: Some(format!("{node}_speaker")),
    }
}

#[test]
fn a_vip_that_the_predecessor_did_not_announce_is_asked_for() {
    let mut world = World::new();
    world.seen(LEASE, Some("node1_speaker"));
    world.service("web", VIP);
    world.drain();
    world.acquired(LEASE, released_by("node1"));
    assert_eq!(world.drain(), ["ask 10.0.0.9"]);
    world.answered(VIP, None);
    assert!(
        world.standing().is_empty(),
        "node1 had left it to that host"
    );
}

#[test]
fn a_vip_that_another_than_the_predecessor_announced_is_asked_for() {
    let mut world = World::new();
    world.seen(LEASE, Some("node1_speaker"));
    served_by(&mut world, "node2");
    world.drain();
    world.acquired(LEASE, released_by("node1"));
    assert_eq!(world.drain(), ["ask 10.0.0.9"]);
}

#[test]
fn groups_joined_by_an_older_service_do_not_take_each_others_vips() {
    let mut world = World::new();
    world.serve("longer", "10.0.0.8");
    world.seen("kubevip-longest", Some("node1_speaker"));
    world.service("longest", VIP);
    world.drain();
    world.service("web", "10.0.0.8,10.0.0.9");
    world.pass(secs(1));
    assert_eq!(
        world.standing(),
        ["10.0.0.8"],
        "kubevip-web has no owner yet"
    );
    assert!(!world.drain().iter().any(|l| l.starts_with("ask")));
    world.acquired(LEASE, Acquisition::Created);
    assert!(world.drain().contains(&format!("ask {VIP}")));
    world.clear(VIP);
    assert_eq!(world.standing(), ["10.0.0.8", VIP]);
}

#[test]
fn a_status_that_kube_vip_wrote_on_this_node_is_left_alone() {
    let mut world = World::new();
    world.service_with("web", VIP, |service| {
        let annotations = service.metadata.annotations.as_mut().unwrap();
        annotations.insert(
            "kube-vip.io/loadbalancerIPs".to_owned(),
            "0.0.0.0".to_owned(),
        );
        annotations.insert("kube-vip.io/vipHost".to_owned(), "node0".to_owned());
    });
    assert_eq!(world.drain(), ["tell web NotYetSupported"]);
}

#[test]
fn kube_vips_hold_on_a_lease_that_a_member_names_keeps_us_away() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.service_with("younger", "10.0.0.9", |service| {
        let annotations = service.metadata.annotations.as_mut().unwrap();
        annotations.insert("kube-vip.io/leaseName".to_owned(), "shop/common".to_owned());
    });
    world.service_with("older", "10.0.0.9", |service| {
        let annotations = service.metadata.annotations.as_mut().unwrap();
        annotations.insert("kube-vip.io/leaseName".to_owned(), "shop/other".to_owned());
        service.metadata.creation_timestamp = None;
    });
    let common = crate::election::LeaseKey {
        namespace: "shop".to_owned(),
        name: "common".to_owned(),
    };
    world.apply(Event::Election(Notice::Seen {
        lease: common,
        holder: Some(crate::election::Holder {
            identity: "node1".to_owned(),
            live: true,
            renewed: true,
        }),
    }));
    world.settle();
    assert!(world.standing().is_empty());
}

#[test]
fn a_conflict_that_lasts_is_told_once() {
    let mut world = World::new();
    world.service("web", VIP);
    world.acquired(LEASE, Acquisition::Created);
    let mut told = 0;
    for _ in 0..6 {
        world.answered(VIP, None);
        told += count(&mut world, "tell web AddressConflict");
        world.pass(secs(61));
        told += count(&mut world, "tell web AddressConflict");
    }
    assert_eq!(told, 1);
}

fn count(world: &mut World, what: &str) -> usize {
    world.drain().iter().filter(|line| *line == what).count()
}

#[test]
fn an_address_that_the_kernel_refuses_costs_the_other_one_nothing() {
    let mut world = World::new();
    world.kernel_refuses = Some(ip("fd00::9"));
    world.service("web", "10.0.0.9,fd00::9");
    world.clear(VIP);
    world.clear("fd00::9");
    world.acquired(LEASE, Acquisition::Created);
    world.drain();
    world.pass(secs(600));
    let log = world.drain();
    assert_eq!(world.standing(), [VIP]);
    let disturbed = |l: &&String| l.starts_with("silence") || l.starts_with("retire");
    assert_eq!(log.iter().filter(disturbed).count(), 0, "{log:?}");
    let told = log.iter().filter(|l| l.ends_with("AddressFailed")).count();
    assert_eq!(told, 1, "{log:?}");
}

#[test]
fn an_address_without_a_place_costs_the_other_one_nothing() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.service("web", "10.0.0.9,10.0.0.254");
    world.pass(secs(60));
    assert_eq!(world.standing(), [VIP], "the other is the gateway's");
    let log = world.drain();
    assert!(!log.iter().any(|l| l.starts_with("silence")), "{log:?}");
}

#[test]
fn a_global_owner_without_any_place_lets_another_have_it() {
    let mut world = global();
    world.acquired("plndr-svcs-lock", Acquisition::Created);
    world.service_with("web", VIP, |service| {
        let annotations = service.metadata.annotations.as_mut().unwrap();
        annotations.insert("kube-vip.io/serviceInterface".to_owned(), "eth9".to_owned());
    });
    let log = world.drain();
    assert!(
        log.contains(&"retire plndr-svcs-lock".to_owned()),
        "{log:?}"
    );
    assert_eq!(log.last().unwrap(), "contend plndr-svcs-lock after 4s");
}

#[test]
fn a_stop_tries_a_failed_removal_again_within_its_budget() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.kernel_fails = true;
    world.model.stopping = true;
    world.settle();
    assert_eq!(world.contending(), [LEASE], "it still protects the address");
    world.kernel_fails = false;
    world.pass(Duration::from_millis(300));
    assert!(world.model.is_withdrawn());
}

#[test]
fn a_service_made_anew_under_its_name_is_told_anew() {
    let mut world = World::new();
    world.service("web", "web.example.org");
    assert_eq!(world.drain(), ["tell web NotSupported"]);
    world.apply(Event::Service(crate::runtime::informer::Delta::Delete(
        std::sync::Arc::new(crate::speaker::testing::service_object("web", "")),
    )));
    world.service("web", "web.example.org");
    assert_eq!(world.drain(), ["tell web NotSupported"]);
}
