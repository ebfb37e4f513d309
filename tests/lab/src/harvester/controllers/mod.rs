//! The host's controllers, of one scenario each.

mod balancers;
mod machines;
mod pools;

use std::{fmt, sync::Arc};

use k8s_openapi::jiff::Timestamp;

use super::scenario::Scenario;
use crate::clock;

/// What goes on in a namespace, until dropped.
pub(super) async fn of_namespace(scenario: Arc<Scenario>, namespace: String) {
    tokio::join!(
        balancers::run(Arc::clone(&scenario), &namespace),
        machines::run(scenario, &namespace),
    );
}

/// The pools of the scenario, until dropped.
pub(super) async fn of_pools(scenario: Arc<Scenario>) {
    pools::run(scenario).await;
}

/// Why a step did not go well.
#[derive(Debug)]
enum Trouble {
    /// No pool serves it: not a failure that is waited for longer and longer.
    NoPool(String),
    /// What the LoadBalancer's status says.
    Told(String),
    /// What no status says, because the API server did not do what it was asked.
    Untold(String),
}

impl Trouble {
    fn untold(error: impl fmt::Display) -> Self {
        // With its causes, where it has any.
        Self::Untold(format!("{error:#}"))
    }

    fn text(&self) -> &str {
        match self {
            Self::NoPool(text) | Self::Told(text) | Self::Untold(text) => text,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Trouble {}

/// As objects of the host have it: in seconds.
fn now() -> String {
    let now = Timestamp::try_from(clock::wall()).expect("the year is one of this era");
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
