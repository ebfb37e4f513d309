//! Keys and certificates of one control plane, made afresh for each.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer};

pub(crate) const CA_CERTIFICATE: &str = "ca.crt";
pub(crate) const SERVER_CERTIFICATE: &str = "apiserver.crt";
pub(crate) const SERVER_KEY: &str = "apiserver.key";
/// Signs the certificate that the API server shows to the aggregated servers behind it.
pub(crate) const FRONT_PROXY_CA: &str = "front-proxy-ca.crt";
pub(crate) const FRONT_PROXY_CERTIFICATE: &str = "front-proxy.crt";
pub(crate) const FRONT_PROXY_KEY: &str = "front-proxy.key";
/// As whom it shows it.
pub(crate) const FRONT_PROXY_NAME: &str = "front-proxy-client";
pub(crate) const SERVICE_ACCOUNT_KEY: &str = "service-accounts.key";
pub(crate) const SERVICE_ACCOUNT_PUBLIC_KEY: &str = "service-accounts.pub";

/// What clients need to know of the certificates: whom to trust.
#[derive(Debug, Clone)]
pub(crate) struct Trust {
    pub(crate) ca_pem: String,
    pub(crate) tls: Arc<ClientConfig>,
    /// Whoever shows a certificate of this CA to an aggregated server is the API server.
    pub(crate) front_proxy: CertificateDer<'static>,
}

/// A certificate with its key.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) certificate: Certificate,
    pub(crate) key: KeyPair,
}

/// A new CA of this name.
pub(crate) fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, name);
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    CertifiedIssuer::self_signed(ca, KeyPair::generate()?)
        .with_context(|| format!("signing the CA {name}"))
}

/// A certificate of `ca` for `name`, valid at these names and addresses.
pub(crate) fn certificate(
    ca: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    at: &[&str],
    usage: ExtendedKeyUsagePurpose,
) -> Result<Pair> {
    let at: Vec<String> = at.iter().map(|&it| it.to_owned()).collect();
    let mut params = CertificateParams::new(at)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate()?;
    let certificate = params
        .signed_by(&key, ca)
        .with_context(|| format!("signing for {name}"))?;
    Ok(Pair { certificate, key })
}

/// Writes the key of service account tokens and a server certificate for 127.0.0.1 into `folder`.
pub(crate) fn generate(folder: &Path) -> Result<Trust> {
    install_provider();
    let ca = authority("lab")?;
    let server = certificate(
        &ca,
        "kube-apiserver",
        &["127.0.0.1", "localhost", "kubernetes.default.svc"],
        ExtendedKeyUsagePurpose::ServerAuth,
    )?;
    let front_proxy_ca = authority("lab-front-proxy")?;
    let front_proxy = certificate(
        &front_proxy_ca,
        FRONT_PROXY_NAME,
        &[],
        ExtendedKeyUsagePurpose::ClientAuth,
    )?;
    let service_accounts = KeyPair::generate()?;
    for (name, text) in [
        (CA_CERTIFICATE, ca.pem()),
        (SERVER_CERTIFICATE, server.certificate.pem()),
        (SERVER_KEY, server.key.serialize_pem()),
        (FRONT_PROXY_CA, front_proxy_ca.pem()),
        (FRONT_PROXY_CERTIFICATE, front_proxy.certificate.pem()),
        (FRONT_PROXY_KEY, front_proxy.key.serialize_pem()),
        (SERVICE_ACCOUNT_KEY, service_accounts.serialize_pem()),
        (
            SERVICE_ACCOUNT_PUBLIC_KEY,
            service_accounts.public_key_pem(),
        ),
    ] {
        fs::write(folder.join(name), text).with_context(|| format!("writing {name}"))?;
    }

    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone()).context("trusting the CA")?;
    let tls = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Trust {
        ca_pem: ca.pem(),
        tls: Arc::new(tls),
        front_proxy: front_proxy_ca.der().clone(),
    })
}

/// Chooses ring for the process: with none installed, the first handshake of kube panics when another
/// dependency has brought a second provider.
pub(crate) fn install_provider() {
    // An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
