//! kube-vip's behaviours 21 to 29: faults of the election, each of which must leave the Lease with a
//! holder, the VIPs served over HTTP, and never two nodes that answer.

use std::{net::IpAddr, time::Duration};

use anyhow::ensure;
use futures_util::future::try_join_all;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use lab::{cluster::ServiceBuilder, poll_until};
use serde_json::json;

use crate::support::{
    SOON, Scene, one_answerer,
    served::{stays, throughout},
};

/// client-go's times, which are the default: a holder gives up after the first, and others may take
/// over after the second.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How late a busy machine may be.
const SLACK: Duration = Duration::from_secs(3);

#[test]
fn kv_21_five_flaps_of_the_endpoints_leave_local_and_cluster_services_served() {
    Scene::new("kv21").play(async |stage| {
        let vips = [0, 1].map(|n| (stage.cluster.vip(n).into(), stage.cluster.vip6(n).into()));
        let watched: Vec<IpAddr> = vips.iter().flat_map(|(v4, v6)| [*v4, *v6]).collect();
        let watch = stage.watch(&watched)?;
        let anywhere = stage
            .serve_http("anywhere", 0, &[1], |service| service)
            .await?;
        let local = stage
            .serve_http("local", 1, &[2], ServiceBuilder::etp_local)
            .await?;
        ensure!(local.owner == 2, "a Local VIP is not where its Pod is");
        for _ in 0..5 {
            for pod in anywhere.pods.iter().chain(&local.pods) {
                pod.set_ready(false).await?;
            }
            for vip in local.vips {
                stage.nobody(vip).await?;
            }
            for pod in anywhere.pods.iter().chain(&local.pods) {
                pod.set_ready(true).await?;
            }
            ensure!(stage.owner(local.vips[0]).await? == 2);
        }
        let owner = stage.healthy(&anywhere.lease(), &anywhere.vips).await?;
        ensure!(owner == anywhere.owner, "endpoints moved a Cluster VIP");
        ensure!(stage.healthy(&local.lease(), &local.vips).await? == 2);
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_22_an_endpoint_slice_deleted_and_the_service_annotated() {
    Scene::new("kv22").play(async |stage| {
        let vips = [stage.cluster.vip(0).into(), stage.cluster.vip6(0).into()];
        let watch = stage.watch(&vips)?;
        let web = stage
            .serve_http("web", 0, &[1], ServiceBuilder::etp_local)
            .await?;
        let slices: Api<EndpointSlice> =
            Api::namespaced(stage.cluster.kube(), stage.cluster.namespace());
        let of_web = ListParams::default().labels("kubernetes.io/service-name=web");
        slices
            .delete_collection(&DeleteParams::default(), &of_web)
            .await?;
        web.service
            .edit(|service| {
                let annotations = service.metadata.annotations.get_or_insert_default();
                annotations.insert("example.invalid/note".to_owned(), "touched".to_owned());
            })
            .await?;
        // The controller makes the slice anew.
        poll_until(SOON, "an EndpointSlice", async || {
            Ok((!slices.list(&of_web).await?.items.is_empty()).then_some(()))
        })
        .await?;
        ensure!(stage.healthy(&web.lease(), &web.vips).await? == 1);
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_23_a_deleted_lease_is_made_again_by_its_holder_and_nothing_moves() {
    Scene::new("kv23").play(async |stage| {
        let vips = [stage.cluster.vip(0).into(), stage.cluster.vip6(0).into()];
        let watch = stage.watch(&vips)?;
        let web = stage
            .serve_http("web", 0, &[0, 1, 2], |service| service)
            .await?;
        for _ in 0..5 {
            stage
                .leases()
                .delete(&web.lease(), &DeleteParams::default())
                .await?;
            stays(stage, web.vips[0], web.owner, Duration::from_millis(500)).await?;
            stage.holder(&web.lease(), web.owner).await?;
            ensure!(stage.healthy(&web.lease(), &web.vips).await? == web.owner);
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_24_a_cleared_holder_field_is_written_again_by_the_holder_and_nothing_moves() {
    Scene::new("kv24").play(async |stage| {
        let vips = [stage.cluster.vip(0).into(), stage.cluster.vip6(0).into()];
        let watch = stage.watch(&vips)?;
        let web = stage
            .serve_http("web", 0, &[0, 1, 2], |service| service)
            .await?;
        for cleared in [json!(""), json!(null), json!(""), json!(null)] {
            let patch = Patch::Merge(json!({ "spec": { "holderIdentity": cleared } }));
            stage
                .leases()
                .patch(&web.lease(), &PatchParams::default(), &patch)
                .await?;
            stays(stage, web.vips[0], web.owner, Duration::from_millis(500)).await?;
            stage.holder(&web.lease(), web.owner).await?;
            ensure!(stage.healthy(&web.lease(), &web.vips).await? == web.owner);
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_25_an_owner_cut_from_the_api_for_20_seconds_gives_up_and_serves_again_later() {
    Scene::new("kv25").play(async |stage| {
        let vips = [stage.cluster.vip(0).into(), stage.cluster.vip6(0).into()];
        let watch = stage.watch(&vips)?;
        let web = stage
            .serve_http("web", 0, &[0, 1, 2], |service| service)
            .await?;
        let former = web.owner;
        stage.node(former).api().blackhole();
        let cut = lab::clock::now();
        stage.nobody(web.vips[0]).await?;
        let withdrawn = cut.elapsed();
        let next = stage.next_owner(web.vips[0], former).await?;
        let taken = cut.elapsed();
        eprintln!("withdrawn after {withdrawn:.1?}, taken over after {taken:.1?}");
        // The last renewal was up to a retry period (2.2 s) before the cut.
        ensure!(withdrawn < RENEW_DEADLINE + SLACK);
        ensure!(taken > withdrawn && taken < LEASE_DURATION + SLACK);
        let rest = Duration::from_secs(20).saturating_sub(cut.elapsed());
        stays(stage, web.vips[0], next, rest).await?;
        stage.node(former).api().heal();
        stays(stage, web.vips[0], next, Duration::from_secs(2)).await?;
        ensure!(stage.healthy(&web.lease(), &web.vips).await? == next);

        // Of all others only the former owner is left, so it must have gone on following.
        for (index, speaker) in stage.speakers.iter().enumerate() {
            if index != former && index != next {
                speaker.terminate()?;
                speaker.wait(SOON).await?;
            }
        }
        stage.speakers[next].terminate()?;
        ensure!(stage.next_owner(web.vips[0], next).await? == former);
        ensure!(stage.healthy(&web.lease(), &web.vips).await? == former);
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_26_the_traffic_policy_flipped_again_and_again() {
    Scene::new("kv26").play(async |stage| {
        let vips = [stage.cluster.vip(0).into(), stage.cluster.vip6(0).into()];
        let watch = stage.watch(&vips)?;
        let web = stage.serve_http("web", 0, &[1], |service| service).await?;
        for policy in ["Local", "Cluster", "Local", "Cluster", "Local"] {
            web.service
                .edit(|service| {
                    let spec = service.spec.get_or_insert_default();
                    spec.external_traffic_policy = Some(policy.to_owned());
                })
                .await?;
        }
        let what = "the only node with a Pod as owner";
        poll_until(SOON, what, async || {
            Ok((stage.owners(web.vips[0])? == [1]).then_some(()))
        })
        .await?;
        ensure!(stage.healthy(&web.lease(), &web.vips).await? == 1);
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_27_a_burst_of_15_updates_of_a_service_moves_nothing() {
    Scene::new("kv27").play(async |stage| {
        let vips = [stage.cluster.vip(0).into(), stage.cluster.vip6(0).into()];
        let watch = stage.watch(&vips)?;
        let web = stage
            .serve_http("web", 0, &[0, 1, 2], |service| service)
            .await?;
        let before = stage.lease(&web.lease()).await?;
        let updates = (0..15).map(|update| {
            web.service.edit(move |service| {
                let annotations = service.metadata.annotations.get_or_insert_default();
                annotations.insert(format!("example.invalid/{update}"), "x".to_owned());
                let spec = service.spec.get_or_insert_default();
                for port in spec.ports.iter_mut().flatten() {
                    port.name = Some(format!("port-{update}"));
                }
            })
        });
        try_join_all(updates).await?;
        stays(stage, web.vips[0], web.owner, Duration::from_millis(500)).await?;
        ensure!(stage.healthy(&web.lease(), &web.vips).await? == web.owner);
        let after = stage.lease(&web.lease()).await?;
        ensure!(after.acquire_time == before.acquire_time);
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_28_one_member_of_a_common_lease_deleted_disturbs_no_other() {
    Scene::new("kv28").play(async |stage| {
        let watched: Vec<IpAddr> = (0..3)
            .flat_map(|n| [stage.cluster.vip(n).into(), stage.cluster.vip6(n).into()])
            .collect();
        let watch = stage.watch(&watched)?;
        let mut members = Vec::new();
        for (number, name) in [(0, "first"), (1, "second"), (2, "third")] {
            let member = stage.serve_http(name, number, &[0, 1, 2], |service| {
                service.annotation("kube-vip.io/leaseName", "shared")
            });
            members.push(member.await?);
        }
        let owner = members[0].owner;
        ensure!(members.iter().all(|member| member.owner == owner));
        let before = stage.lease("shared").await?;
        // The oldest, whose name would elect the group if none were given.
        let gone = members.remove(0);
        gone.service.delete().await?;
        for vip in gone.vips {
            stage.nobody(vip).await?;
        }
        for member in &members {
            stays(stage, member.vips[0], owner, Duration::from_millis(500)).await?;
            ensure!(stage.healthy("shared", &member.vips).await? == owner);
        }
        let after = stage.lease("shared").await?;
        ensure!(after.acquire_time == before.acquire_time);
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_29_a_follower_cut_from_the_api_for_25_seconds_moves_no_lease() {
    Scene::new("kv29").play(async |stage| {
        let vips = [stage.cluster.vip(0).into(), stage.cluster.vip6(0).into()];
        let watch = stage.watch(&vips)?;
        let web = stage
            .serve_http("web", 0, &[0, 1, 2], |service| service)
            .await?;
        let before = stage.lease(&web.lease()).await?;
        let follower = (web.owner + 1) % 3;
        stage.node(follower).api().blackhole();
        let mut healed = false;
        let cut = lab::clock::now();
        throughout(Duration::from_secs(28), async || {
            if !healed && cut.elapsed() > Duration::from_secs(25) {
                stage.node(follower).api().heal();
                healed = true;
            }
            ensure!(stage.owners(web.vips[0])? == [web.owner]);
            Ok(())
        })
        .await?;
        ensure!(stage.healthy(&web.lease(), &web.vips).await? == web.owner);
        let after = stage.lease(&web.lease()).await?;
        ensure!(after.acquire_time == before.acquire_time);
        one_answerer(watch).map(drop)
    });
}
