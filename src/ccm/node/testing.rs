//! Watches and configurations for the tests of controllers: a scripted server per kind, whose
//! objects the test changes.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use kube::{Api, Client, Resource, core::DeserializeGuard};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    ccm::cache::{Feed, Source},
    config::{self, CcmConfig, Invocation, Surroundings},
    k8s::dialogue::{self, Call, Server},
    runtime::{clock, informer::Selection},
};

/// The tasks of a test; they end with it.
#[derive(Debug, Default)]
pub(in crate::ccm) struct Stage {
    pub(in crate::ccm) tasks: JoinSet<()>,
}

/// Where a test changes the objects of a kind.
pub(in crate::ccm) type Changes = mpsc::UnboundedSender<Value>;

impl Stage {
    /// A watch that begins with these objects.
    pub(in crate::ccm) fn watch<K>(&mut self, objects: Vec<Value>) -> (Feed<K>, Changes)
    where
        K: Resource<DynamicType = ()>
            + Clone
            + DeserializeOwned
            + fmt::Debug
            + Send
            + Sync
            + 'static,
    {
        let (client, server) = dialogue::pair();
        let (changes, received) = mpsc::unbounded_channel();
        let mut source = Source::default();
        let feed = source.subscribe();
        let api: Api<DeserializeGuard<K>> = Api::all(client);
        self.tasks.spawn(serve(server, objects, received));
        self.tasks
            .spawn(async { source.run(api, Selection::default(), |_| {}).await });
        (feed, changes)
    }
}

async fn serve(
    mut server: Server,
    objects: Vec<Value>,
    mut changes: mpsc::UnboundedReceiver<Value>,
) {
    let mut live = None;
    loop {
        tokio::select! {
            call = server.next() => if call.uri.contains("watch=") {
                live = Some(call.watch_live());
            } else {
                call.ok(&json!({"metadata": {"resourceVersion": "1"}, "items": objects}));
            },
            Some(event) = changes.recv(), if live.is_some() => {
                if let Some(live) = &live {
                    live.send(event).unwrap();
                }
            }
        }
    }
}

pub(in crate::ccm) fn modified(object: &Value) -> Value {
    json!({"type": "MODIFIED", "object": object})
}

pub(in crate::ccm) fn configured(line: &str) -> Arc<CcmConfig> {
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let surroundings = Surroundings {
        environment: BTreeMap::default(),
        host_name: Some("m".to_owned()),
        pod_namespace: None,
    };
    match config::load(&args, &surroundings).unwrap() {
        Invocation::Run(config) => Arc::new(config.ccm),
        _ => panic!("{line} runs"),
    }
}

/// A client whose server answers nothing, for parts that the test does not look at.
pub(in crate::ccm) fn nobody() -> Client {
    dialogue::pair().0
}

/// The next request within a second.
pub(in crate::ccm) async fn soon(server: &mut Server) -> Call {
    let call = tokio::time::timeout(Duration::from_secs(1), server.next());
    call.await.expect("a request within a second")
}

/// No request for so long.
pub(in crate::ccm) async fn quiet(server: &mut Server, period: Duration) {
    tokio::select! {
        call = server.next() => panic!("{} {} {}", call.method, call.uri, call.body),
        () = clock::sleep(period) => {}
    }
}
