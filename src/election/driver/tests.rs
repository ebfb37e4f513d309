use k8s_openapi::{api::coordination::v1::LeaseSpec, jiff::SignedDuration};
use serde_json::{Value, json};

use super::*;
use crate::{
    election::{Acquisition, Holder, Loss, elector::Outcome},
    k8s::dialogue::{self, Call as Request},
};

const TIMINGS: Timings = Timings {
    duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

/// A driver whose lists and watches are served, and whose other calls the test answers.
struct Bench {
    commands: mpsc::Sender<Command>,
    notices: mpsc::Receiver<Notice>,
    calls: mpsc::UnboundedReceiver<Request>,
    watches: mpsc::UnboundedReceiver<mpsc::UnboundedSender<Value>>,
    watch: Option<mpsc::UnboundedSender<Value>>,
    shutdown: CancellationToken,
    driver: tokio::task::JoinHandle<()>,
}

/// A driver that watches `items`, with room for so many notices.
async fn start(mut items: Vec<Value>, room: usize) -> Bench {
    items.push(lease("marker", 1, "one"));
    let mut bench = start_at(items, true, room);
    // What the watch shows is known only when the watch is.
    let watch = bench.watches.recv().await.unwrap();
    watch
        .send(json!({"type": "MODIFIED", "object": lease("marker", 2, "two")}))
        .unwrap();
    bench.watch = Some(watch);
    loop {
        if let Some(Notice::Seen { lease, holder }) = bench.notices.recv().await
            && lease.name == "marker"
            && holder.is_some_and(|holder| holder.identity == "two")
        {
            return bench;
        }
    }
}

/// With `watchable` unset, lists are forbidden.
fn start_at(items: Vec<Value>, watchable: bool, room: usize) -> Bench {
    let (client, mut server) = dialogue::pair();
    let (forward, calls) = mpsc::unbounded_channel();
    let (opened, watches) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let call = server.next().await;
            if call.uri.contains("watch=true") {
                let _ = opened.send(call.watch_live());
            } else if !call.uri.contains("fieldSelector=") {
                if forward.send(call).is_err() {
                    return;
                }
            } else if watchable {
                assert!(call.uri.contains("metadata.namespace%21%3Dkube-node-lease"));
                call.ok(&json!({"metadata": {"resourceVersion": "1"}, "items": items}));
            } else {
                call.fail(403, "Forbidden");
            }
        }
    });
    let (commands, receiver) = mpsc::channel(8);
    let (sender, notices) = mpsc::channel(room);
    let shutdown = CancellationToken::new();
    let election = Election {
        client,
        scope: Scope::All,
        identity: "us".to_owned(),
        timings: TIMINGS,
    };
    let driver = run(election, receiver, sender, shutdown.clone(), || {});
    Bench {
        commands,
        notices,
        calls,
        watches,
        watch: None,
        shutdown,
        driver: tokio::spawn(driver),
    }
}

fn key(name: &str) -> LeaseKey {
    LeaseKey {
        namespace: "a".to_owned(),
        name: name.to_owned(),
    }
}

/// Held, or released as client-go does it.
fn lease(name: &str, version: u64, holder: &str) -> Value {
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(if holder.is_empty() { 1 } else { 15 }),
        lease_transitions: Some(i32::try_from(version).unwrap()),
        ..LeaseSpec::default()
    };
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "namespace": "a", "name": name, "uid": name, "resourceVersion": version.to_string(),
        },
        "spec": spec,
    })
}

impl Bench {
    async fn contend(&self, name: &str) {
        let contend = Command::Contend {
            lease: key(name),
            hesitation: Duration::ZERO,
        };
        self.commands.send(contend).await.unwrap();
    }

    async fn call(&mut self, method: &str) -> Request {
        let call = self.calls.recv().await.expect("a call");
        assert_eq!(call.method, method, "{}", call.uri);
        call
    }

    /// Carries out the next write, as version `version`.
    async fn accept(&mut self, method: &str, version: u64) -> Value {
        let call = self.call(method).await;
        let written = call.body.clone();
        let mut object = written.clone();
        object["metadata"]["uid"] = json!("u");
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        call.ok(&object);
        written
    }

    /// The next notice that is not about who is seen.
    async fn news(&mut self) -> Notice {
        loop {
            match self.notices.recv().await.expect("a notice") {
                Notice::Seen { .. } => {}
                notice => return notice,
            }
        }
    }

    async fn lead(&mut self) {
        self.contend("l").await;
        self.accept("POST", 2).await;
        let lease = key("l");
        let how = Acquisition::Created;
        assert_eq!(self.news().await, Notice::Acquired { lease, how });
    }
}

#[tokio::test(start_paused = true)]
async fn an_absent_lease_is_created_renewed_and_released_at_the_end() {
    let mut bench = start(Vec::new(), 16).await;
    bench.lead().await;
    let begun = clock::now();
    let renewed = bench.accept("PUT", 3).await;
    let waited = (clock::now() - begun).as_secs_f64();
    assert!((1.7..2.3).contains(&waited), "{waited}");
    assert_eq!(renewed["metadata"]["resourceVersion"], "2");
    assert_eq!(renewed["spec"]["holderIdentity"], "us");
    bench.shutdown.cancel();
    let released = bench.accept("PUT", 4).await;
    assert_eq!(released["spec"]["holderIdentity"], "");
    assert_eq!(released["spec"]["leaseDurationSeconds"], 1);
    assert_eq!(bench.news().await, Notice::Retired { lease: key("l") });
    bench.driver.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_cannot_remove_an_address_does_not_release_its_lease() {
    let mut bench = start(vec![lease("l", 1, ""), lease("m", 2, "")], 16).await;
    for (name, version) in [("l", 3), ("m", 4)] {
        bench.contend(name).await;
        bench.accept("PUT", version).await;
        assert!(matches!(bench.news().await, Notice::Acquired { .. }));
    }
    // The address under `m` is gone, that under `l` is not.
    let retire = Command::Retire {
        lease: key("m"),
        delete: false,
    };
    bench.commands.send(retire).await.unwrap();
    let Bench {
        commands,
        mut calls,
        driver,
        ..
    } = bench;
    drop(commands);
    let release = calls.recv().await.unwrap();
    assert_eq!(release.body["metadata"]["name"], "m");
    assert_eq!(release.body["spec"]["holderIdentity"], "");
    release.ok(&lease("m", 5, ""));
    driver.await.unwrap();
    assert!(
        calls.try_recv().is_err(),
        "nothing is written for the other"
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_not_heard_any_more_releases_only_what_was_retired() {
    let mut bench = start(vec![lease("m", 1, "")], 16).await;
    bench.lead().await;
    bench.contend("m").await;
    bench.accept("PUT", 3).await;
    assert!(matches!(bench.news().await, Notice::Acquired { .. }));
    let Bench {
        commands,
        notices,
        mut calls,
        driver,
        ..
    } = bench;
    drop(notices);
    let confirm = Command::Confirm { round: 1 };
    commands.send(confirm).await.unwrap();
    let retire = Command::Retire {
        lease: key("m"),
        delete: false,
    };
    commands.send(retire).await.unwrap();
    let release = calls.recv().await.unwrap();
    assert_eq!(release.body["metadata"]["name"], "m");
    release.ok(&lease("m", 5, ""));
    driver.await.unwrap();
    assert!(calls.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_only_wall_time_shows_is_a_loss_once_others_may_have_taken_over() {
    let (client, _server) = dialogue::pair();
    let mut driver = Driver::new(client, "us".into(), TIMINGS);
    let (mut now, mut wall) = driver.last;
    let held = serde_json::from_value(lease("l", 1, "us")).unwrap();
    driver.touch(key("l"), now, |elector| {
        elector.handle_object(&Arc::new(held), Origin::Any, now);
        elector.handle_contend(Duration::ZERO, now);
    });
    driver.dispatch(now);
    let written = serde_json::from_value(lease("l", 2, "us")).unwrap();
    driver.touch(key("l"), now, |elector| {
        elector.handle_outcome(&Outcome::Object(Arc::new(written)), now, 0.5);
    });
    driver.outbox.clear();
    for (second, ahead, lost) in [(1.0, 4.9, false), (1.0, -60.0, false), (1.0, 5.1, true)] {
        now += Duration::from_secs_f64(second);
        wall += SignedDuration::from_secs_f64(second + ahead);
        driver.pass_time(now, wall);
        let (lease, why) = (key("l"), Loss::Paused);
        let told = driver.outbox.contains(&Notice::Lost { lease, why });
        assert_eq!(told, lost, "{ahead} s ahead");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_renewal_is_a_loss_at_the_deadline_and_not_later() {
    let mut bench = start(Vec::new(), 16).await;
    bench.contend("l").await;
    let call = bench.call("POST").await;
    let begun = clock::now();
    let mut object = call.body.clone();
    object["metadata"]["resourceVersion"] = json!("2");
    call.ok(&object);
    assert!(matches!(bench.news().await, Notice::Acquired { .. }));
    let hanging = bench.call("PUT").await;
    let why = Loss::Deadline;
    assert_eq!(
        bench.news().await,
        Notice::Lost {
            lease: key("l"),
            why
        }
    );
    let held = clock::now() - begun;
    assert!(
        held >= TIMINGS.renew_deadline && held < TIMINGS.renew_deadline + Duration::from_millis(50),
        "{held:?}"
    );
    drop(hanging);
}

#[tokio::test(start_paused = true)]
async fn a_question_after_a_standstill_is_answered_behind_what_was_lost() {
    let mut bench = start(Vec::new(), 16).await;
    bench.lead().await;
    tokio::time::advance(TIMINGS.renew_deadline * 2).await;
    let question = Command::Confirm { round: 7 };
    bench.commands.send(question).await.unwrap();
    let (lease, why) = (key("l"), Loss::Deadline);
    assert_eq!(bench.news().await, Notice::Lost { lease, why });
    assert_eq!(bench.news().await, Notice::Confirmed { round: 7 });
}

#[tokio::test(start_paused = true)]
async fn overload_and_server_errors_are_retried_and_a_conflict_is_looked_into() {
    let mut bench = start(Vec::new(), 16).await;
    bench.lead().await;
    let busy = json!({"retryAfterSeconds": 1});
    bench
        .call("PUT")
        .await
        .fail_with(429, "TooManyRequests", &busy);
    bench.call("PUT").await.fail(500, "InternalError");
    bench.call("PUT").await.break_connection();
    bench.call("PUT").await.fail(409, "Conflict");
    bench.call("GET").await.ok(&lease("l", 9, "other"));
    let why = Loss::Taken {
        by: "other".to_owned(),
    };
    assert_eq!(
        bench.news().await,
        Notice::Lost {
            lease: key("l"),
            why
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_recreated_by_its_holder() {
    let mut bench = start(Vec::new(), 16).await;
    bench.lead().await;
    bench.call("PUT").await.fail(404, "NotFound");
    bench.accept("POST", 12).await;
    bench.accept("PUT", 13).await;
    assert!(
        !std::iter::from_fn(|| bench.notices.try_recv().ok())
            .any(|notice| matches!(notice, Notice::Lost { .. }))
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_seen_by_the_watch_is_taken_and_a_lost_race_costs_one_call() {
    let mut bench = start(vec![lease("l", 1, "other")], 16).await;
    bench.contend("l").await;
    let watch = bench.watch.clone().unwrap();
    watch
        .send(json!({"type": "MODIFIED", "object": lease("l", 2, "")}))
        .unwrap();
    bench.call("PUT").await.fail(409, "Conflict");
    watch
        .send(json!({"type": "MODIFIED", "object": lease("l", 3, "third")}))
        .unwrap();
    tokio::task::yield_now().await;
    watch
        .send(json!({"type": "MODIFIED", "object": lease("l", 4, "")}))
        .unwrap();
    bench.accept("PUT", 5).await;
    let how = Acquisition::Released {
        by: Some("third".to_owned()),
    };
    assert_eq!(
        bench.news().await,
        Notice::Acquired {
            lease: key("l"),
            how
        }
    );
}

#[tokio::test(start_paused = true)]
async fn leases_nobody_contends_for_are_seen_and_seen_dying() {
    let mut bench = start_at(vec![lease("l", 1, "kube-vip")], true, 16);
    let begun = clock::now();
    let seen = |live| Notice::Seen {
        lease: key("l"),
        holder: Some(Holder {
            identity: "kube-vip".to_owned(),
            live,
            renewed: false,
        }),
    };
    assert_eq!(bench.notices.recv().await, Some(seen(true)));
    assert_eq!(bench.notices.recv().await, Some(seen(false)));
    let waited = clock::now() - begun;
    assert!(waited >= TIMINGS.duration && waited < TIMINGS.duration + Duration::from_secs(1));
    assert!(bench.calls.try_recv().is_err(), "no call for it");
}

#[tokio::test(start_paused = true)]
async fn where_the_watch_is_forbidden_wanted_leases_are_polled() {
    let mut bench = start_at(Vec::new(), false, 16);
    bench.contend("l").await;
    bench.call("GET").await.ok(&lease("l", 1, "other"));
    bench.call("GET").await.ok(&lease("l", 2, ""));
    bench.accept("PUT", 3).await;
    assert!(matches!(bench.news().await, Notice::Acquired { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_does_not_listen_stops_no_renewal() {
    let mut bench = start(Vec::new(), 1).await;
    bench.contend("l").await;
    bench.accept("POST", 2).await;
    for version in 3..20 {
        bench.accept("PUT", version).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_failing_lease_does_not_hold_up_hundreds_of_others() {
    let mut bench = start(Vec::new(), 2048).await;
    for number in 0..300 {
        bench.contend(&format!("l{number}")).await;
    }
    let mut hanging = Vec::new();
    let mut version = 10;
    let mut acquired = 0;
    while acquired < 299 {
        tokio::select! {
            Some(call) = bench.calls.recv() => {
                if call.uri.contains("/l7?") || call.body["metadata"]["name"] == "l7" {
                    hanging.push(call);
                    continue;
                }
                version += 1;
                let mut object = call.body.clone();
                object["metadata"]["resourceVersion"] = json!(version.to_string());
                call.ok(&object);
            }
            Some(notice) = bench.notices.recv() => match notice {
                Notice::Acquired { lease, .. } => {
                    assert_ne!(lease.name, "l7");
                    acquired += 1;
                }
                Notice::Seen { .. } => {}
                other => panic!("{other:?}"),
            },
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_leases_are_renewed_steadily_over_a_server_that_takes_its_time() {
    const LEASES: usize = 1000;
    let mut bench = start(Vec::new(), 4096).await;
    for number in 0..LEASES {
        bench.contend(&format!("l{number}")).await;
    }
    let mut version = 10;
    let mut acquired = 0;
    let mut writes = 0;
    let mut answers = JoinSet::new();
    let begun = clock::now();
    while clock::now() - begun < Duration::from_secs(10) {
        tokio::select! {
            Some(call) = bench.calls.recv() => {
                version += 1;
                writes += 1;
                let mut object = call.body.clone();
                object["metadata"]["uid"] = json!("u");
                object["metadata"]["resourceVersion"] = json!(version.to_string());
                let event = json!({"type": "MODIFIED", "object": object});
                bench.watch.as_ref().unwrap().send(event).unwrap();
                answers.spawn(async move {
                    clock::sleep(Duration::from_millis(20)).await;
                    call.ok(&object);
                });
            }
            Some(notice) = bench.notices.recv() => match notice {
                Notice::Acquired { .. } => acquired += 1,
                Notice::Seen { .. } => {}
                other => panic!("{other:?}"),
            },
            Some(_) = answers.join_next() => {}
        }
    }
    assert_eq!(acquired, LEASES);
    // One write each two seconds for each, give or take the jitter.
    assert!((4_500..=6_500).contains(&writes), "{writes}");
}
