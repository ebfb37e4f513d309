//! Nothing is announced for an owner that does not prove that it lives.
//!
//! The loop that decides proves on each turn that it knows what it owns. A process that was stopped,
//! or whose loop hangs, may have lost its Leases and, by the kernel's hand, its addresses without
//! knowing it yet. When its announcers run again before the loop does, they must not say otherwise.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// The loop turns at least once a second.
const VALID_FOR: Duration = Duration::from_secs(2);

/// Held by the loop.
#[derive(Debug)]
pub struct Proof(watch::Sender<Instant>);

/// Held by each announcer.
#[derive(Debug, Clone)]
pub struct Fence(watch::Receiver<Instant>);

/// A fence that is open for the first two seconds.
pub fn fence(now: Instant) -> (Proof, Fence) {
    let (proof, fence) = watch::channel(now);
    (Proof(proof), Fence(fence))
}

impl Proof {
    /// What is owned was known at `now`.
    pub fn renew(&self, now: Instant) {
        self.0.send_replace(now);
    }
}

impl Fence {
    /// Announcements may be sent.
    pub fn is_open(&self, now: Instant) -> bool {
        now.saturating_duration_since(*self.0.borrow()) < VALID_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_closes_without_proof_and_opens_with_the_next() {
        let start = crate::runtime::clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (proof, fence) = fence(start);
        assert!(fence.is_open(at(1)));
        assert!(!fence.is_open(at(2)));
        proof.renew(at(9));
        assert!(fence.is_open(at(10)));
        assert!(!fence.is_open(at(11)));
    }
}
