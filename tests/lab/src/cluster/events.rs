//! Events of Kubernetes about the objects of a scenario.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};

/// The essence of a Kubernetes Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// `Normal` or `Warning`.
    pub kind: String,
    pub reason: String,
    pub message: String,
    /// How often it was reported.
    pub count: i32,
}

/// Reads the Events of one namespace.
#[derive(Debug, Clone)]
pub(super) struct Events {
    pub(super) api: Api<Event>,
}

impl Events {
    pub(super) async fn about(&self, kind: &str, name: &str) -> Result<Vec<Incident>> {
        let fields = format!("involvedObject.kind={kind},involvedObject.name={name}");
        let list = self.api.list(&ListParams::default().fields(&fields)).await;
        let list = list.with_context(|| format!("reading the events of {kind} {name}"))?;
        let incident = |event: Event| Incident {
            kind: event.type_.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
            count: event
                .series
                .and_then(|it| it.count)
                .or(event.count)
                .unwrap_or(1),
        };
        Ok(list.items.into_iter().map(incident).collect())
    }
}
