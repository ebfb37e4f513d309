//! One scenario's part of the simulated host: its namespaces, its knobs, its guest agents.
//!
//! A host is shared by the scenarios of a process; the books of pools, the webhooks and the controllers
//! see only what belongs to the same scenario.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use kube::{
    Client,
    api::{ListParams, ObjectMeta, VersionMatch},
};
use tokio::sync::Mutex as Turn;

use super::{
    agent::GuestAgent,
    kinds::{self, IpPool, Machine},
    knobs::{Knobs, MachineOrder, Profile},
    names,
};
use crate::run::lock;

/// What the parts of the simulator share about a scenario.
pub(super) struct Scenario {
    /// Its first namespace.
    pub(super) name: String,
    pub(super) knobs: Knobs,
    /// Of the simulator's runtime.
    pub(super) client: Client,
    /// Agents by namespace and name of their VM.
    pub(super) agents: Mutex<BTreeMap<(String, String), GuestAgent>>,
    /// Who writes a pool's books.
    pub(super) books: Turn<()>,
    pub(super) written: Written,
}

/// What the scenario has written, which its host must have seen when it lists.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) machines: Latest,
    pub(super) instances: Latest,
    pub(super) pools: Latest,
}

/// The latest version of a kind. A list that is as new as this comes from the API server's cache at
/// once; one that is as new as can be waits for etcd's next word on progress, up to 100 ms.
#[derive(Debug, Default)]
pub(super) struct Latest(AtomicU64);

impl Latest {
    pub(super) fn note(&self, written: &ObjectMeta) {
        let version = written.resource_version.as_deref();
        if let Some(version) = version.and_then(|it| it.parse().ok()) {
            self.0.fetch_max(version, Ordering::Relaxed);
        }
    }

    fn list(&self) -> ListParams {
        let version = self.0.load(Ordering::Relaxed).to_string();
        ListParams::default()
            .at(&version)
            .matching(VersionMatch::NotOlderThan)
    }
}

impl Scenario {
    pub(super) fn new(name: &str, profile: Profile, client: Client) -> Self {
        Self {
            name: name.to_owned(),
            knobs: Knobs::new(profile),
            client,
            agents: Mutex::default(),
            books: Turn::default(),
            written: Written::default(),
        }
    }

    pub(super) fn selector(&self) -> String {
        format!("{}={}", names::SCENARIO, self.name)
    }

    pub(super) async fn pools(&self) -> Result<Vec<IpPool>> {
        let mine = self.written.pools.list().labels(&self.selector());
        let pools = kinds::pools(&self.client).list(&mine).await;
        Ok(pools.context("listing pools")?.items)
    }

    /// The VMIs of a namespace, in the order that the scenario wants the host to see.
    pub(super) async fn instances(&self, namespace: &str) -> Result<Vec<Machine>> {
        let instances = kinds::instances_in(&self.client, namespace);
        let instances = instances.list(&self.written.instances.list()).await;
        let mut instances = instances.context("listing machines")?.items;
        let name = |it: &Machine| it.metadata.name.clone().unwrap_or_default();
        match self.knobs.now().machine_order {
            MachineOrder::ByName => instances.sort_by_key(name),
            MachineOrder::Reversed => instances.sort_by_key(|it| Reverse(name(it))),
            MachineOrder::First(first) => instances.sort_by_key(|it| {
                let name = name(it);
                let place = first.iter().position(|it| *it == name);
                (place.unwrap_or(first.len()), name)
            }),
        }
        Ok(instances)
    }

    pub(super) async fn machines(&self, namespace: &str) -> Result<Vec<Machine>> {
        let machines = kinds::machines_in(&self.client, namespace);
        let machines = machines.list(&self.written.machines.list()).await;
        Ok(machines.context("listing machines")?.items)
    }

    pub(super) fn agent(&self, namespace: &str, name: &str) -> Option<GuestAgent> {
        let key = (namespace.to_owned(), name.to_owned());
        lock(&self.agents).get(&key).cloned()
    }

    pub(super) fn set_agent(&self, namespace: &str, name: &str, agent: GuestAgent) {
        let key = (namespace.to_owned(), name.to_owned());
        lock(&self.agents).insert(key, agent);
    }
}

/// The scenarios of a host, by each of their namespaces.
#[derive(Default)]
pub(super) struct Scenarios(Mutex<BTreeMap<String, Arc<Scenario>>>);

impl Scenarios {
    pub(super) fn add(&self, namespace: &str, scenario: &Arc<Scenario>) {
        lock(&self.0).insert(namespace.to_owned(), Arc::clone(scenario));
    }

    pub(super) fn of(&self, namespace: &str) -> Option<Arc<Scenario>> {
        lock(&self.0).get(namespace).cloned()
    }

    /// The scenario that a pool belongs to.
    pub(super) fn of_pool(&self, pool: &IpPool) -> Option<Arc<Scenario>> {
        let labels = pool.metadata.labels.as_ref()?;
        self.of(labels.get(names::SCENARIO)?)
    }

    pub(super) fn remove(&self, scenario: &Arc<Scenario>) {
        lock(&self.0).retain(|_, it| !Arc::ptr_eq(it, scenario));
    }
}
