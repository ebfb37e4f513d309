//! Named health checks that are true statements, and the watchdogs behind them.
//!
//! A [`Check`] says what its owner last reported. A [`Beat`] says when its owner last made progress:
//! a loop that hangs turns red by itself. `/livez` and `/healthz` run the checks of liveness,
//! `/readyz` runs all. Text and codes are those of Kubernetes' components.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::clock;

/// All checks of the process; cheap to clone.
#[derive(Debug, Clone)]
pub struct Health {
    checks: Arc<Mutex<BTreeMap<Arc<str>, Entry>>>,
    start: Instant,
}

#[derive(Debug, Clone)]
struct Entry {
    scope: Scope,
    state: State,
}

/// Which endpoints run a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// `/livez`, `/healthz` and `/readyz`.
    Live,
    /// `/readyz` only.
    Ready,
}

#[derive(Debug, Clone)]
enum State {
    Passing,
    Failing(String),
    /// Milliseconds from the registry's start to the last progress.
    Beating {
        last: Arc<AtomicU64>,
        period: Duration,
    },
}

/// One of the endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    Healthz,
    Livez,
    Readyz,
}

impl Endpoint {
    pub const ALL: [Self; 3] = [Self::Healthz, Self::Livez, Self::Readyz];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }
}

/// A check that its owner sets.
#[derive(Debug)]
pub struct Check {
    name: Arc<str>,
    health: Health,
}

/// A watchdog that its owner feeds. Dropping it does not silence it: a loop that ended is as dead as
/// one that hangs. Use [`Beat::retire`] where the end is meant.
#[derive(Debug)]
pub struct Beat {
    name: Arc<str>,
    health: Health,
    last: Arc<AtomicU64>,
}

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub name: Arc<str>,
    /// Why it fails. For the log; answers to clients withhold it.
    pub failure: Option<String>,
}

/// An answer to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub healthy: bool,
    pub text: String,
}

/// The check that every process has: it fails from the moment a stop is requested.
const STOPPING: &str = "shutdown";

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    pub fn new() -> Self {
        let health = Self {
            checks: Arc::default(),
            start: clock::now(),
        };
        health.insert(&"ping".into(), Scope::Live, State::Passing);
        health.insert(&STOPPING.into(), Scope::Ready, State::Passing);
        health
    }

    /// Adds a check of liveness, passing until its owner says otherwise.
    pub fn check(&self, name: impl Into<Arc<str>>) -> Check {
        let name = name.into();
        self.insert(&name, Scope::Live, State::Passing);
        self.owned(name)
    }

    /// Adds a check of readiness, failing until its owner says otherwise.
    pub fn readiness(&self, name: impl Into<Arc<str>>) -> Check {
        let name = name.into();
        let reason = "not reached yet".to_owned();
        self.insert(&name, Scope::Ready, State::Failing(reason));
        self.owned(name)
    }

    /// Adds a watchdog of liveness: it fails when its owner makes no progress for `period`.
    pub fn watchdog(&self, name: impl Into<Arc<str>>, period: Duration) -> Beat {
        let name = name.into();
        let last = Arc::new(AtomicU64::new(self.elapsed_millis()));
        let state = State::Beating {
            last: Arc::clone(&last),
            period,
        };
        self.insert(&name, Scope::Live, state);
        Beat {
            name,
            health: self.clone(),
            last,
        }
    }

    /// The process stops: not ready any more.
    pub fn stopping(&self) {
        let reason = "the process is stopping".to_owned();
        self.set(STOPPING, State::Failing(reason));
    }

    /// Runs the checks of an endpoint, in the order of their names.
    pub fn run(&self, endpoint: Endpoint) -> Vec<Verdict> {
        let elapsed = self.elapsed_millis();
        self.locked()
            .iter()
            .filter(|(_, entry)| endpoint == Endpoint::Readyz || entry.scope == Scope::Live)
            .map(|(name, entry)| Verdict {
                name: Arc::clone(name),
                failure: entry.state.failure(elapsed),
            })
            .collect()
    }

    /// What `GET /<endpoint>` answers.
    pub fn answer(&self, endpoint: Endpoint, verbose: bool, exclude: &BTreeSet<String>) -> Answer {
        let verdicts = self.run(endpoint);
        let name = endpoint.name();
        let failing = |v: &&Verdict| v.failure.is_some() && !exclude.contains(&*v.name);
        let healthy = !verdicts.iter().any(|v| failing(&v));
        if healthy && !verbose {
            let text = "ok".to_owned();
            return Answer { healthy, text };
        }
        let mut text = String::new();
        for verdict in &verdicts {
            let name = &*verdict.name;
            // Writing to a string does not fail.
            let _ = if exclude.contains(name) {
                writeln!(text, "[+]{name} excluded: ok")
            } else if verdict.failure.is_some() {
                writeln!(text, "[-]{name} failed: reason withheld")
            } else {
                writeln!(text, "[+]{name} ok")
            };
        }
        let unknown: Vec<String> = exclude
            .iter()
            .filter(|name| verdicts.iter().all(|v| *v.name != **name))
            .map(|name| format!("{name:?}"))
            .collect();
        if !unknown.is_empty() {
            let _ = writeln!(
                text,
                "warn: some health checks cannot be excluded: no matches for {}",
                unknown.join(",")
            );
        }
        let outcome = if healthy { "passed" } else { "failed" };
        let _ = writeln!(text, "{name} check {outcome}");
        Answer { healthy, text }
    }

    /// What `GET /<endpoint>/<check>` answers; `None` where there is no such check.
    pub fn answer_one(&self, endpoint: Endpoint, name: &str) -> Option<Answer> {
        let verdict = self.run(endpoint).into_iter().find(|v| &*v.name == name)?;
        Some(match verdict.failure {
            None => Answer {
                healthy: true,
                text: "ok".to_owned(),
            },
            Some(_) => Answer {
                healthy: false,
                text: format!("[-]{name} failed: reason withheld\n"),
            },
        })
    }

    fn owned(&self, name: Arc<str>) -> Check {
        Check {
            name,
            health: self.clone(),
        }
    }

    fn insert(&self, name: &Arc<str>, scope: Scope, state: State) {
        self.locked()
            .insert(Arc::clone(name), Entry { scope, state });
    }

    fn set(&self, name: &str, state: State) {
        if let Some(entry) = self.locked().get_mut(name) {
            entry.state = state;
        }
    }

    fn elapsed_millis(&self) -> u64 {
        let elapsed = clock::now().saturating_duration_since(self.start);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Every critical section is one assignment or one read, so a poisoned lock is still whole.
    fn locked(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Entry>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn failure(&self, elapsed_millis: u64) -> Option<String> {
        match self {
            Self::Passing => None,
            Self::Failing(reason) => Some(reason.clone()),
            Self::Beating { last, period } => {
                let silent = elapsed_millis.saturating_sub(last.load(Ordering::Relaxed));
                let silent = Duration::from_millis(silent);
                (silent > *period).then(|| format!("no progress for {silent:?}"))
            }
        }
    }
}

impl Check {
    pub fn pass(&self) {
        self.health.set(&self.name, State::Passing);
    }

    pub fn fail(&self, reason: impl Into<String>) {
        self.health.set(&self.name, State::Failing(reason.into()));
    }
}

impl Beat {
    /// The owner made progress.
    pub fn touch(&self) {
        self.last
            .store(self.health.elapsed_millis(), Ordering::Relaxed);
    }

    /// The owner ends on purpose; its check goes with it.
    pub fn retire(self) {
        self.health.locked().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Endpoint::{Healthz, Livez, Readyz},
        *,
    };

    fn text(health: &Health, endpoint: Endpoint, exclude: &[&str]) -> (bool, String) {
        let exclude = exclude.iter().map(|name| (*name).to_owned()).collect();
        let answer = health.answer(endpoint, true, &exclude);
        (answer.healthy, answer.text)
    }

    #[test]
    fn a_new_process_is_alive() {
        let expected = "[+]ping ok\nlivez check passed\n".to_owned();
        assert_eq!(text(&Health::new(), Livez, &[]), (true, expected));
        let plain = Health::new().answer(Healthz, false, &BTreeSet::new());
        assert_eq!(plain.text, "ok");
    }

    #[test]
    fn readiness_is_of_readyz_alone_and_fails_until_reached() {
        let health = Health::new();
        let synced = health.readiness("caches-synced");
        let failed = "[-]caches-synced failed: reason withheld\n[+]ping ok\n[+]shutdown ok\n\
                      readyz check failed\n";
        assert_eq!(text(&health, Readyz, &[]), (false, failed.to_owned()));
        assert!(text(&health, Healthz, &[]).0);
        synced.pass();
        assert!(text(&health, Readyz, &[]).0);
        health.stopping();
        assert!(!text(&health, Readyz, &[]).0);
        assert!(text(&health, Livez, &[]).0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_makes_no_progress_turns_red_and_recovers() {
        let health = Health::new();
        let beat = health.watchdog("speaker-loop", Duration::from_secs(3));
        clock::sleep(Duration::from_secs(3)).await;
        assert!(text(&health, Livez, &[]).0);
        clock::sleep(Duration::from_millis(2)).await;
        for endpoint in Endpoint::ALL {
            assert!(!text(&health, endpoint, &[]).0, "{endpoint:?}");
        }
        beat.touch();
        assert!(text(&health, Livez, &[]).0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_watchdog_keeps_barking_and_a_retired_one_is_gone() {
        let health = Health::new();
        drop(health.watchdog("dead", Duration::from_secs(1)));
        health.watchdog("done", Duration::from_secs(1)).retire();
        clock::sleep(Duration::from_secs(2)).await;
        let mut failing = health.run(Livez);
        failing.retain(|v| v.failure.is_some());
        let names: Vec<&str> = failing.iter().map(|v| &*v.name).collect();
        assert_eq!(names, ["dead"]);
    }

    #[test]
    fn checks_can_be_excluded_and_asked_one_by_one() {
        let health = Health::new();
        health.check("api").fail("refused");
        let expected = "[+]api excluded: ok\n[+]ping ok\n\
                        warn: some health checks cannot be excluded: no matches for \"x\"\n\
                        livez check passed\n";
        let all = text(&health, Livez, &["api", "x"]);
        assert_eq!(all, (true, expected.to_owned()));
        let one = |name| health.answer_one(Livez, name).map(|answer| answer.healthy);
        assert_eq!(one("api"), Some(false));
        assert_eq!(one("ping"), Some(true));
        assert_eq!(one("shutdown"), None);
    }
}
