//! What is wrong with a command line or an environment.

use super::controllers::UnknownController;

/// One mistake. All mistakes of one start are reported together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unknown flag: {0}")]
    UnknownFlag(String),
    #[error("unexpected argument {0:?}: this program takes flags only")]
    Positional(String),
    #[error("invalid argument {value:?} for --{flag}: {reason}")]
    Flag {
        flag: String,
        value: String,
        reason: String,
    },
    #[error("flag needs an argument: --{0}")]
    MissingValue(String),
    #[error("invalid value {value:?} of the environment variable {variable}: {reason}")]
    Variable {
        variable: String,
        value: String,
        reason: String,
    },
    #[error("--controllers: {0}")]
    Controllers(#[from] UnknownController),
    #[error("--{flag}: {reason}")]
    Rule {
        flag: &'static str,
        reason: &'static str,
    },
    #[error("{0}")]
    Syntax(String),
}

impl Error {
    pub(super) fn flag(
        flag: &str,
        value: impl Into<String>,
        reason: &(impl ToString + ?Sized),
    ) -> Self {
        Self::Flag {
            flag: flag.to_owned(),
            value: value.into(),
            reason: reason.to_string(),
        }
    }

    pub(super) const fn rule(flag: &'static str, reason: &'static str) -> Self {
        Self::Rule { flag, reason }
    }
}

/// Why the process does not start: every mistake found, and the help if it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Refused {
    pub errors: Vec<Error>,
    /// The whole help, with `--show-full-help-on-error`.
    pub help: Option<String>,
}
