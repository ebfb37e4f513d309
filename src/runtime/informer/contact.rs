//! Tells by a check of readiness when a view has been without contact for long.
//!
//! Of readiness only: who cannot reach the API server is not helped by a restart, and a speaker has VIPs
//! to hold meanwhile.

use std::{convert::Infallible, time::Duration};

use tokio::sync::watch;

use super::InformerStatus;
use crate::runtime::{clock, health::Check};

/// Two watch periods: more than a server's restart takes.
const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(5);

/// Keeps the check true to the status; cancel it by dropping.
pub async fn report(status: watch::Receiver<InformerStatus>, check: Check) -> Infallible {
    loop {
        let InformerStatus {
            connected, contact, ..
        } = *status.borrow();
        let silent = clock::now().saturating_duration_since(contact);
        if connected || silent <= LIMIT {
            check.pass();
        } else {
            check.fail(format!("no contact for {silent:?}"));
        }
        clock::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::health::{Endpoint, Health};

    #[tokio::test(start_paused = true)]
    async fn a_view_without_contact_is_not_ready_and_still_alive() {
        let health = Health::new();
        let (status, seen) = watch::channel(InformerStatus::new(clock::now()));
        let reporting = tokio::spawn(report(seen, health.readiness("watch")));
        let healthy = |endpoint| health.answer(endpoint, false, &[].into()).healthy;
        for (connected, seconds, ready) in [
            (false, 55, true),
            (false, 15, false),
            (true, 300, true),
            (false, 10, false),
        ] {
            status.send_modify(|status| status.connected = connected);
            clock::sleep(Duration::from_secs(seconds)).await;
            assert_eq!(healthy(Endpoint::Readyz), ready, "{connected} {seconds}");
            assert!(healthy(Endpoint::Livez));
        }
        reporting.abort();
    }
}
