//! 8 to 10: settings of kube-vip that are read, or explained.

use std::time::Duration;

use anyhow::{Context, Result};
use lab::Process;

use super::variants::Variants;
use crate::support::{Scene, Stage, one_answerer};

const BOUND: Duration = Duration::from_secs(30);

#[test]
fn kv_08_service_security_is_accepted_with_a_warning_and_http_works() {
    Scene::new("kv08")
        .env("enable_service_security", "true")
        .play(async |stage| served_with_a_warning(stage, "enable_service_security").await);
}

#[test]
fn kv_09_the_endpoints_provider_is_accepted_and_endpoint_slices_are_used() {
    Scene::new("kv09")
        .env("enable_endpoints", "true")
        .play(async |stage| served_with_a_warning(stage, "enable_endpoints").await);
}

async fn served_with_a_warning(stage: &mut Stage, variable: &str) -> Result<()> {
    stage.pods("web").await?;
    let variants = Variants::create(stage, "web", true).await?;
    let watch = stage.watch(&variants.vips())?;
    variants.are_served(stage).await?;
    for speaker in &stage.speakers {
        let log = speaker.log();
        let warnings = log
            .lines()
            .filter(|line| line.contains("WARN") && line.contains(variable));
        anyhow::ensure!(warnings.count() == 1, "one warning by {}", speaker.name());
    }
    one_answerer(watch).map(drop)
}

#[test]
fn kv_10_the_node_name_is_given_or_else_the_host_name() {
    Scene::new("kv10").without_speakers().play(async |stage| {
        stage.pods("web").await?;
        let variants = Variants::create(stage, "web", false).await?;
        let watch = stage.watch(&variants.vips())?;
        // By the variable; the host has another name.
        let given = stage.node(0).name().to_owned();
        let speaker = start(stage, 0, "some-other-name", Some(&given))?;
        for variant in &variants.0 {
            stage.holder(&variant.lease(), 0).await?;
        }
        variants.are_served_by(stage, 0).await?;
        speaker.terminate()?;
        speaker.wait(BOUND).await?;
        stage.gone(&variants.vips()).await?;
        // By the name of the host.
        let host_name = stage.node(1).name().to_owned();
        start(stage, 1, &host_name, None)?;
        variants.are_served(stage).await?;
        variants.are_served_by(stage, 1).await?;
        one_answerer(watch).map(drop)
    });
}

/// Starts a speaker on a node as on a host of this name, without the flag for the node's name.
fn start(stage: &Stage, node: usize, host_name: &str, variable: Option<&str>) -> Result<Process> {
    let node = stage.node(node);
    let binary = stage
        .setup
        .binary
        .to_str()
        .context("a path that is no text")?;
    let script = format!("echo {host_name} > /proc/sys/kernel/hostname && exec \"$0\" \"$@\"");
    let mut command = node.host().command("unshare")?;
    command
        .args(["--uts", "sh", "-c", &script, binary])
        .arg(format!("--kubeconfig={}", node.kubeconfig().display()))
        .arg(format!(
            "--speaker-namespace={}",
            stage.cluster.release_namespace()
        ))
        .arg(format!(
            "--speaker-service-namespace={}",
            stage.cluster.namespace()
        ))
        .args(&stage.setup.args)
        .env_remove("vip_nodename")
        .envs(variable.map(|name| ("vip_nodename", name)));
    node.host().spawn("speaker", command)
}
