use super::*;
use crate::{net::frame::Heard, runtime::clock};

const US: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const OTHER: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const PEER: MacAddress = MacAddress([2, 0, 0, 0, 0, 3]);
const SECOND: MacAddress = MacAddress([2, 0, 0, 0, 0, 4]);

fn ip(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

const VIP: u8 = 7;

/// With milliseconds from the start.
type Timed<T> = Vec<(u64, T)>;

/// A witness and its clock, in milliseconds from the start.
struct Scene {
    witness: Witness,
    zero: Instant,
}

impl Scene {
    fn new(nodes: &[IpAddr]) -> Self {
        Self {
            witness: Witness::new(US, nodes),
            zero: clock::now(),
        }
    }

    fn at(&self, millis: u64) -> Instant {
        self.zero + ms(millis)
    }

    fn ask(&mut self, at: u64, question: Question) {
        self.witness.handle_ask(ip(VIP), question, self.at(at));
    }

    fn reply(&mut self, at: u64, mac: MacAddress, address: IpAddr) -> Notice {
        let IpAddr::V4(sender_ip) = address else {
            panic!("an IPv4 address");
        };
        let heard = Heard::ArpReply {
            ethernet_source: mac,
            sender_mac: mac,
            sender_ip,
            target_ip: sender_ip,
        };
        self.witness.handle_heard(&heard, self.at(at))
    }

    /// Follows the deadlines up to a time; what was asked when, and what was found when.
    fn until(&mut self, end: u64) -> (Timed<IpAddr>, Timed<Finding>) {
        let (mut asked, mut found) = (Vec::new(), Vec::new());
        loop {
            let next = self.witness.next_deadline().filter(|t| *t <= self.at(end));
            let now = next.unwrap_or_else(|| self.at(end));
            self.witness.handle_deadline(now);
            let at = u64::try_from((now - self.zero).as_millis()).unwrap();
            while let Some(address) = self.witness.poll_transmit() {
                asked.push((at, address));
            }
            while let Some(finding) = self.witness.poll_event() {
                found.push((at, finding));
            }
            if next.is_none() {
                return (asked, found);
            }
        }
    }
}

fn clear() -> Finding {
    Finding::Clear { vip: ip(VIP) }
}

fn answered(by: MacAddress, node: Option<IpAddr>) -> Finding {
    let vip = ip(VIP);
    Finding::Answered { vip, by, node }
}

fn conflict(by: MacAddress, node: Option<IpAddr>) -> Finding {
    let vip = ip(VIP);
    Finding::Conflict { vip, by, node }
}

fn defend() -> Finding {
    Finding::Defend { vip: ip(VIP) }
}

fn times<T: Copy>(list: &[(u64, T)]) -> Vec<u64> {
    list.iter().map(|(at, _)| *at).collect()
}

#[test]
fn a_new_address_is_clear_after_three_unanswered_questions_and_watched_for_a_second() {
    let mut scene = Scene::new(&[]);
    scene.ask(0, Question::New);
    let (asked, found) = scene.until(5000);
    assert_eq!(times(&asked), [0, 3, 6, 250, 500, 1000]);
    assert_eq!(found, [(10, clear())]);
    assert_eq!(scene.witness.next_deadline(), None);
    assert_eq!(scene.reply(5000, OTHER, ip(VIP)), Notice::Nothing);
}

#[test]
fn an_answer_within_ten_milliseconds_closes_the_question() {
    let mut scene = Scene::new(&[]);
    scene.ask(0, Question::New);
    scene.until(1);
    assert_eq!(scene.reply(2, OTHER, ip(VIP)), Notice::Answer);
    let (asked, found) = scene.until(3000);
    assert_eq!(asked, []);
    assert_eq!(
        found.iter().map(|(_, f)| *f).collect::<Vec<_>>(),
        [answered(OTHER, None)]
    );
}

#[test]
fn a_late_answer_takes_the_clearance_back() {
    let mut scene = Scene::new(&[]);
    scene.ask(0, Question::New);
    assert_eq!(scene.until(600).1, [(10, clear())]);
    scene.witness.handle_announcing(ip(VIP));
    scene.reply(700, OTHER, ip(VIP));
    assert_eq!(scene.until(700).1, [(700, answered(OTHER, None))]);
    assert_eq!(scene.until(5000), (vec![], vec![]));
}

#[test]
fn a_verdict_leaves_time_for_an_answer_however_late_the_clock() {
    let mut scene = Scene::new(&[]);
    scene.ask(0, Question::New);
    let late = |scene: &mut Scene, at| {
        scene.witness.handle_deadline(scene.at(at));
        let asked = std::iter::from_fn(|| scene.witness.poll_transmit()).count();
        (asked, scene.witness.poll_event())
    };
    assert_eq!(late(&mut scene, 50), (1, None));
    assert_eq!(late(&mut scene, 90), (1, None));
    assert_eq!(late(&mut scene, 130), (1, None));
    assert_eq!(late(&mut scene, 131), (0, None));
    assert_eq!(late(&mut scene, 132), (0, Some(clear())));
}

#[test]
fn silence_after_a_question_that_was_not_sent_means_nothing() {
    let mut scene = Scene::new(&[]);
    scene.ask(0, Question::New);
    for at in [0, 250, 500] {
        assert_eq!(scene.until(at), (vec![(at, ip(VIP))], vec![]));
        scene.witness.handle_unsent(ip(VIP), scene.at(at));
    }
    let (asked, found) = scene.until(770);
    assert_eq!(times(&asked), [750, 753, 756]);
    assert_eq!(found, [(760, clear())]);
}

#[test]
fn what_is_forgotten_is_neither_asked_nor_reported() {
    let mut scene = Scene::new(&[ip(1)]);
    scene.ask(0, Question::New);
    scene.until(1);
    scene.reply(1, OTHER, ip(VIP));
    scene.witness.handle_forget(ip(VIP));
    assert_eq!(scene.until(3000).1, []);
}

#[test]
fn until_silent_asks_every_25_ms_and_ends_after_three_misses() {
    let mut scene = Scene::new(&[]);
    let limit = ms(2000);
    scene.ask(0, Question::UntilSilent { limit });
    for at in [0, 25, 50] {
        assert_eq!(scene.until(at), (vec![(at, ip(VIP))], vec![]));
        scene.reply(at + 1, OTHER, ip(VIP));
    }
    let (asked, found) = scene.until(1000);
    assert_eq!(times(&asked), [75, 100, 125]);
    assert_eq!(found, [(150, clear())]);
}

#[test]
fn one_answer_after_two_misses_starts_the_count_again() {
    let mut scene = Scene::new(&[]);
    let limit = ms(2000);
    scene.ask(0, Question::UntilSilent { limit });
    scene.until(50);
    scene.reply(51, OTHER, ip(VIP));
    let (asked, found) = scene.until(1000);
    assert_eq!(times(&asked), [75, 100, 125]);
    assert_eq!(found, [(150, clear())]);
}

#[test]
fn who_still_answers_at_the_limit_is_named() {
    let mut scene = Scene::new(&[]);
    let limit = ms(100);
    scene.ask(0, Question::UntilSilent { limit });
    for at in [0, 25, 50, 75] {
        assert_eq!(scene.until(at).1, []);
        scene.reply(at + 1, OTHER, ip(VIP));
    }
    assert_eq!(scene.until(1000).1, [(100, answered(OTHER, None))]);
}

#[test]
fn a_count_under_way_at_the_limit_is_finished() {
    let mut scene = Scene::new(&[]);
    let limit = ms(100);
    scene.ask(0, Question::UntilSilent { limit });
    for at in [0, 25, 50] {
        scene.until(at);
        scene.reply(at + 1, OTHER, ip(VIP));
    }
    let (asked, found) = scene.until(1000);
    assert_eq!(times(&asked), [75, 100, 125]);
    assert_eq!(found, [(150, clear())]);
}

#[test]
fn our_own_frames_and_questions_from_nobody_are_no_answers() {
    let mut scene = Scene::new(&[]);
    scene.ask(0, Question::New);
    scene.until(1);
    assert_eq!(scene.reply(1, US, ip(VIP)), Notice::Own);
    let IpAddr::V4(target_ip) = ip(VIP) else {
        panic!("an IPv4 address");
    };
    let probe = Heard::ArpRequest {
        ethernet_source: OTHER,
        sender_mac: OTHER,
        sender_ip: std::net::Ipv4Addr::UNSPECIFIED,
        target_ip,
    };
    let now = scene.at(1);
    assert_eq!(scene.witness.handle_heard(&probe, now), Notice::Nothing);
    scene.witness.handle_facts(SECOND, &[]);
    assert_eq!(
        scene.reply(2, US, ip(VIP)),
        Notice::Own,
        "a former MAC of ours"
    );
    assert_eq!(scene.until(20).1, [(10, clear())]);
}

#[test]
fn a_node_that_answers_is_named_without_noticeable_delay() {
    let mut scene = Scene::new(&[ip(1), ip(2)]);
    scene.ask(0, Question::New);
    scene.until(0);
    scene.reply(1, PEER, ip(VIP));
    let (mut asked, found) = scene.until(1);
    asked.sort();
    assert_eq!(asked, [(1, ip(1)), (1, ip(2))]);
    assert_eq!(found, []);
    assert_eq!(scene.reply(2, PEER, ip(2)), Notice::Node);
    assert_eq!(scene.until(2).1, [(2, answered(PEER, Some(ip(2))))]);
    // Known from now on: the next is named at once.
    scene.ask(100, Question::New);
    scene.until(100);
    scene.reply(101, PEER, ip(VIP));
    assert_eq!(
        scene.until(101),
        (vec![], vec![(101, answered(PEER, Some(ip(2))))])
    );
}

#[test]
fn a_stranger_is_told_when_all_nodes_have_answered_or_after_20_ms() {
    let mut scene = Scene::new(&[ip(1), ip(2)]);
    scene.ask(0, Question::New);
    scene.until(0);
    scene.reply(1, OTHER, ip(VIP));
    scene.reply(2, PEER, ip(1));
    assert_eq!(scene.until(2).1, []);
    scene.reply(3, SECOND, ip(2));
    assert_eq!(scene.until(3).1, [(3, answered(OTHER, None))]);

    let mut scene = Scene::new(&[ip(1)]);
    scene.ask(0, Question::New);
    scene.until(0);
    scene.reply(1, OTHER, ip(VIP));
    assert_eq!(scene.until(500).1, [(21, answered(OTHER, None))]);
}

#[test]
fn a_stranger_is_defended_against_and_reported_once_per_ten_seconds() {
    let mut scene = Scene::new(&[]);
    scene.witness.handle_announcing(ip(VIP));
    let mut found = Vec::new();
    for at in (0..25_000).step_by(500) {
        assert_eq!(scene.reply(at, OTHER, ip(VIP)), Notice::Rival);
        found.extend(scene.until(at).1);
    }
    let each = |at| [(at, conflict(OTHER, None)), (at, defend())];
    assert_eq!(found, [each(0), each(10_000), each(20_000)].concat());
}

#[test]
fn a_node_gets_the_last_word_only_for_100_ms() {
    let mut scene = Scene::new(&[ip(1)]);
    scene.witness.handle_announcing(ip(VIP));
    scene.reply(0, PEER, ip(1));
    let mut found = Vec::new();
    for at in [10, 20, 50, 60] {
        scene.reply(at, PEER, ip(VIP));
        found.extend(scene.until(at).1);
    }
    found.extend(scene.until(1000).1);
    assert_eq!(
        found,
        [
            (10, conflict(PEER, Some(ip(1)))),
            (10, defend()),
            (110, defend())
        ]
    );
}

#[test]
fn nothing_is_defended_that_is_silenced() {
    let mut scene = Scene::new(&[ip(1)]);
    scene.witness.handle_announcing(ip(VIP));
    scene.reply(0, OTHER, ip(VIP));
    scene.witness.handle_silenced(ip(VIP));
    assert_eq!(scene.until(1000).1, []);
    assert_eq!(scene.reply(1000, OTHER, ip(VIP)), Notice::Nothing);
}

#[test]
fn of_many_questions_few_are_asked_before_answers_are_heard() {
    let mut scene = Scene::new(&[]);
    let now = scene.at(0);
    let vips: Vec<IpAddr> = (0..1000_u32)
        .map(|n| std::net::Ipv4Addr::from(0x0a00_0000 + n).into())
        .collect();
    for vip in &vips {
        scene.witness.handle_ask(*vip, Question::New, now);
    }
    let mut asked = HashMap::<IpAddr, usize>::new();
    let mut cleared = Vec::new();
    // Every turn takes a millisecond.
    for at in 0..200 {
        scene.witness.handle_deadline(scene.at(at));
        let questions: Vec<IpAddr> = std::iter::from_fn(|| scene.witness.poll_transmit()).collect();
        assert!(questions.len() <= QUESTIONS, "{} at once", questions.len());
        for vip in questions {
            *asked.entry(vip).or_default() += 1;
        }
        while let Some(Finding::Clear { vip }) = scene.witness.poll_event() {
            assert_eq!(asked.get(&vip), Some(&3), "{vip} at {at}");
            cleared.push(vip);
        }
    }
    cleared.sort();
    assert_eq!(cleared, vips);
}

#[test]
fn an_advertisement_answers_but_without_override_it_is_no_rival() {
    let vip: std::net::Ipv6Addr = "2001:db8::7".parse().unwrap();
    let advertisement = |overrides| Heard::NeighbourAdvertisement {
        ethernet_source: OTHER,
        source: vip,
        target: vip,
        target_link: None,
        solicited: true,
        overrides,
    };
    let mut scene = Scene::new(&[]);
    let now = scene.at(0);
    scene.witness.handle_announcing(vip.into());
    let notice =
        |scene: &mut Scene, overrides| scene.witness.handle_heard(&advertisement(overrides), now);
    assert_eq!(notice(&mut scene, false), Notice::Nothing);
    assert_eq!(notice(&mut scene, true), Notice::Rival);
    scene.witness.handle_ask(vip.into(), Question::New, now);
    assert_eq!(notice(&mut scene, false), Notice::Answer);
}
