//! An elector's call, carried out: verb, deadline, and what its failure means to the elector.

use std::{sync::Arc, time::Duration};

use kube::Client;
use tracing::debug;

use crate::{
    election::{
        LeaseKey,
        elector::{Call, Outcome},
    },
    k8s::{self, Class, lease},
};

/// What a call's task brings back.
pub(super) struct Done {
    pub(super) key: LeaseKey,
    pub(super) outcome: Outcome,
    /// Why the server refused it, if it did: somebody has to change something.
    pub(super) refusal: Option<k8s::Error>,
}

/// Makes the call, within `deadline`.
pub(super) async fn perform(client: Client, key: LeaseKey, call: Call, deadline: Duration) -> Done {
    let (verb, result) = match &call {
        Call::Get => ("get", lease::get(&client, &key, deadline).await.map(Some)),
        Call::Create { record } => {
            let created = lease::create(&client, &key, record, deadline).await;
            ("create", created.map(Some))
        }
        Call::Replace { base, record } => {
            let replaced = lease::replace(&client, &key, base, record, deadline).await;
            ("replace", replaced.map(Some))
        }
        Call::Delete { base } => {
            let deleted = lease::delete(&client, &key, base, deadline).await;
            ("delete", deleted.map(|()| None))
        }
    };
    let error = match result {
        Ok(lease) => {
            let outcome = lease.map_or(Outcome::Gone, |mut lease| {
                lease.metadata.managed_fields = None;
                Outcome::Object(Arc::new(lease))
            });
            return Done {
                key,
                outcome,
                refusal: None,
            };
        }
        Err(error) => error,
    };
    debug!(lease = %key, verb, %error, "election call failed");
    let outcome = failure(&error, matches!(call, Call::Create { .. }));
    let refused = matches!(
        error.class(),
        Class::Unauthorized | Class::Forbidden | Class::Invalid | Class::Other
    );
    Done {
        key,
        outcome,
        refusal: refused.then_some(error),
    }
}

fn failure(error: &k8s::Error, creating: bool) -> Outcome {
    match error.class() {
        // Of a creation: the namespace does not exist.
        Class::NotFound if !creating => Outcome::Gone,
        Class::Conflict | Class::AlreadyExists => Outcome::Conflict,
        Class::Retry { after } => Outcome::Failed { after },
        Class::Forbidden | Class::Invalid => Outcome::Refused,
        _ => Outcome::Failed { after: None },
    }
}
