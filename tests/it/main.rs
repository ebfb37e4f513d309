//! The one integration-test binary.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, its functions too"
)]

mod architecture;
mod cli;
mod speaker_vip;
mod support;
