//! A VIP on the wire: served, moved, withdrawn.

use std::net::IpAddr;

use anyhow::Result;

use crate::support::{Scene, one_answerer};

#[test]
fn a_vip_of_each_family_is_answered_over_http_by_a_pod_and_by_one_mac() {
    Scene::new("http").play(async |stage| {
        let cluster = &stage.cluster;
        let (vip, vip6) = (cluster.vip(0), cluster.vip6(0));
        let watch = stage.watch(&[vip.into(), vip6.into()])?;
        let pod = cluster
            .pod("web")
            .on(cluster.node(1))
            .serve_http(8080)
            .await?;
        let service = cluster
            .service("web")
            .annotation("kube-vip.io/loadbalancerIPs", &format!("{vip},{vip6}"))
            .dual_stack()
            .port(80, 8080)
            .create()
            .await?;
        for address in [IpAddr::from(vip), vip6.into()] {
            assert_eq!(stage.ask(address).await?.pod, pod.name());
        }
        assert_eq!(
            service.status_ips().await?,
            [IpAddr::from(vip), vip6.into()]
        );
        one_answerer(watch)?;
        Result::Ok(())
    });
}
