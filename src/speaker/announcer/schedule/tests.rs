use super::*;
use crate::runtime::clock;

const MINUTE: Duration = Duration::from_secs(60);

fn vip(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

/// Follows the deadlines from `start` for `length`; when, in milliseconds, each VIP was due.
fn run(
    schedule: &mut Schedule,
    zero: Instant,
    start: Duration,
    length: Duration,
) -> Vec<(u128, IpAddr)> {
    let mut sent = Vec::new();
    let mut now = zero + start;
    loop {
        while let Some(vip) = schedule.poll_transmit(now) {
            sent.push(((now - zero).as_millis(), vip));
        }
        match schedule.next_deadline() {
            Some(next) if next <= zero + start + length => now = next,
            _ => return sent,
        }
    }
}

fn times(sent: &[(u128, IpAddr)]) -> Vec<u128> {
    sent.iter().map(|(at, _)| *at).collect()
}

#[test]
fn the_burst_has_five_steps() {
    let t = clock::now();
    let mut schedule = Schedule::new(MINUTE, 1);
    assert_eq!(schedule.next_deadline(), None);
    schedule.handle_announce(vip(1), false, t);
    let sent = run(&mut schedule, t, ms(0), ms(20_000));
    assert_eq!(times(&sent), [0, 50, 250, 1100, 3000]);
}

#[test]
fn refreshes_follow_the_burst_within_a_fifth_of_the_interval_and_vary() {
    let t = clock::now();
    let mut schedule = Schedule::new(MINUTE, 1);
    schedule.handle_announce(vip(1), false, t);
    let sent = times(&run(&mut schedule, t, ms(0), MINUTE * 60));
    let gaps: Vec<u128> = sent[4..].windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.len() > 45);
    assert!(
        gaps.iter().all(|gap| (47_999..=72_000).contains(gap)),
        "{gaps:?}"
    );
    assert!(gaps.iter().any(|gap| *gap < 56_000) && gaps.iter().any(|gap| *gap > 64_000));
}

#[test]
fn the_same_seed_gives_the_same_times() {
    let t = clock::now();
    let record = |seed| {
        let mut schedule = Schedule::new(MINUTE, seed);
        schedule.handle_announce(vip(1), false, t);
        times(&run(&mut schedule, t, ms(0), MINUTE * 5))
    };
    assert_eq!(record(7), record(7));
    assert_ne!(record(7), record(8));
}

#[test]
fn while_a_predecessor_may_answer_no_gap_is_longer_than_250_ms_for_ten_seconds() {
    let t = clock::now();
    let mut schedule = Schedule::new(MINUTE, 1);
    schedule.handle_announce(vip(1), true, t);
    let sent = times(&run(&mut schedule, t, ms(0), ms(20_000)));
    assert_eq!(sent[..4], [0, 50, 250, 500]);
    assert!(sent.windows(2).all(|w| w[1] - w[0] <= 250));
    assert!((10_000..=10_250).contains(sent.last().unwrap()), "{sent:?}");
    schedule.handle_announce(vip(1), true, t + ms(30_000));
    schedule.handle_announce(vip(1), false, t + ms(30_100));
    let sent = times(&run(&mut schedule, t, ms(30_100), ms(10_000)));
    assert_eq!(sent, [30_100, 30_150, 30_350, 31_200, 33_100]);
}

#[test]
fn silence_takes_back_what_was_due() {
    let t = clock::now();
    let mut schedule = Schedule::new(MINUTE, 1);
    schedule.handle_announce(vip(1), false, t);
    schedule.handle_announce(vip(2), false, t);
    schedule.handle_silence(vip(1));
    let sent = run(&mut schedule, t, ms(0), ms(20_000));
    assert!(sent.iter().all(|(_, v)| *v == vip(2)));
    schedule.handle_defence(vip(1), t);
    schedule.handle_failure(vip(1), t);
    assert!(schedule.next_deadline() > Some(t + ms(20_000)));
}

#[test]
fn a_defence_is_one_announcement_and_leaves_the_burst_alone() {
    let t = clock::now();
    let mut schedule = Schedule::new(MINUTE, 1);
    schedule.handle_announce(vip(1), false, t);
    assert_eq!(times(&run(&mut schedule, t, ms(0), ms(400))), [0, 50, 250]);
    schedule.handle_defence(vip(1), t + ms(500));
    let sent = run(&mut schedule, t, ms(500), ms(3000));
    assert_eq!(times(&sent), [500, 1100, 3000]);
}

#[test]
fn steps_that_were_slept_through_are_one_announcement() {
    let t = clock::now();
    let mut schedule = Schedule::new(MINUTE, 1);
    schedule.handle_announce(vip(1), false, t);
    assert_eq!(
        times(&run(&mut schedule, t, ms(700), ms(5000))),
        [700, 1100, 3000]
    );
}

#[test]
fn a_failure_is_tried_again_and_then_bursts() {
    let t = clock::now();
    let mut schedule = Schedule::new(MINUTE, 1);
    schedule.handle_announce(vip(1), false, t);
    assert_eq!(schedule.poll_transmit(t), Some(vip(1)));
    schedule.handle_failure(vip(1), t);
    let sent = run(&mut schedule, t, ms(1), ms(10_000));
    assert_eq!(times(&sent), [250, 300, 500, 1350, 3250]);
}

#[test]
fn a_new_mac_is_announced_for_every_vip() {
    let t = clock::now();
    let mut schedule = Schedule::new(MINUTE, 1);
    for last in 1..=3 {
        schedule.handle_announce(vip(last), false, t);
    }
    run(&mut schedule, t, ms(0), ms(10_000));
    schedule.handle_mac_change(t + ms(10_000));
    let sent = run(&mut schedule, t, ms(10_000), ms(20));
    assert_eq!(times(&sent), [10_000; 3]);
}

#[test]
fn a_thousand_vips_due_together_come_out_together() {
    let t = clock::now();
    let mut schedule = Schedule::new(MINUTE, 1);
    for n in 0..1000_u32 {
        schedule.handle_announce(std::net::Ipv4Addr::from(n).into(), false, t);
    }
    let sent = times(&run(&mut schedule, t, ms(0), ms(4000)));
    assert_eq!(sent.len(), 5000);
    assert_eq!(sent.iter().filter(|at| **at == 1100).count(), 1000);
}
