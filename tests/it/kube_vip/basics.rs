//! 1 to 6: who has the address, and when nobody has it.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::variants::Variants;
use crate::support::{Scene, Stage, one_answerer};

/// Longer than anything that was under way takes.
const A_WHILE: Duration = Duration::from_secs(3);

#[test]
fn kv_01_with_the_global_election_the_addresses_are_on_the_holder_of_its_lease() {
    Scene::new("kv01").global_election().play(async |stage| {
        stage.pods("web").await?;
        let variants = Variants::create(stage, "web", true).await?;
        let watch = stage.watch(&variants.vips())?;
        let holder = stage.global_holder().await?;
        variants.are_served_by(stage, holder).await?;
        for variant in &variants.0 {
            stage.no_lease(&variant.lease()).await?;
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_02_with_an_election_for_each_service_the_address_is_on_its_holder() {
    Scene::new("kv02")
        .env("svc_election", "true")
        .play(async |stage| {
            stage.pods("web").await?;
            let variants = Variants::create(stage, "web", true).await?;
            let watch = stage.watch(&variants.vips())?;
            variants.are_served(stage).await?;
            one_answerer(watch).map(drop)
        });
}

#[test]
fn kv_03_on_demand_a_service_follows_a_lease_of_its_own() {
    Scene::new("kv03")
        .global_election()
        .env("per_service_election_on_demand", "true")
        .play(async |stage| {
            stage.pods("own").await?;
            stage.pods("ordinary").await?;
            let (ordinary, common_vips) = stage.serve("ordinary", 0).await?;
            let own_vips = stage.pair(1);
            let own = stage
                .service("own", &own_vips)
                .annotation("kube-vip.io/forcePerServiceElection", "true")
                .create()
                .await?;
            let watch = stage.watch(&[common_vips, own_vips].concat())?;
            let leader = stage.global_holder().await?;
            stage.says(&ordinary, &common_vips, leader).await?;
            let owner = stage.holder_of("kubevip-own").await?;
            stage.says(&own, &own_vips, owner).await?;
            stage.no_lease("kubevip-ordinary").await?;
            stage.ask_all(&[common_vips, own_vips].concat()).await?;
            // Each goes on its own way.
            stage.speaker(leader).terminate()?;
            stage.next_owner_of(&common_vips, leader).await?;
            let owner = stage.owner_of(&own_vips).await?;
            stage.holder("kubevip-own", owner).await?;
            stage.ask_all(&[common_vips, own_vips].concat()).await?;
            one_answerer(watch).map(drop)
        });
}

#[test]
fn kv_04_an_address_of_two_services_stays_until_the_last_one_is_deleted() {
    Scene::new("kv04").play(two_services_on_one_address);
}

#[test]
fn kv_04_the_same_with_the_global_election() {
    Scene::new("kv04g")
        .global_election()
        .play(two_services_on_one_address);
}

async fn two_services_on_one_address(stage: &mut Stage) -> Result<()> {
    stage.pods("web").await?;
    let families = [
        vec![stage.pair(0)[0]],
        vec![stage.pair(1)[1]],
        stage.pair(2).to_vec(),
        stage.pair(3).into_iter().rev().collect(),
    ];
    let watch = stage.watch(&families.concat())?;
    let mut services = Vec::new();
    for (number, vips) in families.iter().enumerate() {
        let of = |ordinal: &str, port: i32| {
            stage
                .service(&format!("{ordinal}-{number}"), vips)
                .selects("web")
                .with(move |service| {
                    for port_of in service
                        .spec
                        .iter_mut()
                        .flat_map(|it| it.ports.iter_mut().flatten())
                    {
                        port_of.port = port;
                    }
                })
        };
        let first = of("first", 80).create().await?;
        let second = of("second", 81).create().await?;
        services.push((first, second));
    }
    for ((first, second), vips) in services.iter().zip(&families) {
        let owner = stage.owner_of(vips).await?;
        stage.says(first, vips, owner).await?;
        stage.says(second, vips, owner).await?;
        for vip in vips {
            stage.ask_port(*vip, 80).await?;
            stage.ask_port(*vip, 81).await?;
        }
        first.delete().await?;
        stage.stays(vips, owner, A_WHILE).await?;
        for vip in vips {
            stage.ask_port(*vip, 81).await?;
        }
        second.delete().await?;
        stage.gone(vips).await?;
    }
    for (vip, answers) in one_answerer(watch)? {
        ensure!(answers.macs.len() == 1, "{vip} moved: {:?}", answers.macs);
    }
    Ok(())
}

#[test]
fn kv_05_without_endpoints_the_address_goes_and_with_them_it_is_back() {
    Scene::new("kv05")
        .args(&["--speaker-require-endpoints"])
        .play(endpoints_come_and_go);
}

#[test]
fn kv_05_the_same_with_the_global_election() {
    Scene::new("kv05g")
        .global_election()
        .args(&["--speaker-require-endpoints"])
        .play(endpoints_come_and_go);
}

async fn endpoints_come_and_go(stage: &mut Stage) -> Result<()> {
    let variants = Variants::create(stage, "web", true).await?;
    let vips = variants.vips();
    let watch = stage.watch(&vips)?;
    stage.stays_away(&vips, A_WHILE).await?;
    for round in ["a", "b"] {
        let mut pods = Vec::new();
        for node in 0..stage.cluster.nodes().len() {
            pods.push(stage.extra_pod("web", round, node).await?);
        }
        stage.ask_all(&vips).await?;
        for vip in &vips {
            stage.owner(*vip).await?;
        }
        for pod in pods {
            pod.delete_now().await?;
        }
        stage.gone(&vips).await?;
    }
    one_answerer(watch).map(drop)
}

#[test]
fn kv_06_a_deleted_service_takes_its_address_with_it() {
    Scene::new("kv06").play(async |stage| {
        stage.pods("web").await?;
        let variants = Variants::create(stage, "web", true).await?;
        let watch = stage.watch(&variants.vips())?;
        variants.are_served(stage).await?;
        for variant in &variants.0 {
            variant.service.delete().await?;
        }
        stage.gone(&variants.vips()).await?;
        for variant in &variants.0 {
            stage.no_lease(&variant.lease()).await?;
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_06_the_same_with_the_global_election() {
    Scene::new("kv06g").global_election().play(async |stage| {
        stage.pods("web").await?;
        let variants = Variants::create(stage, "web", true).await?;
        let watch = stage.watch(&variants.vips())?;
        let holder = stage.global_holder().await?;
        variants.are_served_by(stage, holder).await?;
        for variant in &variants.0 {
            variant.service.delete().await?;
        }
        stage.gone(&variants.vips()).await?;
        ensure!(stage.global_holder().await? == holder, "the leader stays");
        one_answerer(watch).map(drop)
    });
}
