//! Says so where the watch over Leases is refused: a right is missing, and somebody must grant it.
//!
//! Elections go on without the watch, so nothing else would show that the Leases of others, kube-vip's
//! above all, are not seen. The informer behind the watch does not tell a refusal from an outage; this
//! asks once more when the watch has been missing for a while, and reports each refusal once.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{ListParams, WatchParams},
    core::DeserializeGuard,
};
use tokio::sync::watch;
use tracing::warn;

use crate::{
    k8s::{Class, Error},
    runtime::{
        clock,
        informer::{InformerStatus, Selection},
    },
};

/// How long the watch is missing before it is asked why.
const PATIENCE: Duration = Duration::from_secs(10);
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// Runs beside the informer, for ever.
pub(super) async fn report(
    api: Api<DeserializeGuard<Lease>>,
    selection: Selection,
    mut status: watch::Receiver<InformerStatus>,
) {
    loop {
        let error = refusal(&api, &selection, &mut status).await;
        warn!(
            %error,
            "the right to list and watch leases.coordination.k8s.io is missing: wanted Leases are \
             polled, and no others, as those of kube-vip, are seen"
        );
        reach(&mut status, true).await;
    }
}

/// Returns when the watch is missing because it is refused.
async fn refusal(
    api: &Api<DeserializeGuard<Lease>>,
    selection: &Selection,
    status: &mut watch::Receiver<InformerStatus>,
) -> Error {
    loop {
        reach(status, false).await;
        if tokio::time::timeout(PATIENCE, reach(status, true))
            .await
            .is_err()
            && let Some(error) = ask(api, selection).await
        {
            return error;
        }
    }
}

/// Waits until the watch is up, or is not. For ever where the informer has ended.
async fn reach(status: &mut watch::Receiver<InformerStatus>, connected: bool) {
    if status
        .wait_for(|status| status.connected == connected)
        .await
        .is_err()
    {
        clock::sleep_until(None).await;
    }
}

/// Lists and watches as the informer does. What fails otherwise than by a refusal says nothing.
async fn ask(api: &Api<DeserializeGuard<Lease>>, selection: &Selection) -> Option<Error> {
    let calls = async {
        let list = ListParams {
            field_selector: selection.fields.clone(),
            limit: Some(1),
            ..ListParams::default()
        };
        let page = api.list(&list).await?;
        let position = page.metadata.resource_version.unwrap_or_default();
        let watch = WatchParams {
            field_selector: selection.fields.clone(),
            timeout: Some(1),
            ..WatchParams::default()
        };
        api.watch(&watch, &position).await.map(drop)
    };
    let answer = tokio::time::timeout(ANSWER_DEADLINE, calls).await.ok()?;
    let error = Error::from(answer.err()?);
    (error.class() == Class::Forbidden).then_some(error)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::dialogue;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_refused_is_told_from_one_that_is_down_or_up() {
        let (client, mut server) = dialogue::pair();
        let api = Api::all(client);
        let selection = Selection::fields("metadata.namespace!=kube-node-lease");
        let begun = clock::now();
        let (sender, mut status) = watch::channel(InformerStatus::new(begun));
        let told = tokio::spawn(async move { refusal(&api, &selection, &mut status).await });

        // An outage is no refusal.
        let list = server.next().await;
        assert!(clock::now() - begun >= PATIENCE);
        assert!(list.uri.contains("limit=1"), "{}", list.uri);
        list.fail(500, "InternalError");
        // Nor is anything asked while the watch is up.
        sender.send_modify(|status| status.connected = true);
        let quiet = tokio::time::timeout(PATIENCE * 10, server.next()).await;
        assert!(quiet.is_err());
        sender.send_modify(|status| status.connected = false);

        let list = server.next().await;
        list.ok(&json!({"metadata": {"resourceVersion": "7"}, "items": []}));
        let watch = server.next().await;
        assert!(watch.uri.contains("watch=true") && watch.uri.contains("resourceVersion=7"));
        watch.fail(403, "Forbidden");
        assert_eq!(told.await.unwrap().class(), Class::Forbidden);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_refused_is_reported() {
        let (client, mut server) = dialogue::pair();
        let api = Api::all(client);
        let (_sender, mut status) = watch::channel(InformerStatus::new(clock::now()));
        let selection = Selection::default();
        let told = tokio::spawn(async move { refusal(&api, &selection, &mut status).await });
        server.next().await.fail(403, "Forbidden");
        assert_eq!(told.await.unwrap().class(), Class::Forbidden);
    }
}
