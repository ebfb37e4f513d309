//! Works off a queue with many keys at a time, in one task: nothing is spawned, so dropping the
//! future drops the work.

use std::hash::Hash;

use futures_util::{StreamExt, stream::FuturesUnordered};

use crate::runtime::workqueue::WorkQueue;

/// Keys in work at a time where the configuration does not limit them.
pub(in crate::ccm) const DEFAULT_LIMIT: usize = 64;

/// A configured number of workers.
pub(in crate::ccm) fn limit(configured: Option<u32>) -> usize {
    configured.map_or(DEFAULT_LIMIT, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

/// Returns when the queue is shut down and what was begun has ended.
pub(in crate::ccm) async fn work_off<K, F>(
    queue: &WorkQueue<K>,
    limit: usize,
    sync: impl Fn(K) -> F,
) where
    K: Clone + Eq + Ord + Hash,
    F: Future<Output = ()>,
{
    let one = async |key: K| {
        sync(key.clone()).await;
        queue.done(&key);
    };
    let mut running = FuturesUnordered::new();
    let mut is_open = true;
    while is_open || !running.is_empty() {
        tokio::select! {
            key = queue.next(), if is_open && running.len() < limit => match key {
                Some(key) => running.push(one(key)),
                None => is_open = false,
            },
            Some(()) = running.next(), if !running.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;
    use crate::runtime::{backoff::Backoff, clock};

    /// How long a hundred keys of a second each take.
    async fn hundred(limit: usize) -> (usize, u64) {
        let second = Duration::from_secs(1);
        let queue = WorkQueue::new(Backoff::new(second, second, 0.0));
        for key in 0..100_u32 {
            queue.add(key);
        }
        let (calls, begun) = (AtomicUsize::new(0), clock::now());
        let sync = async |_| {
            clock::sleep(second).await;
            if calls.fetch_add(1, Ordering::Relaxed) == 99 {
                queue.shut_down();
            }
        };
        work_off(&queue, limit, sync).await;
        (calls.into_inner(), (clock::now() - begun).as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn fw_n39_to_n42_more_workers_are_through_sooner_and_each_key_is_worked_once() {
        for (workers, seconds) in [(1, 100), (5, 20), (10, 10), (30, 4)] {
            assert_eq!(hundred(workers).await, (100, seconds), "{workers} workers");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_begun_is_finished_after_the_queue_is_shut_down() {
        let queue = WorkQueue::new(Backoff::new(Duration::ZERO, Duration::ZERO, 0.0));
        queue.add(1);
        let finished = AtomicUsize::new(0);
        let sync = async |_| {
            queue.shut_down();
            clock::sleep(Duration::from_secs(1)).await;
            finished.fetch_add(1, Ordering::Relaxed);
        };
        work_off(&queue, 8, sync).await;
        assert_eq!(finished.into_inner(), 1);
    }
}
