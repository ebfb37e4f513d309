//! The process's metrics: one registry as a value, and what every process exports.
//!
//! Parts register their own metrics with [`Metrics::register`] and keep the handles. The text is
//! Prometheus' format 0.0.4. Counters get `_total` appended by the library: register them without.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, prometheus_text},
    metrics::{counter::ConstCounter, family::Family, gauge::ConstGauge, gauge::Gauge},
    registry::{Metric, Registry},
};

use super::health::{Endpoint, Health};

/// Media type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The registry; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl Metrics {
    /// A registry with what this process tells about itself.
    pub fn new(health: &Health) -> Self {
        let metrics = Self::default();
        let build: Family<[(&'static str, &'static str); 1], Gauge> = Family::default();
        build
            .get_or_create(&[("version", env!("CARGO_PKG_VERSION"))])
            .set(1);
        metrics.register(
            "harvester_cloud_provider_build_info",
            "The running build",
            build,
        );
        metrics.collect(Checks(health.clone()));
        metrics.collect(ProcessCollector);
        metrics
    }

    /// Adds a metric. Names are constants of the code, so one that is taken is a mistake there: it
    /// would be exported twice.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.with(|registry| registry.register(name, help, metric));
    }

    /// Adds metrics that are computed on each scrape.
    pub fn collect(&self, collector: impl Collector) {
        self.with(|registry| registry.register_collector(Box::new(collector)));
    }

    /// Works on the registry itself, for prefixes and constant labels.
    pub fn with<T>(&self, work: impl FnOnce(&mut Registry) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All metrics as text.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        self.with(|registry| prometheus_text::encode(&mut text, registry))?;
        Ok(text)
    }
}

/// `kubernetes_healthcheck`: the state of each check at the scrape.
#[derive(Debug)]
struct Checks(Health);

impl Collector for Checks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let gauge = ConstGauge::new(0_i64);
        let mut family = encoder.encode_descriptor(
            "kubernetes_healthcheck",
            "Whether a health check passes",
            None,
            gauge.metric_type(),
        )?;
        for endpoint in Endpoint::ALL {
            for verdict in self.0.run(endpoint) {
                let labels = [("name", &*verdict.name), ("type", endpoint.name())];
                let passing = ConstGauge::new(i64::from(verdict.failure.is_none()));
                passing.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The `process_…` metrics, with the names of Prometheus' client libraries.
#[derive(Debug)]
struct ProcessCollector;

/// What `/proc` tells about this process.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct ProcessFacts {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    threads: u64,
    start_seconds: f64,
}

/// `USER_HZ`: what the kernel's ABI counts CPU time and start times in, on every architecture that
/// this program is built for.
const TICKS_PER_SECOND: f64 = 100.0;

impl ProcessFacts {
    /// Reads the texts of `/proc/self/stat`, `/proc/self/status` and `/proc/stat`.
    fn parse(stat: &str, status: &str, system: &str) -> Option<Self> {
        // The name in parentheses may contain anything; the fields begin after the last one.
        let (_, fields) = stat.rsplit_once(')')?;
        let field = |number: usize| -> Option<f64> {
            fields.split_whitespace().nth(number - 3)?.parse().ok()
        };
        let kilobytes = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let number: u64 = line.split_whitespace().next()?.parse().ok()?;
            Some(number.saturating_mul(1024))
        };
        let boot: f64 = system
            .lines()
            .find_map(|line| line.strip_prefix("btime "))?
            .trim()
            .parse()
            .ok()?;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / TICKS_PER_SECOND,
            resident_bytes: kilobytes("VmRSS:")?,
            virtual_bytes: kilobytes("VmSize:")?,
            threads: fields.split_whitespace().nth(17)?.parse().ok()?,
            start_seconds: boot + field(22)? / TICKS_PER_SECOND,
        })
    }

    fn read() -> Option<Self> {
        let text = |path: &str| std::fs::read_to_string(path).ok();
        Self::parse(
            &text("/proc/self/stat")?,
            &text("/proc/self/status")?,
            &text("/proc/stat")?,
        )
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut put = |name: &str, help: &str, metric: &dyn ProcessMetric| {
            metric.put(encoder.encode_descriptor(name, help, None, metric.kind())?)
        };
        if let Some(facts) = ProcessFacts::read() {
            put(
                "process_cpu_seconds",
                "CPU time in user and system mode",
                &ConstCounter::new(facts.cpu_seconds),
            )?;
            put(
                "process_resident_memory_bytes",
                "Resident memory",
                &gauge(facts.resident_bytes),
            )?;
            put(
                "process_virtual_memory_bytes",
                "Virtual memory",
                &gauge(facts.virtual_bytes),
            )?;
            put("process_threads", "Threads", &gauge(facts.threads))?;
            put(
                "process_start_time_seconds",
                "Start of the process since the epoch",
                &ConstGauge::new(facts.start_seconds),
            )?;
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            // The listing itself is one of them.
            let open = u64::try_from(open.count()).unwrap_or(0).saturating_sub(1);
            put("process_open_fds", "Open file descriptors", &gauge(open))?;
        }
        Ok(())
    }
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

/// The two kinds of numbers above, as one.
trait ProcessMetric {
    fn kind(&self) -> prometheus_client::metrics::MetricType;
    fn put(&self, encoder: prometheus_client::encoding::MetricEncoder<'_>) -> fmt::Result;
}

impl<M: EncodeMetric> ProcessMetric for M {
    fn kind(&self) -> prometheus_client::metrics::MetricType {
        self.metric_type()
    }

    fn put(&self, encoder: prometheus_client::encoding::MetricEncoder<'_>) -> fmt::Result {
        self.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_whatever_the_process_is_called() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 3 0 1200 1 2 3";
        let status = "Name:\tx\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\n";
        let system = "cpu 1 2\nbtime 1000\n";
        let expected = ProcessFacts {
            cpu_seconds: 3.0,
            resident_bytes: 524_288,
            virtual_bytes: 2_097_152,
            threads: 3,
            start_seconds: 1012.0,
        };
        assert_eq!(ProcessFacts::parse(stat, status, system), Some(expected));
        assert_eq!(ProcessFacts::parse("", status, system), None);
    }

    #[test]
    fn every_process_tells_its_build_its_checks_and_its_size() {
        let health = Health::new();
        health.check("api").fail("refused");
        let text = Metrics::new(&health).text().unwrap();
        for line in [
            concat!(
                "harvester_cloud_provider_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            ),
            "kubernetes_healthcheck{name=\"api\",type=\"livez\"} 0",
            "kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1",
            "# TYPE process_cpu_seconds_total counter",
            "# TYPE process_resident_memory_bytes gauge",
            "process_open_fds ",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
