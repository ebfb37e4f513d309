//! A queue of keys with client-go's semantics.
//!
//! * A key waits at most once, however often it is added.
//! * A key is given to one worker at a time; added while it is being processed, it comes again
//!   after [`WorkQueue::done`].
//! * A delayed add that is pending is replaced only by an earlier one; an immediate add does not
//!   cancel it.
//! * [`WorkQueue::retry`] delays by the key's own exponential back-off until it is forgotten.
//!
//! Deliberate deviation: after shutdown no further key is handed out, where client-go first drains
//! what is ready; a stopping process must not begin new work.
//!
//! [`Queue`] is the machine without I/O, [`WorkQueue`] the front for tasks. The front's lock is
//! held for one operation of the machine and never across an await.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{backoff::Backoff, clock};

/// What [`Queue::take`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken<K> {
    /// Process it, then say [`Queue::done`].
    Key(K),
    /// Nothing is ready; the earliest delayed key is due then.
    Wait(Option<Instant>),
    /// The queue was shut down.
    Shutdown,
}

/// The machine: which key is next, and when.
#[derive(Debug)]
pub struct Queue<K> {
    backoff: Backoff,
    /// Keys to hand out, oldest first; each is in `dirty` and not in `processing`.
    ready: VecDeque<K>,
    /// Keys that need processing, ready or added again while being processed.
    dirty: HashSet<K>,
    processing: HashSet<K>,
    /// Delayed adds, and the same by time.
    delayed: HashMap<K, Instant>,
    by_time: BTreeSet<(Instant, K)>,
    failures: HashMap<K, u32>,
    shut_down: bool,
}

impl<K: Clone + Eq + Ord + Hash> Queue<K> {
    pub fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            processing: HashSet::new(),
            delayed: HashMap::new(),
            by_time: BTreeSet::new(),
            failures: HashMap::new(),
            shut_down: false,
        }
    }

    pub fn add(&mut self, key: K) {
        if self.shut_down || !self.dirty.insert(key.clone()) {
            return;
        }
        if !self.processing.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Adds `key` at `due`; the earlier of two pending delayed adds wins.
    pub fn add_at(&mut self, key: K, due: Instant) {
        if self.shut_down {
            return;
        }
        if let Some(pending) = self.delayed.get(&key).copied() {
            if pending <= due {
                return;
            }
            self.by_time.remove(&(pending, key.clone()));
        }
        self.delayed.insert(key.clone(), due);
        self.by_time.insert((due, key));
    }

    /// Counts a failure of `key` and adds it after its back-off, which is returned.
    pub fn retry(&mut self, key: K, now: Instant, fraction: f64) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
        let delay = self.backoff.delay(*failures, fraction);
        self.add_at(key, now + delay);
        delay
    }

    /// Ends the back-off of `key`; a pending delayed add stays.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// How often `key` has failed since it was last forgotten.
    pub fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or_default()
    }

    pub fn take(&mut self, now: Instant) -> Taken<K> {
        if self.shut_down {
            return Taken::Shutdown;
        }
        self.promote(now);
        let Some(key) = self.ready.pop_front() else {
            return Taken::Wait(self.next_deadline());
        };
        self.dirty.remove(&key);
        self.processing.insert(key.clone());
        Taken::Key(key)
    }

    /// Ends the processing of `key`; if it was added meanwhile it is ready again.
    pub fn done(&mut self, key: &K) {
        if self.processing.remove(key) && self.dirty.contains(key) {
            self.ready.push_back(key.clone());
        }
    }

    /// When the earliest delayed add is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// Keys that wait for a worker now; delayed ones do not count.
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Drops everything that waits and refuses everything that comes.
    pub fn shut_down(&mut self) {
        self.shut_down = true;
        self.ready.clear();
        self.dirty.clear();
        self.delayed.clear();
        self.by_time.clear();
    }

    fn promote(&mut self, now: Instant) {
        while self.by_time.first().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, key)) = self.by_time.pop_first() {
                self.delayed.remove(&key);
                self.add(key);
            }
        }
    }
}

struct Shared<K> {
    queue: Mutex<Queue<K>>,
    /// One permit for each change a waiting worker may have to see.
    changed: Notify,
}

/// The queue as tasks use it; clones share it.
pub struct WorkQueue<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Ord + Hash> WorkQueue<K> {
    pub fn new(backoff: Backoff) -> Self {
        Self {
            shared: Arc::new(Shared {
                queue: Mutex::new(Queue::new(backoff)),
                changed: Notify::new(),
            }),
        }
    }

    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.shared.changed.notify_one();
    }

    pub fn add_after(&self, key: K, delay: Duration) {
        self.lock().add_at(key, clock::now() + delay);
        self.shared.changed.notify_one();
    }

    /// Adds `key` after its back-off, which is returned for the log.
    pub fn retry(&self, key: K) -> Duration {
        let delay = self
            .lock()
            .retry(key, clock::now(), clock::random_fraction());
        self.shared.changed.notify_one();
        delay
    }

    pub fn forget(&self, key: &K) {
        self.lock().forget(key);
    }

    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures(key)
    }

    pub fn done(&self, key: &K) {
        self.lock().done(key);
        self.shared.changed.notify_one();
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The next key to process, or `None` after shutdown. Any number of workers may wait.
    ///
    /// Cancel safe: a key is taken only by a call that returns it.
    pub async fn next(&self) -> Option<K> {
        loop {
            // Before the look at the queue, so that a change in between is not missed.
            let changed = self.shared.changed.notified();
            let deadline = match self.take() {
                Taken::Key(key) => return Some(key),
                Taken::Shutdown => return None,
                Taken::Wait(deadline) => deadline,
            };
            tokio::select! {
                () = changed => {}
                () = clock::sleep_until(deadline) => {}
            }
        }
    }

    /// Ends every waiting and future [`Self::next`].
    pub fn shut_down(&self) {
        self.lock().shut_down();
        self.shared.changed.notify_waiters();
    }

    fn take(&self) -> Taken<K> {
        let mut queue = self.lock();
        let taken = queue.take(clock::now());
        // One permit is remembered, not one for each add: pass the wake-up on.
        if matches!(taken, Taken::Key(_)) && !queue.is_empty() {
            self.shared.changed.notify_one();
        }
        taken
    }

    fn lock(&self) -> MutexGuard<'_, Queue<K>> {
        self.shared
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
