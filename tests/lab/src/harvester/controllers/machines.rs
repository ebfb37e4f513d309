//! What goes with the VMs of a guest cluster that is being removed: its load balancers.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
    runtime::{Controller, controller::Action, watcher},
};

use super::Trouble;
use crate::harvester::{
    admission,
    kinds::{self, CLUSTER, Machine},
    names::{self, MACHINE_FINALIZER},
    resolution::label,
    scenario::Scenario,
};

const RETRY: Duration = Duration::from_millis(50);

struct Desk {
    scenario: Arc<Scenario>,
    namespace: String,
    machines: Api<Machine>,
}

pub(super) async fn run(scenario: Arc<Scenario>, namespace: &str) {
    let machines = kinds::machines_in(&scenario.client, namespace);
    let desk = Arc::new(Desk {
        scenario,
        namespace: namespace.to_owned(),
        machines: machines.clone(),
    });
    Controller::new_with(machines, watcher::Config::default(), kinds::machines())
        .run(reconcile, |_, _, _| Action::requeue(RETRY), desk)
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(seen: Arc<Machine>, desk: Arc<Desk>) -> Result<Action, Trouble> {
    desk.scenario.knobs.controller_runs().await;
    let name = seen.metadata.name.as_deref().unwrap_or_default();
    let machine = desk.machines.get_opt(name).await;
    let Some(mut machine) = machine.map_err(Trouble::untold)? else {
        return Ok(Action::await_change());
    };
    let being_deleted = machine.metadata.deletion_timestamp.is_some();
    let finalizers = machine.metadata.finalizers.get_or_insert_default();
    let marked = finalizers.iter().any(|it| it == MACHINE_FINALIZER);
    if being_deleted == marked {
        if marked {
            finalizers.retain(|it| it != MACHINE_FINALIZER);
            desk.clean_up_after(&machine).await?;
        } else {
            finalizers.push(MACHINE_FINALIZER.to_owned());
        }
        let parameters = PostParams::default();
        let written = desk.machines.replace(name, &parameters, &machine).await;
        written.map_err(Trouble::untold)?;
    }
    Ok(Action::await_change())
}

impl Desk {
    async fn clean_up_after(&self, machine: &Machine) -> Result<(), Trouble> {
        let cluster = label(machine, names::GUEST_CLUSTER).unwrap_or_default();
        let made_by_driver = label(machine, names::CREATOR) == Some(names::NODE_DRIVER);
        if cluster.is_empty()
            || !made_by_driver
            || !admission::is_being_removed(machine)
            || !self.scenario.knobs.now().profile.cleans_up()
        {
            return Ok(());
        }
        let balancers = kinds::balancers_in(&self.scenario.client, &self.namespace);
        let theirs = ListParams::default().labels(&format!("{}={cluster}", names::OWNER));
        let theirs = balancers.list(&theirs).await.map_err(Trouble::untold)?;
        for balancer in theirs.items {
            if balancer.spec.workload_type != CLUSTER {
                continue;
            }
            let name = balancer.metadata.name.unwrap_or_default();
            match balancers.delete(&name, &DeleteParams::default()).await {
                Err(error) if !crate::access::is_absent(&error) => {
                    return Err(Trouble::untold(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
