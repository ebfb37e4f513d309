//! `externalTrafficPolicy: Local`: the VIP is where the endpoints are.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use lab::poll_until;
use serde_json::json;

use crate::support::{SOON, Scene, Stage, one_answerer, stayed_with};

/// Longer than anything that was under way takes.
const A_WHILE: Duration = Duration::from_secs(3);

#[test]
fn a_local_vip_follows_its_pod() {
    Scene::new("local").play(async |stage| {
        let vips = stage.pair(0);
        let watch = stage.watch(&vips)?;
        let service = stage.service("web", &vips).etp_local().create().await?;
        let mut before = None;
        for node in [1, 2, 0] {
            let pod = stage.pod("web", node).await?;
            if let Some(before) = before.replace(pod) {
                lab::cluster::Pod::delete_now(before).await?;
            }
            stage.owned_by(&vips, node).await?;
            stage.says(&service, &vips, node).await?;
            stage.holder("kubevip-web", node).await?;
            for vip in vips {
                let answer = stage.ask(vip).await?;
                ensure!(answer.node == stage.node(node).name(), "{answer:?}");
                ensure!(
                    stage.pair_of_client().contains(&answer.client),
                    "Local keeps the client's address: {answer:?}"
                );
            }
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn a_local_vip_without_endpoints_has_no_owner_and_an_event_says_why() {
    Scene::new("nowhere")
        .without_kube_proxy()
        .play(async |stage| {
            let vips = stage.pair(0);
            let service = stage.service("web", &vips).etp_local().create().await?;
            let event = stage.told(&service, "NoCandidate").await?;
            ensure!(event.kind == "Warning", "{event:?}");
            ensure!(
                event.message.contains("no node has a ready endpoint"),
                "{event:?}"
            );
            ensure!(event.count == 1, "each node told it: {event:?}");
            stage.stays_away(&vips, A_WHILE).await?;
            let watch = stage.watch(&vips)?;
            let pod = stage.pod("web", 1).await?;
            stage.owned_by(&vips, 1).await?;
            pod.set_ready(false).await?;
            stage.gone(&vips).await?;
            stage.released("kubevip-web").await?;
            pod.set_ready(true).await?;
            stage.owned_by(&vips, 1).await?;
            stayed_with(watch, stage.mac(1)?)
        });
}

#[test]
fn the_last_endpoint_serves_while_it_terminates() {
    Scene::new("draining")
        .without_kube_proxy()
        .play(async |stage| {
            let vips = stage.pair(0);
            let watch = stage.watch(&vips)?;
            stage.service("web", &vips).etp_local().create().await?;
            let pod = stage.pod("web", 2).await?;
            stage.owned_by(&vips, 2).await?;
            pod.terminate(Duration::from_secs(6)).await?;
            terminating(stage, "web").await?;
            stage.stays(&vips, 2, A_WHILE).await?;
            stage.gone(&vips).await?;
            stayed_with(watch, stage.mac(2)?)
        });
}

#[test]
fn a_ready_endpoint_elsewhere_takes_the_vip_from_one_that_terminates() {
    Scene::new("rolling")
        .without_kube_proxy()
        .play(async |stage| {
            let vips = stage.pair(0);
            let watch = stage.watch(&vips)?;
            stage.service("web", &vips).etp_local().create().await?;
            let pod = stage.pod("web", 2).await?;
            stage.owned_by(&vips, 2).await?;
            stage.pod("web", 0).await?;
            stage.stays(&vips, 2, A_WHILE).await?;
            pod.terminate(Duration::from_secs(20)).await?;
            stage.owned_by(&vips, 0).await?;
            one_answerer(watch).map(drop)
        });
}

#[test]
fn the_endpoints_of_several_slices_count_together() {
    Scene::new("slices")
        .without_kube_proxy()
        .play(async |stage| {
            let vips = stage.pair(0);
            let watch = stage.watch(&vips)?;
            stage
                .service("web", &vips)
                .etp_local()
                .with(|service| service.spec.get_or_insert_default().selector = None)
                .create()
                .await?;
            let on_node1 = slice(stage, "web-a", 1).await?;
            let also_on_node1 = slice(stage, "web-b", 1).await?;
            stage.owned_by(&vips, 1).await?;
            // The one that was seen last goes; the one before still has an endpoint here.
            also_on_node1.delete(stage).await?;
            stage.stays(&vips, 1, A_WHILE).await?;
            let on_node2 = slice(stage, "web-c", 2).await?;
            on_node1.delete(stage).await?;
            stage.owned_by(&vips, 2).await?;
            on_node2.delete(stage).await?;
            stage.gone(&vips).await?;
            one_answerer(watch).map(drop)
        });
}

/// An `EndpointSlice` that a test wrote itself.
struct Slice(&'static str);

impl Slice {
    async fn delete(self, stage: &Stage) -> Result<()> {
        slices(stage)
            .delete(self.0, &DeleteParams::default())
            .await?;
        Ok(())
    }
}

/// Writes a slice of the Service `web` with one ready endpoint on a node.
async fn slice(stage: &Stage, name: &'static str, node: usize) -> Result<Slice> {
    let object: EndpointSlice = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": [stage.node(node).addresses().0],
            "conditions": { "ready": true },
            "nodeName": stage.node(node).name(),
        }],
        "ports": [{ "name": "tcp-80", "port": 8080, "protocol": "TCP" }],
    }))?;
    slices(stage)
        .create(&PostParams::default(), &object)
        .await?;
    Ok(Slice(name))
}

/// Waits until an endpoint of the Service is serving and terminating.
async fn terminating(stage: &Stage, service: &str) -> Result<()> {
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    poll_until(SOON, "terminating endpoint", async || {
        let found = slices(stage).list(&of_service).await?;
        let mut endpoints = found.items.iter().flat_map(|slice| &slice.endpoints);
        let terminates = endpoints.any(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.is_some_and(|it| it.terminating == Some(true) && it.serving == Some(true))
        });
        Ok(terminates.then_some(()))
    })
    .await
}

fn slices(stage: &Stage) -> Api<EndpointSlice> {
    Api::namespaced(stage.cluster.kube(), stage.cluster.namespace())
}
