//! Leases: read, and written by compare-and-swap.
//!
//! A replacement starts from the object it is based on, so labels, owners and fields of the spec
//! that are not the election's survive.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
};

use super::{Error, within};
use crate::election::{LeaseKey, record::LeaseRecord};

pub async fn get(client: &Client, key: &LeaseKey, deadline: Duration) -> Result<Lease, Error> {
    within(deadline, api(client, key).get(&key.name)).await
}

/// Fails with `AlreadyExists` if there is one.
pub async fn create(
    client: &Client,
    key: &LeaseKey,
    record: &LeaseRecord,
    deadline: Duration,
) -> Result<Lease, Error> {
    let mut spec = LeaseSpec::default();
    record.write_to(&mut spec);
    let lease = Lease {
        metadata: ObjectMeta {
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
    };
    let params = PostParams::default();
    within(deadline, api(client, key).create(&params, &lease)).await
}

/// Fails with `Conflict` if the object is not `base` any more.
pub async fn replace(
    client: &Client,
    key: &LeaseKey,
    base: &Arc<Lease>,
    record: &LeaseRecord,
    deadline: Duration,
) -> Result<Lease, Error> {
    let mut lease = Lease::clone(base);
    record.write_to(lease.spec.get_or_insert_default());
    let params = PostParams::default();
    within(
        deadline,
        api(client, key).replace(&key.name, &params, &lease),
    )
    .await
}

/// Fails with `Conflict` if the object is not `base` any more.
pub async fn delete(
    client: &Client,
    key: &LeaseKey,
    base: &Arc<Lease>,
    deadline: Duration,
) -> Result<(), Error> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: base.metadata.uid.clone(),
            resource_version: base.metadata.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    within(deadline, api(client, key).delete(&key.name, &params)).await?;
    Ok(())
}

fn api(client: &Client, key: &LeaseKey) -> Api<Lease> {
    Api::namespaced(client.clone(), &key.namespace)
}
