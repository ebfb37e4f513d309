//! A request to the speaker's secure port, whose certificate is its own and trusted by nobody.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Result;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use lab::{Host, http_client::Answer};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// `GET path` over TLS from `host`, with a bearer token if there is one.
pub(crate) async fn get(
    host: &Host,
    to: SocketAddr,
    path: &str,
    token: Option<&str>,
) -> Result<Answer> {
    let tcp = host.tcp_connect(to).await?;
    get_over(tcp, ServerName::from(to.ip()), path, token).await
}

/// `GET path` over a connection to a server of this name.
pub(crate) async fn get_over(
    tcp: TcpStream,
    name: ServerName<'static>,
    path: &str,
    token: Option<&str>,
) -> Result<Answer> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(SelfSigned(provider)))
        .with_no_client_auth();
    let tls = TlsConnector::from(Arc::new(config))
        .connect(name.clone(), tcp)
        .await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
    let mut request = Request::get(path)
        .header(header::HOST, name.to_str().as_ref())
        .header(header::CONNECTION, "close");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let answer = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::Ok(Answer {
            status,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    };
    // How the connection ends shows in the answer.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}

/// Takes the certificate, if it is made for the name and signed by its own key.
#[derive(Debug)]
struct SelfSigned(Arc<CryptoProvider>);

impl ServerCertVerifier for SelfSigned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = rustls::server::ParsedCertificate::try_from(end_entity)?;
        rustls::client::verify_server_name(&certificate, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
