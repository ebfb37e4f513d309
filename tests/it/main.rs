//! The one integration-test binary.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, its functions too"
)]

mod architecture;
mod cli;
mod coexistence;
mod kube_vip_faults;
mod speaker_api;
mod speaker_process;
mod speaker_requests;
mod speaker_vip;
mod support;
