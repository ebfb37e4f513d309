//! KubeVirt's `VirtualMachine` and `VirtualMachineInstance` (`kubevirt.io/v1`), as far as they are
//! read, and reads of them. Nothing here is ever written.
//!
//! The instance of a machine has the machine's name and namespace. The guest OS information is a
//! subresource that the guest agent answers: hosts may lack it (404) or forbid it (403).

use std::{borrow::Cow, time::Duration};

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, Resource, api::ListParams};
use serde::{Deserialize, Serialize};

use crate::k8s::{Error, within};

const GROUP: &str = "kubevirt.io";
const VERSION: &str = "v1";
/// For one answer of the host.
const DEADLINE: Duration = Duration::from_secs(5);
/// For all machines of the namespace.
const LIST_DEADLINE: Duration = Duration::from_secs(10);

/// Marks what Rancher's machine driver made.
pub const CREATOR_LABEL: &str = "harvesterhci.io/creator";
pub const MACHINE_DRIVER: &str = "docker-machine-driver-harvester";
/// The guest cluster that a machine belongs to.
pub const CLUSTER_LABEL: &str = "guestcluster.harvesterhci.io/name";

/// A virtual machine, whether it runs or not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VirtualMachine {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub status: Option<VirtualMachineStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VirtualMachineStatus {
    /// Its instance runs and is ready.
    #[serde(default)]
    pub ready: bool,
}

/// A virtual machine that runs, is starting or has just ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VirtualMachineInstance {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: InstanceSpec,
    #[serde(default)]
    pub status: Option<InstanceStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceSpec {
    #[serde(default)]
    pub networks: Option<Vec<Network>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    #[serde(default)]
    pub name: String,
    /// `None`: the network of the host's pods.
    #[serde(default)]
    pub multus: Option<MultusNetwork>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MultusNetwork {
    /// `namespace/name` of the network attachment.
    #[serde(default)]
    pub network_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    #[serde(default)]
    pub phase: String,
    #[serde(default)]
    pub interfaces: Option<Vec<Interface>>,
    #[serde(default)]
    pub migration_state: Option<MigrationState>,
}

/// A network interface as the host and the guest agent see it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// Of the network it is attached to; empty for links that the guest made itself.
    #[serde(default)]
    pub name: String,
    /// The guest's name of it; only the agent knows it.
    #[serde(default)]
    pub interface_name: String,
    #[serde(default)]
    pub ip_address: String,
    #[serde(default)]
    pub ip_addresses: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MigrationState {
    /// Over, whether it succeeded or failed.
    #[serde(default)]
    pub completed: bool,
}

/// What the guest agent says about the guest.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct GuestOsInfo {
    #[serde(default)]
    pub hostname: Option<String>,
}

impl VirtualMachineInstance {
    pub fn interfaces(&self) -> &[Interface] {
        let status = self.status.as_ref();
        status
            .and_then(|status| status.interfaces.as_deref())
            .unwrap_or_default()
    }

    pub fn networks(&self) -> &[Network] {
        self.spec.networks.as_deref().unwrap_or_default()
    }

    pub fn phase(&self) -> &str {
        self.status
            .as_ref()
            .map_or("", |status| status.phase.as_str())
    }

    /// Whether it is on its way from one host node to another.
    pub fn is_migrating(&self) -> bool {
        let migration = self
            .status
            .as_ref()
            .and_then(|status| status.migration_state.as_ref());
        migration.is_some_and(|migration| !migration.completed)
    }

    /// The machine that this is an instance of, where the object tells.
    pub fn machine_uid(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners
            .filter(|owner| owner.kind == "VirtualMachine")
            .map(|owner| owner.uid.as_str())
            .next()
    }
}

impl Resource for VirtualMachine {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VirtualMachine".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "virtualmachines".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Resource for VirtualMachineInstance {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VirtualMachineInstance".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "virtualmachineinstances".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// All machines of the namespace as they are now: read through to the host's store, never from a
/// cache of its server, and complete or an error.
pub async fn list_machines(host: &Client, namespace: &str) -> Result<Vec<VirtualMachine>, Error> {
    let api: Api<VirtualMachine> = Api::namespaced(host.clone(), namespace);
    // Without limit and resourceVersion: one page, most recent.
    let list = within(LIST_DEADLINE, api.list(&ListParams::default())).await?;
    Ok(list.items)
}

/// What the guest agent of an instance says.
pub async fn guest_os_info(
    host: &Client,
    namespace: &str,
    instance: &str,
) -> Result<GuestOsInfo, Error> {
    let path = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{instance}/guestosinfo"
    );
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    within(DEADLINE, host.request(request)).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::{Class, dialogue};

    #[tokio::test]
    async fn the_guest_os_information_is_a_subresource_that_may_be_forbidden() {
        let (client, mut server) = dialogue::pair();
        let path = "/apis/subresources.kubevirt.io/v1/namespaces/vms/virtualmachineinstances/n1/guestosinfo";
        let answers = async {
            let call = server.next().await;
            assert_eq!((call.method.as_str(), call.uri.as_str()), ("GET", path));
            call.ok(&json!({"hostname": "web-1", "os": {"name": "SLES"}}));
            server.next().await.fail(403, "Forbidden");
        };
        let asked = async {
            let first = guest_os_info(&client, "vms", "n1").await.unwrap();
            assert_eq!(first.hostname.as_deref(), Some("web-1"));
            let second = guest_os_info(&client, "vms", "n1").await;
            assert_eq!(second.unwrap_err().class(), Class::Forbidden);
        };
        tokio::join!(answers, asked);
    }

    #[tokio::test]
    async fn a_list_of_machines_is_read_through_to_the_store() {
        let (client, mut server) = dialogue::pair();
        let answers = async {
            let call = server.next().await;
            assert_eq!(
                call.uri,
                "/apis/kubevirt.io/v1/namespaces/vms/virtualmachines?"
            );
            call.ok(&json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineList",
                "metadata": {"resourceVersion": "1"},
                "items": [{"metadata": {"name": "n1", "uid": "u1"}, "spec": {"running": true},
                           "status": {"ready": true}}],
            }));
        };
        let (listed, ()) = tokio::join!(list_machines(&client, "vms"), answers);
        let listed = listed.unwrap();
        assert_eq!(listed.len(), 1);
        assert!(listed[0].status.as_ref().unwrap().ready);
    }

    #[test]
    fn instances_are_read_with_whatever_is_missing_or_null() {
        let read = |value| serde_json::from_value::<VirtualMachineInstance>(value).unwrap();
        let bare = read(json!({"metadata": {"name": "a"}}));
        assert!(bare.interfaces().is_empty() && bare.networks().is_empty());
        assert!(!bare.is_migrating());
        let null = read(json!({
            "metadata": {"name": "a", "ownerReferences": [
                {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "a", "uid": "u"}]},
            "spec": {"networks": null},
            "status": {"interfaces": null, "migrationState": {"completed": false}},
        }));
        assert!(null.interfaces().is_empty() && null.is_migrating());
        assert_eq!(null.machine_uid(), Some("u"));
    }
}
