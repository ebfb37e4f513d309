use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

use super::*;
use crate::k8s::dialogue::{self, Call, Server};

const BUDGET: Duration = Duration::from_secs(1);

struct Bench {
    server: Server,
    recorder: Recorder,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn start() -> Bench {
    let (client, server) = dialogue::pair();
    let (recorder, writer) = Recorder::new(client, "speaker", "n1");
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(writer.run(shutdown.clone(), BUDGET));
    Bench {
        server,
        recorder,
        shutdown,
        task,
    }
}

fn event(message: &str) -> Event {
    let node = Node {
        metadata: ObjectMeta {
            name: Some("n1".to_owned()),
            uid: Some("u".to_owned()),
            ..ObjectMeta::default()
        },
        ..Node::default()
    };
    Event {
        regarding: ObjectRef::of(&node),
        kind: Kind::Normal,
        reason: "Tested",
        message: message.to_owned(),
        shared: false,
    }
}

fn accept(call: Call) -> Value {
    let body = call.body.clone();
    call.ok(&json!({"metadata": {"name": "x"}, "involvedObject": {}}));
    body
}

#[tokio::test(start_paused = true)]
async fn an_event_is_created_and_its_repetition_patched() {
    let mut bench = start();
    bench.recorder.publish(event("x"));
    bench.recorder.publish(event("x"));
    let call = bench.server.next().await;
    assert_eq!(call.method, "POST");
    assert!(
        call.uri.starts_with("/api/v1/namespaces/default/events"),
        "{}",
        call.uri
    );
    let body = accept(call);
    assert_eq!(body["involvedObject"]["kind"], "Node");
    assert_eq!(body["involvedObject"]["apiVersion"], "v1");
    assert_eq!(
        body["source"],
        json!({"component": "speaker", "host": "n1"})
    );
    assert_eq!(
        (&body["type"], &body["reason"]),
        (&json!("Normal"), &json!("Tested"))
    );
    let call = bench.server.next().await;
    assert_eq!(call.method, "PATCH");
    let name = body["metadata"]["name"].as_str().unwrap();
    assert!(
        call.uri.contains(&format!("/events/{name}")),
        "{}",
        call.uri
    );
    assert_eq!(accept(call)["count"], 2);
    assert_eq!(bench.recorder.dropped(), 0);
}

#[tokio::test(start_paused = true)]
async fn transport_errors_are_retried_and_refusals_are_not() {
    let mut bench = start();
    bench.recorder.publish(event("x"));
    bench.server.next().await.break_connection();
    accept(bench.server.next().await);
    bench.recorder.publish(event("y"));
    bench.server.next().await.fail(403, "Forbidden");
    bench.recorder.publish(event("z"));
    assert_eq!(accept(bench.server.next().await)["message"], "z");
    assert_eq!(bench.recorder.dropped(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_count_of_an_expired_event_begins_a_new_one() {
    let mut bench = start();
    bench.recorder.publish(event("x"));
    accept(bench.server.next().await);
    bench.recorder.publish(event("x"));
    bench.server.next().await.fail(404, "NotFound");
    let call = bench.server.next().await;
    assert_eq!(call.method, "POST");
    assert_eq!(accept(call)["count"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_holds_up_nobody_and_the_drain_has_a_budget() {
    let bench = start();
    for number in 0..QUEUE + 50 {
        bench.recorder.publish(event(&number.to_string()));
    }
    assert!(bench.recorder.dropped() >= 49);
    let begun = clock::now();
    bench.shutdown.cancel();
    bench.task.await.unwrap();
    assert!(clock::now() - begun <= BUDGET + Duration::from_millis(10));
    assert_eq!(bench.recorder.dropped(), u64::try_from(QUEUE + 50).unwrap());
}
