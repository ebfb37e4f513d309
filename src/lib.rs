//! Cloud controller manager for Harvester guest clusters with a built-in layer-2 VIP speaker.
//!
//! ```text
//! watches, netlink monitor, election, wire, action outcomes
//!     └─▶ Event ─▶ Model::apply ─▶ desired() ─▶ plan(desired, observed) ─▶ Action ─▶ executor ─▶ outcome ─▶ Event
//! ```
//!
//! Arrows go one way. Decisions are pure functions, everything that depends on time is a machine
//! without I/O, and every effect on the operating system or the API server sits behind one small
//! module. `ARCHITECTURE.md` tells where a line of code belongs.

pub mod ccm;
pub mod check;
pub mod config;
pub mod election;
pub mod harvester;
pub mod k8s;
pub mod net;
pub mod runtime;
pub mod speaker;
