use proptest::prelude::*;

use crate::{
    config::{ElectionScope, SpeakerConfig},
    election::Acquisition,
    net::link::{LinkEvent, LinkIndex},
    speaker::testing::{World, config, link},
};

/// What may happen to a speaker, in any order.
#[derive(Debug, Clone)]
enum Happening {
    Service { name: usize, vip: usize },
    Delete { name: usize },
    Endpoints { name: usize, here: bool },
    Acquired { contest: usize, how: usize },
    Lost { contest: usize },
    Elsewhere { contest: usize },
    Free { contest: usize },
    Clear { vip: usize },
    Answered { vip: usize, node: bool },
    Carrier(bool),
    Flush,
    Ready(bool),
    KernelFails(bool),
    Pass { ms: u64 },
}

const NAMES: [&str; 3] = ["a", "bb", "ccc"];
const VIPS: [&str; 3] = ["10.0.0.9", "fd00::9", "10.0.0.9,fd00::8"];
const ADDRESSES: [&str; 3] = ["10.0.0.9", "fd00::9", "fd00::8"];

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    prop_oneof![
        4 => (0..3_usize, 0..3_usize).prop_map(|(name, vip)| Service { name, vip }),
        2 => (0..3_usize).prop_map(|name| Delete { name }),
        1 => (0..3_usize, any::<bool>()).prop_map(|(name, here)| Endpoints { name, here }),
        6 => (0..4_usize, 0..4_usize).prop_map(|(contest, how)| Acquired { contest, how }),
        2 => (0..4_usize).prop_map(|contest| Lost { contest }),
        1 => (0..4_usize).prop_map(|contest| Elsewhere { contest }),
        1 => (0..4_usize).prop_map(|contest| Free { contest }),
        6 => (0..3_usize).prop_map(|vip| Clear { vip }),
        1 => (0..3_usize, any::<bool>()).prop_map(|(vip, node)| Answered { vip, node }),
        1 => any::<bool>().prop_map(Carrier),
        1 => Just(Flush),
        1 => any::<bool>().prop_map(Ready),
        1 => any::<bool>().prop_map(KernelFails),
        2 => (1..5_000_u64).prop_map(|ms| Pass { ms }),
    ]
}

fn happen(world: &mut World, happening: &Happening) {
    let contest = |world: &World, index: usize| {
        let contests = world.contending();
        contests.get(index % contests.len().max(1)).cloned()
    };
    match *happening {
        Happening::Service { name, vip } => world.service(NAMES[name], VIPS[vip]),
        Happening::Delete { name } => world.delete_service(NAMES[name]),
        Happening::Endpoints { name, here } => {
            world.endpoints(NAMES[name], if here { &["node0"] } else { &["node1"] });
        }
        Happening::Acquired {
            contest: index,
            how,
        } => {
            let how = match how {
                0 => Acquisition::Created,
                1 => Acquisition::Released {
                    by: Some("node1_speaker".to_owned()),
                },
                2 => Acquisition::Released {
                    by: Some("node1".to_owned()),
                },
                _ => Acquisition::Expired {
                    by: "node1_speaker".to_owned(),
                },
            };
            if let Some(lease) = contest(world, index) {
                world.acquired(&lease, how);
            }
        }
        Happening::Lost { contest: index } => {
            if let Some(lease) = contest(world, index) {
                world.lost(&lease);
            }
        }
        Happening::Elsewhere { contest: index } => {
            if let Some(lease) = contest(world, index) {
                world.lost(&lease);
                world.seen(&lease, Some("node1_speaker"));
            }
        }
        Happening::Free { contest: index } => {
            if let Some(lease) = contest(world, index) {
                world.seen(&lease, None);
            }
        }
        Happening::Clear { vip } => world.clear(ADDRESSES[vip]),
        Happening::Answered { vip, node } => {
            world.answered(ADDRESSES[vip], node.then_some("10.0.0.2"));
        }
        Happening::Carrier(up) => {
            let mut changed = link(2, "eth0");
            changed.carrier = up;
            world.link(LinkEvent::Link(changed));
        }
        Happening::Flush => {
            for key in world.model.observed.own.clone().into_keys() {
                world.link(LinkEvent::AddressGone(key));
            }
        }
        Happening::Ready(ready) => world.node_ready("node0", ready),
        Happening::KernelFails(fails) => world.kernel_fails = fails,
        Happening::Pass { ms } => world.pass(std::time::Duration::from_millis(ms)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The orders are checked at every action by the world; here: every plan settles, nothing stands
    /// without a held Lease, and when all Services are gone so is everything else.
    #[test]
    fn whatever_happens_plans_settle_and_nothing_is_left_behind(
        happenings in prop::collection::vec(happening(), 1..60),
        global in any::<bool>(),
    ) {
        let election_scope = if global { ElectionScope::Global } else { ElectionScope::Service };
        let mut world = World::with(SpeakerConfig { election_scope, ..config() });
        for one in happenings {
            happen(&mut world, &one);
            if !world.kernel_fails && world.model.observed.failures.is_empty() {
                for lease in world.model.observed.own.values() {
                    let contest = world.model.observed.contests.get(lease);
                    prop_assert!(contest.is_some(), "{lease} is nobody's, and an address stands under it");
                }
            }
        }
        world.kernel_fails = false;
        world.model.stopping = true;
        world.pass(std::time::Duration::from_secs(120));
        prop_assert!(world.model.is_withdrawn(), "{:?}", world.log);
        prop_assert_eq!(world.standing(), Vec::<String>::new());
        let links = &world.model.observed.links;
        prop_assert!(links.addresses.values().all(|a| !a.marked && a.link <= LinkIndex(2)));
    }
}
