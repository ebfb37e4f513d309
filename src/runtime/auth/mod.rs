//! Who may ask the secure port what: delegated authentication and authorization, as every
//! Kubernetes component has them.
//!
//! In this order a request is a front proxy's word, a client certificate, or a bearer token that the
//! cluster reviews; without any of them it is `system:anonymous`. A credential that does not hold is
//! 401, never anonymous. Then: `system:masters` and the always-allowed paths pass, anything else
//! needs an access review. Both kinds of review are cached for seconds. Without a client for reviews
//! tokens mean nothing, and only the always-allowed paths are open.

use http::{HeaderMap, Method, header::AUTHORIZATION};
use rustls::pki_types::CertificateDer;

use self::{
    authorities::Authorities,
    identity::{Identity, proxied, subject},
    review::{AccessQuestion, Reviewer},
};
use crate::config::{AuthenticationConfig, AuthorizationConfig};

mod authorities;
pub mod identity;
mod review;

pub use authorities::Error;

/// Decides about requests.
#[derive(Debug)]
pub struct Gate {
    authorities: Authorities,
    tokens: Reviewer,
    accesses: Reviewer,
    authentication: AuthenticationConfig,
    authorization: AuthorizationConfig,
}

/// Clients for the two kinds of review, and for the lookup of authorities.
#[derive(Clone, Default)]
pub struct Delegates {
    pub authentication: Option<kube::Client>,
    pub authorization: Option<kube::Client>,
}

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    #[error("Unauthorized")]
    Unauthorized,
    #[error("forbidden: User {user:?} cannot {verb} path {path:?}")]
    Forbidden {
        user: String,
        verb: String,
        path: String,
    },
    /// The review itself failed.
    #[error("Internal Server Error: access could not be reviewed")]
    Unknown,
}

/// When authorities are looked up in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Before anything is served, as the framework does it.
    First,
    /// By the next [`Gate::refresh`]. Until then certificates that only the cluster's authorities
    /// vouch for are nobody's.
    Later,
}

impl Gate {
    /// Reads the authorities' certificates, from files or the cluster.
    pub async fn new(
        authentication: AuthenticationConfig,
        authorization: AuthorizationConfig,
        delegates: Delegates,
        lookup: Lookup,
    ) -> Result<Self, Error> {
        let client = match lookup {
            Lookup::First => delegates.authentication.as_ref(),
            Lookup::Later => None,
        };
        let authorities = Authorities::load(&authentication, client).await?;
        Ok(Self {
            authorities,
            tokens: Reviewer::new(delegates.authentication),
            accesses: Reviewer::new(delegates.authorization),
            authentication,
            authorization,
        })
    }

    /// Reads the authorities again; on failure the old ones count.
    pub async fn refresh(&self) -> Result<(), Error> {
        let client = self.tokens.client();
        self.authorities.refresh(&self.authentication, client).await
    }

    /// Lets a request pass, or says why not.
    pub async fn admit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        peer: &[CertificateDer<'_>],
    ) -> Result<Identity, Denial> {
        let identity = self.authenticate(headers, peer).await?;
        self.authorize(&identity, method, path).await?;
        Ok(identity)
    }

    async fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: &[CertificateDer<'_>],
    ) -> Result<Identity, Denial> {
        let mut refused = false;
        if let Some((leaf, intermediates)) = peer.split_first() {
            let known = self.authorities.current();
            if let Some(proxy) = &known.front_proxy {
                match proxy.authority.verify(leaf, intermediates) {
                    Ok(()) if proxy.allows(leaf) => {
                        if let Some(identity) = proxied(headers, &proxy.headers) {
                            return Ok(identity);
                        }
                    }
                    _ => refused = true,
                }
            }
            if let Some(client) = &known.client {
                match client.verify(leaf, intermediates) {
                    Ok(()) => return subject(leaf).ok_or(Denial::Unauthorized),
                    Err(_) => refused = true,
                }
            }
        }
        let token = bearer(headers).filter(|_| self.tokens.client().is_some());
        if let Some(token) = token {
            let ttl = self.authentication.token_ttl;
            match self.tokens.token(token, ttl).await {
                Ok(Some(identity)) => return Ok(identity),
                Ok(None) => refused = true,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "token review failed"
                    );
                    refused = true;
                }
            }
        }
        if refused {
            Err(Denial::Unauthorized)
        } else {
            Ok(Identity::anonymous())
        }
    }

    async fn authorize(
        &self,
        identity: &Identity,
        method: &Method,
        path: &str,
    ) -> Result<(), Denial> {
        let open = &self.authorization.always_allow;
        if identity.is_master() || open.iter().any(|pattern| path_matches(pattern, path)) {
            return Ok(());
        }
        let verb = method.as_str().to_ascii_lowercase();
        let question = AccessQuestion {
            identity: identity.clone(),
            verb: verb.clone(),
            path: path.to_owned(),
        };
        let ttls = (
            self.authorization.granted_ttl,
            self.authorization.denied_ttl,
        );
        match self.accesses.access(question, ttls).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Denial::Forbidden {
                user: identity.user.clone(),
                verb,
                path: path.to_owned(),
            }),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "access review failed"
                );
                Err(Denial::Unknown)
            }
        }
    }
}

impl std::fmt::Debug for Delegates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delegates")
            .field("authentication", &self.authentication.is_some())
            .field("authorization", &self.authorization.is_some())
            .finish()
    }
}

/// Equal, or a prefix where the pattern ends in `*`.
fn path_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == pattern,
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests;
