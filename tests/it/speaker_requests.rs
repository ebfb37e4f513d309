//! What the speakers ask of the API server: in steady state next to nothing, and never more than
//! their role allows.

use std::{net::IpAddr, time::Duration};

use anyhow::{Result, ensure};
use http::StatusCode;
use lab::{Counts, Failure, api_proxy::Counted, clock, cluster::ServiceBuilder, poll_until};

use crate::support::{SOON, Scene, Stage, one_answerer, served::throughout};

const SERVICES: u16 = 100;
/// How long the quiet is before it is measured.
const SETTLED: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(20);

fn is_renewal(counted: &Counted) -> bool {
    counted.verb == "update" && counted.resource == "leases"
}

fn is_watch(counted: &Counted) -> bool {
    counted.verb == "watch"
}

fn counts(stage: &Stage) -> Vec<Counts> {
    let nodes = stage.cluster.nodes().iter();
    nodes.map(|node| node.api().counts()).collect()
}

/// Requests since `before` that are neither renewals nor watches.
fn others(stage: &Stage, before: &[Counts]) -> Vec<String> {
    let nodes = counts(stage).into_iter().zip(before);
    let since = nodes.map(|(now, before)| now.since(before));
    since
        .flat_map(|counts| {
            let others = counts
                .iter()
                .filter(|(counted, _)| !is_renewal(counted) && !is_watch(counted))
                .map(|(counted, count)| format!("{count} × {counted:?}"));
            others.collect::<Vec<_>>()
        })
        .collect()
}

/// Waits until nothing but the steady state is left, and counts it.
async fn steady(stage: &Stage) -> Result<(f64, f64)> {
    let mut before = counts(stage);
    let mut since = clock::now();
    poll_until(SOON * 2, "quiet", async || {
        if !others(stage, &before).is_empty() {
            before = counts(stage);
            since = clock::now();
        }
        Ok((since.elapsed() >= SETTLED).then_some(()))
    })
    .await?;
    let before = counts(stage);
    throughout(MEASURED, async || {
        let others = others(stage, &before);
        ensure!(others.is_empty(), "not steady: {others:?}");
        Ok(())
    })
    .await?;
    let total = |wanted: fn(&Counted) -> bool| -> f64 {
        let nodes = counts(stage).into_iter().zip(&before);
        let requests: u64 = nodes
            .map(|(now, before)| now.since(before).matching(wanted))
            .sum();
        f64::from(u32::try_from(requests).unwrap_or(u32::MAX)) / MEASURED.as_secs_f64()
    };
    Ok((total(is_renewal), total(is_watch)))
}

#[test]
fn in_steady_state_100_services_on_three_nodes_cost_their_renewals_and_nothing_else() {
    let scene = Scene::new("steady").without_kube_proxy();
    scene.play(async |stage| {
        stage.many(SERVICES).await?;
        stage.all_have_status(SERVICES.into()).await?;
        let (renewals, watches) = steady(stage).await?;
        eprintln!("per second: {renewals:.1} renewals, {watches:.2} watches");
        // One Lease each, renewed every two seconds, give or take a tenth; later on a busy machine.
        ensure!((5.0..60.0).contains(&renewals), "{renewals}");
        ensure!(watches < 1.0, "{watches}");
        Ok(())
    });
}

#[test]
fn in_steady_state_a_global_election_costs_one_renewal_every_two_seconds() {
    let scene = Scene::new("steady-global")
        .without_kube_proxy()
        .env("svc_election", "false");
    scene.play(async |stage| {
        stage.many(SERVICES).await?;
        stage.all_have_status(SERVICES.into()).await?;
        let (renewals, watches) = steady(stage).await?;
        eprintln!("per second: {renewals:.2} renewals, {watches:.2} watches");
        ensure!((0.05..0.7).contains(&renewals), "{renewals}");
        ensure!(watches < 1.0, "{watches}");
        Ok(())
    });
}

fn vip(stage: &Stage, number: u8) -> IpAddr {
    stage.cluster.vip(number).into()
}

fn refuse(stage: &Stage, verb: &str) {
    let forbidden = Failure::status(StatusCode::FORBIDDEN)
        .resource("leases")
        .verb(verb);
    for node in stage.cluster.nodes() {
        node.api().fail(forbidden.clone());
    }
}

#[test]
fn the_role_of_the_speaker_is_enough_for_a_services_whole_life() {
    let scene = Scene::new("role");
    scene.play(async |stage| {
        let local = stage.serve_http("local", 0, &[1], ServiceBuilder::etp_local);
        let local = local.await?;
        let other = stage.serve_http("other", 1, &[0, 1, 2], |service| service);
        let other = other.await?;
        // An Event, a move, and the end of a Service.
        local.pods[0].set_ready(false).await?;
        poll_until(SOON, "an event", async || {
            let events = local.service.events().await?;
            Ok(events
                .iter()
                .any(|event| event.kind == "Warning")
                .then_some(()))
        })
        .await?;
        stage.speakers[other.owner].terminate()?;
        stage.next_owner(other.vips[0], other.owner).await?;
        other.service.delete().await?;
        for vip in other.vips {
            stage.nobody(vip).await?;
        }
        poll_until(SOON, "the end of the Lease", async || {
            let lease = stage.leases().get_opt(&other.lease()).await?;
            Ok(lease.is_none().then_some(()))
        })
        .await?;
        for (node, counts) in counts(stage).iter().enumerate() {
            let refused = counts.answered(401) + counts.answered(403);
            ensure!(refused == 0, "node {node} was refused:\n{counts}");
        }
        Ok(())
    });
}

#[test]
fn without_the_right_to_delete_leases_they_are_released_and_stay() {
    let scene = Scene::new("role-delete").without_kube_proxy();
    scene.play(async |stage| {
        refuse(stage, "delete");
        let watch = stage.watch(&[vip(stage, 0)])?;
        let web = stage.bare("web", vip(stage, 0)).await?;
        let owner = stage.owner(vip(stage, 0)).await?;
        web.delete().await?;
        stage.nobody(vip(stage, 0)).await?;
        for line in ["the API server refuses an election call", "lease retired"] {
            stage.speakers[owner].wait_for_log(line, SOON).await?;
        }
        let released = stage.lease("kubevip-web").await?;
        ensure!(released.holder_identity.as_deref() == Some(""));
        stage.bare("web", vip(stage, 0)).await?;
        stage.owner(vip(stage, 0)).await?;
        let tries: u64 = counts(stage)
            .iter()
            .map(|counts| counts.of("delete", "leases"))
            .sum();
        ensure!(tries == 1, "asked {tries} times for what is forbidden");
        one_answerer(watch).map(drop)
    });
}

#[test]
fn without_the_right_to_watch_leases_followers_poll_those_they_want() {
    let scene = Scene::new("role-watch").without_kube_proxy();
    scene.play(async |stage| {
        refuse(stage, "list");
        refuse(stage, "watch");
        for index in 0..3 {
            stage.speakers[index].terminate()?;
            stage.speakers[index].wait(SOON).await?;
            stage.restart(index)?;
        }
        let watch = stage.watch(&[vip(stage, 0)])?;
        stage.bare("web", vip(stage, 0)).await?;
        let owner = stage.owner(vip(stage, 0)).await?;
        let asked = clock::now();
        stage.speakers[owner].terminate()?;
        let next = stage.next_owner(vip(stage, 0), owner).await?;
        let took = asked.elapsed();
        eprintln!("moved in {took:.1?}");
        // client-go's polling: each follower at most every 2.2 retry periods.
        ensure!(took < Duration::from_secs(7), "{took:?}");
        ensure!(stage.lease("kubevip-web").await?.lease_transitions == Some(1));
        stage.speakers[next].terminate()?;
        stage.next_owner(vip(stage, 0), next).await?;
        one_answerer(watch).map(drop)
    });
}
