//! When each VIP's gratuitous frames are due. Sans-IO.
//!
//! ```text
//!             announce                 3,000 ms
//! (silent) ───────────▶ burst ───────────────────▶ paced ─┐ every interval ± 20 %
//!     ▲                  ▲  0, 50, 250, 1,100 ms    │ ◀───┘
//!     └── silence ───────┴──── MAC change, failure ─┘
//! ```
//!
//! RFC 5227 asks for two announcements two seconds apart, RFC 4861 for up to three neighbour
//! advertisements a second apart. Both are written for hosts at leisure. The burst here is denser
//! at first, because clients wait for it, and steps over Linux' `locktime` of a second, in which a
//! neighbour ignores what it takes for noise. After a loss of CPU the steps that were missed are
//! one announcement, not several.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::agenda::Agenda;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The burst, counted from its begin.
const BURST: [Duration; 5] = [ms(0), ms(50), ms(250), ms(1100), ms(3000)];

/// Between announcements while a predecessor may still answer, and between attempts on a link
/// that does not carry frames.
const INSISTENCE: Duration = ms(250);

/// A predecessor that was killed loses its VIPs to its kernel within 5.5 s.
const PREDECESSOR_LIMIT: Duration = Duration::from_secs(10);

/// More would be noise whatever was configured.
const SHORTEST_INTERVAL: Duration = ms(100);

/// A seeded generator (SplitMix64): only spreads refreshes, so quality is of no account.
#[derive(Debug)]
struct Jitter(u64);

impl Jitter {
    /// The duration ± 20 %.
    fn spread(&mut self, duration: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let tenth_percent = 800 + u32::try_from((z ^ (z >> 31)) % 401).unwrap_or(200);
        duration / 1000 * tenth_percent
    }
}

#[derive(Debug, Clone, Copy)]
struct Announced {
    burst_began: Instant,
    predecessor_until: Option<Instant>,
}

/// Knows the announced VIPs and when each is due. An announcement is one ARP request and one
/// reply, or one neighbour advertisement.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Duration,
    jitter: Jitter,
    vips: HashMap<IpAddr, Announced>,
    agenda: Agenda<IpAddr>,
}

impl Schedule {
    pub(super) fn new(interval: Duration, seed: u64) -> Self {
        Self {
            interval: interval.max(SHORTEST_INTERVAL),
            jitter: Jitter(seed),
            vips: HashMap::new(),
            agenda: Agenda::new(),
        }
    }

    /// Begins a burst now.
    pub(super) fn handle_announce(
        &mut self,
        vip: IpAddr,
        predecessor_may_answer: bool,
        now: Instant,
    ) {
        let announced = Announced {
            burst_began: now,
            predecessor_until: predecessor_may_answer.then(|| now + PREDECESSOR_LIMIT),
        };
        self.vips.insert(vip, announced);
        self.agenda.set(vip, now);
    }

    /// From now on nothing is due for it.
    pub(super) fn handle_silence(&mut self, vip: IpAddr) {
        self.vips.remove(&vip);
        self.agenda.cancel(vip);
    }

    /// One announcement out of turn.
    pub(super) fn handle_defence(&mut self, vip: IpAddr, now: Instant) {
        if self.vips.contains_key(&vip) {
            self.agenda.set(vip, now);
        }
    }

    /// An announcement did not leave: the burst begins again when the link may work again.
    pub(super) fn handle_failure(&mut self, vip: IpAddr, now: Instant) {
        if let Some(announced) = self.vips.get_mut(&vip) {
            announced.burst_began = now + INSISTENCE;
            self.agenda.set(vip, announced.burst_began);
        }
    }

    /// What neighbours have cached is wrong: a burst for all.
    pub(super) fn handle_mac_change(&mut self, now: Instant) {
        for (vip, announced) in &mut self.vips {
            announced.burst_began = now;
            self.agenda.set(*vip, now);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.agenda.next()
    }

    /// The next VIP to be announced now.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<IpAddr> {
        let vip = self.agenda.pop_due(now)?;
        let announced = *self.vips.get(&vip)?;
        let next = self.following(announced, now);
        self.agenda.set(vip, next);
        Some(vip)
    }

    /// When a VIP is due that has been announced now.
    fn following(&mut self, announced: Announced, now: Instant) -> Instant {
        let steps = BURST.iter().map(|offset| announced.burst_began + *offset);
        let planned = steps
            .into_iter()
            .find(|step| *step > now)
            .unwrap_or_else(|| now + self.jitter.spread(self.interval));
        match announced.predecessor_until {
            Some(until) if now < until => planned.min(now + INSISTENCE),
            _ => planned,
        }
    }
}

#[cfg(test)]
mod tests;
