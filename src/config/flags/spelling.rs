//! pflag's spelling, made plain for clap: every value behind `=`, every name with dashes.
//!
//! Which argument is a value is pflag's rule: the one behind a flag that takes a value, whatever it
//! looks like. So only here, where flags are told from values, names can be rewritten and empty
//! values be dropped.

use std::{any::TypeId, path::PathBuf};

use clap::{Arg, ArgAction, Command};

use crate::config::{env::parse_bool, error::Error};

/// Flags beside those of files whose empty value is their default, as in the programs that they come
/// from.
const UNSET_IF_EMPTY: [&str; 5] = [
    "master",
    "speaker-heartbeat-address",
    "speaker-interface",
    "speaker-service-interface",
    "speaker-allowed-cidrs",
];

/// Rewrites a command line of `command`; what is no flag of it is left to clap's judgement.
pub(super) fn joined(command: &Command, args: &[String]) -> Result<Vec<String>, Error> {
    let mut line = Vec::with_capacity(args.len());
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            line.push(arg.clone());
            break;
        }
        let Some((flag, written, inline)) = flag(command, arg) else {
            line.push(arg.clone());
            continue;
        };
        let name = flag.get_long().unwrap_or_default();
        let value = match inline {
            None if takes_next(flag) => rest.next().map(String::as_str),
            inline => inline,
        };
        match value {
            Some(value) if !flag.get_action().takes_values() => match parse_bool(value) {
                Some(true) => line.push(written),
                Some(false) => {}
                None => return Err(Error::flag(name, value, "it is neither true nor false")),
            },
            Some("") if unset_if_empty(flag) => {
                let given = format!("--{name}=");
                line.retain(|before: &String| !before.starts_with(&given));
            }
            Some(value) => line.push(format!("--{name}={value}")),
            None => line.push(written),
        }
    }
    line.extend(rest.cloned());
    Ok(line)
}

/// The flag of an argument, how it is written without its value, and the value behind `=`.
fn flag<'c, 'a>(command: &'c Command, arg: &'a str) -> Option<(&'c Arg, String, Option<&'a str>)> {
    if let Some(long) = arg.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let name = name.replace('_', "-");
        let known = command
            .get_arguments()
            .find(|flag| flag.get_long() == Some(&name))?;
        return Some((known, format!("--{name}"), value));
    }
    let mut letters = arg.strip_prefix('-')?.chars();
    let letter = letters.next()?;
    let known = command
        .get_arguments()
        .find(|flag| flag.get_short() == Some(letter))?;
    let value = match letters.as_str() {
        "" => None,
        // More letters, for clap to read.
        _ if !known.get_action().takes_values() => return None,
        value => Some(value.strip_prefix('=').unwrap_or(value)),
    };
    Some((known, format!("-{letter}"), value))
}

fn takes_next(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

fn unset_if_empty(flag: &Arg) -> bool {
    let of_a_file = flag.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    let single = matches!(flag.get_action(), ArgAction::Set);
    let name = flag.get_long().unwrap_or_default();
    of_a_file && single || UNSET_IF_EMPTY.contains(&name)
}
