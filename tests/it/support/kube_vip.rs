//! kube-vip, played by hand: its Lease and its address on one node.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use lab::{Node, clock, poll_until};
use tokio::task::JoinHandle;

use super::{SOON, Stage};

const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// A kube-vip on one node that stands in one election.
pub(crate) struct KubeVip {
    leases: Api<Lease>,
    lease: String,
    /// The bare node name: kube-vip's identity.
    identity: String,
    duration: i32,
    held: Arc<Mutex<Option<Lease>>>,
    renewing: Option<JoinHandle<()>>,
}

impl KubeVip {
    /// One that has not acquired anything yet, on a node of the stage.
    pub(crate) fn new(stage: &Stage, node: usize, namespace: &str, lease: &str) -> Self {
        Self {
            leases: Api::namespaced(stage.cluster.kube(), namespace),
            lease: lease.to_owned(),
            identity: stage.node(node).name().to_owned(),
            duration: 15,
            held: Arc::default(),
            renewing: None,
        }
    }

    /// With another `leaseDurationSeconds`.
    pub(crate) fn lasting(mut self, seconds: i32) -> Self {
        self.duration = seconds;
        self
    }

    /// Takes the Lease as client-go does as soon as it is free, and renews it from then on.
    pub(crate) async fn acquire(&mut self) -> Result<()> {
        let what = format!("{} free for {}", self.lease, self.identity);
        let lease = poll_until(SOON, &what, async || self.take().await).await?;
        *self.held.lock().expect("no panic while held") = Some(lease);
        let (leases, held) = (self.leases.clone(), Arc::clone(&self.held));
        self.renewing = Some(tokio::spawn(async move {
            loop {
                clock::sleep(RETRY_PERIOD / 2).await;
                let mut lease = held.lock().expect("no panic while held").clone();
                let Some(lease) = lease.as_mut() else { return };
                lease.spec.get_or_insert_default().renew_time = Some(now());
                let Ok(lease) = replace(&leases, lease).await else {
                    return;
                };
                *held.lock().expect("no panic while held") = Some(lease);
            }
        }));
        Ok(())
    }

    async fn take(&self) -> Result<Option<Lease>> {
        let found = self.leases.get_opt(&self.lease).await?;
        let transitions = match found.as_ref().and_then(|lease| lease.spec.as_ref()) {
            Some(spec) if spec.holder_identity.as_deref() != Some("") => return Ok(None),
            Some(spec) => spec.lease_transitions.unwrap_or_default() + 1,
            None => 0,
        };
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.duration),
            acquire_time: Some(now()),
            renew_time: Some(now()),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        let lease = if let Some(mut lease) = found {
            lease.spec = Some(spec);
            replace(&self.leases, &lease).await?
        } else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.lease.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(spec),
            };
            self.leases.create(&PostParams::default(), &lease).await?
        };
        Ok(Some(lease))
    }

    /// Stops renewing, as one that was killed.
    pub(crate) async fn die(&mut self) {
        if let Some(renewing) = self.renewing.take() {
            renewing.abort();
            // Ended by the abort, or by its own failure: both are its end.
            let _ = renewing.await;
        }
    }

    /// Releases the Lease in client-go's form. kube-vip does it before it removes its addresses.
    pub(crate) async fn release(&mut self) -> Result<()> {
        self.die().await;
        let mut lease = self.leases.get(&self.lease).await?;
        let spec = lease.spec.get_or_insert_default();
        ensure!(spec.holder_identity.as_ref() == Some(&self.identity));
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.acquire_time = Some(now());
        spec.renew_time = Some(now());
        replace(&self.leases, &lease).await.map(drop)
    }

    /// Whether it is still the holder on record.
    pub(crate) async fn holds(&self) -> Result<bool> {
        let lease = self.leases.get(&self.lease).await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        Ok(holder.as_deref() == Some(&self.identity))
    }
}

impl Drop for KubeVip {
    fn drop(&mut self) {
        if let Some(renewing) = &self.renewing {
            renewing.abort();
        }
    }
}

async fn replace(leases: &Api<Lease>, lease: &Lease) -> Result<Lease> {
    let name = lease.metadata.name.as_deref().context("a Lease's name")?;
    Ok(leases.replace(name, &PostParams::default(), lease).await?)
}

fn now() -> MicroTime {
    MicroTime(Timestamp::try_from(clock::wall()).expect("the present is in range"))
}

/// Puts an address on a node as kube-vip does: no mark, no lifetime.
pub(crate) fn put(node: &Node, vip: IpAddr) -> Result<()> {
    address(node, "add", vip)
}

/// Removes what [`put`] has put there.
pub(crate) fn take_off(node: &Node, vip: IpAddr) -> Result<()> {
    address(node, "del", vip)
}

fn address(node: &Node, verb: &str, vip: IpAddr) -> Result<()> {
    let length = if vip.is_ipv4() { 32 } else { 128 };
    let mut command = node.host().command("ip")?;
    command.args(["address", verb, &format!("{vip}/{length}"), "dev", "eth0"]);
    if vip.is_ipv6() && verb == "add" {
        command.arg("nodad");
    }
    let status = command.status().context("ip does not start")?;
    ensure!(status.success(), "ip address {verb} {vip}: {status}");
    Ok(())
}
