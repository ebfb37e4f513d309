use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::*;
use crate::k8s::dialogue::{self, Server};

fn map(name: &str, uid: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "namespace": "a", "name": name, "uid": uid, "resourceVersion": version,
            "managedFields": [{"manager": "x"}],
        },
        "data": {"big": "x"},
    })
}

fn list(version: &str, items: &[Value]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMapList",
        "metadata": {"resourceVersion": version}, "items": items,
    })
}

struct Bench {
    server: Server,
    deltas: mpsc::Receiver<Delta<ConfigMap>>,
    status: watch::Receiver<InformerStatus>,
    _informer: tokio::task::JoinSet<()>,
}

fn start() -> Bench {
    let (client, server) = dialogue::pair();
    let (out, deltas) = mpsc::channel(8);
    let (sender, status) = watch::channel(InformerStatus::new(clock::now()));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(run(
        Api::all(client),
        Selection::default(),
        |map: &mut ConfigMap| map.data = None,
        out,
        |delta| delta,
        sender,
    ));
    Bench {
        server,
        deltas,
        status,
        _informer: tasks,
    }
}

impl Bench {
    async fn list(&mut self, version: &str, items: &[Value]) -> String {
        let call = self.server.next().await;
        let uri = call.uri.clone();
        call.ok(&list(version, items));
        uri
    }

    async fn watch(&mut self, events: &[Value]) -> String {
        let call = self.server.next().await;
        let uri = call.uri.clone();
        call.watch(events);
        uri
    }

    async fn fail(&mut self, code: u16, reason: &str) {
        self.server.next().await.fail(code, reason);
    }

    /// The next delta, as `+name version (old version)` or `-name version`.
    async fn delta(&mut self) -> String {
        let version = |map: &ConfigMap| map.resource_version().unwrap_or_default();
        match self.deltas.recv().await.expect("a delta") {
            Delta::Upsert { old: None, new } => format!("+{} {}", new.name_any(), version(&new)),
            Delta::Upsert {
                old: Some(old),
                new,
            } => {
                format!("+{} {} ({})", new.name_any(), version(&new), version(&old))
            }
            Delta::Delete(old) => format!("-{} {}", old.name_any(), version(&old)),
            Delta::Synced => "synced".to_owned(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_then_changes_arrive_in_order_and_the_status_tells_of_the_watch() {
    let mut bench = start();
    bench.list("5", &[map("one", "u1", "3")]).await;
    assert_eq!(bench.delta().await, "+one 3");
    assert_eq!(bench.delta().await, "synced");
    let events = [
        json!({"type": "MODIFIED", "object": map("one", "u1", "6")}),
        json!({"type": "ADDED", "object": map("two", "u2", "7")}),
        json!({"type": "DELETED", "object": map("one", "u1", "8")}),
    ];
    let watch = bench.watch(&events).await;
    assert!(
        watch.contains("watch=true") && watch.contains("resourceVersion=5"),
        "{watch}"
    );
    assert_eq!(bench.delta().await, "+one 6 (3)");
    assert_eq!(bench.delta().await, "+two 7");
    assert_eq!(bench.delta().await, "-one 8");
    let status = *bench.status.borrow();
    assert!(status.synced && status.connected);
}

#[tokio::test(start_paused = true)]
async fn a_relist_after_gone_yields_only_the_difference() {
    let mut bench = start();
    let before = [
        map("kept", "u1", "1"),
        map("lost", "u2", "2"),
        map("again", "u3", "3"),
    ];
    bench.list("5", &before).await;
    for expected in ["+kept 1", "+lost 2", "+again 3", "synced"] {
        assert_eq!(bench.delta().await, expected);
    }
    bench.fail(410, "Expired").await;
    let after = [map("kept", "u1", "1"), map("again", "u4", "9")];
    let relist = bench.list("10", &after).await;
    assert!(!relist.contains("watch=true"), "{relist}");
    for expected in ["-again 3", "+again 9", "-lost 2"] {
        assert_eq!(bench.delta().await, expected);
    }
    let watch = bench.watch(&[]).await;
    assert!(watch.contains("resourceVersion=10"), "{watch}");
    assert!(bench.deltas.try_recv().is_err(), "no second Synced");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_stalls_is_replaced_from_where_it_was() {
    let mut bench = start();
    bench.list("5", &[]).await;
    let bookmark = json!({
        "type": "BOOKMARK",
        "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": "20"}},
    });
    bench.watch(&[bookmark]).await;
    let opened = clock::now();
    let watch = bench.watch(&[]).await;
    let waited = clock::now() - opened;
    assert!(
        waited >= Duration::from_secs(26) && waited < Duration::from_secs(36),
        "{waited:?}"
    );
    assert!(watch.contains("resourceVersion=20"), "{watch}");
}

#[tokio::test(start_paused = true)]
async fn errors_back_off_and_the_status_says_disconnected_until_the_watch_is_back() {
    let mut bench = start();
    bench.list("5", &[]).await;
    let begun = clock::now();
    bench.fail(503, "ServiceUnavailable").await;
    bench.fail(500, "InternalError").await;
    assert!(!bench.status.borrow().connected);
    bench.watch(&[]).await;
    assert!(clock::now() - begun >= Duration::from_millis(150));
    bench
        .status
        .wait_for(|status| status.connected)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bad_object_is_skipped_and_its_last_good_state_stays() {
    let mut bench = start();
    let bad = |version: &str| {
        let mut bad = map("one", "u1", version);
        bad["data"] = json!(["not", "a", "map"]);
        bad
    };
    bench
        .list("5", &[map("one", "u1", "3"), map("two", "u2", "4")])
        .await;
    for expected in ["+one 3", "+two 4", "synced"] {
        assert_eq!(bench.delta().await, expected);
    }
    bench.watch(&[
        json!({"type": "MODIFIED", "object": bad("6")}),
        json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}),
    ]).await;
    bench.list("9", &[bad("6"), map("two", "u2", "8")]).await;
    assert_eq!(bench.delta().await, "+two 8 (4)");
    bench
        .watch(&[json!({"type": "MODIFIED", "object": map("one", "u1", "10")})])
        .await;
    assert_eq!(bench.delta().await, "+one 10 (3)");
}

#[tokio::test(start_paused = true)]
async fn stored_objects_are_pruned() {
    let mut bench = start();
    bench.list("5", &[map("one", "u1", "3")]).await;
    let Some(Delta::Upsert { new, .. }) = bench.deltas.recv().await else {
        panic!("an upsert comes first");
    };
    assert!(new.data.is_none() && new.metadata.managed_fields.is_none());
}
