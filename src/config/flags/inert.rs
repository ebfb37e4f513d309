//! Flags of the Go program that are accepted, checked for their type, and have no effect.

use clap::{Arg, ArgAction, Command, builder::ValueParser};

use crate::config::{duration::GoDuration, env::parse_bool};

/// What an inert flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    List,
    Bool,
    Whole,
    Duration,
    Size,
}

use Kind::{Bool, Duration, List, Size, Text, Whole};

const HEADING: &str = "Accepted without effect";

/// Name, type and the Go program's default.
const FLAGS: &[(&str, Kind, &str)] = &[
    ("allocate-node-cidrs", Bool, "false"),
    ("allow-untagged-cloud", Bool, "true"),
    ("cidr-allocator-type", Text, "RangeAllocator"),
    ("cluster-cidr", Text, ""),
    ("configure-cloud-routes", Bool, "true"),
    ("contention-profiling", Bool, "false"),
    ("disable-http2-serving", Bool, "false"),
    ("enable-leader-migration", Bool, "false"),
    ("external-cloud-volume-plugin", Text, ""),
    ("http2-max-streams-per-connection", Whole, "0"),
    (
        "kube-api-content-type",
        Text,
        "application/vnd.kubernetes.protobuf",
    ),
    ("leader-migration-config", Text, ""),
    ("log-flush-frequency", Duration, "5s"),
    ("log-json-info-buffer-size", Size, "0"),
    ("log-json-split-stream", Bool, "false"),
    ("log-text-info-buffer-size", Size, "0"),
    ("log-text-split-stream", Bool, "false"),
    ("node-sync-period", Duration, "0s"),
    ("permit-address-sharing", Bool, "false"),
    ("profiling", Bool, "true"),
    ("route-reconciliation-period", Duration, "10s"),
    ("webhook-bind-address", Text, "0.0.0.0"),
    ("webhook-cert-dir", Text, ""),
    ("webhook-disable-http2-serving", Bool, "false"),
    ("webhook-secure-port", Whole, "10260"),
    ("webhook-tls-cert-file", Text, ""),
    ("webhook-tls-cipher-suites", List, ""),
    ("webhook-tls-curve-preferences", List, ""),
    ("webhook-tls-min-version", Text, ""),
    ("webhook-tls-private-key-file", Text, ""),
    ("webhook-tls-sni-cert-key", List, ""),
    ("webhooks", List, ""),
];

/// Why a text is not of a flag's type.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(super) enum TypeError {
    #[error("it is neither true nor false")]
    Bool,
    #[error("it is no quantity")]
    Size,
}

/// Go's booleans.
pub(super) fn go_bool(text: &str) -> Result<bool, TypeError> {
    parse_bool(text).ok_or(TypeError::Bool)
}

/// A quantity of bytes: a number with an optional binary or decimal suffix.
fn size(text: &str) -> Result<String, TypeError> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = text.strip_prefix(number).unwrap_or_default();
    let known = ["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "m"].contains(&suffix);
    match number.parse::<f64>() {
        Ok(_) if known => Ok(text.to_owned()),
        _ => Err(TypeError::Size),
    }
}

/// Adds the inert flags.
pub(super) fn add(command: Command) -> Command {
    FLAGS
        .iter()
        .fold(command, |command, (name, kind, default)| {
            let parser = match kind {
                Text | List => ValueParser::string(),
                Bool => ValueParser::new(go_bool),
                Whole => clap::value_parser!(i64).into(),
                Duration => ValueParser::new(str::parse::<GoDuration>),
                Size => ValueParser::new(size),
            };
            let action = match kind {
                Bool => ArgAction::SetTrue,
                List => ArgAction::Append,
                _ => ArgAction::Set,
            };
            let arg = Arg::new(*name)
                .long(*name)
                .help_heading(HEADING)
                .action(action)
                .value_parser(parser);
            command.arg(match *default {
                "" => arg,
                default => arg.default_value(default),
            })
        })
}
