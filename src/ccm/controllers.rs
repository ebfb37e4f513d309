//! The controllers of a leader: the watches that they share, and which of them run.

use super::Context;
use crate::{config::controllers::Controller, runtime::shutdown::Shutdown};

/// What outlives a leadership: metrics are registered once.
#[derive(Debug)]
pub(super) struct Controllers {
    context: Context,
}

impl Controllers {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
        }
    }

    /// Runs from fresh watches on. Returns soon after `stop`; dropped, it does nothing more.
    pub(super) async fn run(&self, stop: Shutdown) {
        let config = &self.context.config;
        let enabled = |controller| config.controllers.enabled.contains(&controller);
        if enabled(Controller::Route) {
            tracing::warn!(
                "{}: Harvester has no routes to configure, nothing to do",
                Controller::Route.name()
            );
        }
        stop.requested().await;
    }
}
