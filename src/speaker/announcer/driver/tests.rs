use std::{collections::BTreeMap, net::Ipv4Addr};

use futures_util::TryStreamExt;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourState};
use rtnetlink::LinkUnspec;

use super::*;
use crate::{
    net::{
        frame::Heard,
        link::{AddressKey, LinkIndex, MacAddress, VipAddress},
        netlink::Netlink,
        testing::{Namespace, Wire, eventually, raw},
    },
    speaker::announcer::{self, Question},
};

const VIP4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
const VIP6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7));
const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99);
const ELSEWHERE: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xee]);

/// What a busy machine may add to any time.
const SLACK: Duration = Duration::from_millis(100);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The other end of the announcer's link, with its own kernel.
struct Peer {
    announcer: Wire,
    wire: Wire,
    socket: PacketSocket,
    commands: mpsc::Sender<Command>,
    events: mpsc::Receiver<AnnouncerEvent>,
}

/// An announcer in a namespace, and a test in another.
fn with_announcer<F: Future<Output = ()>>(test: impl FnOnce(Peer) -> F + Send + 'static) {
    let (Some(east), Some(west)) = (Namespace::new(), Namespace::new()) else {
        return;
    };
    let (announcer, wire) = east.join(&west);
    let (commands, taken) = mpsc::channel(16);
    let (told, events) = mpsc::channel(16);
    let facts = facts(announcer);
    let settings = Settings {
        interval: Duration::from_secs(60),
        fence: open_fence(),
    };
    let task = east.spawn(move || run(facts, settings, taken, told));
    west.run(move || {
        let socket = PacketSocket::open(wire.index);
        test(Peer {
            announcer,
            wire,
            socket: socket.expect("the link exists"),
            commands,
            events,
        })
    });
    task.join().expect("the announcer ends with its commands");
}

fn open_fence() -> Fence {
    // As if proved long ahead.
    announcer::fence(clock::now() + Duration::from_secs(3600)).1
}

fn facts(announcer: Wire) -> LinkFacts {
    LinkFacts {
        index: announcer.index,
        name: "east".to_owned(),
        mac: announcer.mac,
        link_local: Some(LOCAL),
        neighbours: vec![NODE],
        host_macs: Vec::new(),
    }
}

impl Peer {
    async fn tell(&self, command: Command) {
        self.commands.send(command).await.expect("it runs");
    }

    async fn announce(&self, vip: IpAddr) {
        let predecessor_may_answer = false;
        self.tell(Command::Announce {
            vip,
            predecessor_may_answer,
        })
        .await;
    }

    async fn event(&mut self) -> AnnouncerEvent {
        let event = timeout(Duration::from_secs(5), self.events.recv()).await;
        event.expect("an event comes").expect("it runs")
    }

    /// What the announcer says about the VIPs for some time, and when, from the call on.
    async fn listen(&self, length: Duration) -> Vec<(Duration, Heard)> {
        let began = clock::now();
        let mut heard = Vec::new();
        let mut buffer = [0; 256];
        let listening = async {
            loop {
                let received = self.socket.recv(&mut buffer).await.expect("the link works");
                let Ok(said) = frame::parse(&buffer[..received]) else {
                    continue;
                };
                let about = said.claim().map(|claim| claim.address);
                if said.ethernet_source() == self.announcer.mac
                    && (about == Some(VIP4) || about == Some(VIP6))
                {
                    heard.push((clock::now() - began, said));
                }
            }
        };
        let _: Result<(), _> = timeout(length, listening).await;
        heard
    }

    /// Puts an address on this end.
    async fn hold(&self, address: IpAddr) {
        let (netlink, connection) = Netlink::connect().unwrap();
        tokio::spawn(connection);
        let key = AddressKey {
            link: self.wire.index,
            address,
            prefix_len: if address.is_ipv6() { 128 } else { 32 },
        };
        let address = VipAddress {
            key,
            lifetime: None,
        };
        netlink
            .ensure_addresses(&[address])
            .await
            .swap_remove(0)
            .unwrap();
    }

    async fn let_go(&self, address: IpAddr) {
        let (netlink, connection) = Netlink::connect().unwrap();
        tokio::spawn(connection);
        let key = AddressKey {
            link: self.wire.index,
            address,
            prefix_len: if address.is_ipv6() { 128 } else { 32 },
        };
        netlink
            .remove_addresses(&[key])
            .await
            .swap_remove(0)
            .unwrap();
    }

    /// Where this end's kernel would send frames for an address.
    async fn cached(&self, address: IpAddr) -> Option<MacAddress> {
        let entries: Vec<_> = raw()
            .neighbours()
            .get()
            .execute()
            .try_collect()
            .await
            .unwrap();
        let wanted = NeighbourAddress::from(address);
        let entry = entries.into_iter().find(|e| {
            e.attributes
                .contains(&NeighbourAttribute::Destination(wanted.clone()))
        })?;
        entry.attributes.iter().find_map(|a| match a {
            NeighbourAttribute::LinkLayerAddress(mac) => {
                <[u8; 6]>::try_from(mac.as_slice()).ok().map(MacAddress)
            }
            _ => None,
        })
    }
}

#[test]
fn the_burst_is_on_the_wire_when_it_is_due() {
    with_announcer(|mut peer| async move {
        peer.announce(VIP4).await;
        peer.announce(VIP6).await;
        let heard = peer.listen(ms(3300)).await;
        let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
        for (at, said) in &heard {
            let form = match said {
                Heard::ArpRequest { .. } => "request",
                Heard::ArpReply { .. } => "reply",
                Heard::NeighbourAdvertisement {
                    solicited,
                    overrides,
                    source,
                    ..
                } => {
                    assert!(!solicited && *overrides && *source == LOCAL);
                    "advertisement"
                }
                Heard::NeighbourSolicitation { .. } => panic!("nothing was asked: {said:?}"),
            };
            times.entry(form).or_default().push(*at);
        }
        println!("first frames after {:?}", heard.first().map(|(at, _)| *at));
        assert_eq!(times.len(), 3);
        for (form, times) in times {
            assert_eq!(times.len(), 5, "{form}: {times:?}");
            for (at, due) in times.iter().zip([0, 50, 250, 1100, 3000]) {
                let early = ms(due).saturating_sub(ms(5));
                assert!((early..ms(due) + SLACK).contains(at), "{form}: {times:?}");
            }
        }
        let link = peer.announcer.index;
        for vip in [VIP4, VIP6] {
            assert_eq!(
                peer.event().await,
                AnnouncerEvent::FirstAnnounced { link, vip }
            );
        }
    });
}

#[test]
fn caches_of_neighbours_move_at_once_also_young_entries() {
    with_announcer(|peer| async move {
        // A kernel without any address of its own takes nothing for gratuitous.
        peer.hold(NODE).await;
        for vip in [VIP4, VIP6] {
            raw()
                .neighbours()
                .add(peer.wire.index.0, vip)
                .link_layer_address(&ELSEWHERE.0)
                .state(NeighbourState::Reachable)
                .execute()
                .await
                .unwrap();
            assert_eq!(peer.cached(vip).await, Some(ELSEWHERE));
            let began = clock::now();
            peer.announce(vip).await;
            eventually("the cache has moved", async || {
                (peer.cached(vip).await == Some(peer.announcer.mac)).then_some(())
            })
            .await;
            let took = clock::now() - began;
            println!("{vip}: the cache moved after {took:?}");
            // Linux holds an entry against other forms for a second.
            assert!(took < ms(500), "{took:?}");
        }
    });
}

#[test]
fn a_new_address_is_clear_after_ten_milliseconds_on_an_empty_link() {
    with_announcer(|mut peer| async move {
        for vip in [VIP4, VIP6] {
            let began = clock::now();
            let question = Question::New;
            peer.tell(Command::Ask { vip, question }).await;
            let link = peer.announcer.index;
            assert_eq!(peer.event().await, AnnouncerEvent::Clear { link, vip });
            let took = clock::now() - began;
            println!("{vip}: clear after {took:?}");
            assert!((ms(8)..ms(10) + SLACK).contains(&took), "{took:?}");
        }
    });
}

#[test]
fn the_holder_of_an_address_answers_and_is_told_from_a_node() {
    with_announcer(|mut peer| async move {
        let (link, by) = (peer.announcer.index, peer.wire.mac);
        for (vip, node) in [(VIP4, None), (VIP6, None), (VIP4, Some(NODE))] {
            peer.hold(vip).await;
            if node.is_some() {
                peer.hold(NODE).await;
                // As if the round that found no node had been long ago.
                let mut without = facts(peer.announcer);
                without.neighbours.clear();
                peer.tell(Command::Facts(without)).await;
                peer.tell(Command::Facts(facts(peer.announcer))).await;
            }
            let began = clock::now();
            let question = Question::New;
            peer.tell(Command::Ask { vip, question }).await;
            let expected = AnnouncerEvent::Answered {
                link,
                vip,
                by,
                node,
            };
            assert_eq!(peer.event().await, expected);
            println!("{vip}, {node:?}: answered after {:?}", clock::now() - began);
        }
    });
}

#[test]
fn an_address_that_is_given_up_is_clear_when_it_is_silent() {
    with_announcer(|mut peer| async move {
        for vip in [VIP4, VIP6] {
            peer.hold(vip).await;
            let question = Question::UntilSilent { limit: ms(2000) };
            peer.tell(Command::Ask { vip, question }).await;
            let early = timeout(ms(200), peer.events.recv()).await;
            assert!(early.is_err(), "it still answers: {early:?}");
            peer.let_go(vip).await;
            let began = clock::now();
            let link = peer.announcer.index;
            assert_eq!(peer.event().await, AnnouncerEvent::Clear { link, vip });
            let took = clock::now() - began;
            println!("{vip}: clear {took:?} after its removal");
            assert!(took < ms(100) + SLACK, "{took:?}");
        }
    });
}

#[test]
fn a_stranger_is_reported_and_answered_with_one_announcement() {
    with_announcer(|mut peer| async move {
        let (link, by) = (peer.announcer.index, peer.wire.mac);
        let IpAddr::V6(vip6) = VIP6 else {
            unreachable!()
        };
        let claims = [
            (
                VIP4,
                frame::gratuitous_request(by, Ipv4Addr::new(192, 0, 2, 7)),
            ),
            (VIP6, frame::unsolicited_advertisement(by, vip6, vip6)),
        ];
        for (vip, claim) in claims {
            peer.announce(vip).await;
            assert_eq!(
                peer.event().await,
                AnnouncerEvent::FirstAnnounced { link, vip }
            );
            // Until after the fourth step of the burst; the fifth is far away.
            peer.listen(ms(1300)).await;
            let (_, sent) = peer.socket.send_batch(&[claim]).await;
            sent.unwrap();
            let heard = peer.listen(ms(300)).await;
            let forms = if vip.is_ipv4() { 2 } else { 1 };
            assert_eq!(heard.len(), forms, "{heard:?}");
            let node = None;
            let expected = AnnouncerEvent::Conflict {
                link,
                vip,
                by,
                node,
            };
            assert_eq!(peer.event().await, expected);
            let (_, sent) = peer.socket.send_batch(&[claim]).await;
            sent.unwrap();
            assert_eq!(peer.listen(ms(300)).await, [], "once per ten seconds");
            peer.tell(Command::Silence { vip }).await;
        }
    });
}

#[test]
fn a_silenced_vip_is_silent_at_once() {
    with_announcer(|mut peer| async move {
        let link = peer.announcer.index;
        for vip in [VIP4, VIP6] {
            peer.announce(vip).await;
            assert_eq!(
                peer.event().await,
                AnnouncerEvent::FirstAnnounced { link, vip }
            );
        }
        for vip in [VIP4, VIP6] {
            peer.tell(Command::Silence { vip }).await;
        }
        peer.listen(ms(20)).await;
        assert_eq!(peer.listen(ms(1300)).await, []);
    });
}

#[test]
fn a_new_mac_is_announced_from_then_on() {
    with_announcer(|mut peer| async move {
        let link = peer.announcer.index;
        peer.announce(VIP4).await;
        let vip = VIP4;
        assert_eq!(
            peer.event().await,
            AnnouncerEvent::FirstAnnounced { link, vip }
        );
        let mut changed = facts(peer.announcer);
        changed.mac = ELSEWHERE;
        peer.tell(Command::Facts(changed)).await;
        eventually("the cache follows", async || {
            let mac = peer.announcer.mac;
            let entry = raw().neighbours().add(peer.wire.index.0, VIP4);
            let _ = entry
                .link_layer_address(&mac.0)
                .state(NeighbourState::Stale)
                .execute()
                .await;
            (peer.cached(VIP4).await == Some(ELSEWHERE)).then_some(())
        })
        .await;
    });
}

#[test]
fn a_link_without_carrier_delays_the_announcement_and_nothing_else() {
    let (Some(east), Some(west)) = (Namespace::new(), Namespace::new()) else {
        return;
    };
    let (announcer, wire) = east.join(&west);
    let (commands, taken) = mpsc::channel(16);
    let (told, mut events) = mpsc::channel(16);
    let settings = Settings {
        interval: Duration::from_secs(60),
        fence: open_fence(),
    };
    let set = |up: bool| {
        east.run(move || async move {
            let link = LinkUnspec::new_with_index(announcer.index.0);
            let link = if up { link.up() } else { link.down() };
            raw().link().change(link.build()).execute().await.unwrap();
        });
    };
    set(false);
    let facts = facts(announcer);
    let task = east.spawn(move || run(facts, settings, taken, told));
    let question = Question::New;
    commands
        .blocking_send(Command::Ask {
            vip: VIP6,
            question,
        })
        .unwrap();
    let predecessor_may_answer = false;
    let announce = Command::Announce {
        vip: VIP4,
        predecessor_may_answer,
    };
    commands.blocking_send(announce).unwrap();
    let mut events = west.run(move || async move {
        let early = timeout(ms(400), events.recv()).await;
        assert!(early.is_err(), "nothing can be known: {early:?}");
        events
    });
    set(true);
    let link = announcer.index;
    let next = move || async move {
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let event = timeout(Duration::from_secs(5), events.recv()).await;
            seen.push(event.expect("an event comes").expect("it runs"));
        }
        (seen, events)
    };
    let (seen, mut events) = west.run(next);
    assert!(seen.contains(&AnnouncerEvent::FirstAnnounced { link, vip: VIP4 }));
    assert!(seen.contains(&AnnouncerEvent::Clear { link, vip: VIP6 }));
    west.run(move || async move {
        raw().link().del(wire.index.0).execute().await.unwrap();
    });
    let last = std::iter::from_fn(|| events.blocking_recv()).last();
    assert!(
        matches!(last, Some(AnnouncerEvent::Stopped { .. })),
        "{last:?}"
    );
    assert!(
        commands
            .blocking_send(Command::Forget { vip: VIP6 })
            .is_err()
    );
    task.join().unwrap();
}

#[test]
fn a_link_that_does_not_exist_stops_the_announcer() {
    let Some(namespace) = Namespace::new() else {
        return;
    };
    let told = namespace.run(|| async {
        let (_commands, taken) = mpsc::channel(1);
        let (told, mut events) = mpsc::channel(1);
        let mut facts = facts(Wire {
            index: LinkIndex(4711),
            mac: ELSEWHERE,
        });
        facts.neighbours.clear();
        let interval = Duration::from_secs(60);
        let fence = open_fence();
        run(facts, Settings { interval, fence }, taken, told).await;
        events.recv().await
    });
    assert!(
        matches!(told, Some(AnnouncerEvent::Stopped { .. })),
        "{told:?}"
    );
}

#[test]
fn a_thousand_vips_are_announced_together() {
    with_announcer(|mut peer| async move {
        let began = clock::now();
        let commands = peer.commands.clone();
        let sender = tokio::spawn(async move {
            for n in 0..1000_u32 {
                let command = Command::Announce {
                    vip: Ipv4Addr::from(0x0a00_0000 + n).into(),
                    predecessor_may_answer: false,
                };
                commands.send(command).await.expect("it runs");
            }
        });
        let mut announced = HashSet::new();
        while announced.len() < 1000 {
            if let AnnouncerEvent::FirstAnnounced { vip, .. } = peer.event().await {
                announced.insert(vip);
            }
        }
        println!("1,000 VIPs announced in {:?}", clock::now() - began);
        sender.await.unwrap();
    });
}

#[test]
fn a_thousand_holders_are_heard_before_any_verdict() {
    with_announcer(|mut peer| async move {
        let vips: Vec<IpAddr> = (0..1000_u32)
            .map(|n| Ipv4Addr::from(0x0a00_0000 + n).into())
            .collect();
        let held: Vec<VipAddress> = vips
            .iter()
            .map(|vip| VipAddress {
                key: AddressKey {
                    link: peer.wire.index,
                    address: *vip,
                    prefix_len: 32,
                },
                lifetime: None,
            })
            .collect();
        let (netlink, connection) = Netlink::connect().unwrap();
        tokio::spawn(connection);
        let results = netlink.ensure_addresses(&held).await;
        assert!(results.iter().all(Result::is_ok));
        let began = clock::now();
        let commands = peer.commands.clone();
        let asker = tokio::spawn(async move {
            for vip in vips {
                let question = Question::New;
                let ask = Command::Ask { vip, question };
                commands.send(ask).await.expect("it runs");
            }
        });
        let mut answered = HashSet::new();
        while answered.len() < 1000 {
            match peer.event().await {
                AnnouncerEvent::Answered { vip, .. } => assert!(answered.insert(vip)),
                other => panic!("a verdict without the answer: {other:?}"),
            }
        }
        println!(
            "1,000 VIPs asked for and answered in {:?}",
            clock::now() - began
        );
        asker.await.unwrap();
    });
}

/// An announcer that the test drives by hand, and the other end of its link, in one namespace.
fn by_hand<F: Future<Output = ()>>(
    test: impl FnOnce(Announcer, PacketSocket, PacketSocket, Wire) -> F + Send + 'static,
) {
    let Some(here) = Namespace::new() else {
        return;
    };
    let (east, west) = here.join(&here);
    here.run(move || {
        let mut facts = facts(east);
        facts.neighbours.clear();
        let settings = Settings {
            interval: Duration::from_secs(60),
            fence: open_fence(),
        };
        let announcer = Announcer::new(facts, &settings, 1);
        let ours = PacketSocket::open(east.index).expect("the link exists");
        let theirs = PacketSocket::open(west.index).expect("the link exists");
        test(announcer, ours, theirs, west)
    });
}

/// Answers for this many addresses, of which VIP4 is the last.
fn answers(wire: Wire, count: usize) -> Vec<Frame> {
    let other = frame::gratuitous_reply(wire.mac, Ipv4Addr::new(192, 0, 2, 8));
    let mut frames = vec![other; count - 1];
    let IpAddr::V4(vip) = VIP4 else {
        unreachable!()
    };
    frames.push(frame::gratuitous_reply(wire.mac, vip));
    frames
}

/// Asks for VIP4 and sends its three questions; returns the time of the verdict.
fn ask_in_full(announcer: &mut Announcer) -> Instant {
    let (vip, question) = (VIP4, Question::New);
    let began = clock::now();
    announcer.handle_command(Command::Ask { vip, question }, began);
    for at in [0, 3, 6] {
        announcer.handle_deadline(began + ms(at));
        assert_eq!(announcer.witness.poll_transmit(), Some(VIP4));
    }
    began + ms(10)
}

#[test]
fn an_answer_behind_many_others_counts_before_the_verdict() {
    by_hand(|mut announcer, ours, theirs, wire| async move {
        let verdict = ask_in_full(&mut announcer);
        // On a veth pair a frame that was sent is received; nothing has to be waited for.
        let (sent, _) = theirs.send_batch(&answers(wire, 1000)).await;
        assert_eq!(sent, 1000);
        let mut buffer = [0; BUFFER];
        announcer
            .hear_and_judge(&ours, &mut buffer, verdict)
            .unwrap();
        assert!(
            matches!(
                announcer.events.pop_front(),
                Some(AnnouncerEvent::Answered { vip: VIP4, .. })
            ),
            "the last answer was not heard"
        );
    });
}

#[test]
fn behind_a_flood_the_verdict_waits() {
    by_hand(|mut announcer, ours, theirs, wire| async move {
        let verdict = ask_in_full(&mut announcer);
        let (sent, _) = theirs.send_batch(&answers(wire, FRAMES + 100)).await;
        assert_eq!(sent, FRAMES + 100);
        let mut buffer = [0; BUFFER];
        let mut turn = || {
            let turn = announcer.hear_and_judge(&ours, &mut buffer, verdict);
            turn.unwrap();
            announcer.events.pop_front()
        };
        assert_eq!(turn(), None);
        let then = turn();
        assert!(
            matches!(then, Some(AnnouncerEvent::Answered { vip: VIP4, .. })),
            "{then:?}"
        );
    });
}

#[test]
fn what_has_left_of_a_batch_that_failed_is_not_begun_again() {
    by_hand(|mut announcer, _, _, _| async move {
        let now = clock::now();
        for vip in [VIP6, VIP4] {
            let predecessor_may_answer = false;
            let announce = Command::Announce {
                vip,
                predecessor_may_answer,
            };
            announcer.handle_command(announce, now);
            assert!(announcer.schedule.poll_transmit(now).is_some());
        }
        let (purposes, frames) = announcer.compose(&[VIP6, VIP4], &[NODE]);
        // The socket sends ARP first.
        assert_eq!(frames.iter().filter(|f| f.is_arp()).count(), 3);
        assert!(frames.iter().take(3).all(Frame::is_arp));
        announcer.settle(&[VIP6, VIP4], &purposes, 2, now);
        let link = announcer.facts.index;
        let (first, next) = (announcer.events.pop_front(), announcer.events.pop_front());
        assert_eq!(
            (first, next),
            (
                Some(AnnouncerEvent::FirstAnnounced { link, vip: VIP4 }),
                None
            )
        );
        let again = now + ms(100);
        assert_eq!(announcer.schedule.poll_transmit(again), Some(VIP4));
        assert_eq!(announcer.schedule.poll_transmit(again), None);
    });
}
