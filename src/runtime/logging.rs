//! Logging: one table from klog's verbosity to filters, text or JSON on stderr.

use tracing_subscriber::{EnvFilter, filter::ParseError, fmt, util::TryInitError};

use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LoggingConfig;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("RUST_LOG is no filter")]
    Filter(#[source] ParseError),
    #[error("logging was set up before")]
    Twice(#[source] TryInitError),
}

/// What each verbosity of `--v` shows.
///
/// | `--v` | shows |
/// | --- | --- |
/// | 0, 1 | life cycle, decisions that change something, warnings (1 adds the flags at start) |
/// | 2, 3 | and why controllers and the speaker decided so |
/// | 4 | and debugging of this program |
/// | 5 to 7 | and its traces |
/// | 8 and up | and the HTTP and Kubernetes clients |
fn directives(verbosity: u8) -> &'static str {
    match verbosity {
        0..=1 => "info",
        2..=3 => "info,harvester_cloud_provider::ccm=debug,harvester_cloud_provider::speaker=debug",
        4 => "info,harvester_cloud_provider=debug",
        5..=7 => "info,harvester_cloud_provider=trace",
        _ => {
            "info,harvester_cloud_provider=trace,kube=debug,hyper=debug,hyper_util=debug,tower=debug"
        }
    }
}

/// Sends the program's log to stderr from now on.
pub fn install(config: &LoggingConfig) -> Result<(), Error> {
    let directives = config
        .filter
        .as_deref()
        .unwrap_or_else(|| directives(config.verbosity));
    let filter = EnvFilter::try_new(directives).map_err(Error::Filter)?;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let done = if config.json {
        builder.json().flatten_event(true).finish().try_init()
    } else {
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        builder.compact().with_ansi(terminal).finish().try_init()
    };
    done.map_err(Error::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verbosity_is_a_filter() {
        for verbosity in 0..=10 {
            assert!(EnvFilter::try_new(directives(verbosity)).is_ok());
        }
    }
}
