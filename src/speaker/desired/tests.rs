use std::time::Duration;

use k8s_openapi::api::core::v1::Service;

use crate::{
    config::{ConflictPolicy, ElectionScope, SpeakerConfig},
    election::{Acquisition, Notice},
    net::link::{AddressKey, LinkEvent, LinkIndex},
    speaker::{
        event::Event,
        model::Source,
        testing::{World, config, host_address, ip, link},
    },
};

mod neighbours;
mod restart;

const VIP: &str = "10.0.0.9";
const LEASE: &str = "kubevip-web";

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn global() -> World {
    World::with(SpeakerConfig {
        election_scope: ElectionScope::Global,
        ..config()
    })
}

/// `web` asks for the VIP, and its status says that this node announces it.
fn served_by(world: &mut World, node: &str) {
    let node = node.to_owned();
    world.service_with("web", VIP, |service| {
        let annotations = service.metadata.annotations.get_or_insert_default();
        annotations.insert("kube-vip.io/vipHost".to_owned(), node);
        service.status = serde_json::from_value(serde_json::json!({
            "loadBalancer": {"ingress": [{"ip": VIP, "ports": [{"port": 80, "protocol": "TCP"}]}]}
        }))
        .unwrap();
    });
}

fn speaker(node: &str) -> Acquisition {
    Acquisition::Released {
        by: Some(format!("{node}_speaker")),
    }
}

#[test]
fn a_new_vip_is_asked_for_beside_the_election_and_announced_when_both_are_done() {
    let mut world = World::new();
    world.service("web", VIP);
    assert_eq!(
        world.drain(),
        ["contend kubevip-web", "attend eth0", "ask 10.0.0.9"]
    );
    world.clear(VIP);
    assert_eq!(world.drain(), Vec::<String>::new());
    world.acquired(LEASE, Acquisition::Created);
    assert_eq!(
        world.drain(),
        [
            "add 10.0.0.9",
            "announce 10.0.0.9",
            "write web",
            "tell web VIPAnnounced"
        ]
    );
    world.pass(secs(2));
    assert_eq!(world.drain(), ["forget 10.0.0.9"]);
}

#[test]
fn the_election_may_also_be_the_first_to_end() {
    let mut world = World::new();
    world.service("web", VIP);
    world.acquired(LEASE, Acquisition::Created);
    world.drain();
    world.clear(VIP);
    assert_eq!(world.standing(), [VIP]);
}

#[test]
fn a_clear_verdict_that_waited_too_long_for_the_election_is_asked_for_again() {
    let mut world = World::new();
    world.service("web", VIP);
    world.clear(VIP);
    world.pass(secs(3));
    world.drain();
    world.acquired(LEASE, Acquisition::Created);
    assert_eq!(world.standing(), Vec::<String>::new());
    world.clear(VIP);
    assert_eq!(world.standing(), [VIP]);
}

#[test]
fn nothing_is_asked_or_announced_while_another_holds_the_lease() {
    let mut world = World::new();
    world.seen(LEASE, Some("node1_speaker"));
    world.service("web", VIP);
    assert_eq!(
        world.drain(),
        ["contend kubevip-web", "attend eth0"],
        "an announcer stands ready"
    );
}

#[test]
fn after_a_speakers_release_the_vip_is_announced_at_once() {
    let mut world = World::new();
    world.seen(LEASE, Some("node1_speaker"));
    served_by(&mut world, "node1");
    world.drain();
    world.acquired(LEASE, speaker("node1"));
    assert_eq!(
        world.drain(),
        [
            "add 10.0.0.9",
            "announce 10.0.0.9",
            "write web",
            "tell web VIPAnnounced"
        ]
    );
}

#[test]
fn after_an_expiry_the_wire_is_asked_and_after_kube_vip_until_it_is_silent() {
    for (how, question) in [
        (
            Acquisition::Expired {
                by: "node1_speaker".to_owned(),
            },
            "ask 10.0.0.9",
        ),
        (
            Acquisition::Released {
                by: Some("node1".to_owned()),
            },
            "ask until silent 10.0.0.9",
        ),
        (Acquisition::Released { by: None }, "ask 10.0.0.9"),
    ] {
        let mut world = World::new();
        world.seen(LEASE, Some("node1"));
        world.service("web", VIP);
        world.drain();
        world.acquired(LEASE, how);
        assert_eq!(world.drain(), [question]);
        world.clear(VIP);
        assert_eq!(world.standing(), [VIP]);
    }
}

#[test]
fn a_lost_lease_withdraws_the_vip_and_goes_on_contending() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.lost(LEASE);
    let log = world.drain();
    assert_eq!(log[..2], ["silence 10.0.0.9", "remove 10.0.0.9"], "{log:?}");
    assert_eq!(world.contending(), [LEASE]);
}

#[test]
fn a_deleted_service_leaves_nothing_and_its_lease_is_deleted() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.delete_service("web");
    assert_eq!(
        world.drain(),
        [
            "silence 10.0.0.9",
            "remove 10.0.0.9",
            "leave 2",
            "retire and delete kubevip-web"
        ]
    );
}

#[test]
fn a_service_that_is_no_longer_ours_is_cleared() {
    for change in [
        (|s: &mut Service| s.spec.as_mut().unwrap().type_ = Some("ClusterIP".to_owned()))
            as fn(&mut Service),
        |s| s.spec.as_mut().unwrap().load_balancer_class = Some("other".to_owned()),
        |s| {
            let annotations = s.metadata.annotations.as_mut().unwrap();
            annotations.insert("kube-vip.io/ignore".to_owned(), "true".to_owned());
        },
    ] {
        let mut world = World::new();
        world.serve("web", VIP);
        world.service_with("web", VIP, |service| {
            let annotations = service.metadata.annotations.as_mut().unwrap();
            annotations.insert("kube-vip.io/vipHost".to_owned(), "node0".to_owned());
            change(service);
        });
        let log = world.drain();
        assert!(
            world.standing().is_empty() && world.contending().is_empty(),
            "{log:?}"
        );
        assert!(log.contains(&"clear web".to_owned()), "{log:?}");
    }
}

#[test]
fn shutdown_removes_every_address_before_it_releases_the_leases() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.serve("api", "fd00::9");
    world.model.stopping = true;
    world.settle();
    let log = world.drain();
    let position = |what: &str| log.iter().rposition(|l| l.starts_with(what)).unwrap();
    assert!(position("silence") < log.iter().position(|l| l.starts_with("remove")).unwrap());
    assert!(position("remove") < log.iter().position(|l| l.starts_with("retire")).unwrap());
    assert!(world.model.is_withdrawn(), "{log:?}");
}

#[test]
fn services_on_one_address_have_one_owner_and_the_last_takes_the_address_along() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.service("api-on-it", VIP);
    assert_eq!(
        world.contending(),
        [LEASE],
        "the older Service names the Lease"
    );
    world.pass(secs(5));
    world.drain();
    world.delete_service("web");
    assert_eq!(world.standing(), [VIP]);
    assert_eq!(
        world.contending(),
        ["kubevip-api-on-it", LEASE],
        "old until the new one is ours"
    );
    world.acquired("kubevip-api-on-it", Acquisition::Created);
    let log = world.drain();
    assert_eq!(world.contending(), ["kubevip-api-on-it"]);
    assert!(
        !log.iter()
            .any(|l| l.starts_with("remove") || l.starts_with("silence")),
        "{log:?}"
    );
    world.delete_service("api-on-it");
    assert!(world.standing().is_empty());
}

#[test]
fn when_the_name_of_a_lease_changes_the_others_let_the_owner_go_first() {
    let mut world = World::new();
    world.seen(LEASE, Some("node1_speaker"));
    world.service("web", VIP);
    world.service("api-on-it", VIP);
    world.drain();
    world.delete_service("web");
    assert_eq!(
        world.drain(),
        [
            "retire and delete kubevip-web",
            "contend kubevip-api-on-it after 2s"
        ]
    );
    world.seen("kubevip-api-on-it", Some("node1_speaker"));
    assert_eq!(world.drain(), ["contend kubevip-api-on-it"]);
}

#[test]
fn if_another_wins_the_new_lease_the_owner_under_the_old_one_withdraws() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.service("api-on-it", VIP);
    world.pass(secs(5));
    world.delete_service("web");
    world.seen("kubevip-api-on-it", Some("node1_speaker"));
    assert!(world.standing().is_empty());
    assert_eq!(world.contending(), ["kubevip-api-on-it"]);
}

#[test]
fn a_local_service_follows_its_endpoints() {
    let mut world = World::new();
    world.service_with("web", VIP, |service| {
        service.spec.as_mut().unwrap().external_traffic_policy = Some("Local".to_owned());
    });
    assert_eq!(world.drain(), Vec::<String>::new());
    world.pass(secs(4));
    assert_eq!(world.drain(), ["tell web NoCandidate"]);
    world.endpoints("web", &["node0"]);
    world.clear(VIP);
    world.acquired(LEASE, Acquisition::Created);
    assert_eq!(world.standing(), [VIP]);
    world.endpoints("web", &["node1"]);
    assert!(world.standing().is_empty() && world.contending().is_empty());
}

#[test]
fn a_node_that_is_not_ready_hands_over_once_and_comes_back_only_if_nobody_else_does() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.node_ready("node0", false);
    let log = world.drain();
    assert!(log.contains(&"retire kubevip-web".to_owned()), "{log:?}");
    assert_eq!(log.last().unwrap(), "contend kubevip-web after 4s");
    world.seen(LEASE, None);
    world.acquired(
        LEASE,
        Acquisition::Released {
            by: Some("node0_speaker".to_owned()),
        },
    );
    assert_eq!(world.standing(), [VIP], "nobody else came");
    world.pass(secs(60));
    assert_eq!(world.standing(), [VIP], "and there it stays");
    world.node_ready("node0", true);
    world.node_ready("node0", false);
    assert!(world.standing().is_empty(), "a new failure is a new reason");
}

#[test]
fn a_link_without_carrier_gives_the_vip_up() {
    let mut world = World::new();
    world.serve("web", VIP);
    let mut down = link(2, "eth0");
    down.carrier = false;
    world.link(LinkEvent::Link(down));
    assert!(world.standing().is_empty() && world.contending().is_empty());
    world.link(LinkEvent::Link(link(2, "eth0")));
    assert_eq!(world.contending(), [LEASE]);
}

#[test]
fn an_address_that_somebody_removed_is_put_back() {
    let mut world = World::new();
    world.serve("web", VIP);
    let key = *world.model.observed.own.keys().next().unwrap();
    world.link(LinkEvent::AddressGone(key));
    assert_eq!(world.drain(), ["add 10.0.0.9"]);
}

#[test]
fn what_a_killed_predecessor_left_is_swept_unless_it_is_wanted() {
    let mut world = World::new();
    world.serve("web", VIP);
    for vip in ["10.0.0.50/32", "fd00::50/128"] {
        let mut left = host_address(2, vip);
        left.marked = true;
        world.link(LinkEvent::Address(left));
    }
    assert_eq!(world.drain(), ["remove 10.0.0.50", "remove fd00::50"]);
    assert_eq!(world.standing(), [VIP]);
}

#[test]
fn a_lease_that_comes_long_after_the_verdict_asks_again_once() {
    let mut world = World::new();
    world.service("web", VIP);
    world.clear(VIP);
    world.drain();
    world.pass(secs(30));
    assert_eq!(
        world.drain(),
        ["forget 10.0.0.9"],
        "nobody asks for what may never be ours"
    );
    world.acquired(LEASE, Acquisition::Created);
    assert_eq!(world.drain(), ["ask 10.0.0.9"]);
    world.clear(VIP);
    assert_eq!(world.standing(), [VIP]);
}

#[test]
fn a_lease_that_comes_just_when_the_verdict_lapses_asks_again() {
    let mut world = World::new();
    world.service("web", VIP);
    world.clear(VIP);
    world.drain();
    world.now += secs(1);
    world.acquired(LEASE, Acquisition::Created);
    assert_eq!(world.drain(), ["ask 10.0.0.9"]);
    world.clear(VIP);
    assert_eq!(world.standing(), [VIP]);
}

#[test]
fn a_foreign_host_that_answers_keeps_the_vip_away_until_it_is_silent() {
    let mut world = World::new();
    world.service("web", VIP);
    world.acquired(LEASE, Acquisition::Created);
    world.drain();
    world.answered(VIP, None);
    assert_eq!(world.drain(), ["tell web AddressConflict"]);
    world.pass(secs(6));
    assert_eq!(world.drain(), ["ask 10.0.0.9"]);
    world.clear(VIP);
    assert_eq!(world.standing(), [VIP]);
}

#[test]
fn with_the_warn_policy_the_vip_is_announced_often_and_the_conflict_is_said() {
    let mut world = World::with(SpeakerConfig {
        conflict: ConflictPolicy::Warn,
        ..config()
    });
    world.service("web", VIP);
    world.acquired(LEASE, Acquisition::Created);
    world.answered(VIP, None);
    let log = world.drain();
    assert!(
        log.contains(&"announce 10.0.0.9 often".to_owned()),
        "{log:?}"
    );
    assert!(
        log.contains(&"tell web AddressConflict".to_owned()),
        "{log:?}"
    );
}

#[test]
fn nodes_that_answer_are_waited_for_and_then_warned_about() {
    let mut world = World::new();
    world.service("web", VIP);
    world.acquired(LEASE, Acquisition::Created);
    world.drain();
    world.answered(VIP, Some("10.0.0.2"));
    assert_eq!(world.drain(), ["ask until silent 10.0.0.9"]);
    world.answered(VIP, Some("10.0.0.2"));
    let log = world.drain();
    assert!(log.contains(&"tell web NodesAnswer".to_owned()), "{log:?}");
    assert_eq!(world.standing(), [VIP]);
}

#[test]
fn a_node_that_claims_a_vip_late_takes_it_from_nobody() {
    let mut world = World::new();
    world.service("web", VIP);
    world.acquired(LEASE, Acquisition::Created);
    world.clear(VIP);
    world.drain();
    world.answered(VIP, Some("10.0.0.2"));
    assert_eq!(world.standing(), [VIP]);
    assert_eq!(world.drain(), ["announce 10.0.0.9 often"]);
    world.pass(secs(2));
    assert_eq!(world.drain(), ["announce 10.0.0.9"]);
}

#[test]
fn a_global_kube_vip_that_still_answers_is_respected() {
    let mut world = World::new();
    world.seen("plndr-svcs-lock", Some("node1"));
    world.service("web", VIP);
    world.acquired(LEASE, Acquisition::Created);
    world.answered(VIP, Some("10.0.0.2"));
    world.pass(secs(10));
    assert!(world.standing().is_empty());
    world.clear(VIP);
    assert_eq!(world.standing(), [VIP]);
}

#[test]
fn kube_vips_lease_on_any_service_of_the_group_keeps_us_away() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.service("api-on-it", VIP);
    world.seen("kubevip-api-on-it", Some("node1"));
    assert!(world.standing().is_empty());
    world.seen("kubevip-api-on-it", None);
    assert_eq!(world.contending(), [LEASE]);
}

#[test]
fn addresses_of_nodes_are_never_vips() {
    let mut world = World::new();
    world.service("web", "10.0.0.2,10.0.0.9");
    assert!(
        world
            .drain()
            .contains(&"tell web AddressRefused".to_owned())
    );
    world.clear(VIP);
    world.acquired(LEASE, Acquisition::Created);
    assert_eq!(world.standing(), [VIP], "the other address is served");
}

#[test]
fn an_address_that_the_kernel_refuses_is_given_up_after_two_tries() {
    let mut world = World::new();
    world.kernel_fails = true;
    world.service("web", VIP);
    world.clear(VIP);
    world.acquired(LEASE, Acquisition::Created);
    world.pass(Duration::from_millis(500));
    let log = world.drain();
    assert!(
        log.contains(&"tell web AddressFailed".to_owned()),
        "{log:?}"
    );
    assert!(
        log.contains(&"retire kubevip-web".to_owned()),
        "another node may do better: {log:?}"
    );
}

#[test]
fn the_global_owner_contends_also_without_services_and_owns_all_of_them() {
    let mut world = global();
    assert_eq!(world.contending(), ["plndr-svcs-lock"]);
    world.acquired("plndr-svcs-lock", Acquisition::Created);
    world.service("web", VIP);
    world.service("api", "fd00::9");
    assert_eq!(world.contending(), ["plndr-svcs-lock"]);
    world.clear(VIP);
    world.clear("fd00::9");
    assert_eq!(world.standing(), [VIP, "fd00::9"]);
    world.node_ready("node0", false);
    assert!(world.standing().is_empty());
}

#[test]
fn a_status_that_somebody_else_changes_is_repaired() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.pass(secs(5));
    world.service_with("web", VIP, |service| {
        service.status = serde_json::from_value(serde_json::json!({
            "loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}
        }))
        .unwrap();
    });
    assert_eq!(world.drain(), ["write web"]);
}

#[test]
fn disabled_service_updates_write_nothing() {
    let mut world = World::with(SpeakerConfig {
        disable_service_updates: true,
        ..config()
    });
    world.service("web", VIP);
    world.clear(VIP);
    world.acquired(LEASE, Acquisition::Created);
    assert_eq!(world.standing(), [VIP]);
    assert!(!world.drain().iter().any(|l| l.starts_with("write")));
}

#[test]
fn a_foreign_claim_is_reported_for_a_while_and_then_forgotten() {
    let mut world = World::new();
    world.serve("web", VIP);
    world.claimed(VIP);
    assert_eq!(world.drain(), ["tell web AddressConflict"]);
    world.pass(secs(90));
    assert_eq!(world.standing(), [VIP]);
    world.claimed(VIP);
    assert_eq!(
        world.drain(),
        ["tell web AddressConflict"],
        "a new claim is new"
    );
}
