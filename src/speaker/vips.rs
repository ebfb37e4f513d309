//! The command `vips`: who owns which VIP, from the API's objects alone.
//!
//! [`gather`] reads Services and Leases, [`table`] is pure, and both forms of output carry the same
//! rows. Nothing is written, and the program need not run on the host where this is asked.

use std::{collections::BTreeMap, fmt::Write as _, net::IpAddr, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Service};
use kube::{Api, Client, api::ListParams};
use serde::Serialize;

use super::{
    COMPONENT, client_source,
    desired::IDENTITY_SUFFIX,
    groups::groups,
    selection::{ServiceKey, VipRequest, select},
    status::Served,
};
use crate::{
    config::SpeakerConfig,
    election::LeaseKey,
    k8s::{self, within},
};

const DEADLINE: Duration = Duration::from_secs(10);

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no client for the guest cluster")]
    Client(#[from] k8s::ConnectError),
    #[error("cannot list {what}")]
    List {
        what: &'static str,
        source: k8s::Error,
    },
    #[error("cannot write JSON")]
    Json(#[from] serde_json::Error),
}

/// One VIP of one Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    pub vip: IpAddr,
    pub service: String,
    /// Node that holds the Lease; `None` while nobody does.
    pub owner: Option<String>,
    pub lease: String,
    /// Who holds the Lease is kube-vip, not a speaker.
    pub kube_vip: bool,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The owner says so in the Service's status.
    Announced,
    /// There is an owner, and the status does not have the VIP (yet).
    Pending,
    /// Nobody holds the Lease.
    Unowned,
}

/// Prints the VIPs of a cluster, as a table or as JSON.
pub async fn vips(config: &SpeakerConfig, json: bool) -> Result<String, Error> {
    let source = client_source(config);
    let client = k8s::connect(&source, COMPONENT).await?.client;
    let (services, holders) = gather(&client, config).await?;
    let rows = table(&services, &holders, config);
    if json {
        return Ok(serde_json::to_string_pretty(&rows)? + "\n");
    }
    Ok(text(&rows))
}

async fn gather(
    client: &Client,
    config: &SpeakerConfig,
) -> Result<(Vec<Service>, BTreeMap<LeaseKey, String>), Error> {
    let failed = |what| move |source| Error::List { what, source };
    let services: Api<Service> = match &config.service_namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let all = ListParams::default();
    let services = within(DEADLINE, services.list(&all))
        .await
        .map_err(failed("Services"))?
        .items;
    let leases: Api<Lease> = Api::all(client.clone());
    let params = all.fields("metadata.namespace!=kube-node-lease");
    let leases = within(DEADLINE, leases.list(&params))
        .await
        .map_err(failed("Leases"))?;
    let holders = leases.items.into_iter().filter_map(|lease| {
        let key = LeaseKey {
            namespace: lease.metadata.namespace?,
            name: lease.metadata.name?,
        };
        let holder = lease
            .spec?
            .holder_identity
            .filter(|holder| !holder.is_empty())?;
        Some((key, holder))
    });
    Ok((services, holders.collect()))
}

/// Every VIP that a Service of ours asks for, by address.
pub fn table(
    services: &[Service],
    holders: &BTreeMap<LeaseKey, String>,
    config: &SpeakerConfig,
) -> Vec<Row> {
    let selected: BTreeMap<ServiceKey, (VipRequest, Served)> = services
        .iter()
        .filter_map(|service| {
            let request = select(service, config).request?;
            Some((ServiceKey::of(service), (request, Served::of(service))))
        })
        .collect();
    let requests: BTreeMap<ServiceKey, &VipRequest> = selected
        .iter()
        .map(|(key, (request, _))| (key.clone(), request))
        .collect();
    let mut rows = Vec::new();
    for group in groups(&requests, config) {
        let holder = holders.get(&group.lease);
        for service in &group.services {
            let Some((request, served)) = selected.get(service) else {
                continue;
            };
            for vip in &request.addresses {
                rows.push(row(*vip, service, &group.lease, holder, served));
            }
        }
    }
    rows.sort_by(|a, b| (a.vip, &a.service).cmp(&(b.vip, &b.service)));
    rows
}

fn row(
    vip: IpAddr,
    service: &ServiceKey,
    lease: &LeaseKey,
    holder: Option<&String>,
    served: &Served,
) -> Row {
    let owner = holder.map(|h| h.strip_suffix(IDENTITY_SUFFIX).unwrap_or(h).to_owned());
    let listed = served
        .ingress
        .iter()
        .any(|entry| entry.ip == vip.to_string());
    let state = match &owner {
        None => State::Unowned,
        Some(owner) if listed && served.vip_host.as_ref() == Some(owner) => State::Announced,
        Some(_) => State::Pending,
    };
    Row {
        vip,
        service: service.to_string(),
        kube_vip: holder.is_some_and(|holder| !holder.ends_with(IDENTITY_SUFFIX)),
        owner,
        lease: lease.to_string(),
        state,
    }
}

/// The rows in aligned columns.
fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no Service asks for a VIP\n".to_owned();
    }
    let mut cells = vec![["VIP", "SERVICE", "OWNER", "STATE", "LEASE"].map(str::to_owned)];
    cells.extend(rows.iter().map(|row| {
        let mut owner = row.owner.clone().unwrap_or_else(|| "-".to_owned());
        if row.kube_vip {
            owner.push_str(" (kube-vip)");
        }
        let state = match row.state {
            State::Announced => "announced",
            State::Pending => "pending",
            State::Unowned => "unowned",
        };
        [
            row.vip.to_string(),
            row.service.clone(),
            owner,
            state.to_owned(),
            row.lease.clone(),
        ]
    }));
    let mut widths = [0; 5];
    for row in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let mut out = String::new();
    for row in &cells {
        let padded: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(out, "{}", padded.join("  ").trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speaker::testing::{config, ip, lease_key, service_object};

    fn served_by(mut service: Service, node: &str, vip: &str) -> Service {
        let annotations = service.metadata.annotations.get_or_insert_default();
        annotations.insert("kube-vip.io/vipHost".to_owned(), node.to_owned());
        service.status = serde_json::from_value(serde_json::json!({
            "loadBalancer": {"ingress": [{"ip": vip}]}
        }))
        .unwrap();
        service
    }

    #[test]
    fn rows_tell_owner_and_state_of_every_vip() {
        let services = [
            served_by(service_object("web", "10.0.0.9"), "node1", "10.0.0.9"),
            service_object("api", "10.0.0.8,fd00::8"),
            service_object("old", "10.0.0.7"),
        ];
        let holders = BTreeMap::from([
            (lease_key("kubevip-web"), "node1_speaker".to_owned()),
            (lease_key("kubevip-old"), "node2".to_owned()),
        ]);
        let rows = table(&services, &holders, &config());
        let seen: Vec<_> = rows
            .iter()
            .map(|row| (row.vip, row.owner.as_deref(), row.state, row.kube_vip))
            .collect();
        assert_eq!(
            seen,
            [
                (ip("10.0.0.7"), Some("node2"), State::Pending, true),
                (ip("10.0.0.8"), None, State::Unowned, false),
                (ip("10.0.0.9"), Some("node1"), State::Announced, false),
                (ip("fd00::8"), None, State::Unowned, false),
            ]
        );
        let printed = text(&rows);
        assert!(
            printed
                .lines()
                .next()
                .unwrap()
                .starts_with("VIP       SERVICE"),
            "{printed}"
        );
        assert!(
            printed.contains("10.0.0.7  shop/old  node2 (kube-vip)  pending"),
            "{printed}"
        );
    }
}
