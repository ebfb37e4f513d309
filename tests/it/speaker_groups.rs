//! Services that share addresses.

use std::time::Duration;

use crate::support::{Scene, one_answerer, stayed_with};

#[test]
fn services_on_one_address_share_an_owner_and_the_older_may_go() {
    Scene::new("shared").play(async |stage| {
        let vips = stage.pair(0);
        let watch = stage.watch(&vips)?;
        let older = stage.service("older", &vips).create().await?;
        let owner = stage.owner_of(&vips).await?;
        let younger = stage
            .cluster
            .service("younger")
            .annotation(
                "kube-vip.io/loadbalancerIPs",
                &crate::support::listed(&vips),
            )
            .dual_stack()
            .port(81, 8080)
            .create()
            .await?;
        stage.pod("older", 0).await?;
        stage.pod("younger", 1).await?;
        for service in [&older, &younger] {
            stage.says(service, &vips, owner).await?;
        }
        for vip in vips {
            stage.ask_port(vip, 80).await?;
            stage.ask_port(vip, 81).await?;
        }
        stage.holder("kubevip-older", owner).await?;
        older.delete().await?;
        stage.no_lease("kubevip-older").await?;
        stage.holder("kubevip-younger", owner).await?;
        stage.stays(&vips, owner, Duration::from_secs(5)).await?;
        for vip in vips {
            stage.ask_port(vip, 81).await?;
        }
        stage.says(&younger, &vips, owner).await?;
        stayed_with(watch, stage.mac(owner)?)?;
        younger.delete().await?;
        stage.gone(&vips).await?;
        stage.no_lease("kubevip-younger").await
    });
}

#[test]
fn services_that_come_to_share_an_address_come_to_share_an_owner() {
    Scene::new("joined")
        .without_kube_proxy()
        .play(async |stage| {
            use crate::support::{LOADBALANCER_IPS, annotate, listed};
            let (first, vips) = stage.serve("first", 0).await?;
            let others = stage.pair(1);
            let watch = stage.watch(&[vips, others].concat())?;
            let owner = stage.owner_of(&vips).await?;
            let (second, _) = stage.serve("second", 1).await?;
            stage.owner_of(&others).await?;
            let both = listed(&[others[0], vips[1]]);
            second
                .edit(|object| annotate(object, LOADBALANCER_IPS, Some(&both)))
                .await?;
            stage
                .owned_by(&[vips[0], vips[1], others[0]], owner)
                .await?;
            stage.gone(&[others[1]]).await?;
            stage.says(&first, &vips, owner).await?;
            stage.says(&second, &[others[0], vips[1]], owner).await?;
            stage.no_lease("kubevip-second").await?;
            one_answerer(watch).map(drop)
        });
}
