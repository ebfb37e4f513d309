//! The VIP speaker.

pub mod announcer;
