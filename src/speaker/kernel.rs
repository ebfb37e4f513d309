//! The kernel task: address operations one batch after the other, outside of the speaker's loop.
//!
//! In: [`KernelBatch`]es over a [`KernelLine`]. Out: how each operation ended, as events. The line counts
//! what was handed over and what was done, so that its owner notices a kernel that answers no more.

use std::time::{Duration, Instant};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::event::{Event, Outcome};
use crate::{
    net::{
        self,
        link::{AddressKey, VipAddress},
        netlink::Netlink,
    },
    runtime::clock,
};

/// Batches waiting for the kernel.
const QUEUE: usize = 4096;
/// Pause before a lost netlink connection is opened again.
const RECONNECT: Duration = Duration::from_millis(100);

/// Additions and renewals are made within this time or not at all: after a standstill they would put
/// on the link what others have taken over meanwhile.
const CURRENT: Duration = Duration::from_secs(2);

/// Address operations, in order: removals first.
#[derive(Debug)]
pub struct KernelBatch {
    pub remove: Vec<AddressKey>,
    pub add: Vec<VipAddress>,
    pub renew: Vec<VipAddress>,
    pub handed_over: Instant,
}

impl KernelBatch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            remove: Vec::new(),
            add: Vec::new(),
            renew: Vec::new(),
            handed_over: now,
        }
    }

    /// Drops what comes too late, and tells of the additions that are not made.
    fn drop_overdue(&mut self, now: Instant) -> Option<Outcome> {
        if now.saturating_duration_since(self.handed_over) <= CURRENT {
            return None;
        }
        self.renew.clear();
        let dropped = std::mem::take(&mut self.add);
        let results = dropped
            .into_iter()
            .map(|address| (address.key, Err(net::netlink::Error::Deadline)));
        let results: Vec<_> = results.collect();
        (!results.is_empty()).then_some(Outcome::Added(results))
    }
}

/// The way to the kernel task.
#[derive(Debug)]
pub struct KernelLine {
    batches: mpsc::Sender<KernelBatch>,
    done: watch::Receiver<u64>,
    handed: u64,
    /// While something is under way: what was done, and since when no more.
    waiting: Option<(u64, Instant)>,
}

/// What the kernel task works with.
#[derive(Debug)]
pub struct KernelTask {
    batches: mpsc::Receiver<KernelBatch>,
    done: watch::Sender<u64>,
}

/// Both ends.
pub fn line() -> (KernelLine, KernelTask) {
    let (batches, received) = mpsc::channel(QUEUE);
    let (done, seen) = watch::channel(0);
    let line = KernelLine {
        batches,
        done: seen,
        handed: 0,
        waiting: None,
    };
    let batches = received;
    (line, KernelTask { batches, done })
}

impl KernelLine {
    /// Returns whether there was room for the batch.
    pub fn hand_over(&mut self, batch: KernelBatch) -> bool {
        let now = batch.handed_over;
        let taken = self.batches.try_send(batch).is_ok();
        if taken {
            self.handed += 1;
            self.waiting
                .get_or_insert_with(|| (*self.done.borrow(), now));
        }
        taken
    }

    /// For how long nothing was done of what is under way.
    pub fn silence(&mut self, now: Instant) -> Duration {
        let done = *self.done.borrow();
        self.waiting = match self.waiting {
            _ if done >= self.handed => None,
            Some((before, since)) if before == done => Some((done, since)),
            _ => Some((done, now)),
        };
        self.waiting.map_or(Duration::ZERO, |(_, since)| {
            now.saturating_duration_since(since)
        })
    }
}

impl KernelTask {
    /// Runs until nobody asks any more. Opens the netlink connection again when it was lost.
    pub async fn run(mut self, events: mpsc::Sender<Event>) {
        let mut connection = None;
        let mut tasks = JoinSet::new();
        while let Some(mut batch) = self.batches.recv().await {
            let netlink = match connection.take() {
                Some(netlink) => netlink,
                None => connect(&mut tasks).await,
            };
            let overdue = batch.drop_overdue(clock::now());
            let (mut outcomes, alive) = perform(&netlink, batch).await;
            outcomes.extend(overdue);
            for outcome in outcomes {
                if events.send(Event::Outcome(outcome)).await.is_err() {
                    return;
                }
            }
            self.done.send_modify(|done| *done += 1);
            connection = alive.then_some(netlink);
        }
    }
}

/// Opens netlink, however long that takes.
async fn connect(tasks: &mut JoinSet<()>) -> Netlink {
    loop {
        match Netlink::connect() {
            Ok((netlink, connection)) => {
                while tasks.try_join_next().is_some() {}
                tasks.spawn(connection);
                return netlink;
            }
            Err(error) => {
                tracing::error!(%error, "cannot open netlink");
                clock::sleep(RECONNECT).await;
            }
        }
    }
}

async fn perform(netlink: &Netlink, batch: KernelBatch) -> (Vec<Outcome>, bool) {
    let mut outcomes = Vec::new();
    let mut alive = true;
    let mut note = |results: &[Result<(), net::netlink::Error>]| {
        alive &= !results
            .iter()
            .any(|r| matches!(r, Err(net::netlink::Error::Disconnected)));
    };
    if !batch.remove.is_empty() {
        let results = netlink.remove_addresses(&batch.remove).await;
        note(&results);
        outcomes.push(Outcome::Removed(
            batch.remove.into_iter().zip(results).collect(),
        ));
    }
    let mut ensure = batch.add;
    ensure.extend(batch.renew);
    if !ensure.is_empty() {
        let results = netlink.ensure_addresses(&ensure).await;
        note(&results);
        let keys = ensure.into_iter().map(|address| address.key);
        outcomes.push(Outcome::Added(keys.zip(results).collect()));
    }
    (outcomes, alive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{net::link::LinkIndex, speaker::testing::ip};

    fn vip(address: &str) -> VipAddress {
        VipAddress {
            key: AddressKey {
                link: LinkIndex(2),
                address: ip(address),
                prefix_len: 32,
            },
            lifetime: None,
        }
    }

    #[test]
    fn a_batch_from_before_a_standstill_only_removes() {
        let start = clock::now();
        let batch = || KernelBatch {
            remove: vec![vip("10.0.0.100").key],
            add: vec![vip("10.0.0.101")],
            renew: vec![vip("10.0.0.102")],
            handed_over: start,
        };
        let mut fresh = batch();
        assert!(fresh.drop_overdue(start + CURRENT).is_none());
        assert_eq!((fresh.add.len(), fresh.renew.len()), (1, 1));

        let mut late = batch();
        let outcome = late.drop_overdue(start + CURRENT * 2);
        let Some(Outcome::Added(results)) = outcome else {
            panic!("{outcome:?} does not tell of the addition");
        };
        assert_eq!(results.len(), 1);
        assert!(results[0].1.is_err() && results[0].0 == vip("10.0.0.101").key);
        assert_eq!(late.remove.len(), 1);
        assert!(late.add.is_empty() && late.renew.is_empty());

        let mut renewal = KernelBatch {
            renew: vec![vip("10.0.0.102")],
            ..KernelBatch::new(start)
        };
        assert!(renewal.drop_overdue(start + CURRENT * 2).is_none());
        assert!(renewal.renew.is_empty());
    }

    #[test]
    fn a_kernel_that_does_nothing_of_what_it_was_asked_is_silent() {
        let (mut line, task) = line();
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let silence = |line: &mut KernelLine, seconds| line.silence(at(seconds)).as_secs();
        assert_eq!(silence(&mut line, 60), 0, "nothing was asked");
        for second in 60..64 {
            assert!(line.hand_over(KernelBatch::new(at(second))));
        }
        assert_eq!(silence(&mut line, 64), 4);
        task.done.send_replace(1);
        assert_eq!(silence(&mut line, 65), 0, "it moved");
        assert_eq!(silence(&mut line, 70), 5);
        task.done.send_replace(4);
        assert_eq!(silence(&mut line, 100), 0, "all is done");
        assert!(line.hand_over(KernelBatch::new(at(101))));
        assert_eq!(silence(&mut line, 103), 2);
    }
}
