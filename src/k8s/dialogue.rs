//! A scripted API server for unit tests: the test plays the server's part of the dialogue.

use futures_util::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower_test::mock::{Handle, SendResponse};

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// The server's end.
#[derive(Debug)]
pub(crate) struct Server(Handle<Request<Body>, Answer>);

/// A request as the server sees it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) body: Value,
    reply: SendResponse<Answer>,
}

pub(crate) fn pair() -> (Client, Server) {
    let (service, handle) = tower_test::mock::pair();
    (Client::new(service, "default"), Server(handle))
}

impl Server {
    pub(crate) async fn next(&mut self) -> Call {
        let (request, reply) = self.0.next_request().await.expect("the client lives");
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.expect("a whole body").to_bytes();
        Call {
            method: parts.method.to_string(),
            uri: parts.uri.to_string(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            reply,
        }
    }
}

impl Call {
    pub(crate) fn ok(self, body: &Value) {
        self.reply.send_response(whole(StatusCode::OK, body));
    }

    pub(crate) fn fail(self, code: u16, reason: &str) {
        self.fail_with(code, reason, &json!({}));
    }

    pub(crate) fn fail_with(self, code: u16, reason: &str, details: &Value) {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": code, "reason": reason, "message": reason, "details": details,
        });
        let code = StatusCode::from_u16(code).expect("a status code");
        self.reply.send_response(whole(code, &status));
    }

    pub(crate) fn break_connection(self) {
        self.reply
            .send_error(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    }

    /// A watch that sends `events` and stays open.
    pub(crate) fn watch(self, events: &[Value]) {
        let lines: Vec<_> = events.iter().map(|event| format!("{event}\n")).collect();
        let stream = futures_util::stream::iter(lines)
            .map(|line| Ok(Frame::data(Bytes::from(line))))
            .chain(futures_util::stream::pending());
        self.reply
            .send_response(Response::new(StreamBody::new(stream).boxed_unsync()));
    }

    /// A watch whose events the test sends later.
    pub(crate) fn watch_live(self) -> tokio::sync::mpsc::UnboundedSender<Value> {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<Value>();
        let stream = futures_util::stream::unfold(receiver, async |mut receiver| {
            let event = receiver.recv().await?;
            Some((Ok(Frame::data(Bytes::from(format!("{event}\n")))), receiver))
        });
        self.reply
            .send_response(Response::new(StreamBody::new(stream).boxed_unsync()));
        sender
    }
}

fn whole(code: StatusCode, body: &Value) -> Answer {
    let bytes = Full::new(Bytes::from(body.to_string()));
    let mut response = Response::new(bytes.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code;
    response
}
