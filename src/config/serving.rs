//! The secure port's settings: where, with which certificate, for whom.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use rustls::{CipherSuite, NamedGroup};

use super::{error::Error, flags::Parsed};

/// The secure port of the framework.
pub const SECURE_PORT: u16 = 10258;

/// The HTTPS listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingConfig {
    pub address: SocketAddr,
    pub port_sharing: bool,
    pub tls: TlsConfig,
    pub authentication: AuthenticationConfig,
    pub authorization: AuthorizationConfig,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    pub certificate: Certificate,
    /// Further certificates, first match first.
    pub by_name: Vec<NamedCertificate>,
    pub only_tls13: bool,
    /// Suites of TLS 1.2; empty is all.
    pub cipher_suites: Vec<CipherSuite>,
    /// Key exchange groups; empty is all.
    pub groups: Vec<NamedGroup>,
}

/// Where the serving certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    Files(CertificateFiles),
    /// Files of this folder, made if missing.
    Folder(PathBuf),
    /// Made at start, held in memory.
    SelfSigned,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    pub chain: PathBuf,
    pub key: PathBuf,
}

/// A certificate for some server names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCertificate {
    pub files: CertificateFiles,
    /// Names or `*.suffix`; empty takes the certificate's own names.
    pub names: Vec<String>,
}

/// Who a request is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationConfig {
    pub kubeconfig: Option<PathBuf>,
    pub skip_lookup: bool,
    pub tolerate_lookup_failure: bool,
    pub token_ttl: Duration,
    pub client_ca: Option<PathBuf>,
    pub front_proxy: FrontProxyConfig,
}

/// Proxies that tell users by request headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontProxyConfig {
    pub ca: Option<PathBuf>,
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_prefixes: Vec<String>,
}

/// What a request may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationConfig {
    pub kubeconfig: Option<PathBuf>,
    pub always_allow: Vec<String>,
    pub granted_ttl: Duration,
    pub denied_ttl: Duration,
}

/// The secure port, whether it was given or not; 0 serves nothing.
pub(super) fn port(parsed: &Parsed, no_controllers: bool) -> u16 {
    let default = if no_controllers { 0 } else { SECURE_PORT };
    parsed.flags.serving.secure_port.unwrap_or(default)
}

/// Decides about the secure port; `None` serves nothing. Mistakes and warnings are appended.
pub(super) fn decide(
    parsed: &Parsed,
    port: u16,
    errors: &mut Vec<Error>,
    warnings: &mut Vec<String>,
) -> Option<ServingConfig> {
    let serving = &parsed.flags.serving;
    let config = ServingConfig {
        address: SocketAddr::new(serving.bind_address, port),
        port_sharing: serving.permit_port_sharing,
        tls: TlsConfig {
            certificate: certificate(parsed, errors),
            by_name: serving
                .tls_sni_cert_key
                .iter()
                .filter_map(|text| named_certificate(text, errors))
                .collect(),
            only_tls13: only_tls13(serving.tls_min_version.as_deref(), errors),
            cipher_suites: cipher_suites(&serving.tls_cipher_suites, errors, warnings),
            groups: groups(&serving.tls_curve_preferences, errors, warnings),
        },
        authentication: authentication(parsed, errors),
        authorization: AuthorizationConfig {
            kubeconfig: parsed.flags.authorization.authorization_kubeconfig.clone(),
            always_allow: filled(&parsed.flags.authorization.authorization_always_allow_paths),
            granted_ttl: parsed
                .flags
                .authorization
                .authorization_webhook_cache_authorized_ttl,
            denied_ttl: parsed
                .flags
                .authorization
                .authorization_webhook_cache_unauthorized_ttl,
        },
    };
    (config.address.port() != 0).then_some(config)
}

fn filled(items: &[String]) -> Vec<String> {
    items
        .iter()
        .filter(|item| !item.is_empty())
        .cloned()
        .collect()
}

fn certificate(parsed: &Parsed, errors: &mut Vec<Error>) -> Certificate {
    let serving = &parsed.flags.serving;
    match (&serving.tls_cert_file, &serving.tls_private_key_file) {
        (Some(chain), Some(key)) => Certificate::Files(CertificateFiles {
            chain: chain.clone(),
            key: key.clone(),
        }),
        (None, None) => serving
            .cert_dir
            .clone()
            .filter(|folder| !folder.as_os_str().is_empty())
            .map_or(Certificate::SelfSigned, Certificate::Folder),
        _ => {
            let reason = "certificate and private key are given together or not at all";
            errors.push(Error::rule("tls-cert-file", reason));
            Certificate::SelfSigned
        }
    }
}

fn named_certificate(text: &str, errors: &mut Vec<Error>) -> Option<NamedCertificate> {
    let (files, names) = text.split_once(':').unwrap_or((text, ""));
    match files.split_once(',') {
        Some((chain, key)) if !chain.is_empty() && !key.is_empty() && !key.contains(',') => {
            Some(NamedCertificate {
                files: CertificateFiles {
                    chain: chain.into(),
                    key: key.into(),
                },
                names: names
                    .split(',')
                    .filter(|name| !name.is_empty())
                    .map(str::to_ascii_lowercase)
                    .collect(),
            })
        }
        _ => {
            let reason = "it is not cert,key[:names]";
            errors.push(Error::flag("tls-sni-cert-key", text, reason));
            None
        }
    }
}

fn only_tls13(text: Option<&str>, errors: &mut Vec<Error>) -> bool {
    match text {
        None | Some("" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12") => false,
        Some("VersionTLS13") => true,
        Some(other) => {
            let reason = "the versions are VersionTLS10 to VersionTLS13";
            errors.push(Error::flag("tls-min-version", other, reason));
            false
        }
    }
}

/// Suites of TLS 1.2 that are built in. Those of 1.3 are always on, as in Go.
const SUITES: &[(&str, CipherSuite)] = &[
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

/// Suites that Go knows and this program does not have: CBC, RC4, or key exchange by RSA.
const WEAK_SUITES: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

const TLS13_SUITES: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

fn cipher_suites(
    names: &[String],
    errors: &mut Vec<Error>,
    warnings: &mut Vec<String>,
) -> Vec<CipherSuite> {
    const FLAG: &str = "tls-cipher-suites";
    let mut suites = Vec::new();
    let mut of_tls13 = false;
    let names = filled(names);
    for name in &names {
        if let Some((_, suite)) = SUITES.iter().find(|(known, _)| known == name) {
            suites.push(*suite);
        } else if TLS13_SUITES.contains(&name.as_str()) {
            of_tls13 = true;
        } else if WEAK_SUITES.contains(&name.as_str()) {
            warnings.push(format!("--{FLAG}: {name} is not offered: it is too weak"));
        } else {
            errors.push(Error::flag(FLAG, name, "there is no such suite"));
        }
    }
    if !names.is_empty() && suites.is_empty() && !of_tls13 {
        errors.push(Error::rule(FLAG, "none of these suites is offered"));
    }
    suites
}

fn groups(numbers: &[u16], errors: &mut Vec<Error>, warnings: &mut Vec<String>) -> Vec<NamedGroup> {
    const FLAG: &str = "tls-curve-preferences";
    let groups: Vec<NamedGroup> = numbers
        .iter()
        .filter_map(|number| match number {
            23 => Some(NamedGroup::secp256r1),
            24 => Some(NamedGroup::secp384r1),
            29 => Some(NamedGroup::X25519),
            other => {
                warnings.push(format!("--{FLAG}: group {other} is not offered"));
                None
            }
        })
        .collect();
    if !numbers.is_empty() && groups.is_empty() {
        errors.push(Error::rule(FLAG, "none of these groups is offered"));
    }
    groups
}

/// A list may be empty, an entry of one may not: a header without a name would trust anybody.
fn no_blanks(flag: &str, items: &[String], errors: &mut Vec<Error>) {
    if items != [""] && items.iter().any(|item| item.trim().is_empty()) {
        let value = items.join(",");
        errors.push(Error::flag(flag, value, "it has an empty entry"));
    }
}

fn authentication(parsed: &Parsed, errors: &mut Vec<Error>) -> AuthenticationConfig {
    let flags = &parsed.flags.authentication;
    no_blanks(
        "requestheader-allowed-names",
        &flags.requestheader_allowed_names,
        errors,
    );
    let mut headers = |flag: &str, names: &[String]| {
        no_blanks(flag, names, errors);
        for name in names {
            if !name.trim().is_empty() && http::HeaderName::try_from(name.trim()).is_err() {
                errors.push(Error::flag(flag, name, "it is no header name"));
            }
        }
        names
            .iter()
            .filter(|name| !name.trim().is_empty())
            .map(|name| name.trim().to_ascii_lowercase())
            .collect::<Vec<_>>()
    };
    let front_proxy = FrontProxyConfig {
        ca: flags.requestheader_client_ca_file.clone(),
        allowed_names: filled(&flags.requestheader_allowed_names),
        username_headers: headers(
            "requestheader-username-headers",
            &flags.requestheader_username_headers,
        ),
        uid_headers: headers(
            "requestheader-uid-headers",
            &flags.requestheader_uid_headers,
        ),
        group_headers: headers(
            "requestheader-group-headers",
            &flags.requestheader_group_headers,
        ),
        extra_prefixes: headers(
            "requestheader-extra-headers-prefix",
            &flags.requestheader_extra_headers_prefix,
        ),
    };
    AuthenticationConfig {
        kubeconfig: flags.authentication_kubeconfig.clone(),
        skip_lookup: flags.authentication_skip_lookup,
        tolerate_lookup_failure: flags.authentication_tolerate_lookup_failure,
        token_ttl: flags.authentication_token_webhook_cache_ttl,
        client_ca: flags.client_ca_file.clone(),
        front_proxy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites(list: &str) -> (usize, usize, usize) {
        let names: Vec<String> = list.split(',').map(str::to_owned).collect();
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        let suites = cipher_suites(&names, &mut errors, &mut warnings);
        (suites.len(), warnings.len(), errors.len())
    }

    #[test]
    fn suites_are_offered_left_out_or_refused() {
        let strong = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        let weak = "TLS_RSA_WITH_AES_128_CBC_SHA";
        assert_eq!(suites(""), (0, 0, 0));
        assert_eq!(suites(strong), (1, 0, 0));
        assert_eq!(suites(&format!("{strong},{weak}")), (1, 1, 0));
        assert_eq!(suites(weak), (0, 1, 1));
        assert_eq!(suites("TLS_AES_128_GCM_SHA256"), (0, 0, 0));
        assert_eq!(suites("TLS_NONSENSE").2, 2);
    }

    #[test]
    fn certificates_by_name_are_read_with_and_without_names() {
        let read = |text: &str| named_certificate(text, &mut Vec::new());
        let named = read("/a.crt,/a.key:Foo.example,*.bar").map(|c| c.names);
        assert_eq!(
            named,
            Some(vec!["foo.example".to_owned(), "*.bar".to_owned()])
        );
        assert_eq!(read("/a.crt,/a.key").map(|c| c.names), Some(vec![]));
        assert_eq!(read("/a.crt"), None);
        assert_eq!(read("/a.crt,"), None);
    }
}
