//! The command `check`: what this configuration means, and whether this host can serve it.
//!
//! Reading the configuration has happened before; here the effective flags are printed and the
//! host's side is tried. It changes nothing.

use std::{fmt::Write as _, net::TcpListener, path::Path, time::Duration};

use crate::{
    config::{Config, SpeakerConfig},
    harvester,
    k8s::{self, ClientSource},
    runtime::realtime,
};

/// How long the API server may take to answer.
const API_TIMEOUT: Duration = Duration::from_secs(5);

const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub text: String,
    /// Nothing stands in the way.
    pub sound: bool,
}

/// One finding: what was looked at, and how it is.
type Finding = (String, Result<String, String>);

/// What could be better and stands in nobody's way.
type Note = (String, String);

/// Checks a configuration on this host.
pub async fn run(config: &Config) -> Report {
    let mut findings = Vec::new();
    let mut notes = Vec::new();
    if let Some(speaker) = &config.speaker {
        findings.extend(capabilities());
        findings.extend(links(speaker));
        if speaker.realtime {
            let subject = "real-time scheduling".to_owned();
            match realtime::probe() {
                Ok(()) => findings.push((subject, Ok("permitted".to_owned()))),
                Err(error) => notes.push((subject, chain(&error))),
            }
        }
    }
    if !config.ccm.controllers.none {
        findings.push(("cloud-config".to_owned(), cloud_config(config).await));
    }
    findings.extend(ports(config));
    findings.push(("API server".to_owned(), api_server(config).await));
    report(config, &findings, &notes)
}

/// Beside a speaker it may be missing.
async fn cloud_config(config: &Config) -> Result<String, String> {
    let found = match &config.ccm.cloud_config {
        None => Err("--cloud-config is not given".to_owned()),
        Some(path) => harvester::connect(path)
            .await
            .map(|(host, _)| format!("everything is in namespace {}", host.namespace()))
            .map_err(|error| error.to_string()),
    };
    match found {
        Err(reason) if config.speaker.is_some() => Ok(format!(
            "{reason}: only the speaker runs here, the cloud controllers are left to other nodes"
        )),
        found => found,
    }
}

fn report(config: &Config, findings: &[Finding], notes: &[Note]) -> Report {
    let mut text = String::new();
    // Writing to a string does not fail.
    let mut line = |prefix: &str, rest: &str| {
        let _ = writeln!(text, "{prefix}{rest}");
    };
    line("configuration:", "");
    for (flag, value) in config.flags.iter().filter(|(_, value)| !value.is_empty()) {
        line("  --", &format!("{flag}={value}"));
    }
    for warning in &config.warnings {
        line("warning: ", warning);
    }
    line("host:", "");
    for (subject, finding) in findings {
        match finding {
            Ok(how) => line("  ok      ", &format!("{subject}: {how}")),
            Err(why) => line("  FAILED  ", &format!("{subject}: {why}")),
        }
    }
    for (subject, note) in notes {
        line("  note    ", &format!("{subject}: {note}"));
    }
    let sound = findings.iter().all(|(_, finding)| finding.is_ok());
    Report { text, sound }
}

fn capabilities() -> Vec<Finding> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = effective_capabilities(&status);
    [
        ("capability NET_ADMIN", CAP_NET_ADMIN),
        ("capability NET_RAW", CAP_NET_RAW),
    ]
    .map(|(name, bit)| {
        let finding = match effective {
            Some(set) if set & (1 << bit) != 0 => Ok("present".to_owned()),
            Some(_) => Err("missing".to_owned()),
            None => Err("unknown: /proc/self/status is unreadable".to_owned()),
        };
        (name.to_owned(), finding)
    })
    .into()
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn links(speaker: &SpeakerConfig) -> Vec<Finding> {
    let service = match &speaker.service_interface {
        crate::config::InterfaceChoice::Named(name) => Some(name.clone()),
        crate::config::InterfaceChoice::Auto => None,
    };
    let mut names: Vec<String> = speaker.interface.iter().cloned().chain(service).collect();
    names.dedup();
    names
        .into_iter()
        .map(|name| {
            let state = Path::new("/sys/class/net").join(&name).join("operstate");
            let finding = match std::fs::read_to_string(state) {
                Ok(state) if matches!(state.trim(), "up" | "unknown") => {
                    Ok(state.trim().to_owned())
                }
                Ok(state) => Err(state.trim().to_owned()),
                Err(_) => Err("there is no such link".to_owned()),
            };
            (format!("link {name}"), finding)
        })
        .collect()
}

/// Opens each port as the run does.
fn ports(config: &Config) -> Vec<Finding> {
    let speaker = config.speaker.as_ref();
    let all = |port: u16| std::net::SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
    let serving = config.serving.iter();
    let secure = serving.map(|serving| (serving.address, serving.port_sharing));
    let health = speaker.and_then(|s| s.health_port).map(all);
    let metrics = speaker.and_then(|s| s.metrics_address);
    secure
        .chain(
            health
                .into_iter()
                .chain(metrics)
                .map(|address| (address, false)),
        )
        .map(|(address, sharing)| {
            let finding = match crate::runtime::server::bind(address, sharing) {
                Ok(listener) => {
                    drop::<TcpListener>(listener);
                    Ok("free".to_owned())
                }
                Err(error) => Err(chain(&error)),
            };
            (format!("port {address}"), finding)
        })
        .collect()
}

async fn api_server(config: &Config) -> Result<String, String> {
    let source = ClientSource {
        kubeconfig: config.kubeconfig.clone(),
        master: config.master.clone(),
        rate: None,
    };
    let connection = k8s::connect(&source, "check")
        .await
        .map_err(|error| chain(&error))?;
    let version = tokio::time::timeout(API_TIMEOUT, connection.client.apiserver_version());
    match version.await {
        Ok(Ok(version)) => Ok(version.git_version),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer in {}s", API_TIMEOUT.as_secs())),
    }
}

/// An error with all that is below it.
fn chain(error: &dyn std::error::Error) -> String {
    let below = std::iter::successors(error.source(), |error| error.source());
    below.fold(error.to_string(), |text, error| format!("{text}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(line: &str) -> Config {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let surroundings = crate::config::Surroundings {
            host_name: Some("node-1".to_owned()),
            ..crate::config::Surroundings::default()
        };
        match crate::config::load(&args, &surroundings) {
            Ok(crate::config::Invocation::Check(config)) => *config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_shared_port_is_no_obstacle_to_who_shares_it() {
        let held = crate::runtime::server::bind(([127, 0, 0, 1], 0).into(), true).unwrap();
        let port = held.local_addr().unwrap().port();
        let line = format!("check --bind-address=127.0.0.1 --secure-port={port}");
        let sound = |line: &str| ports(&config(line)).iter().all(|(_, found)| found.is_ok());
        assert!(!sound(&line));
        assert!(sound(&format!("{line} --permit-port-sharing")));
    }

    #[tokio::test]
    async fn check_and_run_agree_about_master_and_controllers() {
        // The connection is refused at once; without a pod nothing else would be tried.
        let nobody = "check --secure-port=0 --master=http://127.0.0.1:1";
        let report = run(&config(nobody)).await;
        let (_, host) = report.text.split_once("host:").unwrap();
        assert!(
            host.contains("cloud-config: --cloud-config is not given"),
            "{host}"
        );
        assert!(!host.contains("in a cluster"), "{host}");
        assert!(!report.sound);
        let report = run(&config(&format!("{nobody} --speaker"))).await;
        assert!(
            report.text.contains("only the speaker runs here"),
            "{}",
            report.text
        );
    }

    #[test]
    fn capabilities_are_bits_of_the_effective_set() {
        let set = effective_capabilities("Name:\tx\nCapEff:\t0000000000003000\n").unwrap();
        assert_ne!(set & (1 << CAP_NET_ADMIN), 0);
        assert_ne!(set & (1 << CAP_NET_RAW), 0);
        assert_eq!(effective_capabilities("CapEff:\tx\n"), None);
    }
}
