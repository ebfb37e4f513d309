//! Reviews that the cluster answers, and their short memory.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

use super::identity::Identity;
use crate::runtime::clock;

/// Time for one review, all tries together.
const DEADLINE: Duration = Duration::from_secs(10);

/// Tries of one review, and the pause before the second; each further pause is half as long again.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// More answers than this are not remembered: strangers must not fill our memory.
const REMEMBERED: usize = 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the API server refused the review")]
    Api(#[source] Box<kube::Error>),
    #[error("the API server did not answer in time")]
    Slow,
}

/// Asks the cluster, and remembers answers for seconds.
pub(super) struct Reviewer {
    client: Option<Client>,
    /// Tokens and questions are remembered as keyed 128-bit digests, not as themselves.
    keys: [RandomState; 2],
    tokens: Memory<Option<Identity>>,
    accesses: Memory<bool>,
}

/// What somebody wants to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct AccessQuestion {
    pub identity: Identity,
    pub verb: String,
    pub path: String,
}

impl Reviewer {
    pub(super) fn new(client: Option<Client>) -> Self {
        Self {
            client,
            keys: [RandomState::new(), RandomState::new()],
            tokens: Memory::default(),
            accesses: Memory::default(),
        }
    }

    pub(super) fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// Whose token this is; `None` where it is nobody's.
    pub(super) async fn token(
        &self,
        token: &str,
        ttl: Duration,
    ) -> Result<Option<Identity>, Error> {
        let Some(client) = &self.client else {
            return Ok(None);
        };
        let key = self.digest(&token);
        if let Some(known) = self.tokens.get(key) {
            return Ok(known);
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let status = ask(client, &review).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let identity = user.map(|user| {
            let mut identity = Identity::known(
                user.username.unwrap_or_default(),
                user.uid.unwrap_or_default(),
                user.groups.unwrap_or_default(),
            );
            identity.extra = user.extra.unwrap_or_default();
            identity
        });
        self.tokens.put(key, identity.clone(), ttl);
        Ok(identity)
    }

    /// Whether this may be done; no without a client. `ttls` are those of yes and no.
    pub(super) async fn access(
        &self,
        question: AccessQuestion,
        ttls: (Duration, Duration),
    ) -> Result<bool, Error> {
        let Some(client) = &self.client else {
            return Ok(false);
        };
        let key = self.digest(&question);
        if let Some(known) = self.accesses.get(key) {
            return Ok(known);
        }
        let Identity {
            user,
            uid,
            groups,
            extra,
        } = question.identity;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user),
                uid: Some(uid).filter(|uid| !uid.is_empty()),
                groups: Some(groups),
                extra: Some(extra).filter(|extra| !extra.is_empty()),
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(question.path),
                    verb: Some(question.verb),
                }),
                resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let status = ask(client, &review).await?.status.unwrap_or_default();
        let allowed = status.allowed && status.denied != Some(true);
        let ttl = if allowed { ttls.0 } else { ttls.1 };
        self.accesses.put(key, allowed, ttl);
        Ok(allowed)
    }

    fn digest(&self, value: &impl Hash) -> u128 {
        let [high, low] = self.keys.each_ref().map(|key| key.hash_one(value));
        u128::from(high) << 64 | u128::from(low)
    }
}

impl std::fmt::Debug for Reviewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewer")
            .field("client", &self.client.is_some())
            .finish_non_exhaustive()
    }
}

async fn ask<K>(client: &Client, review: &K) -> Result<K, Error>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let tries = async {
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match api.create(&PostParams::default(), review).await {
                Err(error) if is_passing(&error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "asking again");
                }
                answer => return answer,
            }
            clock::sleep(pause).await;
            pause = pause * 3 / 2;
        }
        api.create(&PostParams::default(), review).await
    };
    tokio::time::timeout(DEADLINE, tries)
        .await
        .map_err(|_| Error::Slow)?
        .map_err(|error| Error::Api(Box::new(error)))
}

/// Whether asking again may help: no answer, or one that says so.
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500 || status.code == 429,
        _ => true,
    }
}

/// Answers with their ends.
#[derive(Debug)]
struct Memory<V>(Mutex<HashMap<u128, (Instant, V)>>);

impl<V> Default for Memory<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V: Clone> Memory<V> {
    fn get(&self, key: u128) -> Option<V> {
        let known = self.locked();
        let (end, value) = known.get(&key)?;
        (clock::now() < *end).then(|| value.clone())
    }

    fn put(&self, key: u128, value: V, ttl: Duration) {
        let now = clock::now();
        let mut known = self.locked();
        if known.len() >= REMEMBERED {
            known.retain(|_, (end, _)| now < *end);
        }
        if known.len() < REMEMBERED {
            known.insert(key, (now + ttl, value));
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<u128, (Instant, V)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
