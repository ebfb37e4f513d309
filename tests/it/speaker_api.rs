//! The API server as an adversary: slow, overloaded, forgetful, gone. What the speakers have
//! announced stays, what they missed is made up for, and one Service's trouble is its own.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use lab::{ApiProxy, Failure, clock, cluster::Service, poll_until};

use crate::support::{
    SOON, Scene, Stage, one_answerer,
    served::{stays, throughout},
};

/// Longer than a holder may go on without a renewal.
const BEYOND_DEADLINE: Duration = Duration::from_secs(12);
/// Well within it.
const OUTAGE: Duration = Duration::from_secs(6);

fn everywhere(stage: &Stage, fault: impl Fn(&ApiProxy)) {
    for node in stage.cluster.nodes() {
        fault(node.api());
    }
}

fn vip(stage: &Stage, number: u8) -> IpAddr {
    stage.cluster.vip(number).into()
}

async fn has_status(service: &Service, vip: IpAddr) -> Result<()> {
    poll_until(SOON, &format!("{vip} in the status"), async || {
        Ok((service.status_ips().await? == [vip]).then_some(()))
    })
    .await
}

/// The Lease is held by the same speaker without a break since `before`.
async fn never_lost(stage: &Stage, lease: &str, before: &str) -> Result<()> {
    let now = acquired(stage, lease).await?;
    ensure!(now == before, "{lease} changed hands: {before:?}, {now:?}");
    Ok(())
}

async fn acquired(stage: &Stage, lease: &str) -> Result<String> {
    let acquired = stage.lease(lease).await?.acquire_time;
    Ok(acquired.context("acquireTime")?.0.to_string())
}

#[test]
fn what_changed_while_the_watches_were_cut_is_made_up_for() {
    let scene = Scene::new("api-cut").without_kube_proxy();
    scene.play(async |stage| {
        let watch = stage.watch(&[vip(stage, 0), vip(stage, 1), vip(stage, 2)])?;
        let gone = stage.bare("gone", vip(stage, 0)).await?;
        stage.bare("stays", vip(stage, 1)).await?;
        stage.owner(vip(stage, 0)).await?;
        let owner = stage.owner(vip(stage, 1)).await?;
        for verb in ["watch", "list"] {
            let unavailable = Failure::status(StatusCode::SERVICE_UNAVAILABLE).verb(verb);
            everywhere(stage, |api| api.fail(unavailable.clone()));
        }
        everywhere(stage, ApiProxy::cut_watches);
        gone.delete().await?;
        let new = stage.bare("new", vip(stage, 2)).await?;
        stays(stage, vip(stage, 1), owner, Duration::from_secs(3)).await?;
        everywhere(stage, ApiProxy::heal);
        let healed = clock::now();
        stage.nobody(vip(stage, 0)).await?;
        stage.owner(vip(stage, 2)).await?;
        has_status(&new, vip(stage, 2)).await?;
        eprintln!(
            "made up for {:.1?} after the API was back",
            healed.elapsed()
        );
        ensure!(stage.owner(vip(stage, 1)).await? == owner);
        one_answerer(watch).map(drop)
    });
}

#[test]
fn half_a_second_of_latency_delays_what_is_new_and_disturbs_nothing() {
    let scene = Scene::new("api-latency").without_kube_proxy();
    scene.play(async |stage| {
        let watch = stage.watch(&[vip(stage, 0), vip(stage, 1)])?;
        stage.bare("old", vip(stage, 0)).await?;
        let owner = stage.owner(vip(stage, 0)).await?;
        let lease = acquired(stage, "kubevip-old").await?;
        everywhere(stage, |api| api.latency(Duration::from_millis(500)));
        let begun = clock::now();
        let new = stage.bare("new", vip(stage, 1)).await?;
        stage.owner(vip(stage, 1)).await?;
        let announced = begun.elapsed();
        has_status(&new, vip(stage, 1)).await?;
        eprintln!("announced {announced:.1?}, status {:.1?}", begun.elapsed());
        ensure!(announced < Duration::from_secs(3));
        stays(stage, vip(stage, 0), owner, BEYOND_DEADLINE).await?;
        never_lost(stage, "kubevip-old", &lease).await?;
        one_answerer(watch).map(drop)
    });
}

#[test]
fn an_overloaded_server_that_asks_for_patience_loses_no_lease_and_every_status_arrives() {
    let scene = Scene::new("api-overload").without_kube_proxy();
    scene.play(async |stage| {
        let watch = stage.watch(&[vip(stage, 0), vip(stage, 1)])?;
        stage.bare("old", vip(stage, 0)).await?;
        let owner = stage.owner(vip(stage, 0)).await?;
        let lease = acquired(stage, "kubevip-old").await?;
        let busy = Failure::status(StatusCode::TOO_MANY_REQUESTS)
            .retry_after(Duration::from_secs(1))
            .probability(0.5);
        everywhere(stage, |api| api.fail(busy.clone()));
        let new = stage.bare("new", vip(stage, 1)).await?;
        stage.owner(vip(stage, 1)).await?;
        stays(stage, vip(stage, 0), owner, BEYOND_DEADLINE).await?;
        never_lost(stage, "kubevip-old", &lease).await?;
        has_status(&new, vip(stage, 1)).await?;
        one_answerer(watch).map(drop)
    });
}

#[test]
fn lease_writes_that_fail_or_conflict_for_a_while_lose_no_lease() {
    let scene = Scene::new("api-leases").without_kube_proxy();
    scene.play(async |stage| {
        let watch = stage.watch(&[vip(stage, 0)])?;
        stage.bare("web", vip(stage, 0)).await?;
        let owner = stage.owner(vip(stage, 0)).await?;
        let lease = acquired(stage, "kubevip-web").await?;
        for code in [
            StatusCode::INTERNAL_SERVER_ERROR,
            StatusCode::GATEWAY_TIMEOUT,
            StatusCode::CONFLICT,
        ] {
            let failure = Failure::status(code).resource("leases").verb("update");
            everywhere(stage, |api| api.fail(failure.clone()));
            stays(stage, vip(stage, 0), owner, OUTAGE).await?;
            everywhere(stage, ApiProxy::heal);
            // A renewal, so that the next outage begins with a fresh Lease.
            let renewed = stage.lease("kubevip-web").await?.renew_time;
            poll_until(SOON, "a renewal", async || {
                let now = stage.lease("kubevip-web").await?.renew_time;
                Ok((now != renewed).then_some(()))
            })
            .await?;
            never_lost(stage, "kubevip-web", &lease).await?;
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn a_status_that_cannot_be_written_arrives_later_and_delays_no_other() {
    let scene = Scene::new("api-status").without_kube_proxy();
    scene.play(async |stage| {
        let watch = stage.watch(&[vip(stage, 0), vip(stage, 1)])?;
        let broken = Failure::status(StatusCode::INTERNAL_SERVER_ERROR)
            .verb("patch")
            .path("/services/refused");
        everywhere(stage, |api| api.fail(broken.clone()));
        let refused = stage.bare("refused", vip(stage, 0)).await?;
        stage.owner(vip(stage, 0)).await?;
        let begun = clock::now();
        let other = stage.bare("other", vip(stage, 1)).await?;
        has_status(&other, vip(stage, 1)).await?;
        let took = begun.elapsed();
        eprintln!("the other's status after {took:.1?}");
        ensure!(took < Duration::from_secs(2));
        // It is announced all the same.
        watch.wait_first(vip(stage, 0), SOON).await?;
        ensure!(refused.status_ips().await?.is_empty());
        everywhere(stage, ApiProxy::heal);
        has_status(&refused, vip(stage, 0)).await?;
        one_answerer(watch).map(drop)
    });
}

#[test]
fn a_history_that_is_too_old_is_listed_again() {
    let scene = Scene::new("api-gone").without_kube_proxy();
    scene.play(async |stage| {
        let watch = stage.watch(&[vip(stage, 0), vip(stage, 1)])?;
        stage.bare("old", vip(stage, 0)).await?;
        let owner = stage.owner(vip(stage, 0)).await?;
        let gone = Failure::status(StatusCode::GONE).verb("watch").times(8);
        everywhere(stage, |api| api.fail(gone.clone()));
        everywhere(stage, ApiProxy::cut_watches);
        let new = stage.bare("new", vip(stage, 1)).await?;
        stage.owner(vip(stage, 1)).await?;
        has_status(&new, vip(stage, 1)).await?;
        ensure!(stage.owner(vip(stage, 0)).await? == owner);
        one_answerer(watch).map(drop)
    });
}

#[test]
fn refused_connections_leave_vips_where_they_are_and_what_was_missed_follows() {
    let scene = Scene::new("api-refuse").without_kube_proxy();
    scene.play(async |stage| {
        let watch = stage.watch(&[vip(stage, 0), vip(stage, 1), vip(stage, 2)])?;
        let gone = stage.bare("gone", vip(stage, 0)).await?;
        stage.bare("stays", vip(stage, 1)).await?;
        stage.owner(vip(stage, 0)).await?;
        let owner = stage.owner(vip(stage, 1)).await?;
        let lease = acquired(stage, "kubevip-stays").await?;
        everywhere(stage, ApiProxy::refuse);
        gone.delete().await?;
        let new = stage.bare("new", vip(stage, 2)).await?;
        stays(stage, vip(stage, 1), owner, OUTAGE).await?;
        everywhere(stage, ApiProxy::heal);
        stage.nobody(vip(stage, 0)).await?;
        stage.owner(vip(stage, 2)).await?;
        has_status(&new, vip(stage, 2)).await?;
        ensure!(stage.owner(vip(stage, 1)).await? == owner);
        never_lost(stage, "kubevip-stays", &lease).await?;
        one_answerer(watch).map(drop)
    });
}

#[test]
fn a_service_that_cannot_be_read_is_skipped_with_a_warning_and_keeps_what_it_had() {
    let scene = Scene::new("api-garbled").without_kube_proxy();
    scene.play(async |stage| {
        let watch = stage.watch(&[vip(stage, 0), vip(stage, 1), vip(stage, 2)])?;
        let old = stage.bare("old", vip(stage, 0)).await?;
        let owner = stage.owner(vip(stage, 0)).await?;
        everywhere(stage, |api| api.garble("\"port\":4242", "\"port\":\"42\""));
        let set_port = |service: &mut k8s_openapi::api::core::v1::Service, number: i32| {
            let spec = service.spec.get_or_insert_default();
            for port in spec.ports.iter_mut().flatten() {
                port.port = number;
            }
        };
        old.edit(|service| set_port(service, 4242)).await?;
        let unreadable = stage.cluster.service("unreadable");
        let unreadable = unreadable.load_balancer_ip(vip(stage, 1)).port(4242, 8080);
        let unreadable = unreadable.create().await?;
        let other = stage.bare("other", vip(stage, 2)).await?;
        has_status(&other, vip(stage, 2)).await?;
        for speaker in &stage.speakers {
            let warning = "skipping an object that does not parse";
            speaker.wait_for_log(warning, SOON).await?;
        }
        // From a list as well as from a watch.
        let follower = (owner + 1) % 3;
        stage.speakers[follower].terminate()?;
        stage.speakers[follower].wait(SOON).await?;
        stage.restart(follower)?;
        throughout(Duration::from_secs(2), async || {
            ensure!(stage.owners(vip(stage, 0))? == [owner]);
            ensure!(stage.owners(vip(stage, 1))?.is_empty());
            Ok(())
        })
        .await?;
        everywhere(stage, ApiProxy::heal);
        unreadable.edit(|service| set_port(service, 80)).await?;
        has_status(&unreadable, vip(stage, 1)).await?;
        one_answerer(watch).map(drop)
    });
}
