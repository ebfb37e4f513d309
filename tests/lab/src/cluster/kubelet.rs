//! What a kubelet would tell the API server about its node.
//!
//! Registers the node, renews its Lease every second while it lives, and posts Ready again after the
//! node lifecycle controller has given it up. A node that is switched off is silent, so that it becomes
//! not ready by the same controller as in life.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use anyhow::{Context, Result};
use futures_util::future::join_all;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Pod, Taint},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{access::is_absent, clock};

const RENEW_PERIOD: Duration = Duration::from_secs(1);
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// The label by which the nodes of one cluster are found in a shared API server.
pub(super) const CLUSTER_LABEL: &str = "lab.invalid/cluster";

/// What a node says of itself.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) cluster: String,
    pub(super) name: String,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) pod_networks: Vec<String>,
    /// It waits for a cloud provider.
    pub(super) uninitialised: bool,
}

/// A node whose Lease is renewed while `living` is true.
#[derive(Debug, Clone)]
pub(super) struct Heart {
    pub(super) name: String,
    pub(super) living: watch::Receiver<bool>,
}

/// Makes the Node, ready, and its Lease.
pub(super) async fn register(client: &Client, node: &Identity) -> Result<()> {
    let object = Node {
        metadata: ObjectMeta {
            name: Some(node.name.clone()),
            labels: Some(BTreeMap::from([
                ("kubernetes.io/hostname".to_owned(), node.name.clone()),
                ("kubernetes.io/os".to_owned(), "linux".to_owned()),
                (CLUSTER_LABEL.to_owned(), node.cluster.clone()),
            ])),
            annotations: node.uninitialised.then(|| provided_addresses(node)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: node.pod_networks.first().cloned(),
            pod_cidrs: Some(node.pod_networks.clone()),
            taints: node.uninitialised.then(|| vec![uninitialised()]),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            addresses: Some(addresses(node)),
            conditions: Some(conditions()),
            ..NodeStatus::default()
        }),
    };
    let what = || format!("registering {}", node.name);
    let created = Api::all(client.clone())
        .create(&PostParams::default(), &object)
        .await;
    let uid = created.with_context(what)?.metadata.uid.unwrap_or_default();
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(node.name.clone()),
            owner_references: serde_json::from_value(json!([{
                "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": uid,
            }]))?,
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.name.clone()),
            lease_duration_seconds: Some(40),
            renew_time: Some(MicroTime(now())),
            ..LeaseSpec::default()
        }),
    };
    leases(client)
        .create(&PostParams::default(), &lease)
        .await
        .map(drop)
        .with_context(what)
}

/// Removes the Node; its Lease goes with it.
pub(super) async fn deregister(client: &Client, name: &str) -> Result<()> {
    match Api::<Node>::all(client.clone())
        .delete(name, &DeleteParams::default())
        .await
    {
        Err(error) if !is_absent(&error) => Err(error).context(format!("deleting {name}")),
        _ => Ok(()),
    }
}

/// Renews the Lease and posts Ready, as a kubelet does first when it starts.
pub(super) async fn report(client: &Client, name: &str) -> Result<()> {
    renew(client, name).await?;
    let patch = Patch::Strategic(json!({ "status": { "conditions": conditions() } }));
    Api::<Node>::all(client.clone())
        .patch_status(name, &PatchParams::default(), &patch)
        .await
        .map(drop)
        .with_context(|| format!("posting the status of {name}"))
}

/// Speaks for the living nodes, for ever.
pub(super) async fn run(client: Client, cluster: String, hearts: Vec<Heart>) {
    loop {
        clock::sleep(RENEW_PERIOD).await;
        let living: Vec<_> = hearts
            .iter()
            .filter(|heart| *heart.living.borrow())
            .collect();
        // An API server that is away is no news to a kubelet either: it tries again.
        let _ = join_all(living.iter().map(|heart| renew(&client, &heart.name))).await;
        let names: Vec<&str> = living.iter().map(|heart| heart.name.as_str()).collect();
        let _ = revive_pods(&client, &cluster, &names).await;
        let Ok(unready) = unready(&client, &cluster).await else {
            continue;
        };
        let lost = living.iter().filter(|heart| unready.contains(&heart.name));
        let _ = join_all(lost.map(|heart| report(&client, &heart.name))).await;
    }
}

/// Posts Ready for the pods of living nodes that the node lifecycle controller has given up with
/// their node. It leaves `ContainersReady` alone, which tells them from those that fail their probe.
async fn revive_pods(client: &Client, namespace: &str, living: &[&str]) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let list = pods.list(&ListParams::default().match_any()).await?;
    for pod in list.items {
        let is = |kind: &str, status: &str| {
            let conditions = pod.status.as_ref().and_then(|it| it.conditions.as_ref());
            conditions
                .is_some_and(|all| all.iter().any(|it| it.type_ == kind && it.status == status))
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let given_up = is("Ready", "False") && is("ContainersReady", "True");
        if let Some(name) = pod.metadata.name.as_deref()
            && given_up
            && node.is_some_and(|node| living.contains(&node))
        {
            let ready =
                json!({ "type": "Ready", "status": "True", "lastTransitionTime": Time(now()) });
            let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
            pods.patch_status(name, &PatchParams::default(), &patch)
                .await?;
        }
    }
    Ok(())
}

/// The nodes of the cluster that are not Ready, from the server's cache.
async fn unready(client: &Client, cluster: &str) -> Result<Vec<String>> {
    let selector = format!("{CLUSTER_LABEL}={cluster}");
    let list = ListParams::default().labels(&selector).match_any();
    let nodes = Api::<Node>::all(client.clone()).list(&list).await?;
    let unready = nodes.items.into_iter().filter(|node| !is_ready(node));
    Ok(unready.filter_map(|node| node.metadata.name).collect())
}

/// Whether the node's Ready condition is true.
pub(super) fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter()
            .any(|it| it.type_ == "Ready" && it.status == "True")
    })
}

async fn renew(client: &Client, name: &str) -> Result<()> {
    let patch: Patch<Value> = Patch::Merge(json!({ "spec": { "renewTime": MicroTime(now()) } }));
    let renewed = leases(client)
        .patch(name, &PatchParams::default(), &patch)
        .await;
    renewed
        .map(drop)
        .with_context(|| format!("renewing the Lease of {name}"))
}

fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), LEASE_NAMESPACE)
}

fn addresses(node: &Identity) -> Vec<NodeAddress> {
    let internal = node
        .addresses
        .iter()
        .map(|address| ("InternalIP", address.to_string()));
    let hostname = std::iter::once(("Hostname", node.name.clone()));
    let entry = |(kind, address): (&str, String)| NodeAddress {
        type_: kind.to_owned(),
        address,
    };
    internal.chain(hostname).map(entry).collect()
}

/// What `--node-ip` leaves for the cloud provider.
fn provided_addresses(node: &Identity) -> BTreeMap<String, String> {
    let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
    let key = "alpha.kubernetes.io/provided-node-ip".to_owned();
    BTreeMap::from([(key, addresses.join(","))])
}

fn uninitialised() -> Taint {
    Taint {
        key: "node.cloudprovider.kubernetes.io/uninitialized".to_owned(),
        value: Some("true".to_owned()),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    }
}

fn conditions() -> Vec<NodeCondition> {
    let at = Time(now());
    let condition = |(kind, status, reason): (&str, &str, &str)| NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(String::new()),
        last_heartbeat_time: Some(at.clone()),
        last_transition_time: Some(at.clone()),
    };
    [
        ("Ready", "True", "KubeletReady"),
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("NetworkUnavailable", "False", "RouteCreated"),
    ]
    .map(condition)
    .into()
}

pub(super) fn now() -> Timestamp {
    Timestamp::try_from(clock::wall()).expect("the year is one of this era")
}
