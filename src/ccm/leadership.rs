//! One process at a time runs the controllers: the election for it, and what follows from its outcome.
//!
//! In: the Lease's election, the stop of the process. Out: controllers that run while the Lease is held.
//!
//! * A loss drops the controllers at once: others may take over after `duration - renew_deadline`. The Go
//!   program exits; this one stands for election again, because it may be a VIP speaker too.
//! * At the stop the controllers finish the calls under way, then the Lease is released, so that the next
//!   leader needs not wait for its end. The Go program keeps it.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::{
    config::LeaderElection,
    election::{self, Command, Election, LeaseKey, Notice, Scope, Timings},
    k8s::events::{Event, Kind, ObjectRef, Recorder},
    runtime::{clock, health::Beat, metrics::Metrics, shutdown::Shutdown},
};

/// How long the controllers may take to finish their calls at the stop.
const DRAIN_BUDGET: Duration = Duration::from_millis(500);
const NOTICES: usize = 64;
/// The election's loop turns at least once a second; this late, it hangs.
const LOOP_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: String,
}

/// The part of an election that waits for its turn.
pub(super) struct Leadership {
    lease: LeaseKey,
    identity: String,
    timings: Timings,
    beat: Beat,
    master: Gauge,
    recorder: Recorder,
}

impl Leadership {
    pub(super) fn new(config: &LeaderElection, context: &Context, recorder: Recorder) -> Self {
        let lease = LeaseKey {
            namespace: config.namespace.clone(),
            name: config.name.clone(),
        };
        let master = register(&context.process.metrics, &lease.name);
        Self {
            identity: format!("{}_{}", context.hostname, random_uuid()),
            timings: Timings {
                duration: config.lease_duration,
                renew_deadline: config.renew_deadline,
                retry_period: config.retry_period,
            },
            beat: context
                .process
                .health
                .watchdog("leaderElection", LOOP_LIMIT),
            master,
            recorder,
            lease,
        }
    }

    /// Stands for election and runs `lead` while the Lease is held, until the process is asked to stop
    /// and the Lease is released. `lead` returns soon after the stop it is given.
    pub(super) async fn run(self, context: &Context, lead: impl AsyncFn(Shutdown)) {
        let (commands, received) = mpsc::channel(1);
        let (notices, heard) = mpsc::channel(NOTICES);
        let release = CancellationToken::new();
        let election = Election {
            client: context.guest.clone(),
            scope: Scope::One(self.lease.clone()),
            identity: self.identity.clone(),
            timings: self.timings,
        };
        let turns = || self.beat.touch();
        let elections = election::run(election, received, notices, release.clone(), turns);
        let stop = &context.process.shutdown;
        let follow = async {
            self.follow(stop, &commands, heard, &release, lead).await;
            drop(commands);
        };
        tokio::join!(elections, follow);
    }

    async fn follow(
        &self,
        shutdown: &Shutdown,
        commands: &mpsc::Sender<Command>,
        mut notices: mpsc::Receiver<Notice>,
        release: &CancellationToken,
        lead: impl AsyncFn(Shutdown),
    ) {
        let contend = Command::Contend {
            lease: self.lease.clone(),
            hesitation: Duration::ZERO,
        };
        // The election takes commands until its release is asked for.
        let _ = commands.send(contend).await;
        loop {
            let notice = tokio::select! {
                notice = notices.recv() => notice,
                () = shutdown.requested() => break,
            };
            match notice {
                Some(Notice::Acquired { .. }) => {
                    self.tell(true);
                    let lost = self.lead(shutdown, &mut notices, &lead).await;
                    self.tell(false);
                    if !lost {
                        break;
                    }
                }
                Some(Notice::Seen {
                    holder: Some(holder),
                    ..
                }) if holder.identity != self.identity => {
                    tracing::info!(lease = %self.lease, holder = holder.identity, live = holder.live, "another leads the cloud controllers");
                }
                Some(_) => {}
                None => break,
            }
        }
        release.cancel();
        while notices.recv().await.is_some() {}
    }

    /// Returns whether the Lease was lost; otherwise the process is to stop.
    async fn lead(
        &self,
        shutdown: &Shutdown,
        notices: &mut mpsc::Receiver<Notice>,
        lead: &impl AsyncFn(Shutdown),
    ) -> bool {
        let stop = Shutdown::new();
        let work = lead(stop.clone());
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                notice = notices.recv() => match notice {
                    Some(Notice::Lost { .. }) => return true,
                    Some(_) => {}
                    None => return false,
                },
                () = shutdown.requested() => {
                    stop.request();
                    if timeout(DRAIN_BUDGET, work).await.is_err() {
                        tracing::warn!("some controllers did not finish their calls in time");
                    }
                    return false;
                }
                () = &mut work => {
                    // They return after a stop only.
                    tracing::error!("the cloud controllers have ended");
                    return false;
                }
            }
        }
    }

    fn tell(&self, leads: bool) {
        self.master.set(i64::from(leads));
        let what = if leads {
            "became leader"
        } else {
            "stopped leading"
        };
        self.recorder.publish(Event {
            regarding: ObjectRef {
                api_version: "coordination.k8s.io/v1".to_owned(),
                kind: "Lease".to_owned(),
                namespace: self.lease.namespace.clone(),
                name: self.lease.name.clone(),
                uid: String::new(),
            },
            kind: Kind::Normal,
            reason: "LeaderElection",
            message: format!("{} {what}", self.identity),
            shared: false,
        });
    }
}

fn register(metrics: &Metrics, name: &str) -> Gauge {
    let family = Family::<Name, Gauge>::default();
    metrics.register(
        "leader_election_master_status",
        "Whether this process leads the election of this name",
        family.clone(),
    );
    let name = name.to_owned();
    family.get_or_create(&Name { name }).clone()
}

/// Version 4, as in the identities of Go programs.
fn random_uuid() -> String {
    let (high, low) = (clock::random(), clock::random());
    let (time, middle, version) = (high >> 32, (high >> 16) & 0xffff, high & 0x0fff);
    let (variant, node) = ((low >> 48) & 0x3fff | 0x8000, low & 0xffff_ffff_ffff);
    format!("{time:08x}-{middle:04x}-4{version:03x}-{variant:04x}-{node:012x}")
}

#[cfg(test)]
mod tests {
    use super::random_uuid;

    #[test]
    fn an_identity_ends_with_a_random_uuid() {
        let uuid = random_uuid();
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(uuid.as_bytes().get(14), Some(&b'4'));
        assert_ne!(uuid, random_uuid());
    }
}
