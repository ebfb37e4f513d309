//! The one integration-test binary.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, its functions too"
)]

mod architecture;
mod ccm;
mod cli;
mod coexistence;
mod coverage;
mod embedded;
mod kube_vip;
mod kube_vip_faults;
mod speaker_api;
mod speaker_endpoints;
mod speaker_failover;
mod speaker_groups;
mod speaker_nodes;
mod speaker_process;
mod speaker_requests;
mod speaker_status;
mod speaker_vip;
mod speaker_wire;
mod support;
