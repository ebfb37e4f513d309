//! The pool controller: what a pool has, when it is new or its ranges change.

use std::sync::Arc;

use futures_util::StreamExt;
use kube::{
    api::PostParams,
    runtime::{Controller, controller::Action, watcher},
};

use super::{Trouble, now};
use crate::harvester::{
    kinds::{self, IpPool, IpPoolStatus},
    names,
    ranges::{self, Ranges},
    scenario::Scenario,
};

const RETRY: std::time::Duration = std::time::Duration::from_millis(50);

pub(super) async fn run(scenario: Arc<Scenario>) {
    let mine = watcher::Config::default().labels(&scenario.selector());
    let pools = kinds::pools(&scenario.client);
    Controller::new_with(pools, mine, kinds::ip_pools())
        .run(reconcile, |_, _, _| Action::requeue(RETRY), scenario)
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(seen: Arc<IpPool>, scenario: Arc<Scenario>) -> Result<Action, Trouble> {
    scenario.knobs.controller_runs().await;
    let name = seen.metadata.name.as_deref().unwrap_or_default();
    let pools = kinds::pools(&scenario.client);
    let _turn = scenario.books.lock().await;
    let Some(mut pool) = pools.get_opt(name).await.map_err(Trouble::untold)? else {
        return Ok(Action::await_change());
    };
    let Ok(ranges) = Ranges::parse(&pool.spec.ranges) else {
        return Ok(Action::await_change());
    };
    let before = pool.clone();
    let books = pool.status.get_or_insert_default();
    bring_up_to_date(books, &ranges);
    books.set_ready(&now());
    let manual = pool.metadata.annotations.as_mut();
    let manual = manual.and_then(|it| it.remove(names::MANUAL_RELEASE));
    if let Some((ip, id)) = manual.as_deref().and_then(|it| it.split_once(": "))
        && !exists(&scenario, id).await?
    {
        ranges::release(pool.status.get_or_insert_default(), ip, id);
    }
    if pool.status != before.status || pool.metadata.annotations != before.metadata.annotations {
        let written = pools.replace(name, &PostParams::default(), &pool).await;
        written.map_err(Trouble::untold)?;
    }
    Ok(Action::await_change())
}

fn bring_up_to_date(books: &mut IpPoolStatus, ranges: &Ranges) {
    books.total = ranges.total();
    let booked = i64::try_from(books.allocated.len()).unwrap_or(i64::MAX);
    books.available = books.total.saturating_sub(booked);
    books.allocated_history.retain(|ip, _| ranges.contains(ip));
}

/// Whether there is a LoadBalancer `<namespace>/<name>`.
async fn exists(scenario: &Scenario, id: &str) -> Result<bool, Trouble> {
    let Some((namespace, name)) = id.split_once('/') else {
        return Ok(false);
    };
    let balancers = kinds::balancers_in(&scenario.client, namespace);
    let found = balancers.get_opt(name).await.map_err(Trouble::untold)?;
    Ok(found.is_some())
}
