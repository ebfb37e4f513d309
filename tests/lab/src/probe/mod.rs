//! What a scenario measures with: who reaches an address, who answers for it, what is on the wire.
//!
//! Each probe starts on a host, runs on a thread of its own, and is stopped for its report.

mod asker;
mod capture;
mod echo;
mod gaps;
mod http;
mod worker;

pub use asker::{Answers, Asker};
pub use capture::{Capture, Frame};
pub use echo::{EchoProbe, Report};
pub use gaps::Gap;
pub use http::{HttpProbe, HttpReport, http_get};
