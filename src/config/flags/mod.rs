//! The command line: Go's spelling on top of clap.
//!
//! As pflag reads it: `_` in a flag's name is `-`; a boolean takes its value only behind `=`; the
//! value of any other flag may begin with a dash; of a repeated flag the last one counts, and lists
//! append, the first use replacing the default. An optional file, link or address that is empty is
//! as if it were not given. Input is argv, output the typed flags, with the text of every flag for
//! the log.

use std::{any::TypeId, collections::BTreeSet, path::PathBuf, time::Duration};

use clap::{
    ArgAction, ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

use super::{duration::GoDuration, error::Error};

pub(super) mod framework;
mod inert;
pub(super) mod speaker;
mod spelling;

/// Every flag that the program acts on.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "harvester-cloud-provider",
    about = "Cloud controller manager for Harvester guest clusters with a built-in VIP speaker",
    version,
    override_usage = "harvester-cloud-provider [check|vips|manager] [flags]",
    after_help = "Commands (first argument):\n  check    say what this configuration means and whether the host can serve it\n  vips     list the cluster's VIPs and their owners\n  manager  the speaker alone, as kube-vip is started",
    args_override_self = true,
    disable_help_flag = true,
    disable_version_flag = true,
    max_term_width = 120
)]
pub(super) struct Flags {
    #[command(flatten)]
    pub generic: framework::GenericFlags,
    #[command(flatten)]
    pub controllers: framework::ControllerFlags,
    #[command(flatten)]
    pub misc: framework::MiscFlags,
    #[command(flatten)]
    pub serving: framework::ServingFlags,
    #[command(flatten)]
    pub authentication: framework::AuthenticationFlags,
    #[command(flatten)]
    pub authorization: framework::AuthorizationFlags,
    #[command(flatten)]
    pub logging: framework::LoggingFlags,
    #[command(flatten)]
    pub harvester: framework::HarvesterFlags,
    #[command(flatten)]
    pub speaker: speaker::SpeakerFlags,
    #[command(flatten)]
    pub command: speaker::CommandFlags,
}

/// A command line that was understood.
#[derive(Debug, Clone)]
pub(super) struct Parsed {
    pub flags: Flags,
    /// Names of the flags that were given, not defaulted.
    pub given: BTreeSet<String>,
    /// Every flag with its value's text, in the order of their names.
    pub texts: Vec<(String, String)>,
}

/// What a command line asks for.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    Flags(Box<Parsed>),
    /// Help or version, to be printed.
    Print(String),
}

/// Reads a command line without its program name.
pub(super) fn parse(args: &[String]) -> Result<Outcome, Error> {
    let command = command();
    let line = std::iter::once("harvester-cloud-provider".to_owned())
        .chain(spelling::joined(&command, args)?);
    let matches = match command.try_get_matches_from(line) {
        Ok(matches) => matches,
        Err(error) => return refusal(&error),
    };
    let flags = Flags::from_arg_matches(&matches).map_err(|e| Error::Syntax(e.to_string()))?;
    Ok(Outcome::Flags(Box::new(Parsed {
        flags,
        given: given(&matches),
        texts: texts(&matches),
    })))
}

/// The whole help.
pub(super) fn help() -> String {
    command().render_help().to_string()
}

fn command() -> Command {
    let help = clap::Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print this help")
        .help_heading("Global flags");
    let version = clap::Arg::new("version")
        .long("version")
        .action(ArgAction::Version)
        .help("Print the version")
        .help_heading("Global flags");
    let command = Flags::command().arg(help).arg(version);
    inert::add(command).mut_args(|arg| match arg.get_action() {
        ArgAction::SetTrue => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("BOOL")
            .value_parser(inert::go_bool),
        ArgAction::Set | ArgAction::Append => {
            let placeholder = placeholder(&arg);
            arg.allow_hyphen_values(true).value_name(placeholder)
        }
        _ => arg,
    })
}

/// What the help calls a value: its kind, since the flag's name says the rest.
fn placeholder(arg: &clap::Arg) -> &'static str {
    let kind = arg.get_value_parser().type_id();
    let is = |types: &[TypeId]| types.iter().any(|wanted| kind == *wanted);
    if matches!(arg.get_action(), ArgAction::Append) {
        "LIST"
    } else if is(&[TypeId::of::<Duration>(), TypeId::of::<GoDuration>()]) {
        "DURATION"
    } else if is(&[TypeId::of::<PathBuf>()]) {
        "FILE"
    } else if is(&[
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<u16>(),
        TypeId::of::<f32>(),
    ]) {
        "NUMBER"
    } else {
        "TEXT"
    }
}

fn given(matches: &ArgMatches) -> BTreeSet<String> {
    command()
        .get_arguments()
        .filter(|arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine))
        .filter_map(|arg| arg.get_long().map(str::to_owned))
        .collect()
}

fn texts(matches: &ArgMatches) -> Vec<(String, String)> {
    let mut texts: Vec<(String, String)> = command()
        .get_arguments()
        .filter(|arg| arg.get_action().takes_values())
        .filter_map(|arg| {
            let values = matches.get_raw(arg.get_id().as_str());
            let text = values
                .into_iter()
                .flatten()
                .map(|value| value.to_string_lossy())
                .collect::<Vec<_>>()
                .join(",");
            Some((arg.get_long()?.to_owned(), text))
        })
        .collect();
    texts.sort();
    texts
}

/// Turns clap's words into those that users of the Go program know.
fn refusal(error: &clap::Error) -> Result<Outcome, Error> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(","),
        _ => String::new(),
    };
    let argument = context(ContextKind::InvalidArg);
    let value = context(ContextKind::InvalidValue);
    let flag = flag_name(&argument);
    Err(match error.kind() {
        ErrorKind::DisplayHelp => return Ok(Outcome::Print(help())),
        ErrorKind::DisplayVersion => return Ok(Outcome::Print(error.to_string())),
        ErrorKind::UnknownArgument if argument.starts_with('-') => Error::UnknownFlag(argument),
        ErrorKind::UnknownArgument => Error::Positional(argument),
        ErrorKind::InvalidValue if value.is_empty() => Error::MissingValue(flag),
        ErrorKind::InvalidValue => {
            let allowed = context(ContextKind::ValidValue);
            Error::flag(&flag, value, &format!("it is none of {allowed}"))
        }
        ErrorKind::ValueValidation => {
            let reason = std::error::Error::source(error)
                .map_or_else(|| "it cannot be read".to_owned(), ToString::to_string);
            Error::flag(&flag, value, &reason)
        }
        _ => Error::Syntax(error.render().to_string()),
    })
}

/// `-v, --v <V>` and `--speaker-health-port <PORT>` name `v` and `speaker-health-port`.
fn flag_name(argument: &str) -> String {
    argument
        .split([' ', '=', '[', ','])
        .rfind(|word| word.starts_with("--"))
        .unwrap_or(argument)
        .trim_start_matches('-')
        .to_owned()
}

#[cfg(test)]
mod tests;
