//! One HTTP request from a host of the lab.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::host::Host;

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    pub body: String,
}

/// `GET path` from `host`, over a connection of its own, at most for `within`.
pub async fn get(host: &Host, to: SocketAddr, path: &str, within: Duration) -> Result<Answer> {
    let answer = async { exchange(host.tcp_connect(to).await?, to, path).await };
    let exchange = tokio::time::timeout(within, answer).await;
    exchange.with_context(|| format!("{to} did not answer {} in {within:?}", host.name()))?
}

/// `GET path` over `stream`, a new connection to `to`.
pub(crate) async fn exchange(stream: TcpStream, to: SocketAddr, path: &str) -> Result<Answer> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path)
        .header(header::HOST, to.to_string())
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let answer = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::Ok(Answer {
            status,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    };
    // The connection only moves what the exchange asks for; how it ends shows in the exchange.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}
