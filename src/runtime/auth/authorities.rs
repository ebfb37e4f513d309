//! The authorities that sign client certificates and those of front proxies: from files, else from
//! the cluster's `ConfigMap` `kube-system/extension-apiserver-authentication`.

use std::{
    path::Path,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, UnixTime, pem::PemObject as _},
    server::{VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier},
};

use super::identity::{ProxyHeaders, common_name};
use crate::{
    config::AuthenticationConfig,
    runtime::{clock, tls},
};

/// How long the lookup in the cluster may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why authorities are not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read an authority's certificates")]
    File(#[source] tls::Error),
    #[error("{0} is no authority's certificate")]
    Unusable(String, #[source] VerifierBuilderError),
    #[error("cannot look up authorities in the cluster")]
    Lookup(#[source] Box<kube::Error>),
    #[error("the lookup of authorities in the cluster took too long")]
    Slow,
}

/// What is known now; replaced as a whole.
#[derive(Debug)]
pub(super) struct Authorities(RwLock<Arc<Known>>);

#[derive(Debug, Default)]
pub(super) struct Known {
    pub client: Option<Authority>,
    pub front_proxy: Option<FrontProxy>,
}

/// Who signs certificates.
#[derive(Debug)]
pub(super) struct Authority(Arc<dyn ClientCertVerifier>);

#[derive(Debug)]
pub(super) struct FrontProxy {
    pub authority: Authority,
    pub allowed_names: Vec<String>,
    pub headers: ProxyHeaders,
}

impl Authorities {
    pub(super) async fn load(
        config: &AuthenticationConfig,
        client: Option<&Client>,
    ) -> Result<Self, Error> {
        let tolerant = config.tolerate_lookup_failure;
        let known = known(config, client, tolerant).await?;
        Ok(Self(RwLock::new(Arc::new(known))))
    }

    /// Tolerates no failure: what is known is better than what is missing.
    pub(super) async fn refresh(
        &self,
        config: &AuthenticationConfig,
        client: Option<&Client>,
    ) -> Result<(), Error> {
        let fresh = Arc::new(known(config, client, false).await?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    pub(super) fn current(&self) -> Arc<Known> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Authority {
    fn new(certificates: Vec<CertificateDer<'static>>, whose: &str) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls::provider())
            .build()
            .map(Self)
            .map_err(|source| Error::Unusable(whose.to_owned(), source))
    }

    pub(super) fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        let now = u64::try_from(clock::wall().as_second()).unwrap_or(0);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        self.0
            .verify_client_cert(leaf, intermediates, now)
            .map(|_| ())
    }
}

impl FrontProxy {
    pub(super) fn allows(&self, leaf: &CertificateDer<'_>) -> bool {
        self.allowed_names.is_empty()
            || common_name(leaf).is_some_and(|name| self.allowed_names.contains(&name))
    }
}

async fn known(
    config: &AuthenticationConfig,
    client: Option<&Client>,
    tolerant: bool,
) -> Result<Known, Error> {
    let proxy = &config.front_proxy;
    let headers = ProxyHeaders {
        user: proxy.username_headers.clone(),
        uid: proxy.uid_headers.clone(),
        group: proxy.group_headers.clone(),
        extra_prefix: proxy.extra_prefixes.clone(),
    };
    let client_authority = config.client_ca.as_deref().map(from_file).transpose()?;
    let front_proxy = match &proxy.ca {
        None => None,
        Some(path) => Some(FrontProxy {
            authority: from_file(path)?,
            allowed_names: proxy.allowed_names.clone(),
            headers,
        }),
    };
    let mut known = Known {
        client: client_authority,
        front_proxy,
    };
    let complete = known.client.is_some() && known.front_proxy.is_some();
    if let (false, false, Some(client)) = (config.skip_lookup, complete, client) {
        match look_up(client).await {
            Ok(found) => {
                known.client = known.client.or(found.client);
                known.front_proxy = known.front_proxy.or(found.front_proxy);
            }
            Err(error) if tolerant => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "going on without the cluster's certificate authorities"
                );
            }
            Err(error) => return Err(error),
        }
    }
    Ok(known)
}

fn from_file(path: &Path) -> Result<Authority, Error> {
    let certificates = tls::certificates(path).map_err(Error::File)?;
    Authority::new(certificates, &path.display().to_string())
}

async fn look_up(client: &Client) -> Result<Known, Error> {
    const NAME: &str = "extension-apiserver-authentication";
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let found = tokio::time::timeout(LOOKUP_TIMEOUT, api.get_opt(NAME))
        .await
        .map_err(|_| Error::Slow)?
        .map_err(|error| Error::Lookup(Box::new(error)))?;
    let data = found.and_then(|map| map.data).unwrap_or_default();
    let authority = |key: &str| {
        data.get(key)
            .map(|pem| {
                let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
                    .filter_map(Result::ok)
                    .collect();
                Authority::new(certificates, key)
            })
            .transpose()
    };
    let list = |key: &str| -> Vec<String> {
        data.get(key)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    };
    let names = |key: &str| -> Vec<String> {
        list(key)
            .iter()
            .map(|name| name.to_ascii_lowercase())
            .collect()
    };
    let front_proxy = authority("requestheader-client-ca-file")?.map(|authority| FrontProxy {
        authority,
        allowed_names: list("requestheader-allowed-names"),
        headers: ProxyHeaders {
            user: names("requestheader-username-headers"),
            uid: names("requestheader-uid-headers"),
            group: names("requestheader-group-headers"),
            extra_prefix: names("requestheader-extra-headers-prefix"),
        },
    });
    Ok(Known {
        client: authority("client-ca-file")?,
        front_proxy,
    })
}
