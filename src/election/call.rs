//! What an elector asks of the API server, and what can become of it. Pure.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;

use super::record::LeaseRecord;

/// A call for the driver to make; every write is conditional on `base`.
#[derive(Debug, Clone)]
pub enum Call {
    Get,
    Create {
        record: LeaseRecord,
    },
    Replace {
        base: Arc<Lease>,
        record: LeaseRecord,
    },
    Delete {
        base: Arc<Lease>,
    },
}

/// What became of a call.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The object as the server has it now: read, created or replaced.
    Object(Arc<Lease>),
    /// There is no such object, or not any more.
    Gone,
    /// The object is not the one the write was based on, or exists already.
    Conflict,
    /// Anything else, an unknown result included: try again, not before `after`.
    Failed { after: Option<Duration> },
    /// The server will not do it, now or later, unless somebody changes something.
    Refused,
}
