//! Writes to Services, all as merge patches: a Service is never ours alone.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::Value;

use super::{Error, patch, within};

const DEADLINE: Duration = Duration::from_secs(5);

/// Writes a patch made by [`patch::annotations`]; with a `resource_version` only if the Service
/// still has it.
pub async fn patch_annotations(
    client: &Client,
    namespace: &str,
    name: &str,
    patch: Value,
    resource_version: Option<&str>,
) -> Result<(), Error> {
    let patch = Patch::Merge(lock(patch, resource_version));
    let params = PatchParams::default();
    let api = api(client, namespace);
    within(DEADLINE, api.patch(name, &params, &patch)).await?;
    Ok(())
}

/// Writes a patch made by [`patch::load_balancer`] to the status subresource; with a
/// `resource_version` only if the Service still has it.
pub async fn patch_status(
    client: &Client,
    namespace: &str,
    name: &str,
    patch: Value,
    resource_version: Option<&str>,
) -> Result<(), Error> {
    let patch = Patch::Merge(lock(patch, resource_version));
    let params = PatchParams::default();
    let api = api(client, namespace);
    within(DEADLINE, api.patch_status(name, &params, &patch)).await?;
    Ok(())
}

/// Writes a merge patch of the metadata and returns the Service as stored.
pub async fn patch_metadata(
    client: &Client,
    namespace: &str,
    name: &str,
    patch: &Value,
) -> Result<Service, Error> {
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams::default();
    within(DEADLINE, api.patch(name, &params, &Patch::Merge(patch))).await
}

/// Writes a strategic merge patch of metadata and status to the status subresource, where the
/// framework writes finalizers, and returns the Service as stored. Lists of finalizers are changed by
/// element, so other writers' are safe without a version.
pub async fn patch_finalizers(
    client: &Client,
    namespace: &str,
    name: &str,
    patch: &Value,
) -> Result<Service, Error> {
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams::default();
    within(
        DEADLINE,
        api.patch_status(name, &params, &Patch::Strategic(patch)),
    )
    .await
}

/// The UID that the API server itself knows the Service by; `None` if there is none.
pub async fn uid(client: &Client, namespace: &str, name: &str) -> Result<Option<String>, Error> {
    let api = api(client, namespace);
    match within(DEADLINE, api.get_opt(name)).await? {
        Some(found) => Ok(Some(found.metadata.uid.unwrap_or_default())),
        None => Ok(None),
    }
}

/// The answers' specs are nobody's concern here, so they need not parse.
fn api(client: &Client, namespace: &str) -> Api<PartialObjectMeta<Service>> {
    Api::namespaced(client.clone(), namespace)
}

fn lock(patch: Value, resource_version: Option<&str>) -> Value {
    match resource_version {
        Some(version) => patch::locked(patch, version),
        None => patch,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::{Class, dialogue};

    #[tokio::test]
    async fn a_status_patch_goes_to_the_subresource_with_the_version_it_is_for() {
        let (client, mut server) = dialogue::pair();
        let patch = json!({"status": {"loadBalancer": {"ingress": null}}});
        let server = async {
            let call = server.next().await;
            assert_eq!(call.method, "PATCH");
            assert!(
                call.uri
                    .starts_with("/api/v1/namespaces/a/services/s/status?")
            );
            assert_eq!(call.body["metadata"]["resourceVersion"], "7");
            call.fail(409, "Conflict");
        };
        let (result, ()) = tokio::join!(patch_status(&client, "a", "s", patch, Some("7")), server);
        assert_eq!(result.unwrap_err().class(), Class::Conflict);
    }

    #[tokio::test]
    async fn an_annotation_patch_without_a_version_has_none() {
        let (client, mut server) = dialogue::pair();
        let patch = json!({"metadata": {"annotations": {"x": "y"}}});
        let server = async {
            let call = server.next().await;
            assert!(call.uri.starts_with("/api/v1/namespaces/a/services/s?"));
            assert_eq!(call.body, json!({"metadata": {"annotations": {"x": "y"}}}));
            call.ok(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}));
        };
        let (result, ()) = tokio::join!(patch_annotations(&client, "a", "s", patch, None), server);
        result.unwrap();
    }
}
