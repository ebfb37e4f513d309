//! The only reader of clocks and of entropy.
//!
//! Monotonic time is tokio's, so that `#[tokio::test(start_paused = true)]` drives machines and
//! drivers alike. Wall time exists only to fill fields of objects; nothing decides by it.

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;

/// Monotonic time, as every machine of this program takes it.
#[expect(
    clippy::disallowed_methods,
    reason = "this module is the one reader of clocks"
)]
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Wall time, for `renewTime`, condition times and events only.
#[expect(
    clippy::disallowed_methods,
    reason = "this module is the one reader of clocks"
)]
pub fn wall() -> Timestamp {
    Timestamp::now()
}

/// Returns at `deadline`, at once if that has passed, never if there is none.
///
/// Cancel safe: dropping the future forgets the wait and nothing else.
pub async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns after `period`.
pub async fn sleep(period: Duration) {
    sleep_until(Some(now() + period)).await;
}

/// 64 random bits. Not for secrets.
pub fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// A random number in [0, 1), for jitter.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
pub fn random_fraction() -> f64 {
    (random() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_stay_in_the_unit_interval_and_vary() {
        let drawn: Vec<f64> = (0..100).map(|_| random_fraction()).collect();
        assert!(drawn.iter().all(|f| (0.0..1.0).contains(f)));
        assert!(drawn.windows(2).any(|w| w[0] < w[1]));
    }
}
