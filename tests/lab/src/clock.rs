//! The lab's only reader of clocks, and its only way to wait.
//!
//! A test never sleeps to wait for something: it polls a condition with a bound ([`until`]), and the
//! error says what it waited for.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::jiff::Timestamp;

/// Monotonic time.
#[expect(clippy::disallowed_methods, reason = "the lab's one reader of the monotonic clock")]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Wall time, for the fields of objects.
#[expect(clippy::disallowed_methods, reason = "the lab's one reader of the wall clock")]
pub fn wall() -> Timestamp {
    Timestamp::now()
}

/// Waits until `deadline`.
pub async fn sleep_until(deadline: Instant) {
    tokio::time::sleep_until(deadline.into()).await;
}

/// Waits for `pause`: the pace of a loop, never a guess at how long something takes.
pub async fn pace(pause: Duration) {
    sleep_until(now() + pause).await;
}

/// Polls `condition` every 10 ms until it gives a value, at most for `bound`.
///
/// An error of the condition ends the wait; a condition that may fail for a while returns `Ok(None)`.
pub async fn until<T>(
    what: &str,
    bound: Duration,
    mut condition: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = now() + bound;
    loop {
        if let Some(value) = condition().await? {
            return Ok(value);
        }
        if now() >= deadline {
            bail!("waited {bound:?} in vain: {what}");
        }
        pace(Duration::from_millis(10)).await;
    }
}
