//! The only door to the kernel: links, addresses, packet sockets, and the bytes on the wire.
//!
//! Everything here is a verb or a value; decisions live in `speaker`.

pub mod link;
