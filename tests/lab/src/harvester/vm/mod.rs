//! A VM of the guest cluster: its `VirtualMachine` and, while it runs, its `VirtualMachineInstance`.

mod shape;

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use self::shape::Shape;
pub use self::shape::{Interface, Place};
use super::{
    HarvesterHost, SOON,
    agent::GuestAgent,
    kinds::{self, Machine},
    names,
    scenario::Scenario,
};
use crate::{access::is_absent, run::lock, wait::poll_until};

/// A VM that is being described: by default made by a node driver, with one link on
/// [`DEFAULT_NETWORK`](super::DEFAULT_NETWORK) and an agent that says the VM's name as its host name.
#[derive(Debug)]
pub struct VmBuilder<'a> {
    host: &'a HarvesterHost,
    shape: Shape,
}

impl<'a> VmBuilder<'a> {
    pub(super) fn new(host: &'a HarvesterHost, name: &str) -> Self {
        Self {
            host,
            shape: Shape::new(name, host.cluster()),
        }
    }

    /// The machine of the host that it runs on.
    #[must_use]
    pub fn node(mut self, machine: &str) -> Self {
        machine.clone_into(&mut self.shape.place.machine);
        self
    }

    #[must_use]
    pub fn region(mut self, region: &str) -> Self {
        self.shape.place = self.shape.place.region(region);
        self
    }

    #[must_use]
    pub fn zone(mut self, zone: &str) -> Self {
        self.shape.place = self.shape.place.zone(zone);
        self
    }

    /// The guest cluster it belongs to, if another than the host's.
    #[must_use]
    pub fn cluster(mut self, name: &str) -> Self {
        name.clone_into(&mut self.shape.cluster);
        self
    }

    /// Without the labels of a node driver, as in a cluster that somebody made by hand.
    #[must_use]
    pub fn made_by_hand(mut self) -> Self {
        self.shape.made_by_driver = false;
        self
    }

    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.shape.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The addresses of the first link.
    #[must_use]
    pub fn addresses(mut self, addresses: &[&str]) -> Self {
        self.shape.set_addresses(addresses);
        self
    }

    /// These links, instead of the one.
    #[must_use]
    pub fn interfaces(mut self, interfaces: &[Interface]) -> Self {
        self.shape.interfaces = interfaces.to_vec();
        self
    }

    /// What the agent says.
    #[must_use]
    pub fn agent(mut self, agent: GuestAgent) -> Self {
        self.shape.agent = agent;
        self
    }

    /// Makes it; it runs when this returns.
    pub async fn create(self) -> Result<Vm> {
        let (client, namespace) = (&self.host.client, self.host.namespace());
        let vm = Vm {
            machines: kinds::machines_in(client, namespace),
            instances: kinds::instances_in(client, namespace),
            scenario: Arc::clone(&self.host.scenario),
            name: self.shape.name.clone(),
            shape: Mutex::new(self.shape),
        };
        vm.create().await?;
        Ok(vm)
    }
}

/// A VM in the host's API.
pub struct Vm {
    machines: Api<Machine>,
    instances: Api<Machine>,
    scenario: Arc<Scenario>,
    name: String,
    shape: Mutex<Shape>,
}

impl std::fmt::Debug for Vm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vm")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Vm {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The UID of the `VirtualMachine`, which a node's provider id carries.
    pub async fn uid(&self) -> Result<String> {
        let machine = self
            .machines
            .get(&self.name)
            .await
            .context("reading a VM")?;
        machine.metadata.uid.context("a VM has a UID")
    }

    /// The `VirtualMachine`, if it exists.
    pub async fn machine(&self) -> Result<Option<Machine>> {
        self.machines
            .get_opt(&self.name)
            .await
            .context("reading a VM")
    }

    /// The `VirtualMachineInstance`, if the VM runs.
    pub async fn instance(&self) -> Result<Option<Machine>> {
        let instance = self.instances.get_opt(&self.name).await;
        instance.context("reading a VMI")
    }

    /// The first link has these addresses now.
    pub async fn set_addresses(&self, addresses: &[&str]) -> Result<()> {
        self.reshape(|it| it.set_addresses(addresses));
        self.report().await
    }

    /// Links that are plugged in or out, or have other addresses.
    pub async fn set_interfaces(&self, interfaces: &[Interface]) -> Result<()> {
        self.reshape(|it| it.interfaces = interfaces.to_vec());
        let networks = lock(&self.shape).instance("")["spec"].take();
        self.patch_instance(&json!({ "spec": networks })).await?;
        self.report().await
    }

    /// The agent starts, ends, or says something else.
    pub async fn set_agent(&self, agent: GuestAgent) -> Result<()> {
        self.reshape(|it| it.agent = agent);
        self.publish_agent();
        self.report().await
    }

    /// Whether KubeVirt calls the VM ready.
    pub async fn set_ready(&self, ready: bool) -> Result<()> {
        let printable = if ready { "Running" } else { "Starting" };
        self.set_status(true, ready, printable).await
    }

    /// Moves it to another machine of the host.
    pub async fn migrate(&self, to: Place) -> Result<()> {
        self.begin_migration(to).await?.complete().await
    }

    /// Begins to move it; it stays where it is until the migration is complete.
    pub async fn begin_migration(&self, to: Place) -> Result<Migration<'_>> {
        let from = lock(&self.shape).place.machine.clone();
        // Null: of an earlier migration.
        let state = json!({
            "sourceNode": from, "targetNode": to.machine,
            "completed": null, "failed": null,
        });
        self.patch_instance(&json!({ "status": { "migrationState": state } }))
            .await?;
        Ok(Migration { vm: self, to })
    }

    /// Shuts it down: the VM stays, its instance goes.
    pub async fn stop(&self) -> Result<()> {
        self.set_status(false, false, "Stopped").await?;
        self.delete_from(&self.instances).await
    }

    /// Boots it: a new instance.
    pub async fn start(&self) -> Result<()> {
        let uid = self.uid().await?;
        let instance = lock(&self.shape).instance(&uid);
        let instance: Machine = serde_json::from_value(instance)?;
        let created = self
            .instances
            .create(&PostParams::default(), &instance)
            .await;
        let instance = created.with_context(|| format!("creating the VMI {}", self.name))?;
        self.scenario.written.instances.note(&instance.metadata);
        self.publish_agent();
        self.set_status(true, true, "Running").await
    }

    /// Removes VM and instance; both are gone when this returns.
    pub async fn delete(&self) -> Result<()> {
        self.delete_from(&self.machines).await?;
        self.delete_from(&self.instances).await
    }

    /// Removes it and makes another of the same name; gives the new UID.
    pub async fn recreate(&self) -> Result<String> {
        self.delete().await?;
        self.create().await?;
        self.uid().await
    }

    /// Marks it as Rancher does when the whole guest cluster is being deleted.
    pub async fn mark_cluster_removal(&self) -> Result<()> {
        let patch = json!({ "metadata": { "annotations": { names::BEING_REMOVED: "true" } } });
        let machine = patch_by_merging(&self.machines, &self.name, &patch).await?;
        self.scenario.written.machines.note(&machine.metadata);
        Ok(())
    }

    /// Changes the instance by a merge patch.
    pub async fn patch_instance(&self, patch: &Value) -> Result<()> {
        let instance = patch_by_merging(&self.instances, &self.name, patch).await?;
        self.scenario.written.instances.note(&instance.metadata);
        Ok(())
    }

    async fn create(&self) -> Result<()> {
        let machine = lock(&self.shape).machine();
        let machine: Machine = serde_json::from_value(machine)?;
        let created = self.machines.create(&PostParams::default(), &machine).await;
        created.with_context(|| format!("creating VM {}", self.name))?;
        self.start().await
    }

    fn reshape(&self, change: impl FnOnce(&mut Shape)) {
        change(&mut lock(&self.shape));
    }

    fn publish_agent(&self) {
        let agent = lock(&self.shape).agent.clone();
        self.scenario
            .set_agent(&self.scenario.name, &self.name, agent);
    }

    async fn report(&self) -> Result<()> {
        let patch = lock(&self.shape).status_patch();
        self.patch_instance(&patch).await
    }

    async fn set_status(&self, created: bool, ready: bool, printable: &str) -> Result<()> {
        let status = json!({ "created": created, "ready": ready, "printableStatus": printable });
        let patch = json!({ "status": status });
        let parameters = PatchParams::default();
        let patched = self
            .machines
            .patch_status(&self.name, &parameters, &Patch::Merge(&patch))
            .await;
        let machine = patched.with_context(|| format!("the status of VM {}", self.name))?;
        self.scenario.written.machines.note(&machine.metadata);
        Ok(())
    }

    async fn delete_from(&self, api: &Api<Machine>) -> Result<()> {
        match api.delete(&self.name, &DeleteParams::default()).await {
            Err(error) if !is_absent(&error) => {
                return Err(error).with_context(|| format!("deleting {}", self.name));
            }
            _ => {}
        }
        poll_until(SOON, &format!("end of {}", self.name), async || {
            Ok(api.get_opt(&self.name).await?.is_none().then_some(()))
        })
        .await
    }
}

/// A VM on its way to another machine.
#[derive(Debug)]
#[must_use = "a migration is under way until it is told its end"]
pub struct Migration<'a> {
    vm: &'a Vm,
    to: Place,
}

impl Migration<'_> {
    /// It has arrived; Harvester says so in the instance's annotations.
    pub async fn complete(self) -> Result<()> {
        self.vm.reshape(|it| it.place = self.to);
        let mut patch = lock(&self.vm.shape).arrival_patch();
        patch["status"]["migrationState"] = json!({ "completed": true });
        self.vm.patch_instance(&patch).await
    }

    /// It stays where it was.
    pub async fn fail(self) -> Result<()> {
        let state = json!({ "completed": true, "failed": true });
        let patch = json!({ "status": { "migrationState": state } });
        self.vm.patch_instance(&patch).await
    }
}

async fn patch_by_merging(api: &Api<Machine>, name: &str, patch: &Value) -> Result<Machine> {
    let parameters = PatchParams::default();
    let patched = api.patch(name, &parameters, &Patch::Merge(patch)).await;
    patched.with_context(|| format!("changing {name}"))
}
