//! What the clients of all API servers did, under client-go's names.

use std::{
    future::Future,
    pin::Pin,
    sync::LazyLock,
    task::{Context, Poll},
};

use http::{Request, Response};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tower::{Layer, Service};

use crate::runtime::clock;

/// client-go's, in seconds.
const BUCKETS: [f64; 13] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 45.0, 60.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    /// Of the answer, or `<error>`.
    code: String,
    host: String,
    method: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Target {
    host: String,
    verb: String,
}

struct Families {
    requests: Family<Outcome, Counter>,
    latency: Family<Target, Histogram>,
}

static FAMILIES: LazyLock<Families> = LazyLock::new(|| Families {
    requests: Family::default(),
    latency: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
});

/// Makes the metrics part of a registry.
pub fn register(registry: &mut Registry) {
    let registry = registry.sub_registry_with_prefix("rest_client");
    registry.register(
        "requests",
        "Requests to API servers by the status of their answer",
        FAMILIES.requests.clone(),
    );
    registry.register(
        "request_duration_seconds",
        "Time from a request to the head of its answer",
        FAMILIES.latency.clone(),
    );
}

/// Counts what passes; innermost, where the URI is complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counting;

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Counted<S> {
    inner: S,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let host = request.uri().authority().map_or("", |it| it.as_str());
        let (host, method) = (host.to_owned(), request.method().to_string());
        let started = clock::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or_else(
                |_| "<error>".to_owned(),
                |answer| answer.status().as_str().to_owned(),
            );
            let took = clock::now().saturating_duration_since(started);
            let target = Target {
                host: host.clone(),
                verb: method.clone(),
            };
            let latency = FAMILIES.latency.get_or_create(&target);
            latency.observe(took.as_secs_f64());
            drop(latency);
            let outcome = Outcome { code, host, method };
            FAMILIES.requests.get_or_create(&outcome).inc();
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use prometheus_client::encoding::text::encode;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    #[tokio::test]
    async fn requests_are_counted_by_host_method_and_outcome() {
        let refusing = service_fn(async |_: Request<()>| {
            let mut answer = Response::new(());
            *answer.status_mut() = http::StatusCode::FORBIDDEN;
            Ok::<_, Infallible>(answer)
        });
        let request = Request::put("https://counted.test:6443/api/v1/x").body(());
        let request = request.expect("it is valid");
        let client = Counting.layer(refusing);
        let answer = client.oneshot(request).await;
        assert_eq!(answer.map(|it| it.status().as_u16()), Ok(403));
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string takes all");
        for line in [
            r#"rest_client_requests_total{code="403",host="counted.test:6443",method="PUT"} 1"#,
            r#"rest_client_request_duration_seconds_count{host="counted.test:6443",verb="PUT"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
