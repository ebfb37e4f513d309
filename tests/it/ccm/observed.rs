//! What failure scenarios look at: the one object of a Service, Events by their text, what a proxy
//! counted, and that nothing changes for a while.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use lab::{
    Counts, clock,
    harvester::{LoadBalancer, Pool},
    poll_until,
};
use serde_json::json;

use super::stage::{SOON, World};

pub(super) const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
/// What the annotation says of an address that is leased.
const LEASED: &str = "0.0.0.0";
/// How the host's objects are counted.
const OBJECTS: &str = "loadbalancers";
/// How often something that must not change is looked at.
const LOOK: Duration = Duration::from_millis(50);

impl World {
    /// Creates a Service that wants an address of a pool.
    pub(super) async fn pooled(&self, name: &str) -> Result<()> {
        let annotations = json!({ IPAM: "pool" });
        self.service(name, annotations).await.map(drop)
    }

    /// Creates one, and waits until its address is in its status.
    pub(super) async fn served(&self, name: &str) -> Result<String> {
        self.pooled(name).await?;
        let address = self.addressed(name).await?;
        self.serves(name, &address).await?;
        Ok(address)
    }

    /// The host's object for a Service, once there is exactly one.
    pub(super) async fn object(&self, name: &str) -> Result<LoadBalancer> {
        poll_until(SOON, &format!("LoadBalancer of {name}"), async || {
            let mut objects = self.balancers_of(name).await?;
            ensure!(objects.len() <= 1, "{} objects of {name}", objects.len());
            Ok(objects.pop())
        })
        .await
    }

    /// Whether the host's object for a Service is still this one.
    pub(super) async fn still_has(&self, name: &str, object: &LoadBalancer) -> Result<()> {
        let now = self.object(name).await?;
        ensure!(
            now.uid() == object.uid() && now.metadata.deletion_timestamp.is_none(),
            "another object: {:?} instead of {:?}",
            now.metadata,
            object.metadata
        );
        Ok(())
    }

    /// Waits for a Warning about a Service that says this.
    pub(super) async fn warned(&self, name: &str, text: &str) -> Result<String> {
        let within = SOON;
        let told = poll_until(within, &format!("word of {text:?} on {name}"), async || {
            let events = self.guest.events("Service", name).await?;
            let found = events.into_iter().find(|it| it.1.contains(text));
            Ok(found)
        })
        .await;
        let (reason, message, _) = match told {
            Ok(told) => told,
            Err(error) => {
                let events = self.guest.events("Service", name).await?;
                return Err(error).with_context(|| format!("told was {events:?}"));
            }
        };
        ensure!(
            reason == "SyncLoadBalancerFailed",
            "{reason} says {message:?}"
        );
        Ok(message)
    }

    /// How many Events about a Service have this reason.
    pub(super) async fn times_told(&self, name: &str, reason: &str) -> Result<usize> {
        let events = self.guest.events("Service", name).await?;
        Ok(events.iter().filter(|it| it.0 == reason).count())
    }

    /// For this long a Service announces this address: in its status, and in the annotation what was
    /// there at first.
    pub(super) async fn keeps(&self, name: &str, address: &str, time: Duration) -> Result<()> {
        let end = clock::now() + time;
        let asked = self.address(name).await?;
        ensure!(
            asked.as_deref() == Some(address) || asked.as_deref() == Some(LEASED),
            "{name} asks for {asked:?} instead of {address}"
        );
        while clock::now() < end {
            let (annotation, ingress) = (self.address(name).await?, self.ingress(name).await?);
            ensure!(
                annotation == asked && ingress == [address],
                "{name} shows {annotation:?} and {ingress:?} instead of {address}"
            );
            clock::sleep(LOOK).await;
        }
        Ok(())
    }

    /// What the manager asks of the host in this time.
    pub(super) async fn asked_of_host(&self, time: Duration) -> Counts {
        let before = self.access.api().counts();
        clock::sleep(time).await;
        self.access.api().counts().since(&before)
    }

    /// Creates a Service whose address is leased, and waits until its object says so.
    pub(super) async fn leased(&self, name: &str, address: &str) -> Result<()> {
        self.companion.lease(&format!("default/{name}"), address);
        let annotations = json!({ IPAM: "dhcp" });
        self.service(name, annotations).await?;
        self.serves(name, address).await?;
        self.recorded(name, address).await
    }

    /// Gives a Service another lease, which its object is to follow.
    pub(super) async fn lease_anew(&self, name: &str, address: &str) -> Result<()> {
        self.companion.lease(&format!("default/{name}"), address);
        self.serves(name, address).await
    }
}

/// Waits until a pool has no bookings.
pub(super) async fn empty(pool: &Pool) -> Result<()> {
    poll_until(SOON, "pool without bookings", async || {
        Ok(pool.allocated().await?.is_empty().then_some(()))
    })
    .await
}

/// How often an object of the host was created, whatever the answer.
pub(super) fn creations(counts: &Counts) -> u64 {
    counts.of("create", OBJECTS)
}

/// How often one was to be deleted.
pub(super) fn deletions(counts: &Counts) -> u64 {
    counts.of("delete", OBJECTS)
}

/// Writes to the host's objects.
pub(super) fn writes(counts: &Counts) -> u64 {
    creations(counts) + deletions(counts) + counts.of("update", OBJECTS)
}
