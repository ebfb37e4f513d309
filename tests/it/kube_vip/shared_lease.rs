//! 11 to 14: several Services with one Lease.

use std::{net::IpAddr, time::Duration};

use anyhow::{Result, ensure};
use lab::cluster::Service;

use crate::support::{Scene, Stage, one_answerer, stayed_with};

const LEASE: &str = "common";
/// Longer than anything that was under way takes.
const A_WHILE: Duration = Duration::from_secs(3);

struct Member {
    service: Service,
    vips: Vec<IpAddr>,
    port: u16,
}

/// One Service of each family and with a port of its own, all with the same Lease.
async fn members(stage: &Stage) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    let families = [
        (80, vec![stage.pair(0)[0]]),
        (81, vec![stage.pair(1)[1]]),
        (82, stage.pair(2).to_vec()),
        (83, stage.pair(3).into_iter().rev().collect()),
    ];
    for (port, vips) in families {
        let service = stage
            .service(&format!("member-{port}"), &vips)
            .annotation("kube-vip.io/leaseName", LEASE)
            .with(move |service| {
                let ports = service
                    .spec
                    .iter_mut()
                    .flat_map(|it| it.ports.iter_mut().flatten());
                ports.for_each(|it| it.port = i32::from(port));
            })
            .create()
            .await?;
        members.push(Member {
            service,
            vips,
            port,
        });
    }
    Ok(members)
}

fn vips(members: &[Member]) -> Vec<IpAddr> {
    members.iter().flat_map(|it| it.vips.clone()).collect()
}

async fn answer(stage: &Stage, members: &[Member]) -> Result<()> {
    for member in members {
        for vip in &member.vips {
            let answer = stage.ask_port(*vip, member.port).await?;
            ensure!(answer.pod.starts_with(member.service.name()), "{answer:?}");
        }
    }
    Ok(())
}

async fn pods(stage: &Stage, members: &[Member]) -> Result<()> {
    for (number, member) in members.iter().enumerate() {
        stage.pod(member.service.name(), number % 3).await?;
    }
    Ok(())
}

#[test]
fn kv_11_and_12_the_addresses_of_one_lease_are_on_its_holder_and_nowhere_else() {
    Scene::new("kv11").play(async |stage| {
        let members = members(stage).await?;
        let watch = stage.watch(&vips(&members))?;
        pods(stage, &members).await?;
        let holder = stage.holder_of(LEASE).await?;
        stage.owned_by(&vips(&members), holder).await?;
        for member in &members {
            stage.says(&member.service, &member.vips, holder).await?;
            let own = format!("kubevip-{}", member.service.name());
            stage.no_lease(&own).await?;
        }
        answer(stage, &members).await?;
        stage.stays(&vips(&members), holder, A_WHILE).await?;
        // They also move together.
        stage.speaker(holder).terminate()?;
        let next = stage.next_owner_of(&vips(&members), holder).await?;
        stage.holder(LEASE, next).await?;
        answer(stage, &members).await?;
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_13_members_go_one_by_one_and_the_last_one_frees_lease_and_address() {
    Scene::new("kv13").play(async |stage| {
        let mut members = members(stage).await?;
        let watch = stage.watch(&vips(&members))?;
        pods(stage, &members).await?;
        let holder = stage.holder_of(LEASE).await?;
        stage.owned_by(&vips(&members), holder).await?;
        answer(stage, &members).await?;
        // The oldest first.
        while members.len() > 1 {
            let gone = members.remove(0);
            gone.service.delete().await?;
            stage.gone(&gone.vips).await?;
            stage.stays(&vips(&members), holder, A_WHILE).await?;
            stage.holder(LEASE, holder).await?;
            answer(stage, &members).await?;
        }
        for last in &members {
            last.service.delete().await?;
            stage.gone(&last.vips).await?;
        }
        stage.released(LEASE).await?;
        stayed_with(watch, stage.mac(holder)?)
    });
}

#[test]
fn kv_14_a_member_that_loses_its_endpoints_disturbs_no_other() {
    Scene::new("kv14")
        .args(&["--speaker-require-endpoints"])
        .play(async |stage| {
            let members = members(stage).await?;
            let watch = stage.watch(&vips(&members))?;
            let Some((first, others)) = members.split_first() else {
                return Ok(());
            };
            pods(stage, others).await?;
            let pod = stage.pod(first.service.name(), 0).await?;
            let holder = stage.holder_of(LEASE).await?;
            stage.owned_by(&vips(&members), holder).await?;
            answer(stage, &members).await?;
            pod.delete_now().await?;
            stage.gone(&first.vips).await?;
            stage.stays(&vips(others), holder, A_WHILE).await?;
            stage.extra_pod(first.service.name(), "again", 1).await?;
            stage.owned_by(&vips(&members), holder).await?;
            answer(stage, &members).await?;
            stage.holder(LEASE, holder).await?;
            stayed_with(watch, stage.mac(holder)?)
        });
}
