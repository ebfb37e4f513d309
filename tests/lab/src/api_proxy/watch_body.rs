//! The body of a watch on its way to the client: delayed, held back or cut.

use std::{collections::VecDeque, time::Instant};

use anyhow::{Error, Result, anyhow};
use futures_util::{Stream, stream};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use tokio::sync::watch;

use super::faults::Weather;
use crate::clock;

/// Frames held back at most; then the server's side is no longer read, as with a full window.
const HELD: usize = 1024;

struct WatchBody {
    upstream: Incoming,
    weather: watch::Receiver<Weather>,
    epoch: u64,
    /// Frames with the time at which they may pass. Stamped on arrival: a delay is no throttle.
    held: VecDeque<(Instant, Frame<Bytes>)>,
    ended: bool,
}

/// Passes `upstream` on, under the weather.
pub(super) fn watch_body(
    upstream: Incoming,
    weather: watch::Receiver<Weather>,
) -> UnsyncBoxBody<Bytes, Error> {
    let epoch = weather.borrow().watch_epoch;
    let body = WatchBody {
        upstream,
        weather,
        epoch,
        held: VecDeque::new(),
        ended: false,
    };
    http_body_util::StreamBody::new(frames(body)).boxed_unsync()
}

fn frames(body: WatchBody) -> impl Stream<Item = Result<Frame<Bytes>>> {
    stream::unfold(Some(body), async |state| {
        let mut body = state?;
        match body.next().await {
            Ok(Some(frame)) => Some((Ok(frame), Some(body))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}

impl WatchBody {
    async fn next(&mut self) -> Result<Option<Frame<Bytes>>> {
        loop {
            let weather = *self.weather.borrow_and_update();
            if weather.watch_epoch != self.epoch {
                return Err(anyhow!("the watch was cut"));
            }
            let due = self
                .held
                .front()
                .filter(|_| !weather.is_silent())
                .map(|(at, _)| *at);
            if due.is_some_and(|at| at <= clock::now()) {
                return Ok(self.held.pop_front().map(|(_, frame)| frame));
            }
            if self.ended && self.held.is_empty() {
                return Ok(None);
            }
            tokio::select! {
                changed = self.weather.changed() => changed?,
                () = reached(due) => {}
                frame = self.upstream.frame(), if !self.ended && self.held.len() < HELD => {
                    match frame {
                        Some(frame) => {
                            self.held.push_back((clock::now() + weather.latency, frame?));
                        }
                        None => self.ended = true,
                    }
                }
            }
        }
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => clock::sleep(deadline.saturating_duration_since(clock::now())).await,
        None => std::future::pending().await,
    }
}
