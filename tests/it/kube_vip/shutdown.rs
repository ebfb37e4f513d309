//! 15 to 17: every speaker is asked to stop, and started again.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::clock;

use super::variants::Variants;
use crate::support::{Scene, Stage, one_answerer};

/// kube-vip's bound; a speaker's own is two seconds.
const ENDS: Duration = Duration::from_secs(10);

#[test]
fn kv_15_to_17_all_speakers_stop_in_time_leave_nothing_and_come_back() {
    Scene::new("kv15").play(async |stage| {
        stop_and_start(stage, async |stage, variants| {
            variants.are_served(stage).await
        })
        .await
    });
}

#[test]
fn kv_15_to_17_the_same_with_the_global_election() {
    Scene::new("kv15g").global_election().play(async |stage| {
        stop_and_start(stage, async |stage, variants| {
            let holder = stage.global_holder().await?;
            variants.are_served_by(stage, holder).await
        })
        .await
    });
}

async fn stop_and_start(
    stage: &mut Stage,
    served: impl AsyncFn(&Stage, &Variants) -> Result<()>,
) -> Result<()> {
    stage.pods("web").await?;
    let variants = Variants::create(stage, "web", true).await?;
    let vips = variants.vips();
    let watch = stage.watch(&vips)?;
    served(stage, &variants).await?;
    let before = clock::now();
    for speaker in &stage.speakers {
        speaker.terminate()?;
    }
    for speaker in &stage.speakers {
        let status = speaker.wait(ENDS).await?;
        ensure!(status.success(), "{} ended with {status}", speaker.name());
    }
    let took = clock::now().saturating_duration_since(before);
    eprintln!("all speakers ended within {took:?}");
    ensure!(took <= ENDS, "it took {took:?}");
    for vip in &vips {
        let owners = stage.owners(*vip)?;
        ensure!(owners.is_empty(), "{vip} is left on {owners:?}");
    }
    for node in 0..stage.cluster.nodes().len() {
        stage.restart(node)?;
    }
    served(stage, &variants).await?;
    one_answerer(watch).map(drop)
}
