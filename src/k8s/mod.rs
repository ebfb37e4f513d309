//! Typed verbs on the guest cluster's API; no decisions.
//!
//! Every verb has its own deadline and fails with an [`Error`], whose [`Class`] says what a caller
//! can do about it. The client below retries nothing by itself.

pub mod client;
pub mod config_map;
pub mod error;
pub mod events;
pub mod lease;
pub mod metrics;
pub mod names;
pub mod node;
pub mod patch;
pub mod service;

#[cfg(test)]
pub(crate) mod dialogue;

pub use client::{ClientSource, ConnectError, Connection, connect};
pub use error::{Class, Error, within};
