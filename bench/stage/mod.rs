//! What the benchmarks have in common: how long to measure, how to count CPU time, how to show figures,
//! and a cluster of the lab with a speaker on each node.
//!
//! `cargo bench` measures; without its `--bench` (as in `cargo test --benches`) or with `--quick` a
//! benchmark only shows that it works. `--speaker=PATH` measures another build of the program.
#![allow(
    dead_code,
    reason = "each benchmark is a program of its own and uses a part of this"
)]

use std::{fs, net::IpAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use lab::{Cluster, Process, SpeakerSetup, poll_until};

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Whether this run is for its figures.
pub(crate) fn measures() -> bool {
    let is_given = |flag: &str| std::env::args().any(|argument| argument == flag);
    is_given("--bench") && !is_given("--quick")
}

/// `full` in a run for figures, otherwise `quick`.
pub(crate) fn in_full<T>(full: T, quick: T) -> T {
    if measures() { full } else { quick }
}

/// The program to measure: by default the one that was built with the benchmark.
pub(crate) fn program() -> PathBuf {
    let given = std::env::args().find_map(|it| it.strip_prefix("--speaker=").map(PathBuf::from));
    given.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_harvester-cloud-provider")))
}

/// Runs a benchmark in the lab, or prints why it cannot.
pub(crate) fn run(name: &str, bench: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    if let Some(reason) = lab::unavailable() {
        println!("{name}: skipped: {reason}");
        return Ok(());
    }
    let mode = in_full("", " (quick: these figures mean nothing)");
    println!("\n{name}: cargo bench --bench {name}{mode}");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(bench())
}

/// A cluster of three nodes with running speakers.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    setup: SpeakerSetup,
    /// By node.
    pub(crate) speakers: Vec<Process>,
}

impl Stage {
    pub(crate) async fn set(name: &str, kube_proxy: bool) -> Result<Self> {
        let cluster = Cluster::builder(name)
            .nodes(3)
            .kube_proxy(kube_proxy)
            .start()
            .await?;
        let setup = SpeakerSetup {
            binary: program(),
            args: ["--speaker", "--controllers=-*"].map(str::to_owned).into(),
            env: Vec::new(),
        };
        let speakers = cluster
            .nodes()
            .iter()
            .map(|node| node.start_speaker(&setup))
            .collect::<Result<_>>()?;
        Ok(Self {
            cluster,
            setup,
            speakers,
        })
    }

    /// Starts the speaker of a node again.
    pub(crate) fn restart(&mut self, node: usize) -> Result<()> {
        let speaker = self.cluster.node(node).start_speaker(&self.setup)?;
        *self.speakers.get_mut(node).context("no such node")? = speaker;
        Ok(())
    }

    /// Waits until exactly one node has the address, and it is not `before`.
    pub(crate) async fn owner(&self, vip: IpAddr, before: Option<usize>) -> Result<usize> {
        poll_until(SOON, &format!("owner of {vip}"), async || {
            let mut owners = Vec::new();
            for (index, node) in self.cluster.nodes().iter().enumerate() {
                if node.host().is_on() && node.host().has_address(vip)? {
                    owners.push(index);
                }
            }
            Ok(match owners.as_slice() {
                [owner] if Some(*owner) != before => Some(*owner),
                _ => None,
            })
        })
        .await
    }
}

/// One row of figures: smallest, median, 99th percentile, largest.
pub(crate) fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| {
        // Nearest rank.
        let rank = (times.len() * percent).div_ceil(100).max(1);
        times.get(rank - 1).copied().unwrap_or_default()
    };
    let millis = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    println!(
        "  {what:<58} {:>3} runs {:>9} {:>9} {:>9} {:>9}",
        times.len(),
        millis(at(0)),
        millis(at(50)),
        millis(at(99)),
        millis(at(100)),
    );
}

/// The head of the rows of [`show`].
pub(crate) fn show_head() {
    println!(
        "  {:<58} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "ms", "", "min", "median", "p99", "max"
    );
}

/// CPU time of the calling thread so far.
pub(crate) fn thread_cpu() -> Result<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text.split_whitespace().next().context("no schedstat")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

/// CPU time of a process so far, by the kernel's ticks of 10 ms.
pub(crate) fn process_cpu(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may contain anything.
    let (_, rest) = text.rsplit_once(')').context("no stat")?;
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<Result<_, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// Resident memory of a process in MiB.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmRSS")?
        .parse()?;
    Ok(kib / 1024)
}
