//! The VIP speaker: it puts each Service's VIP on one node, announces it by ARP and neighbour
//! discovery, and moves it when the node, the Pod or the link goes away.
//!
//! | file | decides or does |
//! | --- | --- |
//! | `selection` | which Services are ours and what they ask for |
//! | `endpoints`, `nodes`, `prune` | what EndpointSlices and Nodes say, and what of it is kept |
//! | `groups`, `candidates` | which Services share an owner, and who may own |
//! | `placement` | link of a VIP; addresses that may be none |
//! | `wire` | whether a VIP may go on the link yet |
//! | `desired`, `plan` | what should be; the next steps |
//! | `status`, `facts` | what Services and their authors are told |
//! | `model`, `run`, `executor`, `kernel` | state, loop, effects |
//! | `announcer` | frames out, answers in |
//! | `vips` | the command that prints who owns what |

pub mod announcer;
pub mod candidates;
pub mod desired;
pub mod endpoints;
pub mod event;
pub mod executor;

pub mod facts;
pub mod groups;
pub mod kernel;
pub mod metrics;
pub mod model;
pub mod node_selector;
pub mod nodes;
pub mod observed;
pub mod placement;
pub mod plan;
mod prune;

mod run;
pub mod selection;
pub mod status;
#[cfg(test)]
pub(crate) mod testing;
pub mod vips;
pub mod wire;

use std::{
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{Api, Client, Resource, core::DeserializeGuard};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    config::SpeakerConfig,
    election::{self, Election, Scope, Timings},
    k8s::{self, ClientSource, events::Recorder},
    net::monitor,
    runtime::{
        Process, clock,
        health::Check,
        informer::{self, Delta, InformerStatus, Selection},
    },
};

use self::{event::Event, executor::Executor, metrics::SpeakerMetrics, model::Model, run::Loop};

/// The component in the speaker's Events and User-Agent.
pub const COMPONENT: &str = "vip-speaker";
/// Events waiting for the loop; who sends more waits.
const EVENTS: usize = 4_096;
const COMMANDS: usize = 4_096;
/// Kubernetes Events still waiting at the stop are written for at most this long.
const EVENTS_BUDGET: Duration = Duration::from_millis(500);
/// The loop turns at least once a second; this late, it hangs.
const LOOP_LIMIT: Duration = Duration::from_secs(5);

/// Why the speaker cannot start. Once it runs, it does not fail: what does not work is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no client for the guest cluster")]
    Client(#[from] k8s::ConnectError),
}

/// Runs the speaker until the process is asked to stop and everything is withdrawn.
///
/// The process is not ready from this call on, even before the future is polled, until the first
/// decision: call it before the ports are served.
pub fn run(config: SpeakerConfig, process: Process) -> impl Future<Output = Result<(), Error>> {
    let ready = process.health.readiness("caches-synced");
    start(config, process, ready)
}

async fn start(config: SpeakerConfig, process: Process, ready: Check) -> Result<(), Error> {
    let source = client_source(&config);
    let connection = k8s::connect(&source, COMPONENT).await?;
    let mut config = config;
    config.api_server.extend(&connection.api_server);
    let config = Arc::new(config);
    let client = connection.client;

    let (events, received) = mpsc::channel(EVENTS);
    watch_objects(&config, &client, &process, &events);
    spawn_monitor(&process, events.clone());
    let (kernel, task) = kernel::line();
    process.tasks.spawn("kernel", task.run(events.clone()));
    let (election, commands) = mpsc::channel(COMMANDS);
    let elections = spawn_election(&config, &client, &process, commands, events.clone());
    let (recorder, recording) = Recorder::new(client.clone(), COMPONENT, &config.node_name);
    process.tasks.spawn(
        "events",
        recording.run(process.shutdown.token(), EVENTS_BUDGET),
    );

    let (proof, fence) = announcer::fence(clock::now());
    let announcer = announcer::Settings {
        interval: config.announce_interval,
        fence,
    };
    let metrics = process.metrics.with(|registry| {
        announcer::metrics::register(registry);
        SpeakerMetrics::register(registry, &config.node_name)
    });
    let speaker = Loop {
        model: Model::new(config),
        executor: Executor::new(client, events, election, kernel, recorder, announcer),
        events: received,
        proof,
        beat: process.health.watchdog("speaker-loop", LOOP_LIMIT),
        elections,
        metrics,
        ready,
    };
    speaker.run(process.shutdown.clone()).await;
    Ok(())
}

fn client_source(config: &SpeakerConfig) -> ClientSource {
    ClientSource {
        kubeconfig: config.kubeconfig.clone(),
        master: config.master.clone(),
        rate: None,
    }
}

/// The watches of Services, EndpointSlices and Nodes.
fn watch_objects(
    config: &SpeakerConfig,
    client: &Client,
    process: &Process,
    events: &mpsc::Sender<Event>,
) {
    use k8s_openapi::api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
    };
    let namespace = config.service_namespace.as_deref();
    let client = client.clone();
    let services = namespaced(client.clone(), namespace);
    observe::<Service, _>(
        process,
        "services",
        services,
        prune::service,
        events,
        Event::Service,
    );
    let slices = namespaced(client.clone(), namespace);
    observe::<EndpointSlice, _>(
        process,
        "endpointslices",
        slices,
        prune::slice,
        events,
        Event::Slice,
    );
    observe::<Node, _>(
        process,
        "nodes",
        Api::all(client),
        prune::node,
        events,
        Event::Node,
    );
}

fn namespaced<K>(client: Client, namespace: Option<&str>) -> Api<DeserializeGuard<K>>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}

fn observe<K, W>(
    process: &Process,
    name: &'static str,
    api: Api<DeserializeGuard<K>>,
    prune: fn(&mut K),
    events: &mpsc::Sender<Event>,
    wrap: W,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    W: Fn(Delta<K>) -> Event + Send + Sync + 'static,
{
    let (status, seen) = watch::channel(InformerStatus::new(clock::now()));
    let check = process.health.readiness(format!("watch-{name}"));
    let out = events.clone();
    let shutdown = process.shutdown.clone();
    process.tasks.spawn(name, async move {
        tokio::select! {
            () = informer::run(api, Selection::default(), prune, out, wrap, status) => {}
            never = informer::report(seen, check) => match never {},
            () = shutdown.requested() => {}
        }
    });
}

fn spawn_monitor(process: &Process, events: mpsc::Sender<Event>) {
    let (changes, mut received) = mpsc::channel(EVENTS);
    let shutdown = process.shutdown.clone();
    process.tasks.try_spawn("netlink-monitor", async move {
        let forward = async {
            while let Some(change) = received.recv().await {
                if events.send(Event::Link(change)).await.is_err() {
                    break;
                }
            }
        };
        // What the kernel still tells while everything is withdrawn is no news.
        tokio::select! {
            result = monitor::run(changes) => result,
            () = forward => Ok(()),
            () = shutdown.requested() => Ok(()),
        }
    });
}

/// Starts the elections. Returns when their loop last turned, for the fence of the speaker's loop.
fn spawn_election(
    config: &SpeakerConfig,
    client: &Client,
    process: &Process,
    commands: mpsc::Receiver<election::Command>,
    events: mpsc::Sender<Event>,
) -> watch::Receiver<Instant> {
    let election = Election {
        client: client.clone(),
        scope: Scope::All,
        identity: format!("{}{}", config.node_name, desired::IDENTITY_SUFFIX),
        timings: Timings {
            duration: config.lease.duration,
            renew_deadline: config.lease.renew_deadline,
            retry_period: config.lease.retry_period,
        },
    };
    let (notices, mut received) = mpsc::channel(EVENTS);
    let beat = process.health.watchdog("election-loop", LOOP_LIMIT);
    let (turn, turned) = watch::channel(clock::now());
    // It ends with its commands and releases only what the loop has retired: never a Lease whose
    // addresses still stand.
    process.tasks.spawn("election", async move {
        let forward = async {
            while let Some(notice) = received.recv().await {
                if events.send(Event::Election(notice)).await.is_err() {
                    break;
                }
            }
            drop(received);
        };
        let elections = election::run(
            election,
            commands,
            notices,
            CancellationToken::new(),
            || {
                beat.touch();
                turn.send_replace(clock::now());
            },
        );
        tokio::join!(elections, forward);
    });
    turned
}
