//! Hosts, links, faults, probes and the certain end of a lab, for real.
//!
//! Every test has a lab of its own. Without root they are skipped, with the reason.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a step of the tests' own that fails is a failed test"
)]

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{IpAddr, UdpSocket},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use lab::{
    Direction, Host, Lab, MacAddress, Network, Port, Traffic, poll_until,
    probe::{Asker, EchoProbe, HttpProbe, http_get},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SOON: Duration = Duration::from_secs(5);
const BRIEFLY: Duration = Duration::from_millis(300);

/// A lab, or none and the reason on the terminal.
fn lab(name: &str) -> Option<Lab> {
    if let Some(reason) = lab::unavailable() {
        eprintln!("skipped: {reason}");
        return None;
    }
    Some(Lab::new(name).unwrap())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Two nodes and a client on one network.
struct Ground {
    lab: Lab,
    network: Network,
    nodes: [Host; 2],
    ports: [Port; 2],
    client: Host,
}

fn ground(name: &str) -> Option<Ground> {
    let lab = lab(name)?;
    let network = lab.network("vips").unwrap();
    let nodes = [lab.host("node0").unwrap(), lab.host("node1").unwrap()];
    let [first, second] = &nodes;
    let ports = [
        first
            .connect(&network, "eth0", &["10.7.0.10/24", "fd07::10/64"])
            .unwrap(),
        second
            .connect(&network, "eth0", &["10.7.0.11/24", "fd07::11/64"])
            .unwrap(),
    ];
    let client = lab.host("client").unwrap();
    client
        .connect(&network, "eth0", &["10.7.0.1/24", "fd07::1/64"])
        .unwrap();
    Some(Ground {
        lab,
        network,
        nodes,
        ports,
        client,
    })
}

async fn reaches(from: &Host, to: &str, within: Duration) -> bool {
    let probe = EchoProbe::start(from, ip(to)).unwrap();
    probe.wait_first(within).await.is_ok()
}

/// Runs a program in the host to its end and gives its output.
fn output(host: &Host, program: &str, arguments: &[&str]) -> String {
    let output = host
        .command(program)
        .unwrap()
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn sleeper(host: &Host) -> lab::Process {
    let mut command = host.command("sleep").unwrap();
    command.arg("1000");
    host.spawn("sleeper", command).unwrap()
}

/// The state letter of a process (proc(5)); none once it is gone.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn namespaces(prefix: &str) -> usize {
    let start = format!("{prefix}-");
    let Ok(entries) = fs::read_dir("/run/netns") else {
        return 0;
    };
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(&start)).count()
}

#[tokio::test]
async fn hosts_reach_each_other_over_both_families() {
    let Some(ground) = ground("reach") else {
        return;
    };
    for address in ["10.7.0.10", "fd07::10", "10.7.0.11", "fd07::11"] {
        let probe = EchoProbe::start(&ground.client, ip(address)).unwrap();
        probe.wait_first(SOON).await.unwrap();
        let report = probe.stop().unwrap();
        assert_eq!(report.lost, 0, "{address}: {report:?}");
    }
    let known = ground.client.neighbour(ip("10.7.0.10")).unwrap();
    assert_eq!(known, Some(ground.ports[0].mac()));
    ground.lab.stop().unwrap();
}

#[tokio::test]
async fn an_echo_client_paces_at_a_kilohertz_and_times_an_outage() {
    let Some(ground) = ground("outage") else {
        return;
    };
    let probe = EchoProbe::start(&ground.client, ip("10.7.0.10")).unwrap();
    probe.wait_first(SOON).await.unwrap();
    let from = lab::clock::now();
    ground.ports[0].cut().unwrap();
    lab::clock::sleep(Duration::from_millis(400)).await;
    ground.ports[0].restore().unwrap();
    let outage = from.elapsed();
    probe.wait_after(lab::clock::now(), SOON).await.unwrap();
    let elapsed = probe.snapshot().started.elapsed();
    let report = probe.stop().unwrap();
    let longest = report.longest_gap;
    assert!(longest >= Duration::from_millis(390), "{longest:?}");
    assert!(
        longest <= outage + Duration::from_millis(100),
        "{longest:?} of {outage:?}"
    );
    // Sent at 1 kHz, unless this machine had no time for it.
    let ideal = elapsed.as_millis();
    assert!(
        report.sent as u128 * 10 > ideal * 5,
        "{} requests in {ideal} ms",
        report.sent
    );
}

#[tokio::test]
async fn a_cut_port_keeps_the_carrier_and_a_pulled_plug_does_not() {
    let Some(ground) = ground("carrier") else {
        return;
    };
    let [node, _] = &ground.nodes;
    let [port, _] = &ground.ports;
    let carrier = || output(node, "cat", &["/sys/class/net/eth0/carrier"]);
    port.cut().unwrap();
    assert_eq!(carrier(), "1");
    assert!(!reaches(&ground.client, "10.7.0.10", BRIEFLY).await);
    port.restore().unwrap();
    assert!(reaches(&ground.client, "10.7.0.10", SOON).await);
    port.carrier(false).unwrap();
    assert_eq!(carrier(), "0");
    assert!(!reaches(&ground.client, "10.7.0.10", BRIEFLY).await);
    port.flap(2, Duration::from_millis(10)).await.unwrap();
    assert_eq!(carrier(), "1");
    assert!(reaches(&ground.client, "10.7.0.10", SOON).await);
    assert!(reaches(&ground.client, "fd07::10", SOON).await);
}

#[tokio::test]
async fn loss_takes_about_its_share() {
    let Some(ground) = ground("loss") else { return };
    let probe = EchoProbe::start(&ground.client, ip("10.7.0.10")).unwrap();
    probe.wait_first(SOON).await.unwrap();
    ground.ports[0].loss(30.0).unwrap();
    let before = probe.snapshot();
    poll_until(SOON, "1,000 more requests", async || {
        Ok((probe.snapshot().sent > before.sent + 1000).then_some(()))
    })
    .await
    .unwrap();
    let after = probe.snapshot();
    let lost = (after.lost - before.lost) * 100 / (after.sent - before.sent);
    // Both directions: 1 - 0.7² = 51 percent.
    assert!((40..=62).contains(&lost), "{lost} percent");
    ground.ports[0].loss(0.0).unwrap();
    let from = lab::clock::now();
    probe.wait_after(from, SOON).await.unwrap();
}

#[tokio::test]
async fn a_delayed_link_takes_its_time_and_carries_whole_streams() {
    let Some(ground) = ground("delay") else {
        return;
    };
    let [node, _] = &ground.nodes;
    let [port, _] = &ground.ports;
    let patient = Duration::from_secs(1);
    port.delay(Duration::from_millis(20), Duration::from_millis(5))
        .unwrap();
    let probe = EchoProbe::start_patient(&ground.client, ip("fd07::10"), patient).unwrap();
    probe.wait_first(SOON).await.unwrap();
    poll_until(SOON, "500 requests", async || {
        Ok((probe.snapshot().sent > 500).then_some(()))
    })
    .await
    .unwrap();
    let round_trip = probe.stop().unwrap().round_trip.unwrap();
    assert!(round_trip >= Duration::from_millis(40), "{round_trip:?}");
    assert!(round_trip < Duration::from_millis(80), "{round_trip:?}");

    // Large segments with unfinished checksums must survive the forwarder.
    let address = "10.7.0.10:8080".parse().unwrap();
    let listener = node.tcp_listener(address).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&sent).await.unwrap();
        stream.shutdown().await.unwrap();
    };
    let client = async {
        let mut stream = ground.client.tcp_connect(address).await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        received
    };
    let both = async { tokio::join!(client, server).0 };
    let received = tokio::time::timeout(Duration::from_secs(20), both)
        .await
        .unwrap();
    assert!(
        received == sent,
        "{} of {} bytes",
        received.len(),
        sent.len()
    );

    port.delay(Duration::ZERO, Duration::ZERO).unwrap();
    let probe = EchoProbe::start(&ground.client, ip("fd07::10")).unwrap();
    probe.wait_first(SOON).await.unwrap();
    poll_until(SOON, "100 requests", async || {
        Ok((probe.snapshot().sent > 100).then_some(()))
    })
    .await
    .unwrap();
    let round_trip = probe.stop().unwrap().round_trip.unwrap();
    assert!(round_trip < Duration::from_millis(20), "{round_trip:?}");
}

#[tokio::test]
async fn chosen_traffic_is_dropped_in_one_direction_only() {
    let Some(ground) = ground("block") else {
        return;
    };
    let [node, _] = &ground.nodes;
    let [port, _] = &ground.ports;
    let receiver = |host: &Host, address: &str| {
        let socket = host.inside(|| UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(BRIEFLY)).unwrap();
        socket
    };
    let at_node = receiver(node, "10.7.0.10:10258");
    let at_client = receiver(&ground.client, "10.7.0.1:10258");
    let arrives = |from: &UdpSocket, to: &UdpSocket| {
        from.send_to(b"beat", to.local_addr().unwrap()).unwrap();
        to.recv(&mut [0; 8]).is_ok()
    };
    assert!(arrives(&at_node, &at_client) && arrives(&at_client, &at_node));
    port.block(Direction::FromHost, Traffic::Udp(10258))
        .unwrap();
    assert!(!arrives(&at_node, &at_client));
    assert!(arrives(&at_client, &at_node));
    port.unblock(Direction::FromHost, Traffic::Udp(10258))
        .unwrap();
    assert!(arrives(&at_node, &at_client));

    port.block(Direction::ToHost, Traffic::Address(ip("10.7.0.1")))
        .unwrap();
    assert!(!arrives(&at_client, &at_node));
    port.unblock_all().unwrap();

    port.block(Direction::FromHost, Traffic::Arp).unwrap();
    let [over_v4, over_v6] = [ip("10.7.0.10"), ip("fd07::10")];
    let asker = Asker::start(&ground.client, "eth0", &[over_v4, over_v6]).unwrap();
    asker.wait_first(over_v6, SOON).await.unwrap();
    assert_eq!(asker.answers(over_v4).answered, 0);
    port.unblock_all().unwrap();
    port.block(Direction::FromHost, Traffic::NeighbourDiscovery)
        .unwrap();
    asker.wait_first(over_v4, SOON).await.unwrap();
    let silent_at = asker.answers(over_v6).answered;
    let before = asker.answers(over_v6).asked;
    poll_until(SOON, "50 more questions", async || {
        Ok((asker.answers(over_v6).asked > before + 50).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(asker.answers(over_v6).answered, silent_at);
}

#[tokio::test]
async fn every_kind_of_traffic_can_be_blocked_at_once() {
    let Some(ground) = ground("kinds") else {
        return;
    };
    let [port, _] = &ground.ports;
    let kinds = [
        Traffic::Arp,
        Traffic::NeighbourDiscovery,
        Traffic::Udp(67),
        Traffic::Tcp(80),
        Traffic::Address(ip("10.7.0.1")),
        Traffic::Address(ip("fd07::1")),
        Traffic::Everything,
    ];
    for kind in kinds {
        port.block(Direction::FromHost, kind).unwrap();
        port.block(Direction::ToHost, kind).unwrap();
    }
    port.loss(0.5).unwrap();
    assert!(!reaches(&ground.client, "10.7.0.10", BRIEFLY).await);
    port.unblock_all().unwrap();
    port.loss(0.0).unwrap();
    assert!(reaches(&ground.client, "10.7.0.10", SOON).await);
}

#[tokio::test]
async fn an_asker_sees_who_answers_and_when_two_do() {
    let Some(ground) = ground("asker") else {
        return;
    };
    let [node0, node1] = &ground.nodes;
    let [mac0, mac1]: [MacAddress; 2] = [ground.ports[0].mac(), ground.ports[1].mac()];
    let vips = [ip("10.7.0.100"), ip("fd07::100")];
    let asker = Asker::start(&ground.client, "eth0", &vips).unwrap();
    let change = |host: &Host, verb: &str| {
        output(
            host,
            "ip",
            &["address", verb, "10.7.0.100/32", "dev", "eth0"],
        );
        output(
            host,
            "ip",
            &["address", verb, "fd07::100/128", "dev", "eth0", "nodad"],
        );
    };
    change(node0, "add");
    for vip in vips {
        asker.wait_for_mac(vip, mac0, SOON).await.unwrap();
        assert!(asker.answers(vip).doubly.is_empty());
    }
    change(node1, "add");
    poll_until(SOON, "two stations that answer", async || {
        let doubly = vips.map(|vip| !asker.answers(vip).doubly.is_empty());
        Ok((doubly == [true, true]).then_some(()))
    })
    .await
    .unwrap();
    change(node0, "del");
    for vip in vips {
        asker.wait_for_mac(vip, mac1, SOON).await.unwrap();
    }
    let answers = asker.stop().unwrap();
    for vip in vips {
        let seen = &answers[&vip];
        assert_eq!(seen.macs, [mac0, mac1].into());
        assert!(seen.timeline.len() >= 3, "{:?}", seen.timeline);
        assert!(seen.longest_silence < Duration::from_secs(1));
    }
}

#[tokio::test]
async fn gratuitous_announcements_are_told_from_answers() {
    let Some(ground) = ground("gratuitous") else {
        return;
    };
    let [node, _] = &ground.nodes;
    let vips = [ip("10.7.0.100"), ip("fd07::100")];
    output(
        node,
        "ip",
        &["address", "add", "10.7.0.100/32", "dev", "eth0"],
    );
    output(
        node,
        "ip",
        &["address", "add", "fd07::100/128", "dev", "eth0", "nodad"],
    );
    let asker = Asker::start(&ground.client, "eth0", &vips).unwrap();
    for vip in vips {
        asker
            .wait_for_mac(vip, ground.ports[0].mac(), SOON)
            .await
            .unwrap();
        assert!(asker.answers(vip).gratuitous.is_empty());
    }
    // With these set, the kernel announces its addresses when its Ethernet address changes.
    node.sysctl("net.ipv4.conf.eth0.arp_notify", "1").unwrap();
    node.sysctl("net.ipv6.conf.eth0.ndisc_notify", "1").unwrap();
    let changed: MacAddress = "02:00:00:00:00:99".parse().unwrap();
    output(
        node,
        "ip",
        &["link", "set", "eth0", "address", &changed.to_string()],
    );
    for vip in vips {
        poll_until(SOON, "announcement", async || {
            let last = asker.answers(vip).gratuitous.last().copied();
            Ok(last.filter(|(_, mac)| *mac == changed))
        })
        .await
        .unwrap();
        asker.wait_for_mac(vip, changed, SOON).await.unwrap();
    }
}

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

#[tokio::test]
async fn an_http_client_counts_answers_errors_and_who_answered() {
    let Some(ground) = ground("http") else { return };
    let [node, _] = &ground.nodes;
    let url = "10.7.0.10:8080/";
    let period = Duration::from_millis(5);
    let probe = HttpProbe::start(&ground.client, url, period, Duration::from_millis(100)).unwrap();
    poll_until(SOON, "refusals", async || {
        Ok((probe.snapshot().errors > 5).then_some(()))
    })
    .await
    .unwrap();
    let listener = node
        .tcp_listener("10.7.0.10:8080".parse().unwrap())
        .unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\npod-a";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    probe.wait_first(SOON).await.unwrap();
    assert_eq!(http_get(&ground.client, url, SOON).await.unwrap(), "pod-a");
    poll_until(SOON, "answers", async || {
        Ok((probe.snapshot().bodies.get("pod-a") > Some(&10)).then_some(()))
    })
    .await
    .unwrap();
    server.abort();
    let report = probe.stop().unwrap();
    assert!(report.answers > 10 && report.errors > 5, "{report:?}");
    assert!(report.first_ok.is_some());
    assert!(report.longest_gap > Duration::ZERO);
}

#[tokio::test]
async fn a_capture_is_a_pcap_file_with_every_frame() {
    let Some(ground) = ground("capture") else {
        return;
    };
    let file = ground.lab.directory().join("vips.pcap");
    let capture = ground.network.capture(&file).unwrap();
    assert!(reaches(&ground.client, "10.7.0.10", SOON).await);
    let mac = ground.ports[0].mac().0;
    poll_until(SOON, "frame from the node", async || {
        let frames = capture.frames();
        let from_node = frames
            .iter()
            .find(|frame| frame.bytes.get(6..12) == Some(&mac[..]));
        Ok(from_node.map(|frame| frame.at))
    })
    .await
    .unwrap();
    let frames = capture.stop().unwrap();
    let mut expected = 24;
    expected += frames
        .iter()
        .map(|frame| 16 + frame.bytes.len() as u64)
        .sum::<u64>();
    assert_eq!(fs::metadata(&file).unwrap().len(), expected);
    let Ok(read) = Command::new("tcpdump").arg("-nr").arg(&file).output() else {
        eprintln!("not read back: tcpdump is missing");
        return;
    };
    let text = String::from_utf8_lossy(&read.stdout);
    assert!(text.contains("ICMP echo reply"), "{text}");
    assert_eq!(text.lines().count(), frames.len());
}

#[tokio::test]
async fn a_stopped_lab_leaves_nothing() {
    let Some(ground) = ground("stop") else { return };
    let inside = sleeper(&ground.nodes[0]);
    let mut command = Command::new("sleep");
    command.arg("1000");
    let outside = ground.lab.spawn("outside", command).unwrap();
    let prefix = ground.lab.prefix().to_owned();
    let directory = ground.lab.directory().to_owned();
    assert_eq!(namespaces(&prefix), 4);
    // One that still looks at a host must not keep its links alive.
    let probe = EchoProbe::start(&ground.client, ip("10.7.0.10")).unwrap();
    ground.lab.stop().unwrap();
    assert_eq!(namespaces(&prefix), 0);
    assert!(!directory.exists());
    assert_eq!([state(inside.pid()), state(outside.pid())], [None, None]);
    probe.stop().unwrap();
}

#[test]
fn a_lab_of_five_hosts_is_made_and_gone_in_no_time() {
    let started = lab::clock::now();
    let Some(ground) = ground("speed") else {
        return;
    };
    let router = ground.lab.host("router").unwrap();
    let outside = ground.lab.network("outside").unwrap();
    router
        .connect(&ground.network, "eth0", &["10.7.0.254/24", "fd07::254/64"])
        .unwrap();
    router.connect(&outside, "eth1", &["192.0.2.1/24"]).unwrap();
    router.forwarding().unwrap();
    let node2 = ground.lab.host("node2").unwrap();
    node2
        .connect(&ground.network, "eth0", &["10.7.0.12/24", "fd07::12/64"])
        .unwrap();
    let made = started.elapsed();
    let started = lab::clock::now();
    ground.lab.stop().unwrap();
    let stopped = started.elapsed();
    eprintln!("made in {made:?}, gone in {stopped:?}");
    // Far more than it takes, for machines that are busy with other tests.
    assert!(made + stopped < SOON, "{made:?} and {stopped:?}");
}

#[test]
fn a_panic_ends_the_lab() {
    let Some(ground) = ground("panic") else {
        return;
    };
    let prefix = ground.lab.prefix().to_owned();
    let outcome = std::thread::spawn(move || {
        let ground = ground;
        let _process = sleeper(&ground.nodes[0]);
        panic!("as planned");
    })
    .join();
    assert!(outcome.is_err());
    assert_eq!(namespaces(&prefix), 0);
}

/// Makes a lab and waits for its own end; started by the tests below, in a process of its own.
#[tokio::test]
#[ignore = "the victim of other tests"]
async fn victim() {
    let Some(ground) = ground("victim") else {
        return;
    };
    let inside = sleeper(&ground.nodes[0]);
    let mut command = Command::new("setsid");
    command.args(["sleep", "1000"]);
    let outside = ground.lab.spawn("outside", command).unwrap();
    let directory = ground.lab.directory().display().to_string();
    println!(
        "victim {} {directory} {} {}",
        ground.lab.prefix(),
        inside.pid(),
        outside.pid()
    );
    std::future::pending::<()>().await;
}

/// What a victim told before it was killed.
struct Victim {
    process: std::process::Child,
    prefix: String,
    directory: PathBuf,
    processes: Vec<u32>,
}

impl Victim {
    fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).find_map(|line| {
            line.split_once("victim hl")
                .map(|(_, rest)| format!("hl{rest}"))
        });
        let line = line.expect("the victim tells its lab");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [prefix, directory, inside, outside] = words[..] else {
            panic!("{line:?}")
        };
        Self {
            process,
            prefix: prefix.to_owned(),
            directory: directory.into(),
            processes: vec![inside.parse().unwrap(), outside.parse().unwrap()],
        }
    }

    /// The shell that would clean up after it.
    fn reaper(&self) -> u32 {
        let own = self.process.id().to_string();
        let ids = fs::read_dir("/proc").unwrap().flatten();
        let mut ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.find(|id| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit_once(')')
                .and_then(|(_, rest)| rest.split(' ').nth(2));
            let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            parent == Some(own.as_str())
                && command
                    .split(|byte| *byte == 0)
                    .any(|word| word == b"reaper")
        })
        .expect("a reaper")
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn is_gone(&self) -> bool {
        namespaces(&self.prefix) == 0
            && !self.directory.exists()
            && self.processes.iter().all(|pid| state(*pid).is_none())
    }
}

fn kill9(pid: u32) {
    assert!(
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

#[tokio::test]
async fn a_killed_run_is_cleaned_up_by_its_reaper() {
    let Some(_lab) = lab("reaper") else { return };
    let mut victim = Victim::start();
    assert_eq!(namespaces(&victim.prefix), 4);
    victim.kill();
    poll_until(SOON, "clean machine", async || {
        Ok(victim.is_gone().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn ctrl_c_ends_the_lab() {
    let Some(_lab) = lab("interrupt") else { return };
    let mut victim = Victim::start();
    // As the terminal does: to the whole foreground group.
    let group = format!("-{}", victim.process.id());
    assert!(
        Command::new("kill")
            .args(["-INT", "--", &group])
            .status()
            .unwrap()
            .success()
    );
    assert!(!victim.process.wait().unwrap().success());
    poll_until(SOON, "clean machine", async || {
        Ok(victim.is_gone().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn leftovers_of_a_run_whose_reaper_was_killed_too_are_swept_by_the_next() {
    let Some(_lab) = lab("sweep") else { return };
    let mut victim = Victim::start();
    kill9(victim.reaper());
    victim.kill();
    let _next = Lab::new("next").unwrap();
    poll_until(SOON, "clean machine", async || {
        Ok(victim.is_gone().then_some(()))
    })
    .await
    .unwrap();
}
