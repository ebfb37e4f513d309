//! The number of a cluster: unique on the machine while the cluster lives.
//!
//! A process hands numbers out in turn: what a cluster leaves to be deleted in a shared API server has
//! long gone when its number comes round.

use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Result, bail};

use crate::claim::Claim;

const HIGHEST: u8 = 200;

static LAST: AtomicU8 = AtomicU8::new(0);

/// A held number, from 1.
#[derive(Debug)]
pub(super) struct Number {
    pub(super) value: u8,
    _claim: Claim,
}

impl Number {
    pub(super) fn take() -> Result<Self> {
        let following = |last: u8| if last >= HIGHEST { 1 } else { last + 1 };
        for _ in 0..HIGHEST {
            let next = |last| Some(following(last));
            let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
            let value = following(last.unwrap_or_else(|last| last));
            if let Some(claim) = Claim::take(&format!("cluster-{value}"))? {
                return Ok(Self {
                    value,
                    _claim: claim,
                });
            }
        }
        bail!("{HIGHEST} clusters stand on this machine")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clusters_never_have_the_same_number() {
        let (one, other) = (Number::take().unwrap(), Number::take().unwrap());
        assert_ne!(one.value, other.value);
    }
}
