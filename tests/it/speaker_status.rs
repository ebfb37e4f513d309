//! What a Service says, and what its author is told.

use std::{net::IpAddr, time::Duration};

use anyhow::ensure;

use crate::support::{Scene, annotate, stayed_with};

#[test]
fn a_status_that_somebody_changes_is_repaired() {
    Scene::new("repair")
        .without_kube_proxy()
        .play(async |stage| {
            let (service, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            let foreign: IpAddr = "192.0.2.1".parse()?;
            for wrong in [&[foreign][..], &[vips[1], vips[0]], &[]] {
                service.set_status_ips(wrong).await?;
                stage.says(&service, &vips, owner).await?;
            }
            service
                .edit(|object| annotate(object, "kube-vip.io/vipHost", Some("nobody")))
                .await?;
            stage.says(&service, &vips, owner).await?;
            stayed_with(watch, stage.mac(owner)?)
        });
}

#[test]
fn a_foreign_status_is_never_taken_for_a_wish() {
    Scene::new("foreign")
        .without_kube_proxy()
        .play(async |stage| {
            let service = stage.cluster.service("web").port(80, 8080).create().await?;
            let vip = IpAddr::from(stage.cluster.vip(0));
            service.set_status_ips(&[vip]).await?;
            stage.stays_away(&[vip], Duration::from_secs(3)).await?;
            ensure!(
                service.status_ips().await? == [vip],
                "it is not ours to clear"
            );
            Ok(())
        });
}

#[test]
fn features_that_are_not_supported_are_told_once_for_the_whole_cluster() {
    const UNSUPPORTED: &[&str] = &[
        "kube-vip.io/serviceVLAN",
        "kube-vip.io/flush-conntrack",
        "kube-vip.io/ignore-service-security",
        "kube-vip.io/egress",
        "kube-vip.io/forwardUPNP",
    ];
    Scene::new("unsupported")
        .without_kube_proxy()
        .play(async |stage| {
            let vips = stage.pair(0);
            let watch = stage.watch(&vips)?;
            let mut builder = stage.service("web", &vips);
            for annotation in UNSUPPORTED {
                builder = builder.annotation(annotation, "true");
            }
            let with_name = format!("www.example.com,{},{}", vips[0], vips[1]);
            let service = builder
                .annotation("kube-vip.io/loadbalancerIPs", &with_name)
                .create()
                .await?;
            // The Service is served all the same.
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            stage.told(&service, "NotSupported").await?;
            stage.stays(&vips, owner, Duration::from_secs(5)).await?;
            let events = service.events().await?;
            for wanted in UNSUPPORTED.iter().chain(&["www.example.com"]) {
                let told: Vec<_> = events
                    .iter()
                    .filter(|it| it.reason == "NotSupported" && it.message.contains(wanted))
                    .collect();
                ensure!(
                    matches!(told.as_slice(), [one] if one.kind == "Warning" && one.count == 1),
                    "{wanted} was told as {told:?}"
                );
            }
            stayed_with(watch, stage.mac(owner)?)
        });
}
