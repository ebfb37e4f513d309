//! Waiting for a condition, with a bound and a name.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::clock;

/// How often a condition is looked at.
const PERIOD: Duration = Duration::from_millis(5);

/// Looks until `attempt` gives a value, for at most `within`.
///
/// `Ok(None)` and `Err` both mean "not yet"; when time is up the error names `what` was waited for
/// and the last `Err`. A condition that is true at the first look costs no wait.
pub async fn poll_until<T>(
    within: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = clock::now() + within;
    loop {
        let reason = match attempt().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if clock::now() >= deadline {
            match reason {
                Some(error) => return Err(error.context(format!("no {what} within {within:?}"))),
                None => bail!("no {what} within {within:?}"),
            }
        }
        clock::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[tokio::test]
    async fn a_value_ends_the_wait() {
        let mut looks = 0;
        let seen = poll_until(Duration::from_secs(5), "third look", async || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(seen.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn the_error_names_what_was_awaited_and_why_it_did_not_come() {
        let wait = poll_until::<()>(Duration::from_millis(20), "answer of node1", async || {
            Err(anyhow!("connection refused"))
        });
        let error = format!("{:#}", wait.await.unwrap_err());
        assert_eq!(error, "no answer of node1 within 20ms: connection refused");
    }
}
