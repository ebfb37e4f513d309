//! Why a sync failed, in the framework's words, and when it is worth another try: pure.

use std::time::Duration;

use crate::k8s::{Class, Error};

/// The longest pause after a failure that may be over any moment: an outage, refused credentials.
pub(super) const OUTAGE_CAP: Duration = Duration::from_secs(30);

/// A call that failed, and what it was for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("failed to add load balancer cleanup finalizer: {}", words(.0))]
    AddFinalizer(#[source] Error),
    #[error("failed to ensure load balancer: {}", words(.0))]
    Ensure(#[source] Error),
    #[error("failed to check if load balancer exists before cleanup: {}", words(.0))]
    Check(#[source] Error),
    #[error("failed to delete load balancer: {}", words(.0))]
    Delete(#[source] Error),
    #[error("failed to remove load balancer cleanup finalizer: {}", words(.0))]
    Release(#[source] Error),
    #[error(
        "failed to delete load balancer {object} of a Service that is gone: {}",
        words(source)
    )]
    Orphan { object: String, source: Error },
    #[error("failed to ensure load balancer: others changed it again and again")]
    Unsettled,
}

impl Failure {
    fn error(&self) -> Option<&Error> {
        match self {
            Self::AddFinalizer(error)
            | Self::Ensure(error)
            | Self::Check(error)
            | Self::Delete(error)
            | Self::Release(error)
            | Self::Orphan { source: error, .. } => Some(error),
            Self::Unsettled => None,
        }
    }

    pub(super) fn retry(&self) -> Retry {
        let Some(error) = self.error() else {
            return Retry::Soon;
        };
        match error.class() {
            Class::Retry { after: Some(after) } => Retry::After(after),
            Class::Invalid => Retry::Slowly,
            // The host's webhook refuses in the words of an outage, all but these.
            Class::Retry { after: None } if words(error).contains("denied the request") => {
                Retry::Slowly
            }
            _ => Retry::Soon,
        }
    }
}

/// When to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// Just then; it does not count as a failure.
    After(Duration),
    /// After the back-off, at most [`OUTAGE_CAP`].
    Soon,
    /// After the back-off: somebody has to change something first.
    Slowly,
}

/// The server's own words where it answered.
fn words(error: &Error) -> String {
    match error {
        Error::Api(api) => match api.as_ref() {
            kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
            other => other.to_string(),
        },
        Error::Deadline(_) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answer(code: u16, reason: &str, message: &str, after: u32) -> Failure {
        let mut status = Status::failure(message, reason).with_code(code);
        if after > 0 {
            let details = serde_json::json!({"retryAfterSeconds": after});
            let details = serde_json::from_value(details).unwrap();
            status = status.with_details(details);
        }
        Failure::Ensure(kube::Error::Api(Box::new(status)).into())
    }

    #[test]
    fn fw_s139_a_server_that_names_a_time_is_tried_again_just_then() {
        let failure = answer(429, "TooManyRequests", "busy", 42);
        assert_eq!(failure.retry(), Retry::After(Duration::from_secs(42)));
    }

    #[test]
    fn refusals_are_retried_slowly_and_outages_soon() {
        let denied =
            "admission webhook \"validator\" denied the request: Internal error occurred: x";
        let failing = "Internal error occurred: failed calling webhook \"validator\": timeout";
        for (failure, expected) in [
            (answer(500, "InternalError", denied, 0), Retry::Slowly),
            (answer(500, "InternalError", failing, 0), Retry::Soon),
            (answer(422, "Invalid", "spec.ipam", 0), Retry::Slowly),
            (answer(403, "Forbidden", "no", 0), Retry::Soon),
            (answer(409, "Conflict", "modified", 0), Retry::Soon),
            (Failure::Ensure(Error::Deadline(OUTAGE_CAP)), Retry::Soon),
            (Failure::Unsettled, Retry::Soon),
        ] {
            assert_eq!(failure.retry(), expected, "{failure}");
        }
    }

    #[test]
    fn fw_s36_a_failure_says_what_was_tried_and_what_the_server_said() {
        let failure = answer(500, "InternalError", "no room", 0);
        assert_eq!(
            failure.to_string(),
            "failed to ensure load balancer: no room"
        );
    }
}
