//! The number of a cluster: unique on the machine while the cluster lives.
//!
//! A number is held by a lock on a file, so it is free again however its process ends. A process hands
//! them out in turn: what a cluster leaves to be deleted in a shared API server has long gone when its
//! number comes round.

use std::{
    fs::{self, File},
    sync::atomic::{AtomicU8, Ordering},
};

use anyhow::{Context, Result, bail};

const HIGHEST: u8 = 200;

static NEXT: AtomicU8 = AtomicU8::new(0);

/// A held number.
#[derive(Debug)]
pub(super) struct Number {
    pub(super) value: u8,
    _lock: File,
}

impl Number {
    pub(super) fn take() -> Result<Self> {
        let folder = std::env::temp_dir().join("harvester-lab-clusters");
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        for _ in 0..HIGHEST {
            let turn = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| {
                Some(if it >= HIGHEST - 1 { 0 } else { it + 1 })
            });
            let value = 1 + turn.unwrap_or_default();
            let file = folder.join(value.to_string());
            let lock = File::options().create(true).append(true).open(&file);
            let lock = lock.with_context(|| format!("opening {}", file.display()))?;
            if lock.try_lock().is_ok() {
                return Ok(Self { value, _lock: lock });
            }
        }
        bail!("{HIGHEST} clusters run on this machine")
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
