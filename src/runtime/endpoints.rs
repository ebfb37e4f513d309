//! What the ports serve: health and metrics, and who may see them.

use std::{collections::BTreeSet, sync::Arc};

use axum::{
    Extension, Router,
    extract::{Path, RawQuery, Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use http::{
    StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};

use super::{
    auth::{Denial, Gate},
    health::{Answer, Endpoint, Health},
    metrics::{self, Metrics},
    server::PeerCertificates,
};

const PLAIN: &str = "text/plain; charset=utf-8";

/// `/healthz`, `/livez`, `/readyz` and their checks.
pub fn health(health: &Health) -> Router {
    Endpoint::ALL
        .into_iter()
        .fold(Router::new(), |router, endpoint| {
            let all = health.clone();
            let one = health.clone();
            let path = format!("/{}", endpoint.name());
            router
                .route(
                    &path,
                    get(move |RawQuery(query): RawQuery| async move {
                        let (verbose, exclude) = question(query.as_deref().unwrap_or_default());
                        let answer = all.answer(endpoint, verbose, &exclude);
                        if !answer.healthy {
                            tell(&all, endpoint);
                        }
                        respond(answer)
                    }),
                )
                .route(
                    &format!("{path}/{{check}}"),
                    get(move |Path(check): Path<String>| async move {
                        match one.answer_one(endpoint, &check) {
                            Some(answer) => respond(answer),
                            None => StatusCode::NOT_FOUND.into_response(),
                        }
                    }),
                )
        })
}

/// `/metrics`.
pub fn metrics(metrics: &Metrics) -> Router {
    let metrics = metrics.clone();
    let handler = move || async move {
        match metrics.text() {
            Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    };
    Router::new().route("/metrics", get(handler))
}

/// Puts a gate before everything, unknown paths included.
pub fn guarded(router: Router, gate: Arc<Gate>) -> Router {
    let fallback = router.fallback(|| async { StatusCode::NOT_FOUND });
    fallback.layer(middleware::from_fn_with_state(gate, admit))
}

async fn admit(
    State(gate): State<Arc<Gate>>,
    Extension(peer): Extension<PeerCertificates>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let admitted = gate
        .admit(request.method(), path, request.headers(), &peer.0)
        .await;
    match admitted {
        Ok(_) => next.run(request).await,
        Err(denial) => {
            let code = match denial {
                Denial::Unauthorized => StatusCode::UNAUTHORIZED,
                Denial::Forbidden { .. } => StatusCode::FORBIDDEN,
                Denial::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
            };
            plain(code, denial.to_string())
        }
    }
}

/// `?verbose`, `?exclude=name`, in any number and order.
fn question(query: &str) -> (bool, BTreeSet<String>) {
    let mut verbose = false;
    let mut exclude = BTreeSet::new();
    for pair in query.split('&') {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("verbose", _) => verbose = true,
            ("exclude", name) if !name.is_empty() => {
                exclude.insert(name.to_owned());
            }
            _ => {}
        }
    }
    (verbose, exclude)
}

/// The reasons that the answer withholds are for the log.
fn tell(health: &Health, endpoint: Endpoint) {
    for verdict in health.run(endpoint) {
        if let Some(reason) = verdict.failure {
            let (check, endpoint) = (&*verdict.name, endpoint.name());
            tracing::warn!(check, endpoint, reason, "health check fails");
        }
    }
}

fn respond(answer: Answer) -> Response {
    let code = if answer.healthy {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    plain(code, answer.text)
}

fn plain(code: StatusCode, text: String) -> Response {
    let headers = [
        (CONTENT_TYPE, PLAIN),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-cache, private"),
    ];
    (code, headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_kubernetes_reads_them() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        for (query, verbose, exclude) in [
            ("", false, &[] as &[&str]),
            ("verbose", true, &[]),
            ("verbose=1&exclude=a&exclude=b", true, &["a", "b"]),
            ("exclude=&x", false, &[]),
        ] {
            assert_eq!(question(query), (verbose, names(exclude)), "{query:?}");
        }
    }
}
