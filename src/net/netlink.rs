//! Verbs on addresses, and the state of links, over rtnetlink.
//!
//! Verbs are idempotent and take a whole batch: every request is handed to the connection before
//! the first answer is awaited, and each has its own result. errno is interpreted here, once. No
//! call outlives [`DEADLINE`]; answers that came before it count.
//!
//! The socket belongs to the network namespace of the thread that opened it.

use std::{io, net::IpAddr, pin::Pin, time::Duration};

use futures_util::{FutureExt, Stream, StreamExt};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REPLACE, NLM_F_REQUEST,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, CacheInfo},
    link::LinkMessage,
    route::RouteMessage,
};
use tokio::time::timeout;

use super::{
    decode::{self, Report},
    link::{ADDRESS_PROTOCOL, AddressKey, DefaultRoute, Snapshot, VipAddress},
    packet_socket::force_receive_buffer,
};

/// How long the kernel may take to answer a call. It needs 20 ms for a thousand addresses.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// A dump that was interrupted by changes is taken again; so often, at most.
const DUMP_ATTEMPTS: u32 = 5;

/// Room for the notifications of some thousand addresses that change at once.
const RECEIVE_BUFFER: i32 = 8 << 20;

/// What the kernel's answer means.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("cannot open a netlink socket: {}", text(*.0))]
    Open(i32),
    #[error("the link does not exist")]
    NoSuchLink,
    #[error("not permitted: CAP_NET_ADMIN is missing")]
    Permission,
    #[error(
        "IPv6 is disabled on the link (the sysctl net.ipv6.conf.<link>.disable_ipv6, or the \
         kernel parameter ipv6.disable)"
    )]
    Ipv6Disabled,
    #[error("the netlink connection is closed")]
    Disconnected,
    #[error("the kernel did not answer within {DEADLINE:?}")]
    Deadline,
    #[error("links and addresses change faster than they can be read")]
    Unsettled,
    #[error("the kernel refuses: {}", text(*.0))]
    Kernel(i32),
}

fn text(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Error {
    fn from_errno(errno: i32, ipv6: bool) -> Self {
        match errno {
            libc::ENODEV => Self::NoSuchLink,
            libc::EPERM => Self::Permission,
            libc::EACCES | libc::EOPNOTSUPP | libc::EAFNOSUPPORT if ipv6 => Self::Ipv6Disabled,
            other => Self::Kernel(other),
        }
    }

    pub(super) fn open(error: &io::Error) -> Self {
        Self::Open(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

type Message = NetlinkMessage<RouteNetlinkMessage>;
type Answers = Pin<Box<dyn Stream<Item = Message> + Send>>;

/// A handle on the kernel's links and addresses; clones share the connection.
#[derive(Debug, Clone)]
pub struct Netlink {
    handle: rtnetlink::Handle,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace. Calls make progress only while
    /// the future is polled; it ends when the last handle is gone or the socket fails.
    pub fn connect() -> Result<(Self, impl Future<Output = ()> + Send + 'static), Error> {
        let (mut connection, handle, _unsolicited) =
            rtnetlink::new_connection().map_err(|error| Error::open(&error))?;
        // Otherwise the end of a connection could not be told from an answer.
        connection.set_forward_ack(true);
        connection.set_forward_done(true);
        let socket = rtnetlink::sys::AsyncSocket::socket_mut(connection.socket_mut());
        // Without the privilege the default size stays; too small a buffer costs a deadline, and
        // without the privilege there is not much to be done here anyway.
        let _ = force_receive_buffer(socket, RECEIVE_BUFFER);
        Ok((Self { handle }, connection))
    }

    /// All links, addresses and default routes.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut reports = self
            .dump(|| RouteNetlinkMessage::GetLink(LinkMessage::default()))
            .await?;
        reports.extend(
            self.dump(|| RouteNetlinkMessage::GetAddress(AddressMessage::default()))
                .await?,
        );
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            reports.extend(self.dump(|| route_request(family)).await?);
        }
        Ok(decode::snapshot(reports))
    }

    /// The default routes alone, sorted.
    pub(super) async fn default_routes(&self) -> Result<Vec<DefaultRoute>, Error> {
        let mut reports = self.dump(|| route_request(AddressFamily::Inet)).await?;
        reports.extend(self.dump(|| route_request(AddressFamily::Inet6)).await?);
        Ok(decode::snapshot(reports).default_routes)
    }

    /// Adds addresses or renews the lifetime of those that exist; one result for each, in order.
    pub async fn ensure_addresses(&self, addresses: &[VipAddress]) -> Vec<Result<(), Error>> {
        let requests = addresses.iter().map(|vip| {
            let message = RouteNetlinkMessage::NewAddress(new_address(vip));
            let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
            (vip.key, self.ask(message, flags))
        });
        self.settle(requests.collect()).await
    }

    /// Removes addresses; those that are absent already count as removed.
    pub async fn remove_addresses(&self, addresses: &[AddressKey]) -> Vec<Result<(), Error>> {
        let requests = addresses.iter().map(|key| {
            let message = RouteNetlinkMessage::DelAddress(address_message(key));
            (*key, self.ask(message, NLM_F_REQUEST | NLM_F_ACK))
        });
        let results = self.settle(requests.collect()).await;
        let absent = |result| match result {
            // An address is absent, too, when its link is.
            Err(Error::Kernel(libc::EADDRNOTAVAIL) | Error::NoSuchLink) => Ok(()),
            other => other,
        };
        results.into_iter().map(absent).collect()
    }

    /// Hands a request to the connection; the stream ends with its acknowledgement.
    fn ask(&self, message: RouteNetlinkMessage, flags: u16) -> Result<Answers, Error> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = flags;
        let answers = self.handle.clone().request(request);
        Ok(Box::pin(answers.map_err(|_| Error::Disconnected)?))
    }

    /// Waits for the answers to a batch, under one deadline for all.
    async fn settle(
        &self,
        requests: Vec<(AddressKey, Result<Answers, Error>)>,
    ) -> Vec<Result<(), Error>> {
        let mut results = Vec::with_capacity(requests.len());
        let mut requests = requests.into_iter();
        let _ = timeout(DEADLINE, async {
            for (key, answers) in requests.by_ref() {
                // Stands should the deadline strike during the wait.
                results.push(Err(Error::Deadline));
                let result = match answers {
                    Ok(answers) => acknowledged(answers, key.address.is_ipv6()).await,
                    Err(error) => Err(error),
                };
                if let Some(place) = results.last_mut() {
                    *place = result;
                }
            }
        })
        .await;
        // The kernel may have answered those behind the one that it did not.
        for (key, answers) in requests {
            results.push(answers.and_then(|answers| {
                acknowledged(answers, key.address.is_ipv6())
                    .now_or_never()
                    .unwrap_or(Err(Error::Deadline))
            }));
        }
        results
    }

    async fn dump(&self, request: impl Fn() -> RouteNetlinkMessage) -> Result<Vec<Report>, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            let answers = self.ask(request(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let whole = timeout(DEADLINE, read_dump(answers)).await;
            if let Some(reports) = whole.map_err(|_| Error::Deadline)?? {
                return Ok(reports);
            }
        }
        Err(Error::Unsettled)
    }
}

/// `None` if changes during the dump have made it inconsistent.
async fn read_dump(mut answers: Answers) -> Result<Option<Vec<Report>>, Error> {
    let mut reports = Vec::new();
    let mut consistent = true;
    while let Some(message) = answers.next().await {
        consistent &= message.header.flags & NLM_F_DUMP_INTR == 0;
        match message.payload {
            NetlinkPayload::InnerMessage(inner) => reports.extend(decode::report(&inner)),
            NetlinkPayload::Error(error) => {
                return Err(Error::from_errno(error.raw_code().saturating_neg(), false));
            }
            NetlinkPayload::Done(_) => return Ok(consistent.then_some(reports)),
            _ => {}
        }
    }
    Err(Error::Disconnected)
}

async fn acknowledged(mut answers: Answers, ipv6: bool) -> Result<(), Error> {
    while let Some(message) = answers.next().await {
        if let NetlinkPayload::Error(error) = message.payload {
            return match error.raw_code() {
                0 => Ok(()),
                code => Err(Error::from_errno(code.saturating_neg(), ipv6)),
            };
        }
    }
    Err(Error::Disconnected)
}

fn route_request(family: AddressFamily) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    RouteNetlinkMessage::GetRoute(message)
}

fn address_message(key: &AddressKey) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = match key.address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.prefix_len = key.prefix_len;
    message.header.index = key.link.0;
    message.attributes = vec![
        AddressAttribute::Local(key.address),
        AddressAttribute::Address(key.address),
    ];
    message
}

/// Preferred lifetime 0 from the start: never a source address. No prefix route: a VIP makes no
/// network. No duplicate address detection: it would take a second, and the witness has asked.
fn new_address(vip: &VipAddress) -> AddressMessage {
    let mut message = address_message(&vip.key);
    let mut lifetime = CacheInfo::default();
    lifetime.ifa_preferred = 0;
    lifetime.ifa_valid = vip.lifetime.map_or(u32::MAX, whole_seconds);
    message.attributes.extend([
        AddressAttribute::CacheInfo(lifetime),
        AddressAttribute::Flags(AddressFlags::Noprefixroute | AddressFlags::Nodad),
        AddressAttribute::Protocol(AddressProtocol::Other(ADDRESS_PROTOCOL)),
    ]);
    message
}

/// The kernel counts whole seconds, refuses 0, and takes all ones for ever: round up, and stay
/// between.
fn whole_seconds(lifetime: Duration) -> u32 {
    let seconds = lifetime
        .as_secs()
        .saturating_add((lifetime.subsec_nanos() > 0).into());
    u32::try_from(seconds)
        .unwrap_or(u32::MAX)
        .clamp(1, u32::MAX - 1)
}

#[cfg(test)]
mod tests;
