//! The system calls that neither std nor socket2 wraps, each behind a safe function.
//!
//! Nothing else in the lab is `unsafe`.
#![expect(
    unsafe_code,
    reason = "setns, signals, packet sockets and ppoll have no safe wrapper in our dependencies"
)]

use std::{
    fs::File,
    io,
    mem::size_of,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::process::CommandExt,
    },
    process::Command,
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, SockAddr, SockFilter, Socket, Type};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Moves the calling thread, and no other, into a network namespace.
pub(crate) fn enter_namespace(namespace: &File) -> io::Result<()> {
    // SAFETY: setns takes a descriptor, which `namespace` keeps open, and no memory.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Makes `command` start inside a network namespace, with a `/sys` that shows it.
pub(crate) fn enter_on_exec(command: &mut Command, namespace: Arc<File>) {
    // SAFETY: between fork and exec only async-signal-safe system calls on static memory are made;
    // nothing is allocated or locked.
    unsafe {
        command.pre_exec(move || {
            enter_namespace(&namespace)?;
            mount_sys();
            Ok(())
        });
    }
}

/// Gives the calling process a `/sys` of its network namespace, in a mount namespace of its own.
///
/// A container may forbid it; then the process sees the links of the root namespace there, which
/// only matters to programs that read `/sys/class/net`. So the outcome is not checked.
fn mount_sys() {
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: every pointer is a static, NUL-terminated string, or null where mount(2) allows it.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) == 0
            // Slave, so that the deletion of a namespace's name outside reaches this copy of it.
            && libc::mount(
                none,
                c"/".as_ptr(),
                none,
                libc::MS_SLAVE | libc::MS_REC,
                none.cast(),
            ) == 0
        {
            libc::mount(
                c"sysfs".as_ptr(),
                c"/sys".as_ptr(),
                c"sysfs".as_ptr(),
                0,
                none.cast(),
            );
        }
    }
}

/// Sends `signal` to the process `pid`, or to the process group `-pid`.
pub(crate) fn signal(pid: i32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: kill takes two integers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Whether the effective user is root.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Waits until one of `sockets` can be read, for at most `patience`; true if one can.
///
/// Unlike a receive timeout (whole ticks of the kernel), ppoll wakes within tens of microseconds.
pub(crate) fn wait_readable(sockets: &[BorrowedFd<'_>], patience: Duration) -> io::Result<bool> {
    let mut polled: Vec<libc::pollfd> = sockets
        .iter()
        .map(|socket| libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let timeout = libc::timespec {
        tv_sec: patience.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    };
    let count = libc::nfds_t::try_from(polled.len()).map_err(io::Error::other)?;
    // SAFETY: `polled` holds `count` initialised entries and outlives the call, as does `timeout`.
    let ready = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            count,
            &raw const timeout,
            std::ptr::null(),
        )
    };
    match check(ready) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a packet socket is for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketOptions<'a> {
    /// Classic BPF; empty passes every frame.
    pub(crate) filter: &'a [SockFilter],
    /// Also show the frames that this host sends.
    pub(crate) outgoing: bool,
    /// Also show frames to other stations; on a bridge, every frame that it forwards.
    pub(crate) promiscuous: bool,
    /// Put a `virtio_net_hdr` before each frame, so that segments larger than the MTU and
    /// unfinished checksums survive being read and sent again.
    pub(crate) offload_header: bool,
}

/// A packet socket on the link `name` of the calling thread's namespace. It does not block.
pub(crate) fn packet_socket(name: &str, options: PacketOptions<'_>) -> io::Result<Socket> {
    let index = link_index(name)?;
    // Protocol 0 hears nothing, so no frame can queue before the filter is there.
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
    socket.set_nonblocking(true)?;
    if !options.filter.is_empty() {
        socket.attach_filter(options.filter)?;
    }
    if !options.outgoing {
        set_packet_option(&socket, libc::PACKET_IGNORE_OUTGOING, &1_i32)?;
    }
    if options.offload_header {
        set_packet_option(&socket, libc::PACKET_VNET_HDR, &1_i32)?;
    }
    if options.promiscuous {
        let membership = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC
                .try_into()
                .map_err(io::Error::other)?,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_packet_option(&socket, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
    }
    // A burst between two turns of the reader must not be dropped. The kernel caps it silently.
    socket.set_recv_buffer_size(4 << 20)?;
    socket.bind(&link_address(index)?)?;
    Ok(socket)
}

fn set_packet_option<T>(socket: &Socket, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: `value` is a live, initialised `T` of `length` bytes, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    check(result).map(drop)
}

fn link_index(name: &str) -> io::Result<i32> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: `name` is NUL-terminated and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    match i32::try_from(index) {
        Ok(index) if index > 0 => Ok(index),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The address of every protocol on the link `index`.
fn link_address(index: i32) -> io::Result<SockAddr> {
    let every = u16::try_from(libc::ETH_P_ALL).map_err(io::Error::other)?;
    // SAFETY: the storage is zeroed, larger than `sockaddr_ll` and aligned for it; the length set
    // is that of the structure written.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let link = storage.cast::<libc::sockaddr_ll>();
            (*link).sll_family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
            (*link).sll_protocol = every.to_be();
            (*link).sll_ifindex = index;
            *length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>())
                .map_err(io::Error::other)?;
            Ok(())
        })
    }?;
    Ok(address)
}
