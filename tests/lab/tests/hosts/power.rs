//! The power switch of hosts, and their processes.

use std::time::Duration;

use lab::{Direction, Traffic, poll_until};

use crate::ground::{BRIEFLY, SOON, ground, ip, lab, output, reaches, sleeper, state};

#[tokio::test]
async fn power_off_ends_everything_and_power_on_is_a_boot() {
    let Some(ground) = ground("power") else {
        return;
    };
    let [node, _] = &ground.nodes;
    node.forwarding().unwrap();
    node.route("10.99.0.0/16", ip("10.7.0.1")).unwrap();
    output(
        node,
        "ip",
        &["address", "add", "10.7.0.100/32", "dev", "eth0"],
    );
    let process = sleeper(node);
    assert!(reaches(&ground.client, "10.7.0.100", SOON).await);
    node.power_off().unwrap();
    assert!(!node.is_on());
    assert!(process.ended().unwrap().is_some());
    assert!(node.command("true").is_err());
    assert!(!reaches(&ground.client, "10.7.0.10", BRIEFLY).await);
    node.power_on().unwrap();
    assert!(reaches(&ground.client, "10.7.0.10", SOON).await);
    assert!(reaches(&ground.client, "fd07::10", SOON).await);
    assert!(!node.has_address(ip("10.7.0.100")).unwrap());
    assert!(node.has_address(ip("10.7.0.10")).unwrap());
    assert_eq!(output(node, "cat", &["/proc/sys/net/ipv4/ip_forward"]), "1");
    let route = output(node, "ip", &["route", "show", "10.99.0.0/16"]);
    assert!(route.contains("via 10.7.0.1"), "{route}");
}

#[tokio::test]
async fn a_host_boots_with_the_faults_that_its_links_had() {
    let Some(ground) = ground("faults") else {
        return;
    };
    let [node, _] = &ground.nodes;
    let [port, _] = &ground.ports;
    port.delay(Duration::from_millis(1), Duration::ZERO)
        .unwrap();
    port.block(Direction::FromHost, Traffic::Address(ip("10.7.0.10")))
        .unwrap();
    node.power_off().unwrap();
    node.power_on().unwrap();
    assert!(!reaches(&ground.client, "10.7.0.10", BRIEFLY).await);
    assert!(reaches(&ground.client, "fd07::10", SOON).await);
    port.unblock_all().unwrap();
    assert!(reaches(&ground.client, "10.7.0.10", SOON).await);
}

#[tokio::test]
async fn a_paused_host_is_silent_and_goes_on_where_it_was() {
    let Some(ground) = ground("pause") else {
        return;
    };
    let [node, _] = &ground.nodes;
    let process = sleeper(node);
    node.pause().unwrap();
    poll_until(SOON, "stopped process", async || {
        Ok((state(process.pid()) == Some('T')).then_some(()))
    })
    .await
    .unwrap();
    assert!(!reaches(&ground.client, "10.7.0.10", BRIEFLY).await);
    node.resume().unwrap();
    assert!(reaches(&ground.client, "10.7.0.10", SOON).await);
    poll_until(SOON, "running process", async || {
        Ok((state(process.pid()) == Some('S')).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn processes_log_and_end_as_they_are_told() {
    let Some(lab) = lab("process") else { return };
    let host = lab.host("node0").unwrap();
    let script = |name: &str, script: &str| {
        let mut command = host.command("/bin/sh").unwrap();
        command.args(["-c", script]);
        host.spawn(name, command).unwrap()
    };
    let polite = script(
        "polite",
        "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done",
    );
    polite.wait_for_log("ready", SOON).await.unwrap();
    polite.terminate().unwrap();
    assert_eq!(polite.wait(SOON).await.unwrap().code(), Some(3));
    assert!(polite.log().contains("bye"));
    let short = script("short", "echo no such luck");
    let error = short.wait_for_log("ready", SOON).await.unwrap_err();
    assert!(error.to_string().contains("no such luck"), "{error}");
    let stubborn = script("stubborn", "trap '' TERM; echo ready; sleep 1000");
    stubborn.wait_for_log("ready", SOON).await.unwrap();
    stubborn.pause().unwrap();
    stubborn.kill9().unwrap();
    assert!(stubborn.ended().unwrap().is_some());
}
