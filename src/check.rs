//! The command `check`: what this configuration means, and whether this host can serve it.
//!
//! Reading the configuration has happened before; here the effective flags are printed and the
//! host's side is tried. It changes nothing.

use std::{fmt::Write as _, net::TcpListener, path::Path, time::Duration};

use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::config::{Config, SpeakerConfig};

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

/// Checks a configuration on this host.
pub async fn run(config: &Config) -> Report {
    let mut findings = Vec::new();
    if let Some(speaker) = &config.speaker {
        findings.extend(capabilities());
        findings.extend(links(speaker));
    }
    findings.extend(ports(config));
    findings.push(("API server".to_owned(), api_server(config).await));
    report(config, &findings)
}

fn report(config: &Config, findings: &[Finding]) -> Report {
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

fn ports(config: &Config) -> Vec<Finding> {
    let speaker = config.speaker.as_ref();
    let all = |port: u16| std::net::SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port));
    let secure = config.serving.iter().map(|serving| serving.address);
    let health = speaker.and_then(|s| s.health_port).map(all);
    let metrics = speaker.and_then(|s| s.metrics_address);
    secure
        .chain(health)
        .chain(metrics)
        .map(|address| {
            let finding = match crate::runtime::server::bind(address, false) {
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
    let client = client(config).await?;
    let version = tokio::time::timeout(API_TIMEOUT, client.apiserver_version());
    match version.await {
        Ok(Ok(version)) => Ok(version.git_version),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer in {}s", API_TIMEOUT.as_secs())),
    }
}

async fn client(config: &Config) -> Result<kube::Client, String> {
    let mut access = match &config.kubeconfig {
        None => kube::Config::incluster().map_err(|error| chain(&error))?,
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| chain(&error))?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|error| chain(&error))?
        }
    };
    if let Some(master) = config.master.as_deref().filter(|m| !m.is_empty()) {
        access.cluster_url = master.parse().map_err(|_| format!("{master} is no URL"))?;
    }
    kube::Client::try_from(access).map_err(|error| chain(&error))
}

/// An error with all that is below it.
fn chain(error: &dyn std::error::Error) -> String {
    let below = std::iter::successors(error.source(), |error| error.source());
    below.fold(error.to_string(), |text, error| format!("{text}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bits_of_the_effective_set() {
        let set = effective_capabilities("Name:\tx\nCapEff:\t0000000000003000\n").unwrap();
        assert_ne!(set & (1 << CAP_NET_ADMIN), 0);
        assert_ne!(set & (1 << CAP_NET_RAW), 0);
        assert_eq!(effective_capabilities("CapEff:\tx\n"), None);
    }
}
