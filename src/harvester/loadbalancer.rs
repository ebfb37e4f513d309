//! LoadBalancer objects of the infrastructure cluster (`loadbalancer.harvesterhci.io/v1beta1`), and
//! the verbs on them.
//!
//! For a guest cluster such an object is an address reservation. The kind has no status subresource
//! and its writers have no right to patch, so a write is a PUT of the whole object: fields that are
//! not named here are kept as they came.

use std::{borrow::Cow, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
    core::NamespaceResourceScope,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::k8s::{Error, within};

const READ: Duration = Duration::from_secs(10);
/// Two webhooks with ten seconds each stand before a write.
const WRITE: Duration = Duration::from_secs(30);

/// The kind. Absent fields stay absent when it is written back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancer {
    #[serde(default = "api_version")]
    pub api_version: String,
    #[serde(default = "kind")]
    pub kind: String,
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<String>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The address in use; the guest writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The reservation; the infrastructure cluster writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_address: Option<AllocatedAddress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedAddress {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(default, rename = "type")]
    pub type_: String,
    #[serde(default)]
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

fn api_version() -> String {
    LoadBalancer::api_version(&()).into_owned()
}

fn kind() -> String {
    LoadBalancer::kind(&()).into_owned()
}

impl Default for LoadBalancer {
    fn default() -> Self {
        Self {
            api_version: api_version(),
            kind: kind(),
            metadata: ObjectMeta::default(),
            spec: Spec::default(),
            status: None,
            other: Map::new(),
        }
    }
}

impl LoadBalancer {
    /// What was reserved, as written; never empty. `0.0.0.0` leaves the choice to DHCP.
    pub fn allocated(&self) -> Option<&str> {
        let allocated = self.status.as_ref()?.allocated_address.as_ref()?;
        allocated.ip.as_deref().filter(|ip| !ip.is_empty())
    }

    /// The address in use as last recorded; never empty.
    pub fn recorded_address(&self) -> Option<&str> {
        let address = self.status.as_ref()?.address.as_deref();
        address.filter(|address| !address.is_empty())
    }

    /// The condition that tells what became of the reservation; none before the first look at it.
    pub fn ready(&self) -> Option<&Condition> {
        let conditions = self.status.as_ref()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|condition| condition.type_ == "Ready")
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels().get(key).map(String::as_str)
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations().get(key).map(String::as_str)
    }

    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl Resource for LoadBalancer {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "LoadBalancer".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "loadbalancer.harvesterhci.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1beta1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "loadbalancers".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

pub async fn get(client: &Client, namespace: &str, name: &str) -> Result<LoadBalancer, Error> {
    within(READ, api(client, namespace).get(name)).await
}

/// Returns the object as stored, with what admission added.
pub async fn create(
    client: &Client,
    namespace: &str,
    object: &LoadBalancer,
) -> Result<LoadBalancer, Error> {
    let api = api(client, namespace);
    within(WRITE, api.create(&PostParams::default(), object)).await
}

/// A PUT of the whole object, refused with a conflict unless it still has the version it was read in.
pub async fn replace(
    client: &Client,
    namespace: &str,
    object: &LoadBalancer,
) -> Result<LoadBalancer, Error> {
    let api = api(client, namespace);
    let name = object.name_any();
    within(WRITE, api.replace(&name, &PostParams::default(), object)).await
}

/// Deletes the object with this UID. What is left of it, until the infrastructure cluster has
/// released the address, is returned.
pub async fn delete(
    client: &Client,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<Option<LoadBalancer>, Error> {
    let api = api(client, namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            resource_version: None,
            uid: Some(uid.to_owned()),
        }),
        ..DeleteParams::default()
    };
    Ok(within(WRITE, api.delete(name, &params)).await?.left())
}

fn api(client: &Client, namespace: &str) -> Api<LoadBalancer> {
    Api::namespaced(client.clone(), namespace)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::{Class, dialogue};

    fn stored() -> Value {
        json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
            "kind": "LoadBalancer",
            "metadata": {
                "name": "gc-default-web-0ffc2fd1", "namespace": "vms", "uid": "u", "resourceVersion": "7",
                "finalizers": ["wrangler.cattle.io/harvester-lb-controller"],
            },
            "spec": {
                "workloadType": "cluster", "ipam": "pool", "ipPool": "p", "unheard": {"of": 1},
                "listeners": [{"name": "a", "port": 1, "protocol": "TCP", "backendPort": 2}],
            },
            "status": {
                "address": "10.0.0.1", "backendServers": ["x"],
                "allocatedAddress": {"ip": "10.0.0.1", "ipPool": "p", "mask": "255.0.0.0", "gateway": "<nil>"},
                "conditions": [{"type": "Ready", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}],
            },
            "future": [1, 2],
        })
    }

    #[test]
    fn what_is_not_known_survives_a_read_and_a_write() {
        let object: LoadBalancer = serde_json::from_value(stored()).unwrap();
        assert_eq!(serde_json::to_value(&object).unwrap(), stored());
        assert_eq!(object.allocated(), Some("10.0.0.1"));
        assert_eq!(object.ready().unwrap().status, "True");
    }

    #[test]
    fn an_object_without_anything_reads_as_unprocessed() {
        let texts = [
            json!({"metadata": {"name": "a"}, "spec": {}}),
            json!({"metadata": {"name": "a"}, "spec": {}, "status": {}}),
            json!({"metadata": {"name": "a"}, "status": {
                "conditions": null, "address": "", "allocatedAddress": {"ip": ""}}}),
        ];
        for text in texts {
            let object: LoadBalancer = serde_json::from_value(text).unwrap();
            assert_eq!(object.kind, "LoadBalancer");
            assert_eq!(object.allocated(), None);
            assert_eq!(object.recorded_address(), None);
            assert_eq!(object.ready(), None);
        }
    }

    #[tokio::test]
    async fn verbs_name_the_object_the_version_and_the_uid() {
        let (client, mut server) = dialogue::pair();
        let object: LoadBalancer = serde_json::from_value(stored()).unwrap();
        let path = "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/vms/loadbalancers";
        let server = async {
            let call = server.next().await;
            assert_eq!(
                (call.method.as_str(), call.body["kind"].as_str()),
                ("POST", Some("LoadBalancer"))
            );
            assert!(call.uri.starts_with(path));
            call.fail(409, "AlreadyExists");
            let call = server.next().await;
            assert_eq!(call.method, "PUT");
            assert!(
                call.uri
                    .starts_with(&format!("{path}/gc-default-web-0ffc2fd1"))
            );
            assert_eq!(call.body, stored());
            call.ok(&stored());
            let call = server.next().await;
            assert_eq!(call.method, "DELETE");
            assert_eq!(call.body["preconditions"], json!({"uid": "u"}));
            call.ok(&stored());
            let call = server.next().await;
            call.ok(&json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}));
        };
        let client = async {
            let error = create(&client, "vms", &object).await.unwrap_err();
            assert_eq!(error.class(), Class::AlreadyExists);
            assert_eq!(replace(&client, "vms", &object).await.unwrap(), object);
            let name = object.name_any();
            let left = delete(&client, "vms", &name, "u").await.unwrap();
            assert_eq!(left, Some(object.clone()));
            assert_eq!(delete(&client, "vms", &name, "u").await.unwrap(), None);
        };
        tokio::join!(client, server);
    }
}
