use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::{LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::time::timeout;

use super::*;
use crate::net::{
    link::{AddressKey, Link, LinkIndex, Snapshot, VipAddress},
    testing::{Namespace, raw},
};

/// What a receiver knows by following the events.
struct Follower {
    events: mpsc::Receiver<LinkEvent>,
    state: Snapshot,
    seen: Vec<LinkEvent>,
}

impl Follower {
    /// Starts a monitor and waits for its first event.
    async fn start() -> Self {
        let (sender, events) = mpsc::channel(16);
        tokio::spawn(run(sender));
        let mut follower = Self {
            events,
            state: Snapshot::default(),
            seen: Vec::new(),
        };
        assert!(matches!(follower.next().await, LinkEvent::Resync(_)));
        follower
    }

    async fn next(&mut self) -> LinkEvent {
        let event = timeout(Duration::from_secs(8), self.events.recv())
            .await
            .expect("an event comes in time")
            .expect("the monitor runs");
        self.state.apply(&event);
        self.seen.push(event.clone());
        event
    }

    async fn until(&mut self, reached: impl Fn(&Snapshot) -> bool) {
        while !reached(&self.state) {
            self.next().await;
        }
    }

    fn link(&self, name: &str) -> &Link {
        let found = self.state.links.values().find(|l| l.name == name);
        found.expect("the link is known")
    }
}

fn named<'a>(state: &'a Snapshot, name: &str) -> Option<&'a Link> {
    state.links.values().find(|l| l.name == name)
}

fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    if let Some(namespace) = Namespace::new() {
        namespace.run(test);
    }
}

async fn change(link: rtnetlink::LinkMessageBuilder<LinkUnspec>) {
    raw().link().change(link.build()).execute().await.unwrap();
}

async fn veth() {
    let pair = LinkVeth::new("one", "two").build();
    raw().link().add(pair).execute().await.unwrap();
}

#[test]
fn a_link_is_followed_from_its_making_to_its_end() {
    in_namespace(|| async {
        let mut follower = Follower::start().await;
        assert!(follower.link("lo").loopback);
        assert_eq!(follower.link("lo").mac, None);
        veth().await;
        follower
            .until(|s| named(s, "two").is_some() && named(s, "one").is_some())
            .await;
        let one = follower.link("one").clone();
        assert!(!one.up && !one.carrier && !one.loopback && one.mac.is_some());
        assert_eq!(one.parent, Some(follower.link("two").index));

        let index = one.index.0;
        change(LinkUnspec::new_with_index(index).up()).await;
        follower
            .until(|s| named(s, "one").is_some_and(|l| l.up))
            .await;
        assert!(!follower.link("one").carrier, "the other end is down");
        change(LinkUnspec::new_with_name("two").up()).await;
        follower
            .until(|s| named(s, "one").is_some_and(Link::is_running))
            .await;
        change(LinkUnspec::new_with_name("two").down()).await;
        follower
            .until(|s| named(s, "one").is_some_and(|l| l.up && !l.carrier))
            .await;

        change(LinkUnspec::new_with_index(index).alias("a mark")).await;
        follower
            .until(|s| named(s, "one").is_some_and(|l| l.alias.as_deref() == Some("a mark")))
            .await;
        change(LinkUnspec::new_with_index(index).address(vec![2, 0, 0, 0, 0, 9])).await;
        follower
            .until(|s| {
                named(s, "one")
                    .and_then(|l| l.mac)
                    .is_some_and(|m| m.0[5] == 9)
            })
            .await;
        change(LinkUnspec::new_with_index(index).down()).await;
        change(LinkUnspec::new_with_index(index).name("renamed".to_owned())).await;
        follower
            .until(|s| named(s, "renamed").is_some_and(|l| l.index.0 == index))
            .await;
        raw().link().del(index).execute().await.unwrap();
        follower.until(|s| s.links.len() == 1).await;
    });
}

#[test]
fn messages_that_change_nothing_make_no_event() {
    in_namespace(|| async {
        veth().await;
        let mut follower = Follower::start().await;
        for name in ["one", "two"] {
            change(LinkUnspec::new_with_name(name).up()).await;
        }
        follower
            .until(|s| named(s, "one").is_some_and(Link::is_running))
            .await;
        follower
            .until(|s| named(s, "two").is_some_and(Link::is_running))
            .await;
        let mut last = None;
        for event in &follower.seen {
            if let LinkEvent::Link(link) = event {
                assert_ne!(last.as_ref(), Some(link), "{:?}", follower.seen);
                last = Some(link.clone());
            }
        }
    });
}

#[test]
fn a_port_that_leaves_its_bridge_stays_a_link() {
    in_namespace(|| async {
        veth().await;
        let bridge = LinkBridge::new("bridge").up().build();
        raw().link().add(bridge).execute().await.unwrap();
        let mut follower = Follower::start().await;
        let bridge = follower.link("bridge").index.0;
        change(LinkUnspec::new_with_name("one").controller(bridge)).await;
        change(LinkUnspec::new_with_name("one").up()).await;
        follower
            .until(|s| named(s, "one").is_some_and(|l| l.up))
            .await;
        change(LinkUnspec::new_with_name("one").nocontroller()).await;
        change(LinkUnspec::new_with_name("one").down()).await;
        follower
            .until(|s| named(s, "one").is_some_and(|l| !l.up))
            .await;
        assert!(
            !follower
                .seen
                .iter()
                .any(|e| matches!(e, LinkEvent::LinkGone(_)))
        );
    });
}

#[test]
fn addresses_come_stay_while_renewed_and_go_by_themselves() {
    in_namespace(|| async {
        veth().await;
        for name in ["one", "two"] {
            change(LinkUnspec::new_with_name(name).up()).await;
        }
        let mut follower = Follower::start().await;
        let link = follower.link("one").index;
        let key = |address: IpAddr, prefix_len| AddressKey {
            link,
            address,
            prefix_len,
        };
        let v4 = key(Ipv4Addr::new(192, 0, 2, 7).into(), 32);
        let v6 = key(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7).into(), 128);
        let vips = [v4, v6].map(|key| VipAddress {
            key,
            lifetime: Some(Duration::from_secs(1)),
        });
        let (netlink, connection) = Netlink::connect().unwrap();
        tokio::spawn(connection);
        for result in netlink.ensure_addresses(&vips).await {
            result.unwrap();
        }
        follower
            .until(|s| [v4, v6].iter().all(|k| s.addresses.contains_key(k)))
            .await;
        for key in [v4, v6] {
            let address = &follower.state.addresses[&key];
            assert!(address.marked && address.usable && address.deprecated);
        }
        let told = follower.seen.len();
        for result in netlink.ensure_addresses(&vips).await {
            result.unwrap();
        }
        follower
            .until(|s| ![v4, v6].iter().any(|k| s.addresses.contains_key(k)))
            .await;
        let about = |event: &LinkEvent| matches!(event, LinkEvent::Address(a) if a.marked);
        let renewals = follower.seen[told..].iter().filter(|e| about(e)).count();
        assert_eq!(renewals, 0, "a renewal changes nothing that we show");
    });
}

#[test]
fn default_routes_are_known_best_first_and_their_silent_end_too() {
    in_namespace(|| async {
        veth().await;
        for name in ["one", "two"] {
            change(LinkUnspec::new_with_name(name).up()).await;
        }
        let mut follower = Follower::start().await;
        let (one, two) = (follower.link("one").index, follower.link("two").index);
        let gateway = Ipv4Addr::new(192, 0, 2, 1);
        let address = raw().address();
        address
            .add(one.0, Ipv4Addr::new(192, 0, 2, 2).into(), 24)
            .execute()
            .await
            .unwrap();
        let route = |link: LinkIndex, metric| {
            RouteMessageBuilder::<Ipv4Addr>::new()
                .output_interface(link.0)
                .priority(metric)
        };
        let routes = raw().route();
        routes.add(route(two, 200).build()).execute().await.unwrap();
        routes
            .add(route(one, 100).gateway(gateway).build())
            .execute()
            .await
            .unwrap();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new()
            .output_interface(two.0)
            .build();
        routes.add(v6).execute().await.unwrap();
        follower.until(|s| s.default_routes.len() == 3).await;
        let known = &follower.state.default_routes;
        assert_eq!((known[0].link, known[0].metric), (one, 100));
        assert_eq!(known[0].gateway, Some(gateway.into()));
        assert_eq!((known[1].link, known[1].metric), (two, 200));
        assert!(known[2].ipv6 && known[2].link == two);
        // The kernel takes IPv4 routes away with their link and says nothing.
        change(LinkUnspec::new_with_index(one.0).down()).await;
        follower
            .until(|s| !s.default_routes.iter().any(|r| r.link == one))
            .await;
    });
}

/// Adds and removes addresses until tens of thousands of notifications are out; one stays.
async fn flood(link: LinkIndex) -> AddressKey {
    let vips: Vec<VipAddress> = (0..2000_u32)
        .map(|n| VipAddress {
            key: AddressKey {
                link,
                address: Ipv4Addr::from(0x0a00_0000 + n).into(),
                prefix_len: 32,
            },
            lifetime: None,
        })
        .collect();
    let keys: Vec<AddressKey> = vips.iter().map(|v| v.key).collect();
    let (netlink, connection) = Netlink::connect().unwrap();
    tokio::spawn(connection);
    for _ in 0..10 {
        netlink.ensure_addresses(&vips).await;
        netlink.remove_addresses(&keys[..1999]).await;
    }
    keys[1999]
}

#[test]
fn a_flood_beyond_a_slow_receiver_ends_in_the_true_state() {
    in_namespace(|| async {
        veth().await;
        let mut follower = Follower::start().await;
        // Nobody receives meanwhile: sixteen events fit into the channel.
        let stays = flood(follower.link("one").index).await;
        follower
            .until(|s| s.addresses.len() == 1 && s.addresses.contains_key(&stays))
            .await;
    });
}

#[test]
fn a_monitor_that_was_stopped_during_a_flood_resyncs() {
    let Some(namespace) = Namespace::new() else {
        return;
    };
    let inside = namespace.clone();
    namespace.run(|| async move {
        veth().await;
        let mut follower = Follower::start().await;
        let link = follower.link("one").index;
        // Waiting for another thread stops this one, and the monitor with it.
        let stays = inside.run(move || flood(link));
        follower
            .until(|s| s.addresses.len() == 1 && s.addresses.contains_key(&stays))
            .await;
        let resyncs = follower
            .seen
            .iter()
            .filter(|e| matches!(e, LinkEvent::Resync(_)));
        assert!(resyncs.count() > 1, "the receive buffer has overrun");
    });
}

#[test]
fn the_monitor_ends_when_nobody_listens() {
    in_namespace(|| async {
        let (sender, events) = mpsc::channel(1);
        let task = tokio::spawn(run(sender));
        drop(events);
        let ended = timeout(Duration::from_secs(5), task).await;
        assert_eq!(ended.expect("it ends").expect("without panic"), Ok(()));
    });
}
