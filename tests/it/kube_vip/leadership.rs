//! 18 and 19: addresses follow endpoints, and survive the death of their node.

use anyhow::{Result, ensure};

use super::variants::Variants;
use crate::support::{Scene, Stage, longest_silence, one_answerer};

#[test]
fn kv_18_lease_and_address_follow_the_endpoints_to_another_node() {
    Scene::new("kv18").play(async |stage| {
        let mut variants = Variants::create(stage, "web", true).await?;
        variants.0.retain(super::variants::Variant::is_local);
        let watch = stage.watch(&variants.vips())?;
        for node in [0, 2, 1] {
            let pod = stage.pod("web", node).await?;
            for variant in &variants.0 {
                stage.holder(&variant.lease(), node).await?;
            }
            variants.are_served_by(stage, node).await?;
            pod.delete_now().await?;
            stage.gone(&variants.vips()).await?;
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn kv_19_the_leaders_node_dies_five_times_in_a_row() {
    Scene::new("kv19g")
        .global_election()
        .short_leases()
        .play(async |stage| {
            stage.pods("web").await?;
            let variants = Variants::create(stage, "web", true).await?;
            let watch = stage.watch(&variants.vips())?;
            let mut leader = stage.global_holder().await?;
            variants.are_served_by(stage, leader).await?;
            for _ in 0..5 {
                stage.node(leader).power_off().await?;
                let next = stage.next_owner_of(&variants.vips(), leader).await?;
                variants.are_served_by(stage, next).await?;
                boot(stage, leader).await?;
                leader = next;
            }
            let seen = one_answerer(watch)?;
            eprintln!("leader's death: {:?} of silence", longest_silence(&seen));
            Ok(())
        });
}

#[test]
fn kv_19_the_owners_node_dies_five_times_in_a_row() {
    Scene::new("kv19").short_leases().play(async |stage| {
        stage.pods("web").await?;
        let variants = Variants::create(stage, "web", false).await?;
        let watch = stage.watch(&variants.vips())?;
        variants.are_served(stage).await?;
        for round in 0..5 {
            let number = round % variants.0.len();
            let Some(variant) = variants.0.get(number) else {
                break;
            };
            let owner = stage.owner_of(&variant.vips).await?;
            stage.node(owner).power_off().await?;
            let next = stage.next_owner_of(&variant.vips, owner).await?;
            ensure!(next != owner);
            variants.are_served(stage).await?;
            boot(stage, owner).await?;
        }
        one_answerer(watch).map(drop)
    });
}

/// The node comes back with its speaker, before the next one dies.
async fn boot(stage: &mut Stage, node: usize) -> Result<()> {
    stage.node(node).power_on().await?;
    stage.restart(node)
}
