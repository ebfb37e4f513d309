//! The work queues' metrics, under client-go's names: what dashboards of controllers show.

use std::{collections::HashMap, hash::Hash, sync::LazyLock, time::Instant};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// Which queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: &'static str,
}

struct Families {
    depth: Family<Name, Gauge>,
    adds: Family<Name, Counter>,
    retries: Family<Name, Counter>,
    waited: Family<Name, Histogram>,
    worked: Family<Name, Histogram>,
}

/// Those of all queues of this process.
static FAMILIES: LazyLock<Families> = LazyLock::new(|| {
    // client-go's buckets: 10 ns to 10 s.
    let histogram = || Histogram::new(exponential_buckets(1e-8, 10.0, 10));
    Families {
        depth: Family::default(),
        adds: Family::default(),
        retries: Family::default(),
        waited: Family::new_with_constructor(histogram),
        worked: Family::new_with_constructor(histogram),
    }
});

/// Makes the metrics of all queues part of a registry.
pub(in crate::runtime) fn register(registry: &mut Registry) {
    let families = &*FAMILIES;
    let registry = registry.sub_registry_with_prefix("workqueue");
    registry.register(
        "depth",
        "Keys that wait for a worker",
        families.depth.clone(),
    );
    registry.register("adds", "Keys that came to wait", families.adds.clone());
    registry.register(
        "retries",
        "Keys that are to come later",
        families.retries.clone(),
    );
    registry.register(
        "queue_duration_seconds",
        "How long a key waited for a worker",
        families.waited.clone(),
    );
    registry.register(
        "work_duration_seconds",
        "How long a worker took for a key",
        families.worked.clone(),
    );
}

/// The measures of one queue.
#[derive(Debug)]
pub(super) struct Meter<K> {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
    /// Since when each key waits, and is worked on.
    waiting: HashMap<K, Instant>,
    working: HashMap<K, Instant>,
}

impl<K: Eq + Hash> Meter<K> {
    pub(super) fn new(name: &'static str) -> Self {
        let (name, families) = (Name { name }, &*FAMILIES);
        Self {
            depth: families.depth.get_or_create(&name).clone(),
            adds: families.adds.get_or_create(&name).clone(),
            retries: families.retries.get_or_create(&name).clone(),
            waited: families.waited.get_or_create(&name).clone(),
            worked: families.worked.get_or_create(&name).clone(),
            waiting: HashMap::new(),
            working: HashMap::new(),
        }
    }

    pub(super) fn added(&mut self, key: K, now: Instant) {
        self.adds.inc();
        self.waiting.insert(key, now);
    }

    pub(super) fn delayed(&self) {
        self.retries.inc();
    }

    pub(super) fn taken(&mut self, key: K, now: Instant) {
        let since = self.waiting.remove(&key).unwrap_or_else(|| {
            // A delayed one, that has become due this moment.
            self.adds.inc();
            now
        });
        let waited = now.saturating_duration_since(since);
        self.waited.observe(waited.as_secs_f64());
        self.working.insert(key, now);
    }

    pub(super) fn done(&mut self, key: &K, now: Instant) {
        if let Some(since) = self.working.remove(key) {
            let took = now.saturating_duration_since(since);
            self.worked.observe(took.as_secs_f64());
        }
    }

    pub(super) fn depth(&self, depth: usize) {
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::runtime::{backoff::Backoff, workqueue::WorkQueue};

    #[tokio::test]
    async fn a_queue_with_a_name_is_measured_as_client_go_measures() {
        let second = Duration::from_secs(1);
        let queue = WorkQueue::named("meter-test", Backoff::new(second, second, 0.0));
        queue.add(1);
        queue.add(1);
        queue.add(2);
        assert_eq!(queue.next().await, Some(1));
        queue.done(&1);
        queue.retry(1);
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes all");
        for line in [
            r#"workqueue_depth{name="meter-test"} 1"#,
            r#"workqueue_adds_total{name="meter-test"} 2"#,
            r#"workqueue_retries_total{name="meter-test"} 1"#,
            r#"workqueue_queue_duration_seconds_count{name="meter-test"} 1"#,
            r#"workqueue_work_duration_seconds_count{name="meter-test"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
