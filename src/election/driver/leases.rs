//! The watch over Leases: which, and the task that delivers them.

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, core::DeserializeGuard};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::rights;
use crate::{
    election::LeaseKey,
    runtime::informer::{self, Delta, InformerStatus, Selection},
};

/// Which Leases are watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All but those of `kube-node-lease`.
    All,
    /// One, the only one that may be contended for.
    One(LeaseKey),
}

impl Scope {
    fn selection(&self) -> Selection {
        Selection::fields(match self {
            Self::All => "metadata.namespace!=kube-node-lease".to_owned(),
            Self::One(key) => format!("metadata.name={}", key.name),
        })
    }

    fn api(&self, client: Client) -> Api<DeserializeGuard<Lease>> {
        match self {
            Self::All => Api::all(client),
            Self::One(key) => Api::namespaced(client, &key.namespace),
        }
    }
}

/// Starts the watch, as a task of its own, so that neither a busy loop nor the parsing of lists delays
/// the other.
pub(super) fn watch(
    client: &Client,
    scope: &Scope,
    deltas: mpsc::Sender<Delta<Lease>>,
    status: watch::Sender<InformerStatus>,
) -> JoinSet<()> {
    let (api, selection) = (scope.api(client.clone()), scope.selection());
    let rights = rights::report(api.clone(), selection.clone(), status.subscribe());
    let informer = informer::run(api, selection, |_| {}, deltas, |delta| delta, status);
    let mut watch = JoinSet::new();
    watch.spawn(async move {
        tokio::select! {
            () = informer => {}
            () = rights => {}
        }
    });
    watch
}
