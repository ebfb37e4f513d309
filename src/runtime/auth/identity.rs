//! Identities, and what certificates and front proxies say of them. Pure.

use std::collections::BTreeMap;

use http::HeaderMap;
use rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

/// A user as Kubernetes knows users.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Which request headers of a front proxy say what. Lower case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyHeaders {
    pub user: Vec<String>,
    pub uid: Vec<String>,
    pub group: Vec<String>,
    pub extra_prefix: Vec<String>,
}

impl Identity {
    /// Who shows no credential.
    pub fn anonymous() -> Self {
        Self {
            user: "system:anonymous".to_owned(),
            uid: String::new(),
            groups: vec!["system:unauthenticated".to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// A user with the group that everyone who is known belongs to.
    pub fn known(user: String, uid: String, mut groups: Vec<String>) -> Self {
        const AUTHENTICATED: &str = "system:authenticated";
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self {
            user,
            uid,
            groups,
            extra: BTreeMap::new(),
        }
    }

    /// May do everything.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == "system:masters")
    }
}

/// The user whom a client certificate names: common name and organisations.
pub fn subject(leaf: &CertificateDer<'_>) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let subject = certificate.subject();
    let user = common_name(leaf)?;
    let groups = subject
        .iter_organization()
        .filter_map(|name| name.as_str().ok().map(str::to_owned))
        .collect();
    Some(Identity::known(user, String::new(), groups))
}

/// The common name of a certificate's subject, if it is not empty.
pub fn common_name(leaf: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    let name = name.as_str().ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The user whom a front proxy's headers name; `None` where they name nobody.
pub fn proxied(headers: &HeaderMap, names: &ProxyHeaders) -> Option<Identity> {
    let first = |names: &[String]| {
        names
            .iter()
            .filter_map(|name| headers.get(name)?.to_str().ok())
            .find(|value| !value.is_empty())
            .map(str::to_owned)
    };
    let user = first(&names.user)?;
    let groups = names
        .group
        .iter()
        .flat_map(|name| headers.get_all(name))
        .filter_map(|value| value.to_str().ok().map(str::to_owned))
        .collect();
    let mut identity = Identity::known(user, first(&names.uid).unwrap_or_default(), groups);
    for (header, value) in headers {
        let key = names
            .extra_prefix
            .iter()
            .find_map(|prefix| header.as_str().strip_prefix(prefix.as_str()));
        if let (Some(key), Ok(value)) = (key, value.to_str()) {
            let values = identity.extra.entry(key.to_owned()).or_default();
            values.push(value.to_owned());
        }
    }
    Some(identity)
}
