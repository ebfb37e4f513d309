//! What a Service should say about its VIPs: pure.
//!
//! The shape is kube-vip's: one `status.loadBalancer.ingress` entry for each VIP with the Service's
//! ports, and the annotation `kube-vip.io/vipHost` with the name of the owner's node. Both are
//! written by merge patches of just these fields, only when they differ, and cleared when this node
//! stops serving a Service that is no longer addressed to us.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use crate::k8s::names;

/// One entry of `status.loadBalancer.ingress`, as far as we write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingress {
    pub ip: String,
    /// Port and protocol.
    pub ports: Vec<(i32, String)>,
}

/// What a Service says now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Served {
    /// `kube-vip.io/vipHost`.
    pub vip_host: Option<String>,
    pub ingress: Vec<Ingress>,
    /// The status has entries or fields that we would not write (host names, a foreign IP mode).
    pub foreign: bool,
}

/// What a Service should say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatusWish {
    Serve {
        vip_host: String,
        ingress: Vec<Ingress>,
    },
    /// Nothing of ours.
    Clear,
}

impl Ingress {
    pub fn new(vip: IpAddr, ports: &[(i32, String)]) -> Self {
        Self {
            ip: vip.to_string(),
            ports: ports.to_vec(),
        }
    }

    fn to_json(&self) -> Value {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|(port, protocol)| json!({ "port": port, "protocol": protocol }))
            .collect();
        // The API server fills `ipMode` in; asked for explicitly, it would be refused by old servers.
        json!({ "ip": self.ip, "ports": ports })
    }
}

impl Served {
    pub fn of(service: &Service) -> Self {
        let annotations = service.metadata.annotations.as_ref();
        let mut served = Self {
            vip_host: annotations
                .and_then(|a| a.get(names::kube_vip::VIP_HOST))
                .cloned(),
            ..Self::default()
        };
        let status = service
            .status
            .as_ref()
            .and_then(|s| s.load_balancer.as_ref());
        for entry in status
            .into_iter()
            .flat_map(|status| status.ingress.iter().flatten())
        {
            let mode = entry.ip_mode.as_deref().unwrap_or("VIP");
            served.foreign |= entry.hostname.is_some() || mode != "VIP";
            let ports = entry.ports.iter().flatten();
            served.ingress.push(Ingress {
                ip: entry.ip.clone().unwrap_or_default(),
                ports: ports.map(|p| (p.port, p.protocol.clone())).collect(),
            });
        }
        served
    }

    /// The Service says what it should.
    pub fn satisfies(&self, wish: &StatusWish) -> bool {
        patch(self, wish) == Patch::default()
    }
}

/// Merge patches that turn `served` into `wish`; `None` where nothing changes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Patch {
    /// Of the object: annotations.
    pub metadata: Option<Value>,
    /// Of the status subresource.
    pub status: Option<Value>,
    /// The annotation goes last: while it is there, what is left of the status is known to be ours.
    pub clears: bool,
}

/// Plans the writes for one Service.
pub fn patch(served: &Served, wish: &StatusWish) -> Patch {
    let (vip_host, ingress): (Option<&str>, &[Ingress]) = match wish {
        StatusWish::Serve { vip_host, ingress } => (Some(vip_host), ingress),
        StatusWish::Clear => (None, &[]),
    };
    let metadata = (served.vip_host.as_deref() != vip_host).then(|| {
        let annotations = BTreeMap::from([(names::kube_vip::VIP_HOST, vip_host)]);
        json!({ "metadata": { "annotations": annotations } })
    });
    let status = (served.foreign || served.ingress != ingress).then(|| {
        let entries: Vec<Value> = ingress.iter().map(Ingress::to_json).collect();
        let entries = if entries.is_empty() {
            Value::Null
        } else {
            Value::Array(entries)
        };
        json!({ "status": { "loadBalancer": { "ingress": entries } } })
    });
    let clears = matches!(wish, StatusWish::Clear) && status.is_some();
    Patch {
        metadata,
        status,
        clears,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vip(port: i32) -> Ingress {
        Ingress::new("10.0.0.9".parse().unwrap(), &[(port, "TCP".to_owned())])
    }

    fn wish(port: i32) -> StatusWish {
        StatusWish::Serve {
            vip_host: "node0".to_owned(),
            ingress: vec![vip(port)],
        }
    }

    fn served(host: &str, ingress: Vec<Ingress>) -> Served {
        Served {
            vip_host: Some(host.to_owned()),
            ingress,
            foreign: false,
        }
    }

    #[test]
    fn only_what_differs_is_written() {
        assert!(served("node0", vec![vip(80)]).satisfies(&wish(80)));
        let other_host = patch(&served("node1", vec![vip(80)]), &wish(80));
        assert_eq!(
            other_host,
            Patch {
                metadata: Some(
                    json!({"metadata": {"annotations": {"kube-vip.io/vipHost": "node0"}}})
                ),
                status: None,
                clears: false,
            }
        );
        let other_port = patch(&served("node0", vec![vip(81)]), &wish(80));
        assert_eq!(other_port.metadata, None);
        assert_eq!(
            other_port.status,
            Some(json!({"status": {"loadBalancer": {"ingress": [
                {"ip": "10.0.0.9", "ports": [{"port": 80, "protocol": "TCP"}]}]}}}))
        );
    }

    #[test]
    fn a_foreign_entry_is_replaced() {
        let mut status = served("node0", vec![vip(80)]);
        status.foreign = true;
        assert!(patch(&status, &wish(80)).status.is_some());
    }

    #[test]
    fn clearing_removes_annotation_and_entries() {
        let cleared = patch(&served("node0", vec![vip(80)]), &StatusWish::Clear);
        assert_eq!(
            cleared.metadata,
            Some(json!({"metadata": {"annotations": {"kube-vip.io/vipHost": null}}}))
        );
        assert_eq!(
            cleared.status,
            Some(json!({"status": {"loadBalancer": {"ingress": null}}}))
        );
        assert!(Served::default().satisfies(&StatusWish::Clear));
    }
}
