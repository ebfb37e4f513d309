//! Exponential back-off with a cap and jitter, as a pure function.
//!
//! In: how often something has failed in a row, and a random fraction. Out: how long to wait.
//! Jitter only shortens, so `cap` is a promise, and callers that failed together spread out.

use std::time::Duration;

/// A policy; it counts nothing itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    jitter: f64,
}

impl Backoff {
    /// Doubles from `first` to `cap`; up to `jitter` (0 to 1) of each wait is taken off at random.
    pub const fn new(first: Duration, cap: Duration, jitter: f64) -> Self {
        Self { first, cap, jitter }
    }

    /// The wait after `failures` failures in a row; the first failure is 1, and 0 counts as 1.
    pub fn delay(&self, failures: u32, fraction: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.cap);
        full.mul_f64((1.0 - self.jitter.clamp(0.0, 1.0) * fraction.clamp(0.0, 1.0)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2), 0.5);

    #[test]
    fn waits_double_up_to_the_cap() {
        let waits: Vec<u128> = (0..8).map(|n| POLICY.delay(n, 0.0).as_millis()).collect();
        assert_eq!(waits, [100, 100, 200, 400, 800, 1600, 2000, 2000]);
    }

    #[test]
    fn full_jitter_halves_the_wait() {
        assert_eq!(POLICY.delay(1, 1.0), Duration::from_millis(50));
        assert_eq!(POLICY.delay(u32::MAX, 1.0), Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn no_wait_exceeds_the_cap_or_falls_below_half_the_first(failures: u32, fraction in 0.0..1.0) {
            let wait = POLICY.delay(failures, fraction);
            prop_assert!(wait <= Duration::from_secs(2));
            prop_assert!(wait >= Duration::from_millis(50));
        }
    }
}
