use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rtnetlink::LinkUnspec;
use tokio::time::timeout;

use super::*;
use crate::net::{
    frame::{self, Heard},
    testing::{Namespace, Wire, eventually, raw},
};

const V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

/// Both ends in one namespace, so that one task sees both sides.
fn with_wire<F: Future<Output = ()>>(test: impl FnOnce(Wire, Wire) -> F + Send + 'static) {
    if let Some(here) = Namespace::new() {
        let (east, west) = here.join(&here);
        here.run(move || test(east, west));
    }
}

/// Only what is about our two addresses; the kernel speaks on the link, too.
async fn hear(socket: &PacketSocket) -> Heard {
    let mut buffer = [0; 256];
    let ours = async {
        loop {
            let length = socket.recv(&mut buffer).await.unwrap();
            if let Ok(heard) = frame::parse(&buffer[..length])
                && let Some(claim) = heard.claim()
                && (claim.address == V4 || claim.address == V6)
            {
                return heard;
            }
        }
    };
    timeout(Duration::from_secs(5), ours)
        .await
        .expect("a frame arrives")
}

#[test]
fn frames_of_both_families_cross_and_their_sender_does_not_hear_them() {
    with_wire(|east, west| async move {
        let (here, there) = (
            PacketSocket::open(east.index).unwrap(),
            PacketSocket::open(west.index).unwrap(),
        );
        let frames = [
            frame::gratuitous_request(east.mac, V4),
            frame::unsolicited_advertisement(east.mac, V6, V6),
            frame::gratuitous_reply(east.mac, V4),
        ];
        let (sent, result) = here.send_batch(&frames).await;
        assert!(result.is_ok());
        assert_eq!(sent, 3);
        let mut heard = [hear(&there).await, hear(&there).await, hear(&there).await];
        heard.sort_by_key(|h| matches!(h, Heard::NeighbourAdvertisement { .. }));
        assert!(matches!(heard[0], Heard::ArpRequest { .. }));
        assert!(matches!(heard[1], Heard::ArpReply { .. }));
        assert!(matches!(heard[2], Heard::NeighbourAdvertisement { .. }));
        // The other end answers once; were our own frames audible, they would come first.
        let (_, result) = there
            .send_batch(&[frame::gratuitous_reply(west.mac, V4)])
            .await;
        assert!(result.is_ok());
        assert_eq!(hear(&here).await.ethernet_source(), west.mac);
    });
}

#[test]
fn a_thousand_frames_go_in_a_few_calls() {
    with_wire(|east, _| async move {
        let socket = PacketSocket::open(east.index).unwrap();
        let frames: Vec<Frame> = (0..1000_u32)
            .flat_map(|n| {
                let vip = Ipv4Addr::from(0x0a00_0000 + n);
                [
                    frame::gratuitous_request(east.mac, vip),
                    frame::gratuitous_reply(east.mac, vip),
                ]
            })
            .collect();
        let before = crate::runtime::clock::now();
        let (sent, result) = socket.send_batch(&frames).await;
        println!(
            "2,000 frames in {:?}",
            crate::runtime::clock::now() - before
        );
        assert!(result.is_ok());
        assert_eq!(sent, 2000);
    });
}

#[test]
fn a_thousand_answers_wait_for_their_reader() {
    with_wire(|east, west| async move {
        let (here, there) = (
            PacketSocket::open(east.index).unwrap(),
            PacketSocket::open(west.index).unwrap(),
        );
        let first = u32::from(V4);
        let answers: Vec<Frame> = (first..first + 1000)
            .map(|vip| frame::gratuitous_reply(east.mac, Ipv4Addr::from(vip)))
            .collect();
        let (sent, _) = here.send_batch(&answers).await;
        assert_eq!(sent, 1000);
        let mut heard = 0;
        eventually("all answers are read", async || {
            let mut buffer = [0; 256];
            while let Some(length) = there.try_recv(&mut buffer).unwrap() {
                let said = frame::parse(&buffer[..length]);
                heard += usize::from(matches!(said, Ok(Heard::ArpReply { .. })));
            }
            (heard == 1000).then_some(())
        })
        .await;
    });
}

async fn set(link: rtnetlink::LinkMessageBuilder<LinkUnspec>) {
    raw().link().change(link.build()).execute().await.unwrap();
}

#[test]
fn a_link_that_was_down_carries_frames_again() {
    with_wire(|east, west| async move {
        let (here, there) = (
            PacketSocket::open(east.index).unwrap(),
            PacketSocket::open(west.index).unwrap(),
        );
        let frames = [frame::gratuitous_reply(east.mac, V4)];
        set(LinkUnspec::new_with_index(east.index.0).down()).await;
        let (sent, result) = here.send_batch(&frames).await;
        assert!(matches!((sent, result), (0, Err(SocketError::LinkDown))));
        let mut buffer = [0; 256];
        let woken = timeout(Duration::from_secs(5), here.recv(&mut buffer)).await;
        assert!(!matches!(woken, Ok(Err(SocketError::LinkGone))));
        set(LinkUnspec::new_with_index(east.index.0).up()).await;
        eventually("the link carries frames", async || {
            here.send_batch(&frames).await.1.ok()
        })
        .await;
        assert_eq!(hear(&there).await.ethernet_source(), east.mac);
    });
}

#[test]
fn a_link_that_is_gone_is_told_to_reader_and_sender() {
    with_wire(|east, _| async move {
        let socket = PacketSocket::open(east.index).unwrap();
        raw().link().del(east.index.0).execute().await.unwrap();
        let mut buffer = [0; 256];
        let reader = async {
            loop {
                if let Err(error) = socket.recv(&mut buffer).await {
                    return error;
                }
            }
        };
        let error = timeout(Duration::from_secs(5), reader)
            .await
            .expect("the reader is woken");
        assert!(matches!(error, SocketError::LinkGone), "{error:?}");
        let frames = [frame::gratuitous_reply(east.mac, V4)];
        let (_, result) = socket.send_batch(&frames).await;
        assert!(matches!(result, Err(SocketError::LinkGone)), "{result:?}");
        let again = PacketSocket::open(east.index);
        assert!(matches!(again, Err(SocketError::LinkGone)), "{again:?}");
    });
}
