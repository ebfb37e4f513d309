//! The VIP speaker.

use std::convert::Infallible;

use crate::{config::SpeakerConfig, runtime::Process};

pub mod announcer;

/// Why the speaker ended.
pub type Error = Infallible;

/// Runs the speaker until the process is asked to stop.
pub async fn run(config: SpeakerConfig, process: Process) -> Result<(), Error> {
    tracing::info!(node = config.node_name, "speaker started");
    process.shutdown.requested().await;
    Ok(())
}
