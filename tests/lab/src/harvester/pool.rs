//! A pool of addresses, as an administrator makes and watches it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use anyhow::{Context, Result};
use ipnet::IpNet;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    DEFAULT_NETWORK, HarvesterHost, SOON,
    kinds::{self, IpPool, IpPoolSpec, IpPoolStatus, Range, Scope},
    names,
    scenario::Scenario,
};
use crate::wait::poll_until;

/// A pool that is being described: by default for every guest cluster in the host's namespace, on
/// [`DEFAULT_NETWORK`].
#[derive(Debug)]
pub struct PoolBuilder<'a> {
    host: &'a HarvesterHost,
    name: String,
    spec: IpPoolSpec,
}

impl<'a> PoolBuilder<'a> {
    pub(super) fn new(host: &'a HarvesterHost, name: &str) -> Self {
        let mut spec = IpPoolSpec::default();
        DEFAULT_NETWORK.clone_into(&mut spec.selector.network);
        spec.selector.scope = vec![Scope::new("*", host.namespace(), "*")];
        Self {
            host,
            // Pools are in no namespace, and hosts share an API server.
            name: format!("{}-{name}", host.namespace()),
            spec,
        }
    }

    /// Addresses from `first` to `last`, in the /24 or the /64 of the first.
    #[must_use]
    pub fn range(self, first: &str, last: &str) -> Self {
        let length = if first.contains(':') { 64 } else { 24 };
        let subnet = format!("{first}/{length}");
        let subnet = subnet.parse().map(|it: IpNet| it.trunc().to_string());
        self.addresses(Range {
            subnet: subnet.unwrap_or_else(|_| first.to_owned()),
            range_start: first.to_owned(),
            range_end: last.to_owned(),
            gateway: String::new(),
        })
    }

    /// All addresses of a subnet.
    #[must_use]
    pub fn subnet(self, subnet: &str) -> Self {
        self.addresses(Range {
            subnet: subnet.to_owned(),
            ..Range::default()
        })
    }

    /// A range as the API has it.
    #[must_use]
    pub fn addresses(mut self, range: Range) -> Self {
        self.spec.ranges.push(range);
        self
    }

    #[must_use]
    pub fn network(mut self, network: &str) -> Self {
        network.clone_into(&mut self.spec.selector.network);
        self
    }

    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.spec.selector.priority = priority;
        self
    }

    /// For these alone.
    #[must_use]
    pub fn scopes(mut self, scopes: &[Scope]) -> Self {
        self.spec.selector.scope = scopes.to_vec();
        self
    }

    /// For load balancers that name it.
    #[must_use]
    pub fn by_name_only(self) -> Self {
        self.scopes(&[])
    }

    /// For all that no other pool is for.
    #[must_use]
    pub fn global(self) -> Self {
        self.scopes(&[Scope::everything()])
    }

    /// Makes it; the host knows it when this returns, unless its controllers are stopped.
    pub async fn create(self) -> Result<Pool> {
        let api = kinds::pools(&self.host.client);
        let mut pool = IpPool::new(&self.name, &kinds::ip_pools(), self.spec);
        let scenario = (names::SCENARIO.to_owned(), self.host.namespace().to_owned());
        pool.metadata.labels = Some([scenario].into());
        let created = api.create(&PostParams::default(), &pool).await;
        created.with_context(|| format!("creating pool {}", self.name))?;
        let pool = Pool {
            scenario: Arc::clone(&self.host.scenario),
            api,
            name: self.name,
        };
        if self.host.knobs().now().controller_runs {
            poll_until(SOON, "pool that the host knows", async || {
                Ok(pool.books().await?.is_known().then_some(()))
            })
            .await?;
        }
        Ok(pool)
    }
}

/// A pool in the host's API.
#[derive(Clone)]
pub struct Pool {
    scenario: Arc<Scenario>,
    api: Api<IpPool>,
    name: String,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Its name in the API, for `spec.ipPool`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is booked and what was.
    pub async fn books(&self) -> Result<IpPoolStatus> {
        let pool = self.api.get(&self.name).await.context("reading a pool")?;
        self.scenario.written.pools.note(&pool.metadata);
        Ok(pool.status.unwrap_or_default())
    }

    /// Addresses in use: address to `<namespace>/<name>`.
    pub async fn allocated(&self) -> Result<BTreeMap<String, String>> {
        Ok(self.books().await?.allocated)
    }

    /// Books an address for a LoadBalancer `<namespace>/<name>` that knows nothing of it: a leak.
    pub async fn leak(&self, ip: &str, id: &str) -> Result<()> {
        let available = self.books().await?.available - 1;
        let status = json!({ "allocated": { ip: id }, "available": available });
        self.patch(&json!({ "status": status })).await
    }

    /// Has other addresses from now on.
    pub async fn set_ranges(&self, ranges: &[Range]) -> Result<()> {
        self.patch(&json!({ "spec": { "ranges": ranges } })).await
    }

    /// Lets the host give back the booking of a LoadBalancer `<namespace>/<name>` that is gone.
    pub async fn release_manually(&self, ip: &str, id: &str) -> Result<()> {
        let annotation = json!({ names::MANUAL_RELEASE: format!("{ip}: {id}") });
        self.patch(&json!({ "metadata": { "annotations": annotation } }))
            .await
    }

    /// Changes it by a merge patch.
    pub async fn patch(&self, patch: &Value) -> Result<()> {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.api.patch(&self.name, &parameters, &patch).await;
        let pool = patched.with_context(|| format!("changing pool {}", self.name))?;
        self.scenario.written.pools.note(&pool.metadata);
        Ok(())
    }

    /// Removes it, which the host refuses while addresses are booked.
    pub async fn delete(&self) -> Result<()> {
        let deleted = self.api.delete(&self.name, &DeleteParams::default()).await;
        deleted
            .map(drop)
            .with_context(|| format!("deleting pool {}", self.name))
    }
}
