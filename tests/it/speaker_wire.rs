//! Addresses that may be none, that others have, or that somebody takes off the link.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use lab::{Host, poll_until};

use crate::support::{SOON, Scene, Stage, annotate, listed, one_answerer, stayed_with};

#[test]
fn addresses_of_nodes_and_gateways_are_refused_with_an_event() {
    Scene::new("refused")
        .without_kube_proxy()
        .play(async |stage| {
            let (node4, node6) = stage.node(1).addresses();
            let (gateway4, gateway6) = stage.cluster.addressing().router();
            let good = stage.pair(0);
            for (name, refused) in [
                ("node", [IpAddr::from(node4), node6.into()]),
                ("gateway", [IpAddr::from(gateway4), gateway6.into()]),
            ] {
                let service = stage.service(name, &refused).create().await?;
                let event = stage.told(&service, "AddressRefused").await?;
                ensure!(event.kind == "Warning", "{event:?}");
                ensure!(
                    refused
                        .iter()
                        .any(|it| event.message.contains(&it.to_string())),
                    "{event:?}"
                );
                // One good address beside a refused one is served.
                let mixed = [refused[0], good[1]];
                service
                    .edit(|object| {
                        annotate(object, "kube-vip.io/loadbalancerIPs", Some(&listed(&mixed)));
                    })
                    .await?;
                let owner = stage.owner(good[1]).await?;
                stage.says(&service, &[good[1]], owner).await?;
                service.delete().await?;
                stage.gone(&[good[1]]).await?;
            }
            for node in stage.cluster.nodes() {
                let held = node.host().addresses()?;
                ensure!(
                    !held.iter().any(|(_, it, _)| *it == IpAddr::from(gateway4)),
                    "{} took the gateway's address",
                    node.name()
                );
            }
            Ok(())
        });
}

#[test]
fn an_address_that_a_foreign_host_has_is_left_to_it_until_it_goes() {
    Scene::new("conflict")
        .without_kube_proxy()
        .play(async |stage| {
            let vips = stage.pair(0);
            let foreign = foreign_host(stage, &vips)?;
            let mac = foreign.port("eth0").context("its link")?.mac();
            let watch = stage.watch(&vips)?;
            let (service, _) = stage.serve("web", 0).await?;
            let event = stage.told(&service, "AddressConflict").await?;
            ensure!(event.message.contains(&mac.to_string()), "{event:?}");
            stage.stays_away(&vips, Duration::from_secs(7)).await?;
            for vip in vips {
                ensure!(watch.current_mac(vip) == Some(mac), "{vip}");
            }
            foreign.power_off()?;
            let owner = stage.owner_of(&vips).await?;
            stage.says(&service, &vips, owner).await?;
            one_answerer(watch).map(drop)
        });
}

#[test]
fn a_vip_that_somebody_removes_by_hand_comes_back() {
    Scene::new("byhand")
        .without_kube_proxy()
        .play(async |stage| {
            let (_, vips) = stage.serve("web", 0).await?;
            let watch = stage.watch(&vips)?;
            let owner = stage.owner_of(&vips).await?;
            for vip in vips {
                watch.wait_first(vip, SOON).await?;
                let length = if vip.is_ipv4() { 32 } else { 128 };
                let address = format!("{vip}/{length}");
                let host = stage.node(owner).host();
                let removed = host
                    .command("ip")?
                    .args(["address", "del", &address, "dev", "eth0"])
                    .status()?;
                ensure!(removed.success());
                poll_until(SOON, &format!("return of {vip}"), async || {
                    Ok(host.has_address(vip)?.then_some(()))
                })
                .await?;
            }
            stage.stays(&vips, owner, Duration::from_secs(3)).await?;
            stayed_with(watch, stage.mac(owner)?)
        });
}

/// A host in the nodes' network that has these addresses.
fn foreign_host(stage: &Stage, vips: &[IpAddr]) -> Result<Host> {
    let host = stage.cluster.lab().host("foreign")?;
    let addresses: Vec<String> = vips
        .iter()
        .map(|vip| format!("{vip}/{}", if vip.is_ipv4() { 24 } else { 64 }))
        .collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    host.connect(stage.cluster.network(), "eth0", &addresses)?;
    Ok(host)
}
