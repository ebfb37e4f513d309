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

pub(super) mod meter;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{backoff::Backoff, clock};
use meter::Meter;

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

    /// Returns whether it had not been added before.
    pub fn add(&mut self, key: K) -> bool {
        if self.shut_down || !self.dirty.insert(key.clone()) {
            return false;
        }
        if !self.processing.contains(&key) {
            self.ready.push_back(key);
        }
        true
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
    queue: Mutex<Measured<K>>,
    /// One permit for each change a waiting worker may have to see.
    changed: Notify,
}

/// The machine and, where it has a name, its measures.
struct Measured<K> {
    queue: Queue<K>,
    meter: Option<Meter<K>>,
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

impl<K: Clone + Eq + Ord + Hash> Measured<K> {
    /// `work` gets the meter, if there is one, and the number of keys that wait.
    fn measure(&mut self, work: impl FnOnce(&mut Meter<K>, usize)) {
        let depth = self.queue.len();
        if let Some(meter) = &mut self.meter {
            work(meter, depth);
        }
    }
}

impl<K: Clone + Eq + Ord + Hash> WorkQueue<K> {
    pub fn new(backoff: Backoff) -> Self {
        Self::of(backoff, None)
    }

    /// A queue whose `workqueue_…` metrics bear this name.
    pub fn named(name: &'static str, backoff: Backoff) -> Self {
        Self::of(backoff, Some(Meter::new(name)))
    }

    fn of(backoff: Backoff, meter: Option<Meter<K>>) -> Self {
        let queue = Queue::new(backoff);
        Self {
            shared: Arc::new(Shared {
                queue: Mutex::new(Measured { queue, meter }),
                changed: Notify::new(),
            }),
        }
    }

    pub fn add(&self, key: K) {
        let mut lock = self.lock();
        let is_new = lock.queue.add(key.clone());
        lock.measure(|meter, depth| {
            if is_new {
                meter.added(key, clock::now());
            }
            meter.depth(depth);
        });
        drop(lock);
        self.shared.changed.notify_one();
    }

    pub fn add_after(&self, key: K, delay: Duration) {
        let mut lock = self.lock();
        lock.queue.add_at(key, clock::now() + delay);
        lock.measure(|meter, _| meter.delayed());
        drop(lock);
        self.shared.changed.notify_one();
    }

    /// Adds `key` after its back-off, which is returned for the log.
    pub fn retry(&self, key: K) -> Duration {
        let mut lock = self.lock();
        let delay = lock
            .queue
            .retry(key, clock::now(), clock::random_fraction());
        lock.measure(|meter, _| meter.delayed());
        drop(lock);
        self.shared.changed.notify_one();
        delay
    }

    pub fn forget(&self, key: &K) {
        self.lock().queue.forget(key);
    }

    pub fn failures(&self, key: &K) -> u32 {
        self.lock().queue.failures(key)
    }

    pub fn done(&self, key: &K) {
        let mut lock = self.lock();
        lock.queue.done(key);
        lock.measure(|meter, depth| {
            meter.done(key, clock::now());
            meter.depth(depth);
        });
        drop(lock);
        self.shared.changed.notify_one();
    }

    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().queue.is_empty()
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
        self.lock().queue.shut_down();
        self.shared.changed.notify_waiters();
    }

    fn take(&self) -> Taken<K> {
        let mut lock = self.lock();
        let now = clock::now();
        let taken = lock.queue.take(now);
        if let Taken::Key(key) = &taken {
            lock.measure(|meter, depth| {
                meter.taken(key.clone(), now);
                meter.depth(depth);
            });
            // One permit is remembered, not one for each add: pass the wake-up on.
            if !lock.queue.is_empty() {
                self.shared.changed.notify_one();
            }
        }
        taken
    }

    fn lock(&self) -> MutexGuard<'_, Measured<K>> {
        self.shared
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
