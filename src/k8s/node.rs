//! Writes to Nodes, all as merge patches: a Node is the kubelet's first of all.
//!
//! Every write names the Node's UID, so none falls on a successor of the same name.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::PartialObjectMeta,
};
use serde_json::{Value, json};

use super::{Class, Error, patch, within};

const DEADLINE: Duration = Duration::from_secs(5);
/// Writes of one change before somebody else's writes count as a reason to come back later.
const TRIES: u32 = 5;

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Written,
    /// Nothing was left to change.
    Unneeded,
    /// The Node is no more.
    Gone,
}

/// Writes what `decide` wants of the Node, as one compare-and-swap: when somebody else was faster,
/// the Node is read again and decided about anew. `seen` may be old.
pub async fn change(
    client: &Client,
    seen: &Node,
    decide: impl Fn(&Node) -> Option<Value>,
) -> Result<Change, Error> {
    let name = seen.name_any();
    let api = written(client);
    let params = PatchParams::default();
    let mut fresh: Option<Node> = None;
    for attempt in 1..=TRIES {
        let node = fresh.as_ref().unwrap_or(seen);
        let Some(patch) = decide(node) else {
            return Ok(Change::Unneeded);
        };
        let version = node.resource_version().unwrap_or_default();
        let patch = Patch::Merge(patch::locked(of_object(patch, node), &version));
        let Err(error) = call_within(api.patch(&name, &params, &patch)).await else {
            return Ok(Change::Written);
        };
        match error.class() {
            Class::NotFound => return Ok(Change::Gone),
            Class::Conflict if attempt < TRIES => {}
            _ => return Err(error),
        }
        match get(client, &name).await? {
            Some(node) if node.metadata.uid == seen.metadata.uid => fresh = Some(node),
            _ => return Ok(Change::Gone),
        }
    }
    Ok(Change::Unneeded)
}

/// Writes to the status subresource, whatever has been written since `node` was read.
pub async fn patch_status(client: &Client, node: &Node, patch: Value) -> Result<(), Error> {
    let patch = Patch::Merge(of_object(patch, node));
    let api = written(client);
    let name = node.name_any();
    call_within(api.patch_status(&name, &PatchParams::default(), &patch)).await?;
    Ok(())
}

/// Deletes this very Node; with a `resource_version` only if nobody has written it since.
pub async fn delete(
    client: &Client,
    node: &Node,
    resource_version: Option<String>,
) -> Result<(), Error> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: node.uid(),
            resource_version,
        }),
        ..DeleteParams::default()
    };
    let api: Api<Node> = Api::all(client.clone());
    call_within(api.delete(&node.name_any(), &params)).await?;
    Ok(())
}

async fn get(client: &Client, name: &str) -> Result<Option<Node>, Error> {
    let api: Api<Node> = Api::all(client.clone());
    call_within(api.get_opt(name)).await
}

/// What the answers to writes say is nobody's concern, so it need not parse.
fn written(client: &Client) -> Api<PartialObjectMeta<Node>> {
    Api::all(client.clone())
}

async fn call_within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    within(DEADLINE, call).await
}

/// `patch`, to be refused by any Node but this.
fn of_object(mut patch: Value, node: &Node) -> Value {
    if let (Value::Object(object), Some(uid)) = (&mut patch, node.uid())
        && let Value::Object(metadata) = object.entry("metadata").or_insert_with(|| json!({}))
    {
        metadata.insert("uid".to_owned(), uid.into());
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::dialogue;

    fn node(uid: &str, version: &str, label: Option<&str>) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "uid": uid, "resourceVersion": version,
                         "labels": label.map(|value| json!({"x": value}))},
        })
    }

    fn read(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn decide(node: &Node) -> Option<Value> {
        let done = node.labels().get("x").is_some_and(|value| value == "new");
        (!done).then(|| json!({"metadata": {"labels": {"x": "new"}}}))
    }

    #[tokio::test]
    async fn a_change_on_a_stale_node_is_decided_again_on_a_fresh_one() {
        let (client, mut server) = dialogue::pair();
        let seen = read(node("u1", "1", None));
        let answers = async {
            let call = server.next().await;
            assert_eq!(call.method, "PATCH");
            assert!(call.uri.starts_with("/api/v1/nodes/n1?"));
            let expected = json!({"metadata": {
                "labels": {"x": "new"}, "uid": "u1", "resourceVersion": "1"}});
            assert_eq!(call.body, expected);
            call.fail(409, "Conflict");
            server.next().await.ok(&node("u1", "2", Some("old")));
            let call = server.next().await;
            assert_eq!(call.body["metadata"]["resourceVersion"], "2");
            call.ok(&node("u1", "3", Some("new")));
        };
        let (changed, ()) = tokio::join!(change(&client, &seen, decide), answers);
        assert_eq!(changed.unwrap(), Change::Written);
    }

    #[tokio::test]
    async fn nothing_is_written_when_somebody_else_has_done_it() {
        let (client, mut server) = dialogue::pair();
        let seen = read(node("u1", "1", None));
        let answers = async {
            server.next().await.fail(409, "Conflict");
            server.next().await.ok(&node("u1", "2", Some("new")));
        };
        let (changed, ()) = tokio::join!(change(&client, &seen, decide), answers);
        assert_eq!(changed.unwrap(), Change::Unneeded);
    }

    #[tokio::test]
    async fn a_successor_of_the_same_name_is_left_alone() {
        let (client, mut server) = dialogue::pair();
        let seen = read(node("u1", "1", None));
        let answers = async {
            server.next().await.fail(409, "Conflict");
            server.next().await.ok(&node("u2", "9", None));
        };
        let (changed, ()) = tokio::join!(change(&client, &seen, decide), answers);
        assert_eq!(changed.unwrap(), Change::Gone);
    }

    #[tokio::test]
    async fn endless_conflicts_are_an_error() {
        let (client, mut server) = dialogue::pair();
        let seen = read(node("u1", "1", None));
        let answers = async {
            for attempt in 1..=TRIES {
                server.next().await.fail(409, "Conflict");
                if attempt < TRIES {
                    server.next().await.ok(&node("u1", "2", None));
                }
            }
        };
        let (changed, ()) = tokio::join!(change(&client, &seen, decide), answers);
        assert_eq!(changed.unwrap_err().class(), Class::Conflict);
    }

    #[tokio::test]
    async fn a_deletion_is_of_this_very_node() {
        let (client, mut server) = dialogue::pair();
        let seen = read(node("u1", "7", None));
        let answers = async {
            let call = server.next().await;
            assert_eq!(call.method, "DELETE");
            let expected = json!({"uid": "u1", "resourceVersion": "7"});
            assert_eq!(call.body["preconditions"], expected);
            call.ok(&json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}));
        };
        let version = seen.resource_version();
        let (deleted, ()) = tokio::join!(delete(&client, &seen, version), answers);
        deleted.unwrap();
    }
}
