//! Serving certificates: own files that are read again when they change, or self-signed ones that
//! are renewed before they expire; and the TLS settings around them.

use std::{
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use k8s_openapi::jiff::{Span, tz::TimeZone};
use rustls::{
    DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::{danger::HandshakeSignatureValid, verify_server_name as certificate_covers},
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms},
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
        pem::{self, PemObject as _},
    },
    server::{
        ClientHello, ParsedCertificate, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use super::clock;
use crate::config::{Certificate, CertificateFiles, NamedCertificate, TlsConfig};

/// How long a self-signed certificate is valid, and how long before its end another is made.
const VALID_DAYS: i64 = 366;
const RENEWAL_DAYS: u32 = 66;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a self-signed certificate is used.
const SELF_SIGNED_USE: Duration = DAY.saturating_mul(300);

/// Whose a self-signed certificate is.
const OURSELVES: &str = "harvester-cloud-provider";

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {path}")]
    Pem {
        path: PathBuf,
        #[source]
        source: pem::Error,
    },
    #[error("{0} holds no certificate")]
    Empty(PathBuf),
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make a certificate")]
    SelfSigned(#[source] rcgen::Error),
    #[error("certificate or TLS settings are unusable")]
    Tls(#[source] rustls::Error),
}

/// The serving certificates; the newest readable ones are offered.
#[derive(Debug)]
pub struct Certificates {
    config: TlsConfig,
    /// Names of self-signed certificates.
    names: Vec<String>,
    provider: Arc<CryptoProvider>,
    loaded: RwLock<Loaded>,
}

/// Certificates with the names that they were given with.
type ByName = Vec<(Vec<String>, Arc<CertifiedKey>)>;

#[derive(Debug)]
struct Loaded {
    default: Arc<CertifiedKey>,
    by_name: ByName,
    at: Instant,
}

/// The cryptography of this program, whatever the process default is.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Certificates {
    /// Reads or makes the certificates. `names` are those of a self-signed one.
    pub fn load(config: TlsConfig, names: Vec<String>) -> Result<Arc<Self>, Error> {
        let provider = provider();
        let loaded = Loaded {
            default: default(&config, &names, &provider)?,
            by_name: by_name(&config, &provider)?,
            at: clock::now(),
        };
        Ok(Arc::new(Self {
            config,
            names,
            provider,
            loaded: RwLock::new(loaded),
        }))
    }

    /// Reads files again, and renews a self-signed certificate in time. What cannot be read stays in
    /// use as it was. Returns whether another certificate is offered from now on.
    pub fn refresh(&self) -> Result<bool, Error> {
        let (at, before) = {
            let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
            (loaded.at, chains(&loaded))
        };
        let in_memory = self.config.certificate == Certificate::SelfSigned;
        let young = clock::now().saturating_duration_since(at) < SELF_SIGNED_USE;
        // Each by itself: what cannot be read must not keep the other from being renewed.
        let by_name = by_name(&self.config, &self.provider);
        let fresh = if in_memory && young {
            Ok(None)
        } else {
            default(&self.config, &self.names, &self.provider).map(Some)
        };
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        let mut failed = None;
        match by_name {
            Ok(by_name) => loaded.by_name = by_name,
            Err(error) => failed = Some(error),
        }
        match fresh {
            Ok(Some(fresh)) => {
                loaded.default = fresh;
                loaded.at = clock::now();
            }
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
        match failed {
            None => Ok(chains(&loaded) != before),
            Some(error) => Err(error),
        }
    }

    /// TLS settings that offer these certificates and ask clients for theirs.
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, Error> {
        let provider = restricted(&self.provider, &self.config);
        let versions: &[_] = if self.config.only_tls13 {
            &[&rustls::version::TLS13]
        } else {
            rustls::ALL_VERSIONS
        };
        let algorithms = provider.signature_verification_algorithms;
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .map_err(Error::Tls)?
            .with_client_cert_verifier(Arc::new(AnyClient(algorithms)))
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn chains(loaded: &Loaded) -> Vec<Vec<CertificateDer<'static>>> {
    std::iter::once(&loaded.default)
        .chain(loaded.by_name.iter().map(|(_, key)| key))
        .map(|key| key.cert.clone())
        .collect()
}

fn restricted(provider: &CryptoProvider, config: &TlsConfig) -> CryptoProvider {
    let mut provider = provider.clone();
    if !config.cipher_suites.is_empty() {
        provider.cipher_suites.retain(|suite| {
            suite.tls13().is_some() || config.cipher_suites.contains(&suite.suite())
        });
    }
    if !config.groups.is_empty() {
        provider
            .kx_groups
            .retain(|group| config.groups.contains(&group.name()));
    }
    provider
}

fn default(
    config: &TlsConfig,
    names: &[String],
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, Error> {
    match &config.certificate {
        Certificate::Files(files) => from_files(files, provider),
        Certificate::Folder(folder) => from_folder(folder, names, provider),
        Certificate::SelfSigned => {
            let (certificate, key) = self_signed(names, VALID_DAYS)?;
            let key = PrivatePkcs8KeyDer::from(key.serialize_der());
            certified(vec![certificate.der().clone()], key.into(), provider)
        }
    }
}

fn by_name(config: &TlsConfig, provider: &CryptoProvider) -> Result<ByName, Error> {
    let read =
        |named: &NamedCertificate| Ok((named.names.clone(), from_files(&named.files, provider)?));
    config.by_name.iter().map(read).collect()
}

fn from_files(
    files: &CertificateFiles,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, Error> {
    let chain = certificates(&files.chain)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| Error::Pem {
        path: files.key.clone(),
        source,
    })?;
    certified(chain, key, provider)
}

/// The certificates of a PEM file, at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let unreadable = |source| Error::Pem {
        path: path.to_owned(),
        source,
    };
    let chain = CertificateDer::pem_file_iter(path)
        .map_err(unreadable)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(unreadable)?;
    if chain.is_empty() {
        return Err(Error::Empty(path.to_owned()));
    }
    Ok(chain)
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, Error> {
    CertifiedKey::from_der(chain, key, provider)
        .map(Arc::new)
        .map_err(Error::Tls)
}

fn from_folder(
    folder: &Path,
    names: &[String],
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, Error> {
    let files = CertificateFiles {
        chain: folder.join("cloud-controller-manager.crt"),
        key: folder.join("cloud-controller-manager.key"),
    };
    if !files.chain.exists() || !files.key.exists() {
        make(&files, names)?;
    } else if is_ending(&files.chain)
        && let Err(error) = make(&files, names)
    {
        let error: &(dyn std::error::Error + 'static) = &error;
        tracing::warn!(error, "the self-signed certificate cannot be renewed");
    }
    from_files(&files, provider)
}

fn make(files: &CertificateFiles, names: &[String]) -> Result<(), Error> {
    let (certificate, key) = self_signed(names, VALID_DAYS)?;
    write(&files.chain, 0o644, &certificate.pem())?;
    write(&files.key, 0o600, &key.serialize_pem())
}

/// Whether a certificate is one that this program has made, and is to be replaced. Others are for
/// their owners to renew.
fn is_ending(chain: &Path) -> bool {
    let Ok(chain) = certificates(chain) else {
        return false;
    };
    let leaf = chain.first().map(|leaf| X509Certificate::from_der(leaf));
    leaf.and_then(Result::ok).is_some_and(|(_, leaf)| {
        let ours = leaf.subject().iter_common_name().next();
        let ours = ours.and_then(|name| name.as_str().ok()) == Some(OURSELVES);
        let renewal = clock::wall() + DAY.saturating_mul(RENEWAL_DAYS);
        ours && leaf.issuer() == leaf.subject()
            && leaf.validity().not_after.timestamp() < renewal.as_second()
    })
}

fn write(path: &Path, mode: u32, text: &str) -> Result<(), Error> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    path.parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| options.open(path))
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| Error::Write {
            path: path.to_owned(),
            source,
        })
}

fn self_signed(names: &[String], days: i64) -> Result<(rcgen::Certificate, rcgen::KeyPair), Error> {
    let mut params = rcgen::CertificateParams::new(names).map_err(Error::SelfSigned)?;
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, OURSELVES);
    let today = clock::wall().to_zoned(TimeZone::UTC).date();
    let day = |offset: Span| {
        let date = today.saturating_add(offset);
        let [month, day] = [date.month(), date.day()].map(i8::unsigned_abs);
        rcgen::date_time_ymd(i32::from(date.year()), month, day)
    };
    // A day of grace for clients whose clocks are behind.
    params.not_before = day(Span::new().days(-1));
    params.not_after = day(Span::new().days(days));
    let key = rcgen::KeyPair::generate().map_err(Error::SelfSigned)?;
    let certificate = params.self_signed(&key).map_err(Error::SelfSigned)?;
    Ok((certificate, key))
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let by_name = hello.server_name().and_then(|asked| {
            let serves =
                |(names, key): &&(Vec<String>, Arc<CertifiedKey>)| serves(names, key, asked);
            loaded.by_name.iter().find(serves)
        });
        Some(Arc::clone(by_name.map_or(&loaded.default, |(_, key)| key)))
    }
}

/// Whether a certificate is for a server name: by the names it was given with, else by its own.
fn serves(names: &[String], key: &CertifiedKey, asked: &str) -> bool {
    if !names.is_empty() {
        return names.iter().any(|name| name_matches(name, asked));
    }
    let Ok(server) = ServerName::try_from(asked) else {
        return false;
    };
    key.cert
        .first()
        .and_then(|leaf| ParsedCertificate::try_from(leaf).ok())
        .is_some_and(|leaf| certificate_covers(&leaf, &server).is_ok())
}

/// Equal, or `*.` in place of the first label.
fn name_matches(pattern: &str, asked: &str) -> bool {
    let asked = asked.to_ascii_lowercase();
    match pattern.strip_prefix("*.") {
        None => pattern == asked,
        Some(suffix) => asked
            .split_once('.')
            .is_some_and(|(label, rest)| !label.is_empty() && rest == suffix),
    }
}

/// Takes any client certificate whose key the client proves to have. Whom it makes of the client is
/// decided per request, where an unknown authority is an answer (401) and not a broken connection.
#[derive(Debug)]
struct AnyClient(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(certificate: Certificate) -> TlsConfig {
        TlsConfig {
            certificate,
            by_name: vec![],
            only_tls13: false,
            cipher_suites: vec![],
            groups: vec![],
        }
    }

    fn offered(certificates: &Certificates) -> Vec<CertificateDer<'static>> {
        certificates.loaded.read().unwrap().default.cert.clone()
    }

    #[test]
    fn patterns_stand_for_exactly_one_label() {
        for (pattern, asked, expected) in [
            ("a.example", "A.example", true),
            ("a.example", "b.example", false),
            ("*.example", "a.example", true),
            ("*.example", "a.b.example", false),
            ("*.example", "example", false),
        ] {
            assert_eq!(name_matches(pattern, asked), expected, "{pattern} {asked}");
        }
    }

    #[test]
    fn a_folder_keeps_its_certificate_and_a_replaced_one_is_taken_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("certs");
        let names = vec!["localhost".to_owned()];
        let load = || Certificates::load(config(Certificate::Folder(path.clone())), names.clone());
        let first = load().unwrap();
        assert_eq!(offered(&first), offered(&load().unwrap()));
        assert!(!first.refresh().unwrap());

        std::fs::remove_file(path.join("cloud-controller-manager.key")).unwrap();
        let before = offered(&first);
        assert!(first.refresh().unwrap());
        assert_ne!(offered(&first), before);

        std::fs::write(path.join("cloud-controller-manager.crt"), "broken").unwrap();
        let before = offered(&first);
        assert!(first.refresh().is_err());
        assert_eq!(offered(&first), before);
    }

    #[test]
    fn a_folders_certificate_is_renewed_by_whoever_made_it() {
        let folder = tempfile::tempdir().unwrap();
        let names = vec!["localhost".to_owned()];
        let put = |days: i64, whose: Option<&str>| {
            let (mut certificate, key) = self_signed(&names, days).unwrap();
            if let Some(whose) = whose {
                let mut params = rcgen::CertificateParams::new(names.clone()).unwrap();
                let name = &mut params.distinguished_name;
                name.push(rcgen::DnType::CommonName, whose);
                params.not_after = rcgen::date_time_ymd(2001, 1, 1);
                certificate = params.self_signed(&key).unwrap();
            }
            let [chain, private] = ["crt", "key"].map(|end| {
                folder
                    .path()
                    .join(format!("cloud-controller-manager.{end}"))
            });
            write(&chain, 0o644, &certificate.pem()).unwrap();
            write(&private, 0o600, &key.serialize_pem()).unwrap();
            vec![certificate.der().clone()]
        };
        let folder = || config(Certificate::Folder(folder.path().to_owned()));
        let certificates = Certificates::load(folder(), names.clone()).unwrap();
        for (days, whose, renewed) in [
            (100, None, false),
            (60, None, true),
            (1, None, true),
            (1, Some("somebody"), false),
        ] {
            let there = put(days, whose);
            certificates.refresh().unwrap();
            assert_eq!(offered(&certificates) != there, renewed, "{days} {whose:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreadable_certificate_by_name_does_not_hold_up_the_default_one() {
        let folder = tempfile::tempdir().unwrap();
        let names = vec!["localhost".to_owned()];
        let files = CertificateFiles {
            chain: folder.path().join("a.crt"),
            key: folder.path().join("a.key"),
        };
        make(&files, &names).unwrap();
        let mut config = config(Certificate::SelfSigned);
        config.by_name.push(NamedCertificate {
            files: files.clone(),
            names: vec![],
        });
        let certificates = Certificates::load(config, names).unwrap();
        std::fs::remove_file(&files.key).unwrap();
        let before = offered(&certificates);
        clock::sleep(SELF_SIGNED_USE).await;
        assert!(certificates.refresh().is_err());
        assert_ne!(offered(&certificates), before);
        assert_eq!(certificates.loaded.read().unwrap().by_name.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_self_signed_certificate_is_renewed_before_it_expires() {
        let names = vec!["localhost".to_owned()];
        let certificates = Certificates::load(config(Certificate::SelfSigned), names).unwrap();
        assert!(!certificates.refresh().unwrap());
        clock::sleep(SELF_SIGNED_USE).await;
        assert!(certificates.refresh().unwrap());
    }

    #[test]
    fn settings_restrict_what_is_offered() {
        let mut config = config(Certificate::SelfSigned);
        let suite = rustls::CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;
        config.cipher_suites = vec![suite];
        config.groups = vec![rustls::NamedGroup::secp256r1];
        let provider = restricted(&provider(), &config);
        let old: Vec<_> = provider
            .cipher_suites
            .iter()
            .filter(|s| s.tls13().is_none())
            .map(rustls::SupportedCipherSuite::suite)
            .collect();
        assert_eq!(old, [suite]);
        assert_eq!(provider.kx_groups.len(), 1);
    }
}
