//! Keys and certificates of one control plane, made afresh for each.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::{ClientConfig, RootCertStore};

pub(crate) const CA_CERTIFICATE: &str = "ca.crt";
pub(crate) const SERVER_CERTIFICATE: &str = "apiserver.crt";
pub(crate) const SERVER_KEY: &str = "apiserver.key";
pub(crate) const SERVICE_ACCOUNT_KEY: &str = "service-accounts.key";
pub(crate) const SERVICE_ACCOUNT_PUBLIC_KEY: &str = "service-accounts.pub";

/// What clients need to know of the certificates: whom to trust.
#[derive(Debug, Clone)]
pub(crate) struct Trust {
    pub(crate) ca_pem: String,
    pub(crate) tls: Arc<ClientConfig>,
}

/// Writes the key of service account tokens and a server certificate for 127.0.0.1 into `folder`.
pub(crate) fn generate(folder: &Path) -> Result<Trust> {
    install_provider();
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, "lab");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?).context("signing the CA")?;

    let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
    let mut server = CertificateParams::new(names)?;
    server
        .distinguished_name
        .push(DnType::CommonName, "kube-apiserver");
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let server_key = KeyPair::generate()?;
    let server = server
        .signed_by(&server_key, &ca)
        .context("signing for the API server")?;

    let service_accounts = KeyPair::generate()?;
    for (name, text) in [
        (CA_CERTIFICATE, ca.pem()),
        (SERVER_CERTIFICATE, server.pem()),
        (SERVER_KEY, server_key.serialize_pem()),
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
    })
}

/// Chooses ring for the process: with none installed, the first handshake of kube panics when another
/// dependency has brought a second provider.
pub(crate) fn install_provider() {
    // An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
