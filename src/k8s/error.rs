//! What became of an API call, and what can be done about it.

use std::time::Duration;

use kube::error::Status;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no answer from the API server within {0:?}")]
    Deadline(Duration),
    #[error(transparent)]
    Api(Box<kube::Error>),
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Self::Deadline(_) => Class::Timeout,
            Self::Api(error) => classify(error),
        }
    }
}

/// The kinds of failure that callers tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    NotFound,
    /// Not the object the write was based on.
    Conflict,
    AlreadyExists,
    /// No credentials, or not accepted ones.
    Unauthorized,
    Forbidden,
    /// The position in the history is too old.
    Gone,
    /// The server will never accept this request.
    Invalid,
    /// The server is overloaded, starting or broken: try again, not before `after`.
    Retry {
        after: Option<Duration>,
    },
    /// Unknown whether the call was carried out.
    Timeout,
    /// The server was not reached, or the connection broke: unknown too.
    Transport,
    /// An answer nobody here understands, or a mistake in the request's making.
    Other,
}

/// Puts a client error in its class. Reasons count before codes, as in client-go.
pub fn classify(error: &kube::Error) -> Class {
    match error {
        kube::Error::Api(status) => classify_status(status),
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
            Class::Transport
        }
        _ => Class::Other,
    }
}

fn classify_status(status: &Status) -> Class {
    let after = status
        .details
        .as_ref()
        .map(|details| details.retry_after_seconds)
        .filter(|seconds| *seconds > 0)
        .map(|seconds| Duration::from_secs(seconds.into()));
    match status.reason.as_str() {
        "NotFound" => Class::NotFound,
        "AlreadyExists" => Class::AlreadyExists,
        "Conflict" => Class::Conflict,
        "Unauthorized" => Class::Unauthorized,
        "Forbidden" => Class::Forbidden,
        "Gone" | "Expired" => Class::Gone,
        "Invalid" | "BadRequest" | "RequestEntityTooLarge" => Class::Invalid,
        // The server gave up on its back end; the write may have gone through.
        "Timeout" | "ServerTimeout" => Class::Timeout,
        "TooManyRequests" | "ServiceUnavailable" | "InternalError" => Class::Retry { after },
        _ => match status.code {
            400 | 413 | 422 => Class::Invalid,
            401 => Class::Unauthorized,
            403 => Class::Forbidden,
            404 => Class::NotFound,
            409 => Class::Conflict,
            410 => Class::Gone,
            504 => Class::Timeout,
            // 0: an error whose body says nothing, a proxy's or a broken server's.
            0 | 429 | 500..=599 => Class::Retry { after },
            _ => Class::Other,
        },
    }
}

/// The call, given up after `deadline`.
pub async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, Error> {
    match tokio::time::timeout(deadline, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Error::Deadline(deadline)),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use kube::Api;
    use serde_json::json;

    use super::*;
    use crate::k8s::dialogue::{self, Call};

    async fn class_of(answer: impl FnOnce(Call) + Send + 'static) -> Class {
        let (client, mut server) = dialogue::pair();
        let api: Api<Service> = Api::namespaced(client, "a");
        let server = async move {
            answer(server.next().await);
            server
        };
        let (result, _server) = tokio::join!(within(Duration::from_secs(5), api.get("s")), server);
        result.map(|_| ()).unwrap_err().class()
    }

    #[tokio::test]
    async fn every_kind_of_answer_has_its_class() {
        let after = |seconds| Class::Retry {
            after: Some(Duration::from_secs(seconds)),
        };
        let table = [
            (404, "NotFound", Class::NotFound),
            (409, "Conflict", Class::Conflict),
            (409, "AlreadyExists", Class::AlreadyExists),
            (401, "Unauthorized", Class::Unauthorized),
            (403, "Forbidden", Class::Forbidden),
            (410, "Expired", Class::Gone),
            (422, "Invalid", Class::Invalid),
            (400, "BadRequest", Class::Invalid),
            (500, "InternalError", Class::Retry { after: None }),
            (504, "Timeout", Class::Timeout),
            (502, "a proxy's own words", Class::Retry { after: None }),
            (418, "", Class::Other),
        ];
        for (code, reason, expected) in table {
            let class = class_of(move |call| call.fail(code, reason)).await;
            assert_eq!(class, expected, "{code} {reason}");
        }
        let busy = |call: Call| {
            call.fail_with(429, "TooManyRequests", &json!({"retryAfterSeconds": 7}));
        };
        assert_eq!(class_of(busy).await, after(7));
        assert_eq!(class_of(Call::break_connection).await, Class::Transport);
        assert_eq!(
            class_of(|call| call.ok(&json!(["nonsense"]))).await,
            Class::Other
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_a_timeout() {
        let (client, _server) = dialogue::pair();
        let api: Api<Service> = Api::namespaced(client, "a");
        let error = within(Duration::from_secs(5), api.get("s"))
            .await
            .unwrap_err();
        assert_eq!(error.class(), Class::Timeout);
    }
}
