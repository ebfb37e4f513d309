//! The lab's only reader of clocks and of entropy.
//!
//! Always real time: probes and forwarders run on threads of their own, outside any runtime.

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant, SystemTime},
};

/// Monotonic time.
#[expect(
    clippy::disallowed_methods,
    reason = "this module is the lab's one reader of clocks"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// Wall time, for the stamps of capture files and of objects.
#[expect(
    clippy::disallowed_methods,
    reason = "this module is the lab's one reader of clocks"
)]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Returns after `period`; to pace something, never to wait for something.
#[expect(
    clippy::disallowed_methods,
    reason = "this module is the lab's one reader of clocks"
)]
pub async fn sleep(period: Duration) {
    tokio::time::sleep(period).await;
}

/// A random number in [0, 1), for jitter.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
pub fn random_fraction() -> f64 {
    (RandomState::new().hash_one(0_u8) >> 11) as f64 / (1_u64 << 53) as f64
}
