//! Packet sockets: neighbour resolution frames of one link, in and out.
//!
//! A [`PacketSocket`] is a pair of `AF_PACKET` sockets, one bound to ARP and one to IPv6. One
//! socket bound to every EtherType would do on paper, but the kernel would then clone each frame
//! that the host sends on that link for us to drop again. A socket bound to one EtherType is not
//! even offered outgoing frames. Both carry [`bpf::NEIGHBOUR_FRAMES`].
//!
//! Link state comes from the netlink monitor, not from here. A link that goes down is reported
//! once to the reader and to each sender ([`SocketError::LinkDown`]); the socket works again when
//! the link does. [`SocketError::LinkGone`] is final.
//!
//! Beside `runtime::realtime` this is the only file with `unsafe`.
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]
#![expect(unsafe_code, reason = "system calls that no crate in use wraps")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "C headers give constants and lengths types other than their fields'"
)]

use std::{
    io::{self, Read},
    mem,
    os::fd::{AsFd, AsRawFd},
    ptr,
};

use socket2::{Domain, SockAddr, SockFilter, Socket, Type};
use tokio::io::{Interest, unix::AsyncFd};

use super::{bpf, frame::Frame, link::LinkIndex};

/// Why a frame did not come or go.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// It will work again when the link is up.
    #[error("the link is down")]
    LinkDown,
    /// The socket is of no more use.
    #[error("the link does not exist (any more)")]
    LinkGone,
    #[error("not permitted: CAP_NET_RAW is missing")]
    Permission,
    #[error("packet socket")]
    Io(#[source] io::Error),
}

impl From<io::Error> for SocketError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENETDOWN) => Self::LinkDown,
            Some(libc::ENXIO | libc::ENODEV) => Self::LinkGone,
            Some(libc::EPERM | libc::EACCES) => Self::Permission,
            _ => Self::Io(error),
        }
    }
}

/// How many frames one system call sends.
const BATCH: usize = 64;

/// Questions about a thousand VIPs are answered at once, and a lost answer is a VIP on two hosts. An
/// answer takes some 800 bytes of the default 208 KiB, whatever its length.
const RECEIVE_BUFFER: i32 = 4 << 20;

/// The neighbour resolution frames of one link.
#[derive(Debug)]
pub struct PacketSocket {
    arp: AsyncFd<Socket>,
    ipv6: AsyncFd<Socket>,
}

impl PacketSocket {
    /// Opens on a link of the calling thread's network namespace, inside a tokio runtime.
    pub fn open(link: LinkIndex) -> Result<Self, SocketError> {
        let ipv6 = open_one(link, libc::ETH_P_IPV6)?;
        join_all_nodes(ipv6.get_ref(), link)?;
        Ok(Self {
            arp: open_one(link, libc::ETH_P_ARP)?,
            ipv6,
        })
    }

    /// The next frame; returns its length. What does not fit in `buffer` is cut off.
    ///
    /// Cancel safe: no frame is lost.
    pub async fn recv(&self, buffer: &mut [u8]) -> Result<usize, SocketError> {
        // A link that goes down raises an error condition only, hence the second interest.
        let interest = Interest::READABLE | Interest::ERROR;
        loop {
            let ready = tokio::select! {
                ready = self.arp.ready(interest) => ready,
                ready = self.ipv6.ready(interest) => ready,
            };
            match ready?.try_io(|socket| socket.get_ref().read(buffer)) {
                Ok(Ok(length)) => return Ok(length),
                Ok(Err(error)) => return Err(self.explain(error)),
                // Not ready after all.
                Err(_) => {}
            }
        }
    }

    /// A frame that is already here, without waiting and whatever the runtime has noticed so far.
    pub fn try_recv(&self, buffer: &mut [u8]) -> Result<Option<usize>, SocketError> {
        for socket in [&self.arp, &self.ipv6] {
            match socket.get_ref().read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(self.explain(error)),
            }
        }
        Ok(None)
    }

    /// Sends frames in order within their EtherType; returns how many are on their way.
    ///
    /// All are sent or the reason is given; what follows a failed frame is not tried, because the
    /// reasons concern the link, not the frame.
    pub async fn send_batch(&self, frames: &[Frame]) -> (usize, Result<(), SocketError>) {
        let mut sent = 0_usize;
        for (socket, arp) in [(&self.arp, true), (&self.ipv6, false)] {
            let mut left: Vec<&Frame> = frames.iter().filter(|f| f.is_arp() == arp).collect();
            let mut retried = false;
            while !left.is_empty() {
                let batch = left.get(..BATCH).unwrap_or(&left);
                match socket
                    .async_io(Interest::WRITABLE, |s| send_many(s, batch))
                    .await
                {
                    Ok(count) => {
                        sent = sent.saturating_add(count);
                        left.drain(..count);
                    }
                    // After the link came up again, the error of its going down is still pending
                    // and fails one call.
                    Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) && !retried => {
                        retried = true;
                    }
                    Err(error) => return (sent, Err(self.explain(error))),
                }
            }
        }
        (sent, Ok(()))
    }

    /// A reader learns of a link that is gone as if it were down; only the binding tells.
    fn explain(&self, error: io::Error) -> SocketError {
        match SocketError::from(error) {
            SocketError::LinkDown if !is_bound(self.arp.get_ref()) => SocketError::LinkGone,
            other => other,
        }
    }
}

/// Opened with protocol 0, so that no frame is queued before the filter is on; the binding names
/// the EtherType and starts the flow.
fn open_one(link: LinkIndex, ethertype: libc::c_int) -> Result<AsyncFd<Socket>, SocketError> {
    let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking().cloexec(), None)?;
    if let Err(error) = force_receive_buffer(&socket, RECEIVE_BUFFER) {
        tracing::debug!(%error, "the receive buffer keeps its size; a burst may cost answers");
    }
    let filter = bpf::NEIGHBOUR_FRAMES
        .map(|at| SockFilter::new(at.code, at.jump_true, at.jump_false, at.operand));
    socket.attach_filter(&filter)?;
    socket.bind(&link_address(link, ethertype)?)?;
    // SAFETY: the socket owns its descriptor and moves into the `AsyncFd`, which closes it only
    // after it has deregistered it; `Socket::as_raw_fd` always returns that same descriptor.
    unsafe { AsyncFd::register(socket) }.map_err(|error| SocketError::from(io::Error::from(error)))
}

fn link_address(link: LinkIndex, ethertype: libc::c_int) -> io::Result<SockAddr> {
    let ethertype = u16::try_from(ethertype).map_err(io::Error::other)?;
    let index = i32::try_from(link.0).map_err(io::Error::other)?;
    // SAFETY: the storage is zeroed, aligned for and larger than any socket address; family,
    // protocol and index are all that `bind` reads, and the length is set to what was written.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let address = storage.cast::<libc::sockaddr_ll>();
            (*address).sll_family = libc::AF_PACKET as u16;
            (*address).sll_protocol = ethertype.to_be();
            (*address).sll_ifindex = index;
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
    }?;
    Ok(address)
}

/// Unsolicited advertisements go to the all-nodes group; where IPv6 is off, the kernel has not
/// joined it on its own account.
fn join_all_nodes(socket: &Socket, link: LinkIndex) -> io::Result<()> {
    let mut request = libc::packet_mreq {
        mr_ifindex: i32::try_from(link.0).map_err(io::Error::other)?,
        mr_type: libc::PACKET_MR_MULTICAST as u16,
        mr_alen: 6,
        mr_address: [0; 8],
    };
    request.mr_address[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    set_option(
        socket,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &request,
    )
}

/// Gives a socket a receive buffer beyond `rmem_max`; needs `CAP_NET_ADMIN`. For netlink and packet
/// sockets, which lose messages when a burst does not fit.
pub(super) fn force_receive_buffer(socket: &impl AsFd, bytes: i32) -> io::Result<()> {
    set_option(
        &socket.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        &bytes,
    )
}

fn set_option<T>(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe one live, initialised `T`, which the kernel
    // only reads during the call. Callers pass the C struct that the option takes.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The kernel unbinds a packet socket from a link that it deletes (index -1).
fn is_bound(socket: &Socket) -> bool {
    let Ok(address) = socket.local_addr() else {
        return false;
    };
    if usize::try_from(address.len())
        .is_ok_and(|l| l < mem::offset_of!(libc::sockaddr_ll, sll_hatype))
    {
        return false;
    }
    // SAFETY: the storage behind a `SockAddr` is aligned for and as large as any socket address,
    // and wholly initialised; the kernel wrote a `sockaddr_ll` for a packet socket.
    let index = unsafe { (*address.as_ptr().cast::<libc::sockaddr_ll>()).sll_ifindex };
    index > 0
}

/// One `sendmmsg`; how many frames the kernel took.
fn send_many(socket: &Socket, frames: &[&Frame]) -> io::Result<usize> {
    let mut parts: Vec<libc::iovec> = frames
        .iter()
        .map(|frame| libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: frame.len(),
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: all zeroes is a valid `mmsghdr`: no name, no parts, no control data.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    // SAFETY: `messages` holds as many headers as is said; each points at one entry of `parts`,
    // and that at one frame. All outlive the call, none moves, and sending only reads the frames.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len() as libc::c_uint,
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests;
