//! Networks, and the faults of links.

use std::{net::UdpSocket, time::Duration};

use lab::{
    Direction, Host, Traffic, poll_until,
    probe::{Asker, EchoProbe},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::ground::{BRIEFLY, SOON, ground, ip, output, reaches};

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
