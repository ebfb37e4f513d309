use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use crate::{election::record::LeaseRecord, runtime::clock};

mod simulation;

const TIMINGS: Timings = Timings {
    duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

fn lease(version: u64, record: &LeaseRecord) -> Arc<Lease> {
    let mut lease = Lease {
        metadata: ObjectMeta {
            name: Some("l".to_owned()),
            uid: Some("u".to_owned()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        spec: Some(k8s_openapi::api::coordination::v1::LeaseSpec::default()),
    };
    record.write_to(lease.spec.as_mut().unwrap());
    Arc::new(lease)
}

fn wall(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn held(holder: &str, version: u64) -> Arc<Lease> {
    let second = i64::try_from(version).unwrap();
    lease(
        version,
        &LeaseRecord::held(None, holder, TIMINGS.duration, wall(second)),
    )
}

fn released(version: u64) -> Arc<Lease> {
    lease(version, &LeaseRecord::default().released(wall(1)))
}

/// One elector `us` and its clock, at seconds since the start.
struct Bench {
    elector: Elector,
    start: Instant,
    now: Instant,
}

impl Bench {
    fn new(watching: bool) -> Self {
        let start = clock::now();
        Self {
            elector: Elector::new("us".into(), TIMINGS, watching, start),
            start,
            now: start,
        }
    }

    fn contending(view: Option<&Arc<Lease>>) -> Self {
        let mut bench = Self::new(true);
        match view {
            Some(object) => bench.elector.handle_object(object, Origin::Any, bench.now),
            None => bench.elector.handle_gone(None, bench.now),
        }
        bench.elector.handle_contend(Duration::ZERO, bench.now);
        bench.events();
        bench
    }

    /// Holds the Lease at version 1 since second 0.
    fn leading() -> Self {
        let mut bench = Self::contending(None);
        bench.create();
        bench.answer(&Outcome::Object(held("us", 1)));
        assert_eq!(
            bench.events().first(),
            Some(&Event::Acquired(Acquisition::Created))
        );
        bench
    }

    fn at(&mut self, second: f64) -> &mut Self {
        self.now = self.start + Duration::from_secs_f64(second);
        self.elector.handle_deadline(self.now);
        self
    }

    fn see(&mut self, object: &Arc<Lease>) {
        self.elector.handle_object(object, Origin::Any, self.now);
    }

    fn call(&mut self) -> Option<Call> {
        self.elector.poll_call(self.now, wall(100))
    }

    fn create(&mut self) -> LeaseRecord {
        match self.call() {
            Some(Call::Create { record }) => record,
            other => panic!("{other:?} instead of a create"),
        }
    }

    fn replace(&mut self) -> (String, LeaseRecord) {
        match self.call() {
            Some(Call::Replace { base, record }) => {
                (base.metadata.resource_version.clone().unwrap(), record)
            }
            other => panic!("{other:?} instead of a replace"),
        }
    }

    fn get(&mut self) {
        let call = self.call();
        assert!(matches!(call, Some(Call::Get)), "{call:?} instead of a get");
    }

    fn silent(&mut self) {
        let call = self.call();
        assert!(call.is_none(), "{call:?} instead of silence");
    }

    fn answer(&mut self, outcome: &Outcome) {
        self.elector.handle_outcome(outcome, self.now, 0.5);
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.elector.poll_event()).collect()
    }

    /// The events but those about who holds it.
    fn news(&mut self) -> Vec<Event> {
        let mut events = self.events();
        events.retain(|event| !matches!(event, Event::Seen(_)));
        events
    }
}

fn seen(identity: &str, live: bool, renewed: bool) -> Event {
    Event::Seen(Some(Holder {
        identity: identity.to_owned(),
        live,
        renewed,
    }))
}

#[test]
fn an_absent_lease_is_created_at_once() {
    let mut bench = Bench::contending(None);
    let record = bench.create();
    assert_eq!(
        (record.holder.as_deref(), record.transitions),
        (Some("us"), 0)
    );
    bench.silent();
    bench.answer(&Outcome::Object(lease(1, &record)));
    let events = bench.events();
    assert_eq!(
        events,
        [
            Event::Acquired(Acquisition::Created),
            seen("us", true, true)
        ]
    );
}

#[test]
fn a_foreign_lease_is_taken_when_unchanged_for_its_own_duration() {
    let mut bench = Bench::contending(Some(&held("other", 1)));
    assert_eq!(
        bench.elector.next_call(),
        Some(bench.start + TIMINGS.duration)
    );
    bench.at(10.0).see(&held("other", 2));
    bench.at(24.9).silent();
    let (base, record) = bench.at(25.0).replace();
    assert_eq!((base.as_str(), record.transitions), ("2", 1));
    bench.answer(&Outcome::Object(lease(3, &record)));
    let by = "other".to_owned();
    assert_eq!(bench.news(), [Event::Acquired(Acquisition::Expired { by })]);
}

#[test]
fn a_change_of_metadata_alone_is_no_renewal() {
    let first = held("other", 1);
    let mut bench = Bench::contending(Some(&first));
    let touched = lease(5, &LeaseRecord::from(&*first));
    bench.at(10.0).see(&touched);
    let (base, _) = bench.at(15.0).replace();
    assert_eq!(base, "5");
}

#[test]
fn a_released_lease_is_taken_at_once_and_after_the_hesitation_if_there_is_one() {
    let mut bench = Bench::contending(Some(&held("other", 1)));
    bench.at(3.0).see(&released(2));
    let (_, record) = bench.replace();
    bench.answer(&Outcome::Object(lease(3, &record)));
    let by = Some("other".to_owned());
    assert_eq!(
        bench.news(),
        [Event::Acquired(Acquisition::Released { by })]
    );

    let mut bench = Bench::contending(Some(&held("other", 1)));
    bench
        .elector
        .handle_contend(Duration::from_secs(1), bench.now);
    bench.at(3.0).see(&released(2));
    bench.at(3.9).silent();
    bench.at(4.0).replace();
}

#[test]
fn our_own_identity_on_record_is_resumed_at_once_whatever_the_hesitation() {
    let mut bench = Bench::contending(Some(&held("us", 7)));
    bench
        .elector
        .handle_contend(Duration::from_secs(9), bench.now);
    let (_, record) = bench.replace();
    assert_eq!(
        (record.acquire_time, record.transitions),
        (Some(wall(7)), 0)
    );
    bench.answer(&Outcome::Object(lease(8, &record)));
    assert_eq!(bench.news(), [Event::Acquired(Acquisition::Resumed)]);
}

#[test]
fn renewals_come_each_retry_period_without_a_read() {
    let mut bench = Bench::leading();
    bench.at(1.9).silent();
    let (base, record) = bench.at(2.0).replace();
    assert_eq!(base, "1");
    bench.answer(&Outcome::Object(lease(2, &record)));
    bench.at(3.9).silent();
    bench.at(4.0).replace();
    assert_eq!(bench.events(), []);
}

#[test]
fn the_renew_deadline_counts_from_the_start_of_the_last_successful_write() {
    let mut bench = Bench::leading();
    let (_, record) = bench.at(2.0).replace();
    bench.at(4.0).answer(&Outcome::Object(lease(2, &record)));
    bench.at(4.0).replace();
    // The call hangs, and still the deadline is kept.
    assert_eq!(
        bench.elector.next_change(),
        Some(bench.start + Duration::from_secs(12))
    );
    bench.at(11.9);
    assert_eq!(bench.news(), []);
    bench.at(12.0);
    assert_eq!(bench.news(), [Event::Lost(Loss::Deadline)]);
}

#[test]
fn a_renewal_that_succeeds_after_the_deadline_is_a_loss_and_a_new_acquisition() {
    let mut bench = Bench::leading();
    bench.at(9.0);
    let (_, record) = bench.replace();
    bench.now = bench.start + Duration::from_secs(11);
    bench.answer(&Outcome::Object(lease(2, &record)));
    assert_eq!(
        bench.news(),
        [
            Event::Lost(Loss::Deadline),
            Event::Acquired(Acquisition::Resumed)
        ]
    );
    assert_eq!(
        bench.elector.held_until(),
        Some(bench.start + Duration::from_secs(19))
    );
}

#[test]
fn failed_renewals_are_tried_again_until_the_deadline_and_then_as_follower() {
    let mut bench = Bench::leading();
    let mut second = 2.0;
    let mut tries = 0;
    while bench.elector.held_until().is_some() {
        if bench.at(second).call().is_some() {
            tries += 1;
            bench.answer(&Outcome::Failed { after: None });
        }
        second += 0.05;
    }
    assert!((5..=17).contains(&tries), "{tries}");
    assert_eq!(bench.news(), [Event::Lost(Loss::Deadline)]);
    // The last write may have been carried out: read, then resume.
    bench.at(20.0).get();
    bench.answer(&Outcome::Object(held("us", 5)));
    bench.replace();
}

#[test]
fn another_holder_on_record_is_a_loss_at_once() {
    let mut bench = Bench::leading();
    bench.at(1.0).see(&held("other", 5));
    let by = "other".to_owned();
    assert_eq!(
        bench.events(),
        [Event::Lost(Loss::Taken { by }), seen("other", true, true)]
    );
    bench.silent();
}

#[test]
fn a_conflict_of_a_renewal_is_read_at_once() {
    let mut bench = Bench::leading();
    bench.at(2.0).replace();
    bench.answer(&Outcome::Conflict);
    bench.get();
    let touched = lease(4, &LeaseRecord::from(&*held("us", 1)));
    bench.answer(&Outcome::Object(touched));
    assert_eq!(bench.replace().0, "4");
}

#[test]
fn a_follower_that_lost_the_race_waits_for_the_watch_and_reads_if_it_is_late() {
    let mut bench = Bench::contending(Some(&released(1)));
    bench.replace();
    bench.answer(&Outcome::Conflict);
    bench.silent();
    bench.see(&held("other", 2));
    bench.silent();

    let mut bench = Bench::contending(Some(&released(1)));
    bench.replace();
    // The watch was faster than the answer.
    bench.see(&released(3));
    bench.answer(&Outcome::Conflict);
    assert_eq!(bench.replace().0, "3");
    bench.answer(&Outcome::Conflict);
    bench.at(2.9).silent();
    bench.at(3.0).get();
}

#[test]
fn a_lease_deleted_under_its_holder_is_recreated_at_once_and_is_no_loss() {
    let mut bench = Bench::leading();
    bench.at(1.0);
    bench.elector.handle_gone(Some("u"), bench.now);
    let record = bench.create();
    bench.answer(&Outcome::Object(lease(9, &record)));
    assert_eq!(bench.news(), []);

    bench.at(3.0).replace();
    bench.answer(&Outcome::Gone);
    bench.create();
    bench.answer(&Outcome::Conflict);
    bench.get();
    bench.answer(&Outcome::Object(held("other", 12)));
    let by = "other".to_owned();
    assert_eq!(bench.news(), [Event::Lost(Loss::Taken { by })]);
}

#[test]
fn a_late_deletion_event_of_a_predecessor_is_ignored() {
    let mut bench = Bench::leading();
    bench.elector.handle_gone(Some("another uid"), bench.now);
    bench.silent();
}

#[test]
fn a_holder_field_emptied_by_hand_is_taken_back_at_once() {
    let mut bench = Bench::leading();
    bench.at(1.0).see(&released(5));
    let (base, record) = bench.replace();
    assert_eq!((base.as_str(), record.transitions), ("5", 1));
    bench.answer(&Outcome::Object(lease(6, &record)));
    assert_eq!(bench.news(), []);
    assert!(bench.elector.held_until().is_some());
}

#[test]
fn a_lease_deleted_under_a_live_foreign_holder_stays_taken_until_its_time_is_over() {
    let mut bench = Bench::contending(Some(&held("other", 1)));
    bench.at(5.0);
    bench.elector.handle_gone(Some("u"), bench.now);
    assert_eq!(bench.events().last(), Some(&Event::Seen(None)));
    bench.at(14.9).silent();
    bench.at(15.0).create();
}

#[test]
fn a_holder_field_emptied_under_a_live_foreign_holder_is_left_to_it_until_its_time_is_over() {
    let mut bench = Bench::contending(Some(&held("them", 1)));
    let emptied = LeaseRecord {
        holder: None,
        ..LeaseRecord::held(None, "them", TIMINGS.duration, wall(1))
    };
    bench.at(4.0).see(&lease(2, &emptied));
    bench.at(14.9).silent();
    assert_eq!(bench.at(15.0).replace().1.holder.as_deref(), Some("us"));
    bench.answer(&Outcome::Object(held("us", 3)));
    let released = Acquisition::Released { by: None };
    assert!(bench.events().contains(&Event::Acquired(released)));
}

#[test]
fn an_echo_older_than_what_is_known_changes_nothing() {
    let mut bench = Bench::leading();
    bench.at(2.0).replace();
    bench.answer(&Outcome::Object(held("us", 8)));
    bench.see(&held("other", 7));
    assert_eq!(bench.news(), []);
}

#[test]
fn a_read_that_is_older_than_the_view_wins_over_it() {
    // The server was restored from a backup: its versions are lower than what is known.
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

#[test]
fn a_holder_is_told_dead_when_its_time_is_over_and_live_again_when_it_renews() {
    let mut bench = Bench::new(true);
    bench.see(&held("other", 1));
    assert_eq!(bench.events(), [seen("other", true, false)]);
    assert_eq!(
        bench.elector.next_change(),
        Some(bench.start + TIMINGS.duration)
    );
    bench.at(15.0);
    assert_eq!(bench.events(), [seen("other", false, false)]);
    bench.at(16.0).see(&held("other", 2));
    assert_eq!(bench.events(), [seen("other", true, true)]);
    bench.at(17.0).see(&held("other", 3));
    assert_eq!(bench.events(), []);
}

#[test]
fn retiring_releases_with_an_empty_holder_and_one_second() {
    let mut bench = Bench::leading();
    bench.at(1.0);
    bench.elector.handle_retire(false, bench.now);
    let (base, record) = bench.replace();
    assert_eq!(base, "1");
    assert_eq!(
        (record.holder.as_ref(), record.duration),
        (None, Some(Duration::from_secs(1)))
    );
    assert_eq!(bench.news(), []);
    bench.answer(&Outcome::Object(lease(2, &record)));
    assert_eq!(bench.news(), [Event::Retired]);
    bench.at(60.0).silent();
}

#[test]
fn retiring_for_good_deletes_what_it_has_released() {
    let mut bench = Bench::leading();
    bench.elector.handle_retire(true, bench.now);
    let (_, record) = bench.replace();
    bench.answer(&Outcome::Object(lease(2, &record)));
    let Some(Call::Delete { base }) = bench.call() else {
        panic!("a delete comes next");
    };
    assert_eq!(base.metadata.resource_version.as_deref(), Some("2"));
    bench.answer(&Outcome::Gone);
    assert_eq!(bench.news(), [Event::Retired]);
}

#[test]
fn retiring_for_good_leaves_what_another_holds() {
    let mut bench = Bench::contending(Some(&held("other", 1)));
    bench.elector.handle_retire(true, bench.now);
    bench.silent();
    assert_eq!(bench.news(), [Event::Retired]);
}

#[test]
fn a_release_is_tried_for_its_budget_and_then_given_up() {
    let mut bench = Bench::leading();
    bench.elector.handle_retire(false, bench.now);
    bench.replace();
    bench.answer(&Outcome::Failed { after: None });
    bench.at(0.1).replace();
    bench.at(1.1);
    assert_eq!(bench.news(), []);
    bench.at(1.2);
    assert_eq!(bench.news(), [Event::Retired]);
}

#[test]
fn a_deletion_that_is_not_allowed_is_tried_once() {
    let mut bench = Bench::leading();
    bench.elector.handle_retire(true, bench.now);
    bench.replace();
    bench.answer(&Outcome::Object(released(2)));
    assert!(matches!(bench.call(), Some(Call::Delete { .. })));
    bench.answer(&Outcome::Refused);
    assert_eq!(bench.news(), [Event::Retired]);
    bench.at(1.0).silent();
}

#[test]
fn a_refused_acquisition_is_tried_again_like_any_other_failure() {
    let mut bench = Bench::contending(None);
    bench.create();
    bench.answer(&Outcome::Refused);
    bench.silent();
    bench.at(4.5).get();
}

#[test]
fn retiring_during_an_acquisition_releases_what_it_brings() {
    let mut bench = Bench::contending(None);
    let record = bench.create();
    bench.elector.handle_retire(false, bench.now);
    assert_eq!(bench.news(), []);
    bench.answer(&Outcome::Object(lease(1, &record)));
    let (_, record) = bench.replace();
    assert_eq!(record.holder, None);
    bench.answer(&Outcome::Object(lease(2, &record)));
    assert_eq!(bench.news(), [Event::Retired]);

    let mut bench = Bench::contending(None);
    let record = bench.create();
    bench.elector.handle_retire(false, bench.now);
    // Unknown whether it was carried out: look.
    bench.answer(&Outcome::Failed { after: None });
    bench.at(0.1).get();
    bench.answer(&Outcome::Object(lease(1, &record)));
    bench.replace();
}

#[test]
fn contending_again_during_a_release_follows_after_it() {
    let mut bench = Bench::leading();
    bench.elector.handle_retire(false, bench.now);
    bench.elector.handle_contend(Duration::ZERO, bench.now);
    let (_, record) = bench.replace();
    bench.answer(&Outcome::Object(lease(2, &record)));
    assert_eq!(bench.news(), [Event::Retired]);
    let (base, record) = bench.replace();
    assert_eq!((base.as_str(), record.holder.as_deref()), ("2", Some("us")));
}

#[test]
fn a_pause_is_a_loss_and_answers_from_before_it_do_not_count() {
    let mut bench = Bench::leading();
    let (_, record) = bench.at(2.0).replace();
    bench.elector.handle_pause(bench.now);
    assert_eq!(bench.news(), [Event::Lost(Loss::Paused)]);
    bench.answer(&Outcome::Object(lease(2, &record)));
    assert_eq!(bench.news(), []);
    let (base, record) = bench.replace();
    assert_eq!(base, "2");
    bench.answer(&Outcome::Object(lease(3, &record)));
    assert_eq!(bench.news(), [Event::Acquired(Acquisition::Resumed)]);
}

#[test]
fn without_the_watch_an_expiry_is_confirmed_by_a_read_before_the_write() {
    let mut bench = Bench::contending(Some(&held("other", 1)));
    bench.elector.handle_watching(false, bench.now);
    bench.at(15.0).get();
    bench.answer(&Outcome::Object(held("other", 4)));
    bench.silent();
    bench.at(30.0).get();
    bench.answer(&Outcome::Object(held("other", 4)));
    bench.replace();
}

#[test]
fn without_the_watch_a_follower_polls_like_client_go() {
    let mut bench = Bench::new(false);
    bench.elector.handle_contend(Duration::ZERO, bench.now);
    bench.get();
    bench.answer(&Outcome::Object(held("other", 1)));
    bench.at(3.1).silent();
    bench.at(3.2).get();
    bench.answer(&Outcome::Object(released(2)));
    bench.replace();
}

#[test]
fn a_server_that_asks_for_patience_gets_it_within_the_retry_period() {
    let mut bench = Bench::leading();
    bench.at(2.0).replace();
    bench.answer(&Outcome::Failed {
        after: Some(Duration::from_secs(60)),
    });
    bench.at(3.9).silent();
    bench.at(4.0).replace();
}

#[test]
fn a_machine_nobody_needs_is_spent_only_when_a_vanished_holders_time_is_over() {
    let mut bench = Bench::new(true);
    assert!(bench.elector.is_spent(bench.now));
    bench.see(&held("other", 1));
    bench.events();
    assert!(!bench.elector.is_spent(bench.now));
    bench.elector.handle_gone(Some("u"), bench.now);
    bench.events();
    assert!(!bench.elector.is_spent(bench.now));
    assert_eq!(
        bench.elector.next_change(),
        Some(bench.start + TIMINGS.duration)
    );
    bench.at(15.0);
    assert!(bench.elector.is_spent(bench.now));
}
