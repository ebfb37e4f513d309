//! What the probes report.

use std::{fs, process::Command, time::Duration};

use lab::{
    Host, MacAddress, poll_until,
    probe::{Asker, EchoProbe, HttpProbe, http_get},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::ground::{SOON, ground, ip, output, reaches};

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
