//! What goes wrong between a client and the API server.
//!
//! [`Weather`] holds the faults that last (a snapshot which every connection watches); [`Failures`] holds
//! the answers that the proxy gives in the server's place.

use std::time::Duration;

use http::{Response, StatusCode, header};
use hyper::body::Bytes;
use serde_json::json;

use super::request::ApiRequest;

/// The faults in force.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Weather {
    /// Added to each request and to each event of a watch.
    pub(super) latency: Duration,
    /// New connections are reset.
    pub(super) refuse: bool,
    /// Nothing passes in either direction, and nothing is closed.
    pub(super) blackhole: bool,
    /// As `blackhole`, but by the state of the client's host: healing the proxy does not plug it in.
    pub(super) unplugged: bool,
    /// Connections made in an earlier epoch are closed.
    pub(super) connection_epoch: u64,
    /// Watches begun in an earlier epoch are ended.
    pub(super) watch_epoch: u64,
}

impl Weather {
    pub(super) fn is_silent(&self) -> bool {
        self.blackhole || self.unplugged
    }
}

/// An answer that the proxy gives in the API server's place.
///
/// Of several that match a request, the one added first is used.
#[derive(Debug, Clone)]
pub struct Failure {
    code: StatusCode,
    verb: Option<String>,
    resource: Option<String>,
    path: Option<String>,
    left: Option<u32>,
    probability: f64,
    retry_after: Option<Duration>,
}

impl Failure {
    /// Every request is answered with `code` until the proxy is healed.
    pub fn status(code: StatusCode) -> Self {
        Self {
            code,
            verb: None,
            resource: None,
            path: None,
            left: None,
            probability: 1.0,
            retry_after: None,
        }
    }

    /// Only requests with this verb (`get`, `list`, `watch`, `update`, …).
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Only requests on this resource (`leases`, `services/status`).
    #[must_use]
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Only requests whose path contains this.
    #[must_use]
    pub fn path(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Only so many requests; later ones pass.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.left = Some(times);
        self
    }

    /// Only this share of the requests, 0 to 1.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// With a `Retry-After` header, in whole seconds.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    fn concerns(&self, request: &ApiRequest) -> bool {
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|it| it == found);
        self.left != Some(0)
            && is(&self.verb, &request.verb)
            && is(&self.resource, &request.resource)
            && self
                .path
                .as_deref()
                .is_none_or(|part| request.path.contains(part))
    }

    /// The answer, in the form of the API server: a `Status` object.
    pub(super) fn response(&self) -> Response<Bytes> {
        let status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "the lab says so",
            "reason": reason(self.code),
            "code": self.code.as_u16(),
        });
        let mut response = Response::new(Bytes::from(status.to_string()));
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("application/json"),
        );
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, after.as_secs().into());
        }
        response
    }

    pub(super) fn code(&self) -> u16 {
        self.code.as_u16()
    }
}

/// The reason that Kubernetes gives with a status code.
fn reason(code: StatusCode) -> &'static str {
    match code.as_u16() {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    }
}

/// A replacement in what the server sends.
#[derive(Debug)]
pub(super) struct Garbling {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Garbling {
    pub(super) fn new(from: &str, to: &str) -> Self {
        assert_eq!(from.len(), to.len(), "the length of an answer is announced");
        assert!(!from.is_empty(), "something to replace");
        Self {
            from: from.into(),
            to: to.into(),
        }
    }

    /// Where a text is cut by the end of a frame, it stays as it was.
    pub(super) fn apply(&self, data: Bytes) -> Bytes {
        let found: Vec<usize> = data
            .windows(self.from.len())
            .enumerate()
            .filter_map(|(at, window)| (window == self.from).then_some(at))
            .collect();
        if found.is_empty() {
            return data;
        }
        let mut garbled = data.to_vec();
        for at in found {
            if let Some(place) = garbled.get_mut(at..at + self.to.len()) {
                place.copy_from_slice(&self.to);
            }
        }
        garbled.into()
    }
}

/// The failures in force, and the dice for those with a probability.
#[derive(Debug)]
pub(super) struct Failures {
    list: Vec<Failure>,
    dice: u64,
}

impl Default for Failures {
    fn default() -> Self {
        // Any odd seed does: always the same, so that a test run can be repeated.
        Self {
            list: Vec::new(),
            dice: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Failures {
    pub(super) fn add(&mut self, failure: Failure) {
        self.list.push(failure);
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    /// The failure that strikes this request, which uses one of its times up.
    pub(super) fn strike(&mut self, request: &ApiRequest) -> Option<Failure> {
        let position = self.list.iter().position(|it| it.concerns(request))?;
        let throw = self.throw();
        let failure = self.list.get_mut(position)?;
        if throw >= failure.probability {
            return None;
        }
        if let Some(left) = failure.left.as_mut() {
            *left -= 1;
        }
        Some(failure.clone())
    }

    /// The next number in [0, 1) of a xorshift generator.
    fn throw(&mut self) -> f64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let bits = u32::try_from(self.dice >> 32).expect("a shift by 32 leaves 32 bits");
        f64::from(bits) / (f64::from(u32::MAX) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn update_of_lease() -> ApiRequest {
        let path = "/apis/coordination.k8s.io/v1/namespaces/a/leases/b";
        ApiRequest::parse(&Method::PUT, path, None)
    }

    #[test]
    fn a_failure_strikes_only_what_it_names_and_only_so_often() {
        let mut failures = Failures::default();
        let failure = Failure::status(StatusCode::CONFLICT)
            .verb("update")
            .resource("leases");
        failures.add(failure.times(2));
        let other = ApiRequest::parse(&Method::GET, "/api/v1/services", None);
        assert!(failures.strike(&other).is_none());
        assert_eq!(failures.strike(&update_of_lease()).unwrap().code(), 409);
        assert!(failures.strike(&update_of_lease()).is_some());
        assert!(failures.strike(&update_of_lease()).is_none());
    }

    #[test]
    fn a_probability_strikes_about_that_share() {
        let mut failures = Failures::default();
        failures.add(Failure::status(StatusCode::TOO_MANY_REQUESTS).probability(0.3));
        let struck = (0..10_000)
            .filter(|_| failures.strike(&update_of_lease()).is_some())
            .count();
        assert!((2_700..3_300).contains(&struck), "{struck}");
    }

    #[test]
    fn a_garbled_answer_has_its_length_and_the_rest_is_as_it_was() {
        let garbling = Garbling::new("\"port\":4242", "\"port\":\"42\"");
        let garbled = garbling.apply(Bytes::from(r#"{"port":80},{"port":4242}"#));
        assert_eq!(garbled, r#"{"port":80},{"port":"42"}"#);
    }

    #[test]
    fn the_answer_is_a_status_as_the_server_gives_it() {
        let failure = Failure::status(StatusCode::TOO_MANY_REQUESTS);
        let response = failure.retry_after(Duration::from_secs(2)).response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        let status: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(
            (&status["code"], &status["reason"]),
            (&json!(429), &json!("TooManyRequests"))
        );
    }
}
