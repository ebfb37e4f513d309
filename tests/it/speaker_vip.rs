//! A VIP on the wire: served, edited, ended.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use lab::poll_until;

use crate::support::{LOADBALANCER_IPS, SOON, Scene, annotate, listed, one_answerer, stayed_with};

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

#[test]
fn the_legacy_field_asks_for_a_vip_too() {
    Scene::new("legacy")
        .without_kube_proxy()
        .play(async |stage| {
            let vip = IpAddr::from(stage.cluster.vip(0));
            let service = stage
                .cluster
                .service("web")
                .load_balancer_ip(vip)
                .port(80, 8080)
                .create()
                .await?;
            let owner = stage.owner(vip).await?;
            stage.says(&service, &[vip], owner).await?;
            stage.speaker(owner).terminate()?;
            let next = stage.next_owner(vip, owner).await?;
            stage.says(&service, &[vip], next).await?;
            service.delete().await?;
            stage.nobody(vip).await
        });
}

#[test]
fn a_deleted_service_leaves_neither_vip_nor_lease() {
    Scene::new("deleted")
        .without_kube_proxy()
        .play(async |stage| {
            let (service, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            stage.holder("kubevip-web", owner).await?;
            service.delete().await?;
            stage.gone(&vips).await?;
            stage.no_lease("kubevip-web").await?;
            stayed_with(watch, stage.mac(owner)?)
        });
}

#[test]
fn a_service_that_becomes_a_cluster_ip_loses_vip_status_and_lease() {
    Scene::new("retyped")
        .without_kube_proxy()
        .play(async |stage| {
            let (service, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            let to_type = |kind: &'static str| {
                service.edit(move |object| {
                    let spec = object.spec.get_or_insert_default();
                    spec.type_ = Some(kind.to_owned());
                    spec.allocate_load_balancer_node_ports = None;
                    spec.external_traffic_policy = None;
                })
            };
            to_type("ClusterIP").await?;
            stage.gone(&vips).await?;
            stage.says_nothing(&service).await?;
            stage.no_lease("kubevip-web").await?;
            to_type("LoadBalancer").await?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            one_answerer(watch).map(drop)
        });
}

#[test]
fn an_ignored_service_loses_its_vip_and_gets_it_back() {
    Scene::new("ignored")
        .without_kube_proxy()
        .play(async |stage| {
            const IGNORE: &str = "kube-vip.io/ignore";
            let (service, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            service
                .edit(|object| annotate(object, IGNORE, Some("true")))
                .await?;
            stage.gone(&vips).await?;
            stage.says_nothing(&service).await?;
            stage.no_lease("kubevip-web").await?;
            service
                .edit(|object| annotate(object, IGNORE, None))
                .await?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            one_answerer(watch).map(drop)
        });
}

#[test]
fn a_service_made_anew_with_another_class_is_left_alone() {
    Scene::new("class")
        .without_kube_proxy()
        .play(async |stage| {
            const OURS: &str = "kube-vip.io/kube-vip-class";
            let vips = stage.pair(0);
            let service = stage.service("web", &vips).class(OURS).create().await?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            service.delete().await?;
            let other = stage
                .service("web", &vips)
                .class("example.com/other")
                .create()
                .await?;
            stage.gone(&vips).await?;
            stage.no_lease("kubevip-web").await?;
            // A Service that is served shows that the speakers have seen the one before it.
            stage.serve("later", 1).await?;
            stage.owner_of(&stage.pair(1)).await?;
            ensure!(stage.owners(stage.cluster.vip(0).into())?.is_empty());
            stage.says_nothing(&other).await
        });
}

#[test]
fn an_edited_address_is_taken_and_the_one_before_is_given_up() {
    Scene::new("address").play(async |stage| {
        let (service, before) = stage.serve("web", 0).await?;
        let after = stage.pair(1);
        let watch = stage.watch(&[before, after].concat())?;
        stage.pod("web", 0).await?;
        stage.ask_all(&before).await?;
        let owner = stage.owner_of(&before).await?;
        let text = listed(&after);
        service
            .edit(|object| annotate(object, LOADBALANCER_IPS, Some(&text)))
            .await?;
        stage.ask_all(&after).await?;
        stage.gone(&before).await?;
        // The Lease has not changed hands.
        stage.owned_by(&after, owner).await?;
        stage.says(&service, &after, owner).await?;
        stayed_with(watch, stage.mac(owner)?)
    });
}

#[test]
fn edited_ports_reach_the_status_and_the_vip_stays() {
    Scene::new("ports").play(async |stage| {
        let (service, vips) = stage.serve("web", 0).await?;
        let watch = stage.watch(&vips)?;
        stage.pod("web", 2).await?;
        stage.ask_all(&vips).await?;
        let owner = stage.owner_of(&vips).await?;
        service
            .edit(|object| {
                let ports = object.spec.get_or_insert_default().ports.iter_mut();
                for port in ports.flatten() {
                    port.port = 81;
                }
            })
            .await?;
        poll_until(SOON, "port 81 in the status", async || {
            let status = service.get().await?.status.and_then(|it| it.load_balancer);
            let entries = status.and_then(|it| it.ingress).unwrap_or_default();
            let ports: Vec<Vec<i32>> = entries
                .iter()
                .map(|entry| entry.ports.iter().flatten().map(|p| p.port).collect())
                .collect();
            ensure!(ports == [[81], [81]], "the ports are {ports:?}");
            Ok(Some(()))
        })
        .await?;
        for vip in vips {
            stage.ask_port(vip, 81).await?;
        }
        stayed_with(watch, stage.mac(owner)?)
    });
}
