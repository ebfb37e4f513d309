//! The webhooks: what the API server asks before it stores a LoadBalancer or a pool.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    admission,
    kinds::{CLUSTER, IpPool, LoadBalancer},
    knobs::Webhook,
    listener::Answer,
    names, resolution,
    scenario::{Scenario, Scenarios},
};
use crate::{clock, kubeconfig::base64};

/// Which of the two webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    Mutate,
    Validate,
}

impl Hook {
    pub(super) fn at(path: &str) -> Option<Self> {
        [Self::Mutate, Self::Validate]
            .into_iter()
            .find(|it| it.path() == path)
    }

    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Mutate => "/mutate",
            Self::Validate => "/validate",
        }
    }
}

#[derive(Debug, Deserialize)]
struct Review {
    request: Asked,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    uid: String,
    operation: String,
    resource: Kind,
    user_info: User,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
}

#[derive(Debug, Deserialize)]
struct Kind {
    resource: String,
}

#[derive(Debug, Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

impl Asked {
    /// The administrator and the host's own controllers are none.
    fn is_of_guest(&self) -> bool {
        self.user_info
            .username
            .starts_with("system:serviceaccount:")
    }

    fn new_object<K: DeserializeOwned>(&self) -> Result<K> {
        serde_json::from_value(self.object.clone()).context("the object of a review")
    }

    fn old_object<K: DeserializeOwned>(&self) -> Result<K> {
        serde_json::from_value(self.old_object.clone()).context("the old object of a review")
    }
}

/// Changes as a JSON patch, or the text of a refusal.
type Verdict = Result<Vec<Value>, String>;

/// An `Err` breaks the connection.
pub(super) async fn answer(scenarios: &Scenarios, hook: Hook, body: &[u8]) -> Result<Answer> {
    let Review { request } = serde_json::from_slice(body).context("reading a review")?;
    let verdict = match &*request.resource.resource {
        "loadbalancers" => balancer(scenarios, hook, &request).await?,
        "ippools" => pool(scenarios, hook, &request).await?,
        other => bail!("no review of {other}"),
    };
    let mut response = json!({ "uid": request.uid, "allowed": verdict.is_ok() });
    match verdict {
        Ok(patch) if patch.is_empty() => {}
        Ok(patch) => {
            response["patchType"] = "JSONPatch".into();
            response["patch"] = base64(Value::from(patch).to_string().as_bytes()).into();
        }
        Err(text) => {
            response["status"] = json!({
                "status": "Failure",
                "code": 500,
                "reason": "InternalError",
                "message": format!("Internal error occurred: {text}"),
            });
        }
    }
    Ok(Answer::json(&json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    })))
}

/// What the knob says, if it says no.
async fn obstacle(scenario: &Scenario, hook: Hook, asked: &Asked) -> Result<Option<String>> {
    let settings = scenario.knobs.now();
    match match hook {
        Hook::Mutate => settings.mutator,
        Hook::Validate => settings.validator,
    } {
        Webhook::Works => Ok(None),
        Webhook::Denies(text) => Ok(asked.is_of_guest().then_some(text)),
        Webhook::Fails => bail!("the webhook is down"),
        Webhook::Hangs(time) => {
            clock::sleep(time).await;
            Ok(None)
        }
    }
}

async fn balancer(scenarios: &Scenarios, hook: Hook, asked: &Asked) -> Result<Verdict> {
    let new: LoadBalancer = asked.new_object()?;
    let namespace = new.metadata.namespace.clone().unwrap_or_default();
    let Some(scenario) = scenarios.of(&namespace) else {
        return Ok(Ok(Vec::new()));
    };
    if let Some(text) = obstacle(&scenario, hook, asked).await? {
        return Ok(Err(text));
    }
    if hook == Hook::Mutate {
        return mutated(&scenario, &namespace, &new).await;
    }
    if asked.operation == "UPDATE" {
        return Ok(admission::check_update(&asked.old_object()?, &new).map(|()| Vec::new()));
    }
    let machines = scenario.machines(&namespace).await?;
    let profile = scenario.knobs.now().profile;
    Ok(admission::check_create(&new, &machines, profile).map(|()| Vec::new()))
}

async fn mutated(scenario: &Scenario, namespace: &str, new: &LoadBalancer) -> Result<Verdict> {
    if new.metadata.deletion_timestamp.is_some() {
        return Ok(Ok(Vec::new()));
    }
    let (mut network, mut project) = (String::new(), String::new());
    if new.spec.workload_type == CLUSTER {
        let namespaces = Api::<Namespace>::all(scenario.client.clone());
        let home = match namespaces.get(namespace).await {
            Ok(home) => home,
            Err(error) => {
                let text = format!("get namespace {namespace} failed, error: {error}");
                return Ok(Err(text));
            }
        };
        let annotations = home.metadata.annotations.unwrap_or_default();
        if let Some(id) = annotations.get(names::PROJECT_OF_NAMESPACE) {
            project = admission::project(id);
        }
        let instances = scenario.instances(namespace).await?;
        let profile = scenario.knobs.now().profile;
        network = resolution::network(new, &instances, profile);
    }
    let annotations = admission::annotations(new, &project, network);
    let mut patch = Vec::new();
    if new.metadata.annotations.as_ref() != Some(&annotations) {
        patch.push(json!({ "op": "add", "path": "/metadata/annotations", "value": annotations }));
    }
    if let Some(check) = new.spec.health_check.as_ref().and_then(admission::complete) {
        patch.push(json!({ "op": "add", "path": "/spec/healthCheck", "value": check }));
    }
    Ok(Ok(patch))
}

async fn pool(scenarios: &Scenarios, hook: Hook, asked: &Asked) -> Result<Verdict> {
    let deleted = asked.operation == "DELETE";
    let subject: IpPool = if deleted {
        asked.old_object()?
    } else {
        asked.new_object()?
    };
    let Some(scenario) = scenarios.of_pool(&subject) else {
        return Ok(Ok(Vec::new()));
    };
    if let Some(text) = obstacle(&scenario, hook, asked).await? {
        return Ok(Err(text));
    }
    if hook == Hook::Mutate {
        let labels = admission::pool_labels(&subject);
        let patch = json!({ "op": "add", "path": "/metadata/labels", "value": labels });
        return Ok(Ok(vec![patch]));
    }
    if deleted {
        return Ok(admission::check_pool_delete(&subject).map(|()| Vec::new()));
    }
    let old = match asked.operation.as_str() {
        "UPDATE" => Some(asked.old_object::<IpPool>()?),
        _ => None,
    };
    let others = scenario.pools().await?;
    let profile = scenario.knobs.now().profile;
    Ok(admission::check_pool(old.as_ref(), &subject, &others, profile).map(|()| Vec::new()))
}
