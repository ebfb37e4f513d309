//! What the webhooks change and refuse, as a guest sees it.

use std::time::Duration;

use anyhow::Result;
use kube::{Error, core::Status};
use lab::{
    HarvesterHost, clock,
    harvester::{Interface, MachineOrder, Profile, Webhook, new_balancer},
};

use super::{Guest, address, gone, possible, settled};

const DENIED: &str = "admission webhook \
    \"validator.harvester-system.harvester-load-balancer-webhook\" denied the request: \
    Internal error occurred: ";

fn status(refused: kube::Result<impl std::fmt::Debug>) -> Box<Status> {
    match refused.unwrap_err() {
        Error::Api(status) => status,
        error => Box::new(Status::failure(&error.to_string(), "not an answer")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn host_refuses_with_an_internal_error_and_its_words() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::start().await?;
    let vm = host.vm("node-0").create().await?;
    host.pool("pool")
        .range("10.1.0.10", "10.1.0.20")
        .create()
        .await?;
    let guest = Guest::of(&host).await?;
    guest.create("lb", "pool").await?;
    let mut changed = settled(&host, "lb").await?;

    let namespace = host.namespace();
    "dhcp".clone_into(&mut changed.spec.ipam);
    let refused = status(guest.put(&changed).await);
    let text = format!(
        "update loadbalancer {namespace}/lb failed: can't change the IPAM from pool to dhcp"
    );
    assert_eq!((refused.code, &*refused.reason), (500, "InternalError"));
    assert_eq!(refused.message, format!("{DENIED}{text}"));

    vm.mark_cluster_removal().await?;
    let refused = status(guest.create("late", "pool").await);
    let text = format!(
        "create loadbalancer {namespace}/late failed with guest cluster check: \
         the vm {namespace}/node-0 shows guest cluster guest is being removed"
    );
    assert_eq!((refused.code, &*refused.reason), (500, "InternalError"));
    assert_eq!(refused.message, format!("{DENIED}{text}"));

    let mut wrong = new_balancer("lb-2", host.cluster(), "ippool");
    assert_eq!(status(guest.post(&wrong).await).code, 422);
    "pool".clone_into(&mut wrong.spec.ipam);
    host.knobs().profile(Profile::V1_7);
    guest.post(&wrong).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn host_is_out_when_a_webhook_is_down_and_goes_on_without_the_one_that_changes() -> Result<()>
{
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::start().await?;
    host.pool("pool")
        .range("10.1.0.10", "10.1.0.20")
        .create()
        .await?;
    host.vm("node-0").create().await?;
    let guest = Guest::of(&host).await?;

    host.knobs().validator(Webhook::Fails);
    let down = status(guest.create("lb", "pool").await);
    assert_eq!((down.code, &*down.reason), (500, "InternalError"));
    let prefix = "Internal error occurred: failed calling webhook \"validator.";
    assert!(down.message.starts_with(prefix), "{}", down.message);

    host.knobs()
        .validator(Webhook::Denies("because".to_owned()));
    let denied = status(guest.create("lb", "pool").await);
    assert_eq!(denied.message, format!("{DENIED}because"));

    host.knobs()
        .validator(Webhook::Hangs(Duration::from_millis(400)));
    let asked = clock::now();
    guest.create("slow", "pool").await?;
    assert!(asked.elapsed() >= Duration::from_millis(400));
    host.knobs().validator(Webhook::Works);

    host.knobs().mutator(Webhook::Fails);
    let bare = guest.create("bare", "pool").await?;
    let annotations = bare.metadata.annotations.unwrap();
    assert!(
        !annotations.contains_key("loadbalancer.harvesterhci.io/namespace"),
        "{annotations:?}"
    );
    host.knobs().mutator(Webhook::Works);
    address(&host, "bare").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn host_of_an_old_release_overwrites_the_network() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::builder()
        .profile(Profile::V1_8)
        .start()
        .await?;
    host.vm("guest-node-0").create().await?;
    let guest = Guest::of(&host).await?;
    let key = "loadbalancer.harvesterhci.io/network".to_owned();
    let mut balancer = new_balancer("lb", host.cluster(), "dhcp");
    let explicit = (key.clone(), "default/asked".to_owned());
    balancer
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .extend([explicit]);
    let stored = guest.post(&balancer).await?;
    assert_eq!(stored.metadata.annotations.unwrap()[&key], "default/nodes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn host_allows_one_global_pool() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::start().await?;
    let first = host
        .pool("first")
        .range("10.1.0.10", "10.1.0.20")
        .global()
        .create()
        .await?;
    let second = host.pool("second").range("10.2.0.10", "10.2.0.20").global();
    let refused = format!("{:#}", second.create().await.unwrap_err());
    let text = format!("there is already a global IP pool: {}", first.name());
    assert!(refused.contains(&text), "{refused}");
    let overlapping = host
        .pool("third")
        .range("10.1.0.20", "10.1.0.30")
        .create()
        .await;
    assert!(format!("{:#}", overlapping.unwrap_err()).contains("overlap"));
    first.delete().await
}

#[tokio::test(flavor = "multi_thread")]
async fn host_takes_the_network_of_the_vm_that_it_sees_first() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::start().await?;
    for (name, network) in [("a", "ns/one"), ("b", "ns/two")] {
        let links = [Interface::pod(), Interface::on(network)];
        host.vm(name).interfaces(&links).create().await?;
    }
    let guest = Guest::of(&host).await?;
    for (order, network) in [
        (MachineOrder::ByName, "ns/one"),
        (MachineOrder::Reversed, "ns/two"),
        (MachineOrder::First(vec!["b".to_owned()]), "ns/two"),
    ] {
        host.knobs().machine_order(order);
        let stored = guest.create("lb", "dhcp").await?;
        let key = "loadbalancer.harvesterhci.io/network";
        assert_eq!(stored.metadata.annotations.unwrap()[key], network);
        host.delete_load_balancer("lb").await?;
        gone(&host, "lb").await?;
    }
    Ok(())
}
