//! The LoadBalancer controller: an address for each, the finalizer, and the address back.
//!
//! Three writes in this order, each seen by watchers: the pool's books, the status, the finalizer. It
//! reads every object afresh, where the real one reads a cache; what it does about it is the same.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::StreamExt;
use kube::{
    Api,
    api::PostParams,
    runtime::{Controller, controller::Action, watcher},
};

use super::{Trouble, now};
use crate::{
    clock,
    harvester::{
        admission,
        kinds::{
            self, AllocatedAddress, CLUSTER, DHCP, IpPool, IpPoolStatus, LoadBalancer,
            LoadBalancerStatus, UNSPECIFIED,
        },
        names::{BALANCER_FINALIZER, SCENARIO},
        ranges::{self, Ranges, Refusal},
        scenario::Scenario,
        selection::{self, Requirement},
    },
    run::lock,
};

const NO_POOL_RETRY: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
const PATIENCE: u32 = 30;
const RETRY_WITHOUT_PATIENCE: Duration = Duration::from_secs(120);

/// What the controller works with.
struct Desk {
    scenario: Arc<Scenario>,
    balancers: Api<LoadBalancer>,
    /// In a row, by name.
    failures: Mutex<BTreeMap<String, u32>>,
}

pub(super) async fn run(scenario: Arc<Scenario>, namespace: &str) {
    let balancers = kinds::balancers_in(&scenario.client, namespace);
    let desk = Arc::new(Desk {
        scenario,
        balancers: balancers.clone(),
        failures: Mutex::default(),
    });
    let kind = kinds::load_balancers();
    Controller::new_with(balancers, watcher::Config::default(), kind)
        .run(reconcile, after_failure, desk)
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(seen: Arc<LoadBalancer>, desk: Arc<Desk>) -> Result<Action, Trouble> {
    let knobs = &desk.scenario.knobs;
    knobs.controller_runs().await;
    if seen.status.as_ref().is_none_or(|it| it.ready().is_none()) {
        knobs.pace(|it| &it.allocation).await;
    }
    let name = name(&seen);
    let balancer = desk.balancers.get_opt(name).await;
    match balancer.map_err(Trouble::untold)? {
        Some(it) if it.spec.workload_type != CLUSTER => {}
        Some(it) if it.metadata.deletion_timestamp.is_some() => desk.remove(it).await?,
        Some(it) => desk.serve(it).await?,
        None => {}
    }
    lock(&desk.failures).remove(name);
    Ok(Action::await_change())
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature is that of kube's controller"
)]
fn after_failure(balancer: Arc<LoadBalancer>, trouble: &Trouble, desk: Arc<Desk>) -> Action {
    let scale = desk.scenario.knobs.now().time_scale;
    if let Trouble::NoPool(_) = trouble {
        return Action::requeue(NO_POOL_RETRY.mul_f64(scale));
    }
    let mut failures = lock(&desk.failures);
    let failures = failures.entry(name(&balancer).to_owned()).or_default();
    let pause = match *failures {
        PATIENCE.. => RETRY_WITHOUT_PATIENCE,
        so_far => FIRST_RETRY.saturating_mul(1 << so_far).min(LONGEST_RETRY),
    };
    *failures += 1;
    Action::requeue(pause.mul_f64(scale))
}

impl Desk {
    async fn serve(&self, mut balancer: LoadBalancer) -> Result<(), Trouble> {
        let mut status = balancer.status.clone().unwrap_or_default();
        let outcome = self.give_address(&balancer, &mut status).await;
        let message = outcome.as_ref().err().map_or("", Trouble::text);
        status.set_ready(message, &now());
        if balancer.status.as_ref() != Some(&status) {
            self.pause().await;
            if self.scenario.knobs.loses_status_write() {
                return Err(Trouble::untold("the write of the status is lost"));
            }
            balancer.status = Some(status);
            balancer = self.write(&balancer).await?;
        }
        let finalizers = balancer.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|it| it == BALANCER_FINALIZER) {
            finalizers.push(BALANCER_FINALIZER.to_owned());
            self.pause().await;
            self.write(&balancer).await?;
        }
        outcome
    }

    async fn remove(&self, mut balancer: LoadBalancer) -> Result<(), Trouble> {
        let finalizers = balancer.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|it| it == BALANCER_FINALIZER) {
            return Ok(());
        }
        finalizers.retain(|it| it != BALANCER_FINALIZER);
        let given = balancer
            .status
            .clone()
            .unwrap_or_default()
            .allocated_address;
        // One that did not say so got its address from a pool all the same, and keeps it for ever.
        if balancer.spec.ipam == "pool" && !given.ip_pool.is_empty() {
            self.release(&given, &admission::id(&balancer)).await?;
        }
        let knobs = &self.scenario.knobs;
        knobs.pace(|it| &it.finalizer_removal).await;
        self.write(&balancer).await.map(drop)
    }

    async fn give_address(
        &self,
        balancer: &LoadBalancer,
        status: &mut LoadBalancerStatus,
    ) -> Result<(), Trouble> {
        let given = &mut status.allocated_address;
        if balancer.spec.ipam == DHCP {
            if given.ip != UNSPECIFIED {
                *given = AllocatedAddress {
                    ip: UNSPECIFIED.to_owned(),
                    ..AllocatedAddress::default()
                };
            }
            return Ok(());
        }
        let wanted = &balancer.spec.ip_pool;
        if given.ip_pool.is_empty() {
            *given = self.book(balancer).await?;
        } else if !wanted.is_empty() && *wanted != given.ip_pool {
            // The new pool's turn is when this has been written.
            self.release(given, &admission::id(balancer)).await?;
            *given = AllocatedAddress::default();
        }
        Ok(())
    }

    async fn book(&self, balancer: &LoadBalancer) -> Result<AllocatedAddress, Trouble> {
        let name = self.pool_for(balancer).await?;
        let wrapped =
            |text: String| Trouble::Told(format!("fail to get ip from pool {name}, error: {text}"));
        let _turn = self.scenario.books.lock().await;
        let Some(mut pool) = self.pool(&name).await? else {
            return Err(Trouble::Told(format!("fail to get allocator {name}")));
        };
        let ranges = Ranges::parse(&pool.spec.ranges).map_err(wrapped)?;
        let books = pool.status.get_or_insert_default();
        match ranges.book(books, &name, &admission::id(balancer)) {
            Ok(given) => match self.write_pool(&pool).await {
                Ok(()) => Ok(given),
                Err(_) => Err(wrapped(format!("fail to reserve {} into {name}", given.ip))),
            },
            Err(refusal) => {
                if let Refusal::Duplicate { ip, id } = &refusal {
                    ranges::release(books, ip, id);
                    self.write_pool(&pool).await?;
                }
                Err(wrapped(refusal.text()))
            }
        }
    }

    async fn pool_for(&self, balancer: &LoadBalancer) -> Result<String, Trouble> {
        if !balancer.spec.ip_pool.is_empty() {
            return Ok(balancer.spec.ip_pool.clone());
        }
        let wanted = Requirement::of(balancer);
        let pools = self.scenario.pools().await.map_err(Trouble::untold)?;
        let profile = self.scenario.knobs.now().profile;
        let chosen = selection::choose(&pools, &wanted, profile);
        let name = chosen.and_then(|it| it.metadata.name.clone());
        name.ok_or_else(|| Trouble::NoPool(format!("no matched IPPool with requirement {wanted}")))
    }

    async fn release(&self, given: &AllocatedAddress, id: &str) -> Result<(), Trouble> {
        let AllocatedAddress {
            ip, ip_pool: name, ..
        } = given;
        let failed = |why: &str| {
            Trouble::Told(format!(
                "fail to release ip {ip} to pool {name}, error: {why}"
            ))
        };
        let _turn = self.scenario.books.lock().await;
        let Some(mut pool) = self.pool(name).await? else {
            return Err(failed(&format!("fail to get allocator {name}")));
        };
        if ranges::release(pool.status.get_or_insert_default(), ip, id) {
            let written = self.write_pool(&pool).await;
            written.map_err(|error| failed(error.text()))?;
        }
        Ok(())
    }

    /// A pool of this scenario that its controller has seen.
    async fn pool(&self, name: &str) -> Result<Option<IpPool>, Trouble> {
        let pool = kinds::pools(&self.scenario.client).get_opt(name).await;
        let mine = |it: &IpPool| {
            let labels = it.metadata.labels.as_ref();
            let scenario = labels.and_then(|it| it.get(SCENARIO));
            scenario.is_some_and(|it| *it == self.scenario.name)
                && it.status.as_ref().is_some_and(IpPoolStatus::is_known)
        };
        Ok(pool.map_err(Trouble::untold)?.filter(mine))
    }

    async fn write_pool(&self, pool: &IpPool) -> Result<(), Trouble> {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let pools = kinds::pools(&self.scenario.client);
        let written = pools.replace(name, &PostParams::default(), pool).await;
        written.map(drop).map_err(Trouble::untold)
    }

    async fn write(&self, balancer: &LoadBalancer) -> Result<LoadBalancer, Trouble> {
        let parameters = PostParams::default();
        let written = self
            .balancers
            .replace(name(balancer), &parameters, balancer);
        written.await.map_err(Trouble::untold)
    }

    async fn pause(&self) {
        let pause = self.scenario.knobs.now().between_writes;
        if !pause.is_zero() {
            clock::sleep(pause).await;
        }
    }
}

fn name(balancer: &LoadBalancer) -> &str {
    balancer.metadata.name.as_deref().unwrap_or_default()
}
