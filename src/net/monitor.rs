//! Watches links, addresses and default routes, and says what changed.
//!
//! [`run`] subscribes first and dumps second, so that nothing falls between the two. Its first
//! event is a [`LinkEvent::Resync`], and so is the one after any loss: a receive buffer that
//! overran, or a connection that died. Either way the connection is built again. What it says in between is coalesced
//! by the tracker; a slow receiver delays events and loses none.
//!
//! Both sockets belong to the network namespace of the thread that runs the task.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::MulticastGroup;
use tokio::sync::mpsc;

use super::{
    decode,
    link::LinkEvent,
    netlink::{Error, Netlink},
    packet_socket::force_receive_buffer,
    tracker::Tracker,
};
use crate::runtime::clock;

/// 8 MiB hold the notifications of some ten thousand changes at once. The owner of a thousand
/// VIPs renews all of them in one batch every second, and each renewal is notified.
const RECEIVE_BUFFER: i32 = 8 << 20;

/// How many messages are taken before an event gets its turn.
const BURST: usize = 256;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// Why one connection is no longer followed.
enum End {
    ReceiverClosed,
    /// The kernel dropped notifications. It says so *before* it hands out those that it had queued
    /// until then: applied to a fresh dump they would bring back what is long gone. Only a new
    /// socket is rid of them.
    Overrun,
    Lost(Error),
}

/// Sends events until the receiver is closed. Fails only if it cannot even start.
pub async fn run(events: mpsc::Sender<LinkEvent>) -> Result<(), Error> {
    let mut tracker = Tracker::default();
    let mut pause = FIRST_PAUSE;
    let mut started = false;
    loop {
        let before = clock::now();
        let error = match follow(&mut tracker, &events, &mut started).await {
            End::ReceiverClosed => return Ok(()),
            End::Overrun => {
                tracing::warn!("the kernel dropped notifications; reading everything again");
                continue;
            }
            End::Lost(error @ (Error::Open(_) | Error::Permission)) if !started => {
                return Err(error);
            }
            End::Lost(error) => error,
        };
        // A connection that lasted is not a sign of trouble.
        if clock::now().saturating_duration_since(before) > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tracing::warn!(%error, ?pause, "watching links again after a loss");
        tokio::select! {
            () = clock::sleep(pause) => {}
            () = events.closed() => return Ok(()),
        }
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

/// One subscription from its start to its loss.
async fn follow(
    tracker: &mut Tracker,
    events: &mpsc::Sender<LinkEvent>,
    started: &mut bool,
) -> End {
    let (subscription, messages) = match subscribe() {
        Ok(both) => both,
        Err(error) => return End::Lost(error),
    };
    let (netlink, requests) = match Netlink::connect() {
        Ok(both) => both,
        Err(error) => return End::Lost(error),
    };
    tokio::select! {
        end = tell(tracker, events, started, messages, &netlink) => end,
        () = subscription => End::Lost(Error::Disconnected),
        () = requests => End::Lost(Error::Disconnected),
        () = events.closed() => End::ReceiverClosed,
    }
}

type Messages = stream::BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>;

fn subscribe() -> Result<(impl Future<Output = ()>, Messages), Error> {
    let (mut connection, _, messages) =
        rtnetlink::new_multicast_connection(&GROUPS).map_err(|error| Error::open(&error))?;
    let socket = rtnetlink::sys::AsyncSocket::socket_mut(connection.socket_mut());
    if let Err(error) = force_receive_buffer(socket, RECEIVE_BUFFER) {
        tracing::debug!(%error, "the receive buffer keeps its size; a burst may cost a resync");
    }
    Ok((connection, messages.map(|(message, _)| message).boxed()))
}

/// Dumps, then turns messages into events.
async fn tell(
    tracker: &mut Tracker,
    events: &mpsc::Sender<LinkEvent>,
    started: &mut bool,
    messages: Messages,
    netlink: &Netlink,
) -> End {
    let mut messages = messages.ready_chunks(BURST);
    match netlink.snapshot().await {
        Ok(all) => tracker.handle_snapshot(all),
        Err(error) => return End::Lost(error),
    }
    *started = true;
    // What was reported meanwhile is told together with it.
    let mut chunk = messages.next().now_or_never().flatten();
    loop {
        if take(tracker, chunk.take().unwrap_or_default()) {
            return End::Overrun;
        }
        if tracker.routes_in_doubt() {
            tracker.begin_routes();
            match netlink.default_routes().await {
                Ok(routes) => tracker.handle_default_routes(routes),
                Err(error) => return End::Lost(error),
            }
        }
        while tracker.has_changes()
            && let Ok(permit) = events.try_reserve()
        {
            if let Some(event) = tracker.poll_event() {
                permit.send(event);
            }
        }
        tokio::select! {
            next = messages.next() => match next {
                Some(next) => chunk = Some(next),
                None => return End::Lost(Error::Disconnected),
            },
            // The permit is given back; the loop takes it if there is still something to say.
            _ = events.reserve(), if tracker.has_changes() => {}
        }
    }
}

/// Feeds messages to the tracker; true if the kernel has dropped some.
fn take(tracker: &mut Tracker, messages: Vec<NetlinkMessage<RouteNetlinkMessage>>) -> bool {
    for message in messages {
        match message.payload {
            NetlinkPayload::InnerMessage(inner) => {
                if let Some(report) = decode::report(&inner) {
                    tracker.handle_report(report);
                }
            }
            NetlinkPayload::Overrun(_) => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests;
