//! Conflicts, and servers that were restored from a backup: their versions are lower than what is
//! known.

use super::*;

#[test]
fn a_read_that_is_older_than_the_view_wins_over_it() {
    let mut bench = Bench::leading();
    bench.see(&held("us", 900));
    bench.at(2.0).replace();
    bench.answer(&Outcome::Conflict);
    bench.get();
    bench.answer(&Outcome::Object(held("us", 40)));
    let (base, record) = bench.replace();
    assert_eq!(base, "40");
    bench.answer(&Outcome::Object(lease(41, &record)));
    assert_eq!(bench.news(), []);
    bench.at(4.0).replace();

    let mut bench = Bench::leading();
    bench.see(&held("us", 900));
    bench.at(2.0).replace();
    bench.answer(&Outcome::Conflict);
    bench.get();
    bench.answer(&Outcome::Object(held("other", 40)));
    let by = "other".to_owned();
    assert_eq!(bench.news(), [Event::Lost(Loss::Taken { by })]);
}

#[test]
fn a_read_that_the_watch_has_overtaken_changes_nothing() {
    let mut bench = Bench::leading();
    bench.at(2.0).replace();
    bench.answer(&Outcome::Conflict);
    bench.get();
    bench.see(&held("us", 9));
    bench.answer(&Outcome::Object(held("other", 8)));
    assert_eq!(bench.news(), []);
    assert_eq!(bench.replace().0, "9");
}

#[test]
fn a_watch_that_goes_back_is_believed() {
    let mut bench = Bench::contending(Some(&held("other", 900)));
    bench.at(14.0);
    let restored = held("other", 40);
    bench
        .elector
        .handle_object(&restored, Origin::Later, bench.now);
    bench.at(28.9).silent();
    assert_eq!(bench.at(29.0).replace().0, "40");
}

#[test]
fn conflicts_without_end_are_looked_into_at_a_walking_pace() {
    let mut calls = 0;
    let mut bench = Bench::leading();
    let mut second = 2.0;
    while bench.at(second).elector.held_until().is_some() {
        while let Some(call) = bench.call() {
            calls += 1;
            assert!(calls < 100, "no pause");
            bench.answer(&match call {
                Call::Get => Outcome::Object(held("us", 1)),
                _ => Outcome::Conflict,
            });
        }
        second += 0.1;
    }
    assert!((8..=16).contains(&calls), "{calls}");
}
