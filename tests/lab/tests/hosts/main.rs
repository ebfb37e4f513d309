//! Hosts, links, faults, probes and the certain end of a lab, for real.
//!
//! Every test has a lab of its own. Without root they are skipped, with the reason.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a step of the tests' own that fails is a failed test"
)]

mod end;
mod ground;
mod links;
mod power;
mod probes;
