//! The speaker as a process: its stop, its ports, its size.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use lab::{clock, http_client, poll_until};

use crate::support::{SOON, Scene, Stage, https, one_answerer, served::throughout};

/// Everything is withdrawn within this time.
const STOP: Duration = Duration::from_secs(2);

/// A scene of one node, which then owns everything.
fn alone(name: &'static str) -> Scene {
    let mut scene = Scene::new(name).without_kube_proxy();
    scene.nodes = 1;
    scene
}

/// Waits until the node has so many addresses of the Services' kind.
async fn has_vips(stage: &Stage, vips: &[IpAddr]) -> Result<()> {
    poll_until(SOON, "all VIPs on the node", async || {
        Ok((on_node(stage, vips)? == vips.len()).then_some(()))
    })
    .await
}

fn on_node(stage: &Stage, vips: &[IpAddr]) -> Result<usize> {
    let held = stage.node(0).host().addresses()?;
    Ok(held
        .iter()
        .filter(|(_, address, _)| vips.contains(address))
        .count())
}

#[test]
fn sigterm_withdraws_50_vips_and_releases_their_leases_within_two_seconds() {
    alone("stop-50").play(async |stage| {
        let vips = stage.many(50).await?;
        has_vips(stage, &vips).await?;
        let watch = stage.watch(&vips[..1])?;
        watch.wait_first(vips[0], SOON).await?;
        let asked = clock::now();
        stage.speakers[0].terminate()?;
        let status = stage.speakers[0].wait(SOON).await?;
        let took = asked.elapsed();
        eprintln!("50 VIPs withdrawn in {took:.1?}");
        ensure!(status.success(), "{status}");
        ensure!(took < STOP, "{took:?}");
        ensure!(on_node(stage, &vips)? == 0, "addresses are left");
        let held = stage.held_leases().await?;
        ensure!(held.is_empty(), "not released: {held:?}");
        one_answerer(watch).map(drop)
    });
}

#[test]
fn sigterm_while_the_api_is_silent_withdraws_at_once_and_ends_within_two_seconds() {
    alone("stop-silent").play(async |stage| {
        let vips = stage.many(10).await?;
        has_vips(stage, &vips).await?;
        stage.node(0).api().blackhole();
        let asked = clock::now();
        stage.speakers[0].terminate()?;
        poll_until(SOON, "the end of all addresses", async || {
            Ok((on_node(stage, &vips)? == 0).then_some(()))
        })
        .await?;
        let withdrawn = asked.elapsed();
        let status = stage.speakers[0].wait(SOON).await?;
        let took = asked.elapsed();
        eprintln!("withdrawn in {withdrawn:.1?}, ended in {took:.1?}, {status}");
        ensure!(withdrawn < Duration::from_millis(500), "{withdrawn:?}");
        ensure!(took < STOP, "{took:?}");
        ensure!(status.success(), "{status}");
        Ok(())
    });
}

#[test]
fn a_second_sigterm_cuts_the_stop_short() {
    alone("stop-twice").play(async |stage| {
        let vips = stage.many(2).await?;
        has_vips(stage, &vips).await?;
        // Something to wait for: Leases that cannot be released.
        stage.node(0).api().blackhole();
        stage.speakers[0].terminate()?;
        poll_until(SOON, "the end of all addresses", async || {
            Ok((on_node(stage, &vips)? == 0).then_some(()))
        })
        .await?;
        ensure!(stage.speakers[0].ended()?.is_none(), "it did not wait");
        let asked = clock::now();
        stage.speakers[0].terminate()?;
        let status = stage.speakers[0].wait(SOON).await?;
        let took = asked.elapsed();
        ensure!(took < Duration::from_millis(500), "{took:?}");
        ensure!(!status.success(), "a cut stop is no success");
        Ok(())
    });
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const HEALTH: SocketAddr = SocketAddr::new(LOOPBACK, 10_299);
const METRICS: SocketAddr = SocketAddr::new(LOOPBACK, 2112);
const SECURE: SocketAddr = SocketAddr::new(LOOPBACK, 10_258);

/// A scene whose speaker serves all its ports.
fn with_ports(name: &'static str) -> Scene {
    alone(name).args(&[
        "--secure-port=10258",
        "--speaker-health-port=10299",
        "--speaker-metrics-address=127.0.0.1:2112",
    ])
}

async fn get(stage: &Stage, port: SocketAddr, path: &str) -> Result<(StatusCode, String)> {
    let host = stage.node(0).host();
    let answer = poll_until(SOON, &format!("{port}{path}"), async || {
        http_client::get(host, port, path, Duration::from_secs(1))
            .await
            .map(Some)
    })
    .await?;
    Ok((answer.status, answer.body))
}

async fn ready(stage: &Stage) -> Result<()> {
    poll_until(SOON, "readiness", async || {
        let (status, _) = get(stage, HEALTH, "/readyz").await?;
        Ok((status == StatusCode::OK).then_some(()))
    })
    .await
}

#[test]
fn the_ports_tell_health_to_everybody_and_metrics_to_those_who_may() {
    with_ports("ports").play(async |stage| {
        let vips = stage.many(1).await?;
        has_vips(stage, &vips).await?;
        ready(stage).await?;
        for path in ["/healthz", "/livez", "/readyz"] {
            let (status, body) = get(stage, HEALTH, path).await?;
            ensure!(
                (status, body.as_str()) == (StatusCode::OK, "ok"),
                "{path}: {status} {body}"
            );
            let answer = https::get(stage.node(0).host(), SECURE, path, None).await?;
            ensure!(answer.status == StatusCode::OK, "{path}: {answer:?}");
        }
        let (_, checks) = get(stage, HEALTH, "/readyz?verbose").await?;
        for check in ["caches-synced", "speaker-loop", "runtime"] {
            ensure!(checks.contains(&format!("[+]{check} ok")), "{checks}");
        }
        let refused = https::get(stage.node(0).host(), SECURE, "/metrics", None).await?;
        ensure!(
            matches!(
                refused.status,
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
            ),
            "metrics for nobody in particular: {}",
            refused.status
        );
        poll_until(SOON, "the VIP in the metrics", async || {
            let (_, text) = get(stage, METRICS, "/metrics").await?;
            Ok(text.contains("speaker_vips_announced 1").then_some(()))
        })
        .await?;
        let (_, text) = get(stage, METRICS, "/metrics").await?;
        for name in [
            "kube_vip_active_services",
            "kube_vip_is_leader",
            "kube_vip_leader_election_transitions_total",
            "kube_vip_build_info",
            "speaker_leases_held",
            "speaker_addresses_failing",
            "speaker_decisions_total",
        ] {
            ensure!(
                text.lines()
                    .any(|line| line.starts_with(name) && line.len() > name.len()),
                "no {name} in\n{text}"
            );
        }
        Ok(())
    });
}

#[test]
fn the_secure_port_shows_metrics_to_whom_the_api_server_lets() {
    with_ports("secure").play(async |stage| {
        stage.speakers[0].terminate()?;
        stage.speakers[0].wait(SOON).await?;
        let kubeconfig = stage.node(0).kubeconfig().display().to_string();
        for purpose in ["authentication", "authorization"] {
            let flag = format!("--{purpose}-kubeconfig={kubeconfig}");
            stage.setup.args.push(flag);
        }
        // Not in the speaker's role: the authorities of client certificates.
        let skip = "--authentication-skip-lookup=true".to_owned();
        stage.setup.args.push(skip);
        stage.restart(0)?;
        ready(stage).await?;

        let file = stage.cluster.lab().directory().join("admin.kubeconfig");
        let control_plane = stage.cluster.control_plane();
        control_plane.write_admin_kubeconfig(&file, stage.cluster.namespace())?;
        let admin: serde_json::Value = serde_json::from_slice(&fs::read(&file)?)?;
        let admin = admin["users"][0]["user"]["token"].as_str();
        let host = stage.node(0).host();
        for (token, expected) in [
            (admin, StatusCode::OK),
            (Some("nobody-knows-me"), StatusCode::UNAUTHORIZED),
        ] {
            let answer = https::get(host, SECURE, "/metrics", token).await?;
            ensure!(answer.status == expected, "{token:?}: {}", answer.status);
        }
        let answer = https::get(host, SECURE, "/metrics", admin).await?;
        ensure!(answer.body.contains("speaker_decisions_total"));
        Ok(())
    });
}

#[test]
fn a_speaker_started_without_an_api_lives_is_not_ready_and_serves_when_the_api_comes() {
    with_ports("start-silent").play(async |stage| {
        let vips = stage.many(1).await?;
        has_vips(stage, &vips).await?;
        stage.speakers[0].terminate()?;
        stage.speakers[0].wait(SOON).await?;

        stage.node(0).api().blackhole();
        stage.restart(0)?;
        for path in ["/livez", "/healthz"] {
            let (status, body) = get(stage, HEALTH, path).await?;
            ensure!(status == StatusCode::OK, "{path}: {status} {body}");
        }
        // Longer than any of its deadlines, so that the first of them have passed.
        throughout(Duration::from_secs(12), async || {
            let (status, body) = get(stage, HEALTH, "/readyz").await?;
            ensure!(
                !status.is_success() && body.contains("[-]caches-synced"),
                "{status} {body}"
            );
            let (status, body) = get(stage, HEALTH, "/livez").await?;
            ensure!(status == StatusCode::OK, "/livez: {status} {body}");
            Ok(())
        })
        .await?;
        stage.node(0).api().heal();
        let healed = clock::now();
        has_vips(stage, &vips).await?;
        eprintln!("served {:.1?} after the API came", healed.elapsed());
        ready(stage).await
    });
}

#[test]
fn five_hundred_services_created_at_once_are_all_served() {
    let scene = Scene::new("five-hundred").without_kube_proxy();
    scene.play(async |stage| {
        let begun = clock::now();
        let vips = stage.many(500).await?;
        let created = begun.elapsed();
        poll_until(SOON * 4, "each VIP on one node", async || {
            let mut found = Vec::new();
            for node in stage.cluster.nodes() {
                found.extend(node.host().addresses()?.into_iter().map(|(_, ip, _)| ip));
            }
            found.retain(|ip| vips.contains(ip));
            found.sort_unstable();
            let single = found.windows(2).all(|pair| pair[0] != pair[1]);
            ensure!(single, "an address is on two nodes");
            let missing: Vec<_> = vips.iter().filter(|vip| !found.contains(vip)).collect();
            ensure!(missing.is_empty(), "{} missing: {missing:?}", missing.len());
            Ok(Some(()))
        })
        .await?;
        let served = begun.elapsed();
        stage.all_have_status(vips.len()).await?;
        let written = begun.elapsed();
        eprintln!("created in {created:.1?}, on nodes in {served:.1?}, statuses in {written:.1?}");
        for (client, counts) in stage.cluster.requests() {
            eprintln!("{client}\n{counts}");
        }
        for speaker in &stage.speakers {
            let memory = resident_kib(speaker.pid())?;
            eprintln!("{}: {} MiB resident", speaker.name(), memory / 1024);
            ensure!(memory < 200 * 1024, "{memory} KiB");
        }
        ensure!(stage.speakers.iter().all(|s| matches!(s.ended(), Ok(None))));
        Ok(())
    });
}

fn resident_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kib = line.split_whitespace().next().context("an empty VmRSS")?;
    Ok(kib.parse()?)
}
