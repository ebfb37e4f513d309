//! The only door to the kernel: links, addresses, packet sockets, and the bytes on the wire.
//!
//! Everything here is a verb or a value; decisions live in `speaker`.
//!
//! `frame` and `bpf` are pure. `packet_socket` carries frames, `netlink` changes addresses,
//! `monitor` tells what the kernel has; `decode` and `tracker` are the pure halves of the last two.

pub mod bpf;
mod decode;
pub mod frame;
pub mod link;
pub mod monitor;
pub mod netlink;
pub mod packet_socket;
#[cfg(test)]
pub(crate) mod testing;
mod tracker;
