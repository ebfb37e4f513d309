//! Speakers and kube-vip in one cluster and one election: each respects what the other holds, and
//! takes over what the other gives up or loses, without two that answer.

use std::{net::IpAddr, time::Duration};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use lab::{clock, cluster::Service, poll_until};

use crate::support::{
    SOON, Scene, Stage,
    kube_vip::{self, KubeVip},
    one_answerer,
    served::{stays, throughout},
};

/// How long one that must not act is watched.
const A_WHILE: Duration = Duration::from_secs(4);
/// kube-vip may need this long from the release of a Lease to the removal of its address.
const KUBE_VIP_TAKES: Duration = Duration::from_secs(1);
/// A client may miss the VIP for so long while it changes hands in good order.
const HAND_OVER: Duration = Duration::from_secs(1);

fn vips(stage: &Stage) -> [IpAddr; 2] {
    [stage.cluster.vip(0).into(), stage.cluster.vip6(0).into()]
}

async fn service(stage: &Stage, name: &str) -> Result<Service> {
    let [v4, v6] = vips(stage);
    let service = stage
        .cluster
        .service(name)
        .annotation("kube-vip.io/loadbalancerIPs", &format!("{v4},{v6}"))
        .dual_stack()
        .port(80, 8080);
    service.create().await
}

/// kube-vip serves the VIPs from this node.
async fn serving(stage: &Stage, node: usize, namespace: &str, lease: &str) -> Result<KubeVip> {
    let mut kube_vip = KubeVip::new(stage, node, namespace, lease);
    kube_vip.acquire().await?;
    for vip in vips(stage) {
        kube_vip::put(stage.node(node), vip)?;
    }
    Ok(kube_vip)
}

/// kube-vip's orderly stop: first the Lease, then, a second later, the addresses.
async fn stop(stage: &Stage, node: usize, kube_vip: &mut KubeVip) -> Result<()> {
    kube_vip.release().await?;
    for vip in vips(stage) {
        stays(stage, vip, node, KUBE_VIP_TAKES / 2).await?;
    }
    for vip in vips(stage) {
        kube_vip::take_off(stage.node(node), vip)?;
    }
    Ok(())
}

#[test]
fn what_kube_vip_holds_is_left_to_it_and_after_its_release_taken_when_the_wire_is_silent() {
    let scene = Scene::new("coexist-release").without_kube_proxy();
    scene.play(async |stage| {
        let namespace = stage.cluster.namespace().to_owned();
        let mut kube_vip = serving(stage, 1, &namespace, "kubevip-web").await?;
        let watch = stage.watch(&vips(stage))?;
        let web = service(stage, "web").await?;
        stays(stage, vips(stage)[0], 1, A_WHILE).await?;
        ensure!(kube_vip.holds().await?, "the Lease was taken from kube-vip");
        ensure!(web.status_ips().await?.is_empty(), "a status not ours");

        stop(stage, 1, &mut kube_vip).await?;
        for vip in vips(stage) {
            stage.owner(vip).await?;
        }
        poll_until(SOON, "the status", async || {
            Ok((web.status_ips().await? == vips(stage)).then_some(()))
        })
        .await?;
        for (vip, answers) in watch.snapshot() {
            eprintln!("{vip}: {:.1?} unanswered", answers.longest_silence);
            ensure!(answers.longest_silence < HAND_OVER);
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn a_kube_vip_that_died_with_its_node_is_succeeded_when_its_lease_has_expired() {
    let scene = Scene::new("coexist-death").without_kube_proxy();
    scene.play(async |stage| {
        let duration = 6;
        let namespace = stage.cluster.namespace().to_owned();
        let kube_vip = KubeVip::new(stage, 1, &namespace, "kubevip-web");
        let mut kube_vip = kube_vip.lasting(duration);
        kube_vip.acquire().await?;
        for vip in vips(stage) {
            kube_vip::put(stage.node(1), vip)?;
        }
        let watch = stage.watch(&vips(stage))?;
        service(stage, "web").await?;
        stays(stage, vips(stage)[0], 1, A_WHILE).await?;

        stage.node(1).power_off().await?;
        kube_vip.die().await;
        let died = clock::now();
        // The last renewal is at most a second old.
        let duration = Duration::from_secs(u64::try_from(duration)?);
        throughout(
            duration.saturating_sub(Duration::from_secs(2)),
            async || {
                ensure!(stage.owners(vips(stage)[0])?.is_empty(), "too early");
                Ok(())
            },
        )
        .await?;
        for vip in vips(stage) {
            stage.owner(vip).await?;
        }
        let taken = died.elapsed();
        eprintln!("taken over after {taken:.1?}");
        ensure!(taken < duration + Duration::from_secs(3));
        one_answerer(watch).map(drop)
    });
}

#[test]
fn a_speaker_that_stops_leaves_what_kube_vip_expects_and_the_others_respect_kube_vip() {
    let scene = Scene::new("coexist-stop").without_kube_proxy();
    scene.play(async |stage| {
        let namespace = stage.cluster.namespace().to_owned();
        let watch = stage.watch(&vips(stage))?;
        service(stage, "web").await?;
        let owner = stage.owner(vips(stage)[0]).await?;
        stage.owner(vips(stage)[1]).await?;
        let before = stage.lease("kubevip-web").await?;
        ensure!(before.lease_duration_seconds == Some(15));
        // The others first, so that nobody but kube-vip is left.
        for index in (0..3).filter(|index| *index != owner).chain([owner]) {
            stage.speakers[index].terminate()?;
            stage.speakers[index].wait(SOON).await?;
        }
        for vip in vips(stage) {
            ensure!(stage.owners(vip)?.is_empty());
        }
        let released = stage.lease("kubevip-web").await?;
        ensure!(released.holder_identity.as_deref() == Some(""));
        ensure!(released.lease_duration_seconds == Some(1));
        ensure!(released.lease_transitions == before.lease_transitions);
        ensure!(released.renew_time.is_some() && released.acquire_time.is_some());

        let successor = (owner + 1) % 3;
        let mut kube_vip = serving(stage, successor, &namespace, "kubevip-web").await?;
        for index in 0..3 {
            stage.restart(index)?;
        }
        for vip in vips(stage) {
            stays(stage, vip, successor, A_WHILE).await?;
        }
        ensure!(kube_vip.holds().await?, "the Lease was taken from kube-vip");
        stop(stage, successor, &mut kube_vip).await?;
        for vip in vips(stage) {
            stage.owner(vip).await?;
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn a_kube_vip_that_serves_everything_under_its_global_lease_is_waited_for() {
    let scene = Scene::new("coexist-global").without_kube_proxy();
    scene.play(async |stage| {
        let release = stage.cluster.release_namespace().to_owned();
        let mut kube_vip = serving(stage, 1, &release, "plndr-svcs-lock").await?;
        let watch = stage.watch(&vips(stage))?;
        let web = service(stage, "web").await?;
        for vip in vips(stage) {
            stays(stage, vip, 1, A_WHILE).await?;
        }
        ensure!(stage.speaker_of("kubevip-web").await?.is_some());
        ensure!(web.status_ips().await?.is_empty(), "a status not ours");
        poll_until(SOON, "the event", async || {
            let events = web.events().await?;
            Ok(events
                .iter()
                .any(|event| event.reason == "ServedByKubeVip")
                .then_some(()))
        })
        .await?;
        stop(stage, 1, &mut kube_vip).await?;
        for vip in vips(stage) {
            stage.owner(vip).await?;
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn a_lease_of_kube_vip_on_one_service_keeps_speakers_from_all_that_share_its_address() {
    let scene = Scene::new("coexist-group").without_kube_proxy();
    scene.play(async |stage| {
        let namespace = stage.cluster.namespace().to_owned();
        let mut kube_vip = serving(stage, 1, &namespace, "kubevip-younger").await?;
        let watch = stage.watch(&vips(stage))?;
        // At first alone with its address, it is nobody's business that kube-vip holds another Lease:
        // only the wire speaks for kube-vip.
        service(stage, "older").await?;
        service(stage, "younger").await?;
        for vip in vips(stage) {
            stays(stage, vip, 1, A_WHILE).await?;
        }
        stop(stage, 1, &mut kube_vip).await?;
        let owners = vips(stage).map(|vip| stage.owner(vip));
        let owners = try_join_all(owners).await?;
        ensure!(owners[0] == owners[1], "one group, two owners");
        one_answerer(watch).map(drop)
    });
}
