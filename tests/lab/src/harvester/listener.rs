//! Where the API server finds the simulator: webhooks and the aggregated API, over TLS on loopback.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result, bail};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{agent, review, scenario::Scenarios};
use crate::pki;

/// What the API server must know of the listener.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    pub(super) ca_pem: String,
}

/// An answer of the simulator.
#[derive(Debug)]
pub(super) struct Answer {
    code: StatusCode,
    body: Value,
}

impl Answer {
    pub(super) fn json(body: &Value) -> Self {
        Self {
            code: StatusCode::OK,
            body: body.clone(),
        }
    }

    pub(super) fn status(code: StatusCode, reason: &str, message: &str) -> Self {
        let body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": reason,
            "message": message,
            "code": code.as_u16(),
        });
        Self { code, body }
    }

    fn response(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body.to_string())));
        *response.status_mut() = self.code;
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("application/json"),
        );
        response
    }
}

/// Listens, valid under `name` too; ends with the runtime that it is called on.
pub(super) async fn listen(
    name: &str,
    front_proxy: &CertificateDer<'static>,
    scenarios: Arc<Scenarios>,
) -> Result<Endpoint> {
    let (tls, ca_pem) = server_tls(name, front_proxy)?;
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.context("a port on loopback")?;
    let address = listener.local_addr().context("asking for the port")?;
    tokio::spawn(async move {
        loop {
            // What goes wrong with one connection is the API server's to notice.
            if let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, tls.clone(), Arc::clone(&scenarios)));
            }
        }
    });
    Ok(Endpoint { address, ca_pem })
}

fn server_tls(name: &str, front_proxy: &CertificateDer<'static>) -> Result<(TlsAcceptor, String)> {
    let ca = pki::authority("lab-harvester")?;
    let at = ["127.0.0.1", "localhost", name];
    let server = pki::certificate(&ca, name, &at, ExtendedKeyUsagePurpose::ServerAuth)?;
    let mut callers = RootCertStore::empty();
    callers.add(front_proxy.clone())?;
    // Webhooks are called without a certificate.
    let verifier = WebPkiClientVerifier::builder(Arc::new(callers)).allow_unauthenticated();
    let key = PrivatePkcs8KeyDer::from(server.key.serialize_der());
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier.build().context("verifying the API server")?)
        .with_single_cert(
            vec![server.certificate.der().clone()],
            PrivateKeyDer::Pkcs8(key),
        )
        .context("the simulator's certificate")?;
    Ok((TlsAcceptor::from(Arc::new(config)), ca.pem()))
}

async fn serve(stream: TcpStream, tls: TlsAcceptor, scenarios: Arc<Scenarios>) {
    // A connection without it is slower, not wrong.
    let _ = stream.set_nodelay(true);
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let known = stream.get_ref().1.peer_certificates().is_some();
    let service = service_fn(|request| answer(Arc::clone(&scenarios), known, request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // Broken on purpose by a webhook that fails, or by the API server's leaving.
    let _ = connection.await;
}

async fn answer(
    scenarios: Arc<Scenarios>,
    known: bool,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>> {
    let path = request.uri().path().to_owned();
    let answer = if let Some(hook) = review::Hook::at(&path) {
        let body = request.into_body().collect().await?.to_bytes();
        review::answer(&scenarios, hook, &body).await?
    } else if request.method() != Method::GET {
        bail!("nothing to do at {path}")
    } else if path.starts_with("/apis") && !known {
        let text = "only the API server may ask";
        Answer::status(StatusCode::UNAUTHORIZED, "Unauthorized", text)
    } else {
        agent::answer(&scenarios, &path).await
    };
    Ok(answer.response())
}
