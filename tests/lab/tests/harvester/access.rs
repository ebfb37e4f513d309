//! What a guest may do on its host, and how it gets there.

use std::time::Duration;

use anyhow::Result;
use http::StatusCode;
use kube::{
    Error,
    api::{ListParams, Patch, PatchParams},
};
use lab::{
    Failure, HarvesterHost,
    harvester::{GuestAgent, balancers_in, instances_in, machines_in},
    poll_until,
};
use serde_json::{Value, json};

use super::{Guest, client, possible};

fn code(refused: kube::Result<impl std::fmt::Debug>) -> u16 {
    match refused {
        Err(Error::Api(status)) => status.code,
        _ => 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn host_grants_a_guest_its_namespace_and_no_patch() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::start().await?;
    let other = HarvesterHost::start().await?;
    let vm = host.vm("node-0").create().await?;
    let guest = Guest::of(&host).await?;
    guest.create("lb", "dhcp").await?;
    let all = ListParams::default();
    assert_eq!(guest.balancers.list(&all).await?.items.len(), 1);
    let (namespace, client) = (host.namespace(), &guest.client);
    assert_eq!(
        machines_in(client, namespace).list(&all).await?.items.len(),
        1
    );
    assert_eq!(
        instances_in(client, namespace)
            .list(&all)
            .await?
            .items
            .len(),
        1
    );

    let patch = Patch::Merge(json!({ "spec": { "description": "x" } }));
    let parameters = PatchParams::default();
    assert_eq!(
        code(guest.balancers.patch("lb", &parameters, &patch).await),
        403
    );
    assert_eq!(
        code(balancers_in(client, other.namespace()).list(&all).await),
        403
    );
    let pools = "/apis/loadbalancer.harvesterhci.io/v1beta1/ippools";
    let request = http::Request::get(pools).body(Vec::new())?;
    assert_eq!(code(client.request::<Value>(request).await), 403);
    assert_eq!(vm.name(), "node-0");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn host_answers_for_guest_agents_through_the_aggregated_api() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::start().await?;
    let hostname = "name.example".to_owned();
    let vm = host
        .vm("node-0")
        .agent(GuestAgent::Connected { hostname })
        .create()
        .await?;
    let guest = Guest::of(&host).await?;
    let ask = async |name: &str| {
        let namespace = host.namespace();
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/\
             virtualmachineinstances/{name}/guestosinfo"
        );
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        guest.client.request::<Value>(request).await
    };
    assert_eq!(ask("node-0").await?["hostname"], "name.example");
    assert_eq!(code(ask("node-1").await), 404);
    vm.set_agent(GuestAgent::NotConnected).await?;
    assert_eq!(code(ask("node-0").await), 409);
    let counts = guest.access.api().counts();
    assert_eq!(
        counts.of("get", "virtualmachineinstances/guestosinfo"),
        3,
        "{counts}"
    );
    host.allow_guest_agents(false).await?;
    poll_until(Duration::from_secs(5), "refusal", async || {
        Ok((code(ask("node-0").await) == 403).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn host_tokens_change_in_the_cloud_config_and_old_ones_end() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let host = HarvesterHost::start().await?;
    let guest = Guest::of(&host).await?;
    let all = ListParams::default();
    guest.balancers.list(&all).await?;
    host.rotate_token().await?;
    let renewed = client(&guest.access).await?;
    balancers_in(&renewed, host.namespace()).list(&all).await?;
    poll_until(
        Duration::from_secs(15),
        "end of the old token",
        async || Ok((code(guest.balancers.list(&all).await) == 401).then_some(())),
    )
    .await?;
    balancers_in(&renewed, host.namespace()).list(&all).await?;

    guest
        .access
        .api()
        .fail(Failure::status(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(
        code(balancers_in(&renewed, host.namespace()).list(&all).await),
        503
    );
    guest.access.api().heal();
    balancers_in(&renewed, host.namespace()).list(&all).await?;
    Ok(())
}
