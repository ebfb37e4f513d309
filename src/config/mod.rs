//! What the command line, the environment and the files decided, validated before the first await.
//! The rest of the program never sees argv or the environment.
//!
//! [`load`] is a pure function of argv and [`Surroundings`]. Precedence: an explicit flag, then
//! kube-vip's environment variable of the same meaning, then the default.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;

mod ccm;
pub mod controllers;
pub mod duration;
mod env;
mod error;
mod flags;
mod serving;
mod speaker;

pub use ccm::{ApiRate, CcmConfig, LeaderElection, Workers};
pub use env::Environment;
pub use error::{Error, Refused};
pub use serving::{
    AuthenticationConfig, AuthorizationConfig, Certificate, CertificateFiles, FrontProxyConfig,
    NamedCertificate, SECURE_PORT, ServingConfig, TlsConfig,
};

/// What is read of the host once, at start, beside argv.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub environment: Environment,
    pub host_name: Option<String>,
    /// Of the pod's service account.
    pub pod_namespace: Option<String>,
}

/// What a start is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Invocation {
    /// Print this and end.
    Print(String),
    Run(Box<Config>),
    /// `check`: say what the configuration means and whether this host can serve it.
    Check(Box<Config>),
    /// `vips`: print the cluster's VIPs and owners.
    Vips {
        config: Box<Config>,
        json: bool,
    },
}

/// Everything that was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub ccm: CcmConfig,
    /// `None`: this process announces nothing.
    pub speaker: Option<SpeakerConfig>,
    /// `None`: no secure port.
    pub serving: Option<ServingConfig>,
    pub logging: LoggingConfig,
    /// Guest cluster kubeconfig; `None` is in-cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, instead of the kubeconfig's.
    pub master: Option<String>,
    /// Of this machine or container, for identities and the sources of Events.
    pub host_name: String,
    /// What the user should know, to be logged at start.
    pub warnings: Vec<String>,
    /// Every flag and its value's text, environment included.
    pub flags: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoggingConfig {
    pub verbosity: u8,
    pub json: bool,
    /// `RUST_LOG`, which wins over the verbosity.
    pub filter: Option<String>,
}

impl Surroundings {
    /// Reads the environment and the few files that name this host and pod.
    pub fn read() -> Self {
        let line = |path: &str| {
            std::fs::read_to_string(path)
                .ok()
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty())
        };
        Self {
            environment: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            host_name: line("/proc/sys/kernel/hostname"),
            pod_namespace: line("/var/run/secrets/kubernetes.io/serviceaccount/namespace"),
        }
    }
}

/// The first argument, where it is a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Run,
    Check,
    Vips,
    Manager,
}

fn command(args: &[String]) -> (Command, &[String]) {
    let command = match args.first().map(String::as_str) {
        Some("check") => Command::Check,
        Some("vips") => Command::Vips,
        Some("manager") => Command::Manager,
        _ => return (Command::Run, args),
    };
    (command, args.get(1..).unwrap_or_default())
}

/// Decides everything, from the arguments without the program's name.
pub fn load(args: &[String], surroundings: &Surroundings) -> Result<Invocation, Refused> {
    decide(args, surroundings).map_err(|errors| {
        // Decided on the raw arguments, because the flags may be what cannot be read.
        let full = |arg: &String| {
            let (name, value) = arg.split_once('=').unwrap_or((arg, "true"));
            name.replace('_', "-") == "--show-full-help-on-error"
                && env::parse_bool(value) == Some(true)
        };
        Refused {
            errors,
            help: args.iter().any(full).then(flags::help),
        }
    })
}

fn decide(args: &[String], surroundings: &Surroundings) -> Result<Invocation, Vec<Error>> {
    let (command, args) = command(args);
    let mut warnings = Vec::new();
    let parsed = match flags::parse(args).map_err(|error| vec![error])? {
        flags::Outcome::Print(text) => return Ok(Invocation::Print(text)),
        flags::Outcome::Flags(parsed) => {
            with_environment(command, args, *parsed, surroundings, &mut warnings)?
        }
    };
    let output = parsed.flags.command.output.as_deref();
    let json = output == Some("json");
    let mut errors = Vec::new();
    if output.is_some() && command != Command::Vips {
        errors.push(Error::rule("output", "only the command vips has one"));
    }
    let config = assemble(&parsed, surroundings, warnings, &mut errors);
    if command == Command::Run && config.speaker.is_none() && config.ccm.controllers.none {
        let reason = "nothing is switched on, and --speaker is off";
        errors.push(Error::rule("controllers", reason));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let config = Box::new(config);
    Ok(match command {
        Command::Run | Command::Manager => Invocation::Run(config),
        Command::Check => Invocation::Check(config),
        Command::Vips => Invocation::Vips { config, json },
    })
}

/// Reads the arguments again behind the flags that the command and the environment stand for, if
/// this process is a speaker; kube-vip's variables mean nothing to another one.
fn with_environment(
    command: Command,
    args: &[String],
    parsed: flags::Parsed,
    surroundings: &Surroundings,
    warnings: &mut Vec<String>,
) -> Result<flags::Parsed, Vec<Error>> {
    let speaker = if parsed.given.contains("speaker") {
        parsed.flags.speaker.speaker
    } else {
        matches!(command, Command::Manager | Command::Vips)
            || env::wants_speaker(&surroundings.environment).map_err(|error| vec![error])?
    };
    if !speaker {
        return Ok(parsed);
    }
    let mut said = env::translate(&surroundings.environment);
    if !said.errors.is_empty() {
        return Err(said.errors);
    }
    warnings.append(&mut said.warnings);
    // kube-vip looks at it only where it does not know the pod's namespace.
    said.flags.retain(|derived| {
        derived.variable != "cp_namespace" || surroundings.pod_namespace.is_none()
    });
    // kube-vip goes on with the service account where its file is missing, and its charts name one.
    said.flags.retain(|derived| {
        let missing = derived.flag == "kubeconfig" && !Path::new(&derived.value).exists();
        if missing {
            warnings.push(format!(
                "{}={}: there is no such file; the pod's service account is used",
                derived.variable, derived.value
            ));
        }
        !missing
    });
    let mut all = vec!["--speaker=true".to_owned()];
    if command == Command::Manager && !parsed.given.contains("controllers") {
        all.push("--controllers=-*".to_owned());
    }
    all.extend(
        said.flags
            .iter()
            .map(|d| format!("--{}={}", d.flag, d.value)),
    );
    all.extend_from_slice(args);
    match flags::parse(&all) {
        Ok(flags::Outcome::Flags(parsed)) => Ok(*parsed),
        // Asked for by the arguments alone, and answered before.
        Ok(flags::Outcome::Print(_)) => Ok(parsed),
        Err(error) => Err(vec![blame(error, &said.flags)]),
    }
}

/// A mistake in a value that a variable gave is the variable's.
fn blame(error: Error, derived: &[env::Derived]) -> Error {
    match error {
        Error::Flag {
            flag,
            value,
            reason,
        } => match derived.iter().find(|d| d.flag == flag && d.value == value) {
            Some(from) => Error::Variable {
                variable: from.variable.to_owned(),
                value,
                reason,
            },
            None => Error::Flag {
                flag,
                value,
                reason,
            },
        },
        other => other,
    }
}

fn assemble(
    parsed: &flags::Parsed,
    surroundings: &Surroundings,
    mut warnings: Vec<String>,
    errors: &mut Vec<Error>,
) -> Config {
    let ccm = ccm::decide(parsed, errors, &mut warnings);
    let speaker = parsed
        .flags
        .speaker
        .speaker
        .then(|| speaker::decide(parsed, surroundings, errors, &mut warnings));
    let logging = &parsed.flags.logging;
    if !logging.vmodule.is_empty() {
        warnings.push("--vmodule has no effect; RUST_LOG selects modules".to_owned());
    }
    Config {
        serving: serving::decide(
            parsed,
            serving::port(parsed, ccm.controllers.none),
            errors,
            &mut warnings,
        ),
        ccm,
        speaker,
        logging: LoggingConfig {
            verbosity: u8::try_from(logging.v.clamp(0, 10)).unwrap_or(0),
            json: logging.logging_format == "json",
            filter: surroundings
                .environment
                .get("RUST_LOG")
                .filter(|text| !text.is_empty())
                .cloned(),
        },
        kubeconfig: parsed.flags.misc.kubeconfig.clone(),
        master: parsed.flags.misc.master.clone(),
        host_name: surroundings
            .host_name
            .clone()
            .unwrap_or_else(|| "localhost".to_owned()),
        warnings,
        flags: parsed.texts.clone(),
    }
}

/// The speaker's settings (`--speaker-…`), with kube-vip's environment names as defaults.
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeakerConfig {
    /// Kubernetes name of the Node this process runs on; also the holder identity's first part.
    pub node_name: String,
    /// Release namespace: ours for Leases, Secrets and events about no object.
    pub namespace: String,
    /// Only Services of this namespace; `None` is all.
    pub service_namespace: Option<String>,
    /// The link of the node's traffic; `None` is the default-route link.
    pub interface: Option<String>,
    /// The link for VIPs where a Service names none.
    pub service_interface: InterfaceChoice,
    pub vip_prefix: VipPrefix,
    pub class: ClassRules,
    /// Announce only; write neither annotations nor status of Services.
    pub disable_service_updates: bool,
    /// Announce `externalTrafficPolicy: Cluster` Services only while they have an endpoint.
    pub require_endpoints: bool,
    pub election: ElectionMode,
    pub election_scope: ElectionScope,
    /// With the global scope: Services annotated `kube-vip.io/forcePerServiceElection: "true"`
    /// have an election of their own.
    pub election_on_demand: bool,
    pub lease: LeaseConfig,
    /// Period of the refreshing announcements after the first burst.
    pub announce_interval: Duration,
    pub conflict: ConflictPolicy,
    /// VIPs outside are refused; empty allows all.
    pub allowed_cidrs: Vec<IpNet>,
    pub api_outage: ApiOutagePolicy,
    /// Kernel lifetime of a VIP address; `None` is for ever.
    pub address_lifetime: Option<Duration>,
    /// Real-time scheduling, where it is permitted.
    pub realtime: bool,
    /// Plain HTTP metrics, kube-vip's `:2112`.
    pub metrics_address: Option<SocketAddr>,
    /// Plain HTTP `/healthz`.
    pub health_port: Option<u16>,
    /// Guest cluster kubeconfig; `None` is in-cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, instead of the kubeconfig's.
    pub master: Option<String>,
    /// The API server's own addresses, never accepted as VIPs.
    pub api_server: Vec<IpAddr>,
}

/// Which link a VIP goes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InterfaceChoice {
    /// The link whose network contains the VIP, else the node's link.
    #[default]
    Auto,
    Named(String),
}

/// Prefix length of VIP addresses on their link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VipPrefix {
    pub ipv4: PrefixLength,
    pub ipv6: PrefixLength,
}

impl Default for VipPrefix {
    fn default() -> Self {
        Self {
            ipv4: PrefixLength::Fixed(32),
            ipv6: PrefixLength::Fixed(128),
        }
    }
}

/// One family's prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixLength {
    Fixed(u8),
    /// That of the link's address whose network contains the VIP.
    Auto,
}

/// Which `spec.loadBalancerClass` values this speaker serves (kube-vip's rules).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRules {
    /// Empty: only Services without a class (with `legacy` off).
    pub name: String,
    /// Legacy rule: leave Services without a class alone.
    pub only: bool,
    /// Legacy rule: no class, or ours. Off: the class must equal `name`.
    pub legacy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionMode {
    /// kube-vip's protocol: a Lease for each group, or one for all.
    Lease,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionScope {
    /// An owner for each group of Services that share addresses.
    Service,
    /// One owner for all.
    Global,
}

/// Names and timings of the elections over Leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Namespace of the global Lease.
    pub namespace: String,
    /// Name of the global Lease.
    pub name: String,
    pub duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictPolicy {
    /// Another host answers for the address: do not announce, say so, try again.
    Refuse,
    /// Announce all the same (segments with proxy ARP).
    Warn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiOutagePolicy {
    Hold,
    Withdraw,
}

#[cfg(test)]
mod tests;
