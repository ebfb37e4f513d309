//! `guestosinfo` of the aggregated API `subresources.kubevirt.io/v1`: what the agent in a VM says of it.

use http::StatusCode;
use kube::api::Api;
use serde_json::{Value, json};

use super::{
    kinds,
    listener::Answer,
    scenario::{Scenario, Scenarios},
};

pub(super) const GROUP: &str = "subresources.kubevirt.io";
pub(super) const VERSION: &str = "v1";

/// The agent in a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestAgent {
    /// It runs and says this host name.
    Connected { hostname: String },
    /// There is none, or it does not run.
    NotConnected,
}

/// Answers a request below `/apis`; the API server has checked who asks and whether he may.
pub(super) async fn answer(scenarios: &Scenarios, path: &str) -> Answer {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["apis"] => Answer::json(&json!({
            "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()],
        })),
        ["apis", GROUP] => Answer::json(&group()),
        ["apis", GROUP, VERSION] => Answer::json(&resources()),
        [
            "apis",
            GROUP,
            VERSION,
            "namespaces",
            namespace,
            "virtualmachineinstances",
            name,
            "guestosinfo",
        ] => match scenarios.of(namespace) {
            Some(scenario) => guest_os_info(&scenario, namespace, name).await,
            None => absent(name),
        },
        _ => Answer::status(StatusCode::NOT_FOUND, "NotFound", "there is nothing here"),
    }
}

async fn guest_os_info(scenario: &Scenario, namespace: &str, name: &str) -> Answer {
    let instances: Api<_> = kinds::instances_in(&scenario.client, namespace);
    match instances.get_opt(name).await {
        Ok(None) => absent(name),
        Err(error) => {
            let text = error.to_string();
            Answer::status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &text)
        }
        Ok(Some(_)) => match scenario.agent(namespace, name) {
            Some(GuestAgent::Connected { hostname }) => Answer::json(&info(&hostname)),
            _ => Answer::status(
                StatusCode::CONFLICT,
                "Conflict",
                &format!(
                    "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io {name:?}: \
                     VMI does not have guest agent connected"
                ),
            ),
        },
    }
}

fn absent(name: &str) -> Answer {
    let text = format!("virtualmachineinstance.kubevirt.io {name:?} not found");
    Answer::status(StatusCode::NOT_FOUND, "NotFound", &text)
}

fn info(hostname: &str) -> Value {
    json!({
        "guestAgentVersion": "8.2.2",
        "hostname": hostname,
        "os": {
            "name": "Debian GNU/Linux",
            "id": "debian",
            "versionId": "12",
            "kernelRelease": "6.1.0",
            "machine": "x86_64",
        },
        "timezone": "UTC, 0",
    })
}

fn group() -> Value {
    let version = json!({ "groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION });
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": [version],
        "preferredVersion": version,
    })
}

fn resources() -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [{
            "name": "virtualmachineinstances/guestosinfo",
            "singularName": "",
            "namespaced": true,
            "kind": "VirtualMachineInstanceGuestAgentInfo",
            "verbs": ["get"],
        }],
    })
}
