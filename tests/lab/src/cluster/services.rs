//! Services of a scenario: made, edited, looked at.

use std::{collections::BTreeMap, net::IpAddr};

use anyhow::{Context, Result};
use k8s_openapi::{
    api::core::v1::{Service as ServiceObject, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{Cluster, events::Incident};
use crate::access::is_absent;

/// A Service of type `LoadBalancer` that is being described; [`Cluster::service`] begins one.
#[derive(Debug)]
pub struct ServiceBuilder<'a> {
    cluster: &'a Cluster,
    object: ServiceObject,
}

/// A Service in the API server.
#[derive(Debug, Clone)]
pub struct Service {
    name: String,
    api: Api<ServiceObject>,
    events: super::events::Events,
}

impl<'a> ServiceBuilder<'a> {
    pub(super) fn new(cluster: &'a Cluster, name: &str) -> Self {
        let object = ServiceObject {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                type_: Some("LoadBalancer".to_owned()),
                selector: Some(BTreeMap::from([("app".to_owned(), name.to_owned())])),
                ..ServiceSpec::default()
            }),
            status: None,
        };
        Self { cluster, object }
    }

    /// Asks for this address in `spec.loadBalancerIP`.
    #[must_use]
    pub fn load_balancer_ip(self, address: impl Into<IpAddr>) -> Self {
        let address = address.into().to_string();
        self.spec(|spec| spec.load_balancer_ip = Some(address))
    }

    /// With cluster addresses of both families, IPv4 first.
    #[must_use]
    pub fn dual_stack(self) -> Self {
        self.families("RequireDualStack", &["IPv4", "IPv6"])
    }

    /// With a cluster address of IPv6 only.
    #[must_use]
    pub fn ipv6_only(self) -> Self {
        self.families("SingleStack", &["IPv6"])
    }

    /// `externalTrafficPolicy: Local`.
    #[must_use]
    pub fn etp_local(self) -> Self {
        self.spec(|spec| spec.external_traffic_policy = Some("Local".to_owned()))
    }

    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        let annotations = self.object.metadata.annotations.get_or_insert_default();
        annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        let labels = self.object.metadata.labels.get_or_insert_default();
        labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// A TCP port of the Service and the port of its pods.
    #[must_use]
    pub fn port(self, port: u16, target: u16) -> Self {
        self.spec(|spec| {
            spec.ports.get_or_insert_default().push(ServicePort {
                name: Some(format!("tcp-{port}")),
                port: port.into(),
                target_port: Some(IntOrString::Int(target.into())),
                ..ServicePort::default()
            });
        })
    }

    /// `spec.loadBalancerClass`.
    #[must_use]
    pub fn class(self, class: &str) -> Self {
        self.spec(|spec| spec.load_balancer_class = Some(class.to_owned()))
    }

    /// For the pods of this `app`, instead of the Service's own name.
    #[must_use]
    pub fn selects(self, app: &str) -> Self {
        let selector = BTreeMap::from([("app".to_owned(), app.to_owned())]);
        self.spec(|spec| spec.selector = Some(selector))
    }

    /// Anything else of the object.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut ServiceObject)) -> Self {
        change(&mut self.object);
        self
    }

    pub async fn create(self) -> Result<Service> {
        let api = Api::namespaced(self.cluster.kube(), self.cluster.namespace());
        let name = self.object.metadata.name.clone().unwrap_or_default();
        let created = api.create(&PostParams::default(), &self.object).await;
        created.with_context(|| format!("creating Service {name}"))?;
        Ok(Service {
            name,
            api,
            events: self.cluster.events(),
        })
    }

    fn families(self, policy: &str, families: &[&str]) -> Self {
        let families = families.iter().map(|&family| family.to_owned()).collect();
        self.spec(|spec| {
            spec.ip_family_policy = Some(policy.to_owned());
            spec.ip_families = Some(families);
        })
    }

    fn spec(mut self, change: impl FnOnce(&mut ServiceSpec)) -> Self {
        change(self.object.spec.get_or_insert_default());
        self
    }
}

impl Service {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The object as it is now.
    pub async fn get(&self) -> Result<ServiceObject> {
        self.api
            .get(&self.name)
            .await
            .with_context(|| format!("reading Service {}", self.name))
    }

    /// Changes the object as a user would, again if somebody else wrote it meanwhile.
    pub async fn edit(&self, change: impl Fn(&mut ServiceObject)) -> Result<ServiceObject> {
        loop {
            let mut object = self.get().await?;
            change(&mut object);
            match self
                .api
                .replace(&self.name, &PostParams::default(), &object)
                .await
            {
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                other => return other.with_context(|| format!("editing Service {}", self.name)),
            }
        }
    }

    /// Deletes it; a finalizer may keep the object for a while.
    pub async fn delete(&self) -> Result<()> {
        match self.api.delete(&self.name, &DeleteParams::default()).await {
            Err(error) if !is_absent(&error) => {
                Err(error).with_context(|| format!("deleting Service {}", self.name))
            }
            _ => Ok(()),
        }
    }

    /// The addresses in its status; none if the Service does not exist.
    pub async fn status_ips(&self) -> Result<Vec<IpAddr>> {
        let object = self.api.get_opt(&self.name).await?;
        let balancer = object.and_then(|it| it.status?.load_balancer?.ingress);
        let ips = balancer
            .into_iter()
            .flatten()
            .filter_map(|ingress| ingress.ip);
        ips.map(|ip| ip.parse().with_context(|| format!("{ip:?} in a status")))
            .collect()
    }

    /// Writes the status as a load balancer would that puts the addresses on a node.
    pub async fn set_status_ips(&self, addresses: &[IpAddr]) -> Result<()> {
        let ingress: Vec<_> = addresses
            .iter()
            .map(|ip| json!({ "ip": ip, "ipMode": "VIP" }))
            .collect();
        let patch = Patch::Merge(json!({ "status": { "loadBalancer": { "ingress": ingress } } }));
        let patched = self
            .api
            .patch_status(&self.name, &PatchParams::default(), &patch)
            .await;
        patched
            .map(drop)
            .with_context(|| format!("writing the status of Service {}", self.name))
    }

    /// What was reported about it.
    pub async fn events(&self) -> Result<Vec<Incident>> {
        self.events.about("Service", &self.name).await
    }
}
