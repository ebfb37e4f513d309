//! Nodes that should not, or may not, have VIPs.

use std::time::Duration;

use anyhow::ensure;

use crate::support::{Scene, annotate, longest_silence, one_answerer, stayed_with};

const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const NODE_SELECTOR: &str = "cloudprovider.harvesterhci.io/vip-node-selector";
/// Longer than anything that was under way takes.
const A_WHILE: Duration = Duration::from_secs(5);

#[test]
fn a_vip_leaves_a_node_that_is_excluded_once_and_for_good() {
    Scene::new("excluded")
        .without_kube_proxy()
        .play(async |stage| {
            let (service, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            stage.node(owner).label(EXCLUDE, "").await?;
            let next = stage.next_owner_of(&vips, owner).await?;
            stage.node(owner).unlabel(EXCLUDE).await?;
            stage.stays(&vips, next, A_WHILE).await?;
            let seen = one_answerer(watch)?;
            for (vip, answers) in &seen {
                ensure!(answers.timeline.len() == 2, "{vip}: {:?}", answers.timeline);
            }
            eprintln!("excluded: {:?} of silence", longest_silence(&seen));
            Ok(())
        });
}

#[test]
fn a_vip_leaves_a_node_that_is_not_ready() {
    Scene::new("notready")
        .without_kube_proxy()
        .play(async |stage| {
            let (_, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            stage.node(owner).silence_kubelet();
            let next = stage.next_owner_of(&vips, owner).await?;
            ensure!(!stage.node(owner).is_ready().await?);
            stage.stays(&vips, next, A_WHILE).await?;
            one_answerer(watch).map(drop)
        });
}

#[test]
fn where_every_node_is_excluded_the_vip_is_served_and_an_event_says_so() {
    Scene::new("allout")
        .alone()
        .without_kube_proxy()
        .play(async |stage| {
            for node in stage.cluster.nodes() {
                node.label(EXCLUDE, "").await?;
            }
            let (service, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            let event = stage.told(&service, "ConditionsIgnored").await?;
            ensure!(event.kind == "Warning" && event.count == 1, "{event:?}");
            stage.stays(&vips, owner, A_WHILE).await?;
            stayed_with(watch, stage.mac(owner)?)
        });
}

#[test]
fn a_node_selector_decides_who_may_own() {
    Scene::new("selector")
        .without_kube_proxy()
        .play(async |stage| {
            stage.node(1).label("role", "edge").await?;
            let vips = stage.pair(0);
            let watch = stage.watch(&vips)?;
            let service = stage
                .service("web", &vips)
                .annotation(NODE_SELECTOR, "role=edge")
                .create()
                .await?;
            stage.owned_by(&vips, 1).await?;
            stage.node(2).label("role", "edge").await?;
            stage.stays(&vips, 1, A_WHILE).await?;
            stage.node(1).unlabel("role").await?;
            stage.owned_by(&vips, 2).await?;
            service
                .edit(|object| annotate(object, NODE_SELECTOR, Some("role=none")))
                .await?;
            stage.gone(&vips).await?;
            let event = stage.told(&service, "NoCandidate").await?;
            ensure!(event.message.contains("node selector"), "{event:?}");
            one_answerer(watch).map(drop)
        });
}

#[test]
fn a_cordoned_node_keeps_its_vips() {
    Scene::new("cordon")
        .without_kube_proxy()
        .play(async |stage| {
            let (_, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            stage.node(owner).cordon().await?;
            stage.stays(&vips, owner, A_WHILE).await?;
            stayed_with(watch, stage.mac(owner)?)
        });
}
