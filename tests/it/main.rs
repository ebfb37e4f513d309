//! The one integration-test binary.

#![expect(clippy::panic, reason = "a test fails by panicking, its functions too")]

mod speaker_vip;
mod support;
