//! A VIP that moves because its owner ends, dies, stands still or is cut off.

use std::{net::IpAddr, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    clock, poll_until,
    probe::{Asker, EchoProbe},
};

use crate::support::{SOON, Scene, Stage, longest_silence, one_answerer, stayed_with};

/// What an owner that ends in good order may cost, and ten times that for a busy machine.
const HAND_OVER: Duration = Duration::from_millis(150);
/// A process that was killed or stands still loses its addresses by the kernel's hand.
const ADDRESS_ENDS: Duration = Duration::from_millis(5_500);
/// Longer than anything that was under way takes.
const A_WHILE: Duration = Duration::from_secs(3);

#[test]
fn an_owner_that_is_asked_to_stop_hands_its_vips_over() {
    Scene::new("sigterm").play(async |stage| {
        let (service, vips) = stage.serve("web", 0).await?;
        let watch = stage.watch(&vips)?;
        stage.pods("web").await?;
        stage.ask_all(&vips).await?;
        let owner = stage.owner_of(&vips).await?;
        let probes = probes(stage, &vips).await?;
        let speaker = stage.speaker(owner);
        speaker.terminate()?;
        let status = speaker.wait(Duration::from_secs(2)).await?;
        ensure!(status.success(), "it ended with {status}");
        let next = stage.next_owner_of(&vips, owner).await?;
        stage.says(&service, &vips, next).await?;
        stage.ask_all(&vips).await?;
        for (vip, probe) in vips.iter().zip(probes) {
            let report = probe.stop()?;
            eprintln!(
                "SIGTERM of the owner of {vip}: {:?} lost",
                report.longest_gap
            );
            ensure!(report.longest_gap <= HAND_OVER * 10, "{report:?}");
        }
        one_answerer(watch).map(drop)
    });
}

#[test]
fn an_owner_that_loses_its_power_is_followed_by_another() {
    // With the default timings of the election.
    Scene::new("poweroff").play(async |stage| {
        let (service, vips) = stage.serve("web", 0).await?;
        let watch = stage.watch(&vips)?;
        stage.pods("web").await?;
        stage.ask_all(&vips).await?;
        let owner = stage.owner_of(&vips).await?;
        stage.node(owner).power_off().await?;
        let next = stage.next_owner_of(&vips, owner).await?;
        stage.says(&service, &vips, next).await?;
        stage.ask_all(&vips).await?;
        let seen = one_answerer(watch)?;
        eprintln!("power-off: {:?} of silence", longest_silence(&seen));
        Ok(())
    });
}

#[test]
fn a_killed_speakers_address_ends_by_itself_and_its_lease_is_taken_over() {
    Scene::new("kill").without_kube_proxy().play(async |stage| {
        let (service, vips) = stage.serve("web", 0).await?;
        let watch = stage.watch(&vips)?;
        let owner = stage.owner_of(&vips).await?;
        stage.says(&service, &vips, owner).await?;
        let killed = clock::now();
        stage.speaker(owner).kill9()?;
        address_ends(stage, &watch, &vips, killed).await?;
        let next = stage.next_owner_of(&vips, owner).await?;
        stage.holder("kubevip-web", next).await?;
        stage.says(&service, &vips, next).await?;
        one_answerer(watch).map(drop)
    });
}

#[test]
fn a_speaker_that_stands_still_loses_its_vips_and_does_not_take_them_back() {
    Scene::new("stopped")
        .without_kube_proxy()
        .brief_leases()
        .play(async |stage| {
            let (service, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            let paused = clock::now();
            let speaker = stage.speaker(owner);
            speaker.pause()?;
            address_ends(stage, &watch, &vips, paused).await?;
            let next = stage.next_owner_of(&vips, owner).await?;
            stage.says(&service, &vips, next).await?;
            speaker.resume()?;
            stage.stays(&vips, next, A_WHILE).await?;
            stage.holder("kubevip-web", next).await?;
            one_answerer(watch).map(drop)
        });
}

#[test]
fn a_speaker_that_stood_still_for_a_moment_keeps_its_vips() {
    Scene::new("moment")
        .without_kube_proxy()
        .play(async |stage| {
            let (_, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            let speaker = stage.speaker(owner);
            speaker.pause()?;
            clock::sleep(Duration::from_secs(2)).await;
            speaker.resume()?;
            stage.stays(&vips, owner, A_WHILE * 2).await?;
            stayed_with(watch, stage.mac(owner)?)
        });
}

#[test]
fn a_speaker_killed_and_started_again_in_time_keeps_its_vips() {
    Scene::new("restart")
        .without_kube_proxy()
        .play(async |stage| {
            let (service, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            stage.speaker(owner).kill9()?;
            clock::sleep(Duration::from_secs(2)).await;
            stage.restart(owner)?;
            // Beyond the lifetime that the killed process left behind.
            stage.stays(&vips, owner, Duration::from_secs(7)).await?;
            stage.holder("kubevip-web", owner).await?;
            stage.says(&service, &vips, owner).await?;
            stayed_with(watch, stage.mac(owner)?)
        });
}

#[test]
fn what_a_killed_speaker_left_is_swept_when_it_starts_again() {
    // Without a lifetime nothing but the sweep ends the address.
    Scene::new("sweep")
        .without_kube_proxy()
        .short_leases()
        .args(&["--speaker-address-lifetime=0"])
        .play(async |stage| {
            let (_, vips) = stage.serve("web", 0).await?;
            let owner = stage.owner_of(&vips).await?;
            stage.speaker(owner).kill9()?;
            poll_until(SOON, "second owner", async || {
                let owners = vips.map(|vip| stage.owners(vip));
                Ok(owners
                    .into_iter()
                    .all(|it| it.is_ok_and(|it| it.len() == 2))
                    .then_some(()))
            })
            .await?;
            stage.restart(owner)?;
            let next = stage.next_owner_of(&vips, owner).await?;
            let watch = stage.watch(&vips)?;
            stage.stays(&vips, next, A_WHILE).await?;
            stayed_with(watch, stage.mac(next)?)
        });
}

#[test]
fn a_vip_leaves_an_owner_whose_link_loses_its_carrier() {
    Scene::new("carrier").play(async |stage| {
        let (service, vips) = stage.serve("web", 0).await?;
        let watch = stage.watch(&vips)?;
        stage.pods("web").await?;
        stage.ask_all(&vips).await?;
        let owner = stage.owner_of(&vips).await?;
        let port = stage
            .node(owner)
            .host()
            .port("eth0")
            .expect("its only link");
        port.carrier(false)?;
        let next = stage.next_owner_of(&vips, owner).await?;
        stage.says(&service, &vips, next).await?;
        stage.ask_all(&vips).await?;
        port.carrier(true)?;
        stage.stays(&vips, next, A_WHILE).await?;
        let seen = one_answerer(watch)?;
        eprintln!("carrier lost: {:?} of silence", longest_silence(&seen));
        Ok(())
    });
}

/// An echo client for each address, answered once already.
async fn probes(stage: &Stage, vips: &[IpAddr]) -> Result<Vec<EchoProbe>> {
    let mut probes = Vec::new();
    for vip in vips {
        let probe = EchoProbe::start(stage.cluster.client(), *vip)?;
        probe.wait_first(SOON).await?;
        probes.push(probe);
    }
    Ok(probes)
}

/// Waits until nobody has the addresses, and judges by the answers when that was.
async fn address_ends(
    stage: &Stage,
    watch: &Asker,
    vips: &[IpAddr],
    since: std::time::Instant,
) -> Result<()> {
    stage.gone(vips).await?;
    for vip in vips {
        let (last, _) = watch.answers(*vip).last.expect("it was answered before");
        let time = last.saturating_duration_since(since);
        eprintln!("{vip} was answered for {time:?} more");
        ensure!(time <= ADDRESS_ENDS, "{vip} was answered for {time:?} more");
    }
    Ok(())
}
