//! Who runs the controllers.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Guest, Rights, clock, poll_until};

use super::stage::{BRIEF_LEASES, SOON, cloud_config_of_nobody, leader, play, setup, stop};

/// Ten times what a stop takes, as for all bounds.
const STOP: Duration = Duration::from_secs(5);

async fn other_leader(guest: &Guest, before: Option<&str>) -> Result<String> {
    poll_until(SOON, "a leader", async || {
        let now = leader(guest).await?;
        Ok(now.filter(|now| Some(now.as_str()) != before))
    })
    .await
}

#[test]
fn a_leader_that_is_asked_to_stop_releases_the_lease_and_another_leads_at_once() {
    play("handover", async |guest| {
        let setup = setup(cloud_config_of_nobody(guest)?, &[]);
        let first = guest.start_manager(&setup).await?;
        let leader_of_old = other_leader(guest, None).await?;
        let second = guest.start_manager(&setup).await?;
        second.process.wait_for_log("another leads", SOON).await?;

        let asked = clock::now();
        stop(&first, STOP).await?;
        other_leader(guest, Some(&leader_of_old)).await?;
        let time = asked.elapsed();
        ensure!(time < STOP, "the next leads after {time:?}");

        let events = guest.events("Lease", "cloud-controller-manager").await?;
        let led = |it: &&(String, String, String)| it.0 == "LeaderElection";
        ensure!(events.iter().filter(led).count() >= 2, "{events:?}");
        ensure!(
            events.iter().all(|it| it.2 == "cloud-controller-manager"),
            "{events:?}"
        );
        stop(&second, STOP).await?;
        ensure!(leader(guest).await?.is_none(), "the Lease is not released");
        Ok(())
    });
}

#[test]
fn after_a_leader_was_killed_the_next_waits_for_the_lease_to_expire() {
    play("expiry", async |guest| {
        let setup = setup(cloud_config_of_nobody(guest)?, &BRIEF_LEASES);
        let first = guest.start_manager(&setup).await?;
        let leader_of_old = other_leader(guest, None).await?;
        let second = guest.start_manager(&setup).await?;
        second.process.wait_for_log("another leads", SOON).await?;
        first.process.kill9()?;
        let killed = clock::now();
        other_leader(guest, Some(&leader_of_old)).await?;
        let time = killed.elapsed();
        ensure!(
            time > Duration::from_secs(3),
            "a Lease was taken after {time:?}"
        );
        stop(&second, STOP).await
    });
}

#[test]
fn the_rights_of_the_chart_of_old_are_enough_for_an_election() {
    play("of-old", async |guest| {
        let mut setup = setup(cloud_config_of_nobody(guest)?, &[]);
        setup.rights = Rights::OfOld;
        let manager = guest.start_manager(&setup).await?;
        other_leader(guest, None).await?;
        stop(&manager, STOP).await?;
        ensure!(leader(guest).await?.is_none(), "the Lease is not released");
        Ok(())
    });
}

#[test]
fn a_manager_cut_off_from_the_api_stops_leading_and_leads_again() {
    play("cut-off", async |guest| {
        let setup = setup(cloud_config_of_nobody(guest)?, &BRIEF_LEASES);
        let manager = guest.start_manager(&setup).await?;
        other_leader(guest, None).await?;
        manager.api.refuse();
        let lost = manager.process.wait_for_log("lease lost", SOON).await;
        manager.api.heal();
        lost?;
        poll_until(SOON, "leading again", async || {
            let log = manager.process.log();
            Ok((log.matches("lease acquired").count() > 1).then_some(()))
        })
        .await?;
        stop(&manager, STOP).await
    });
}
