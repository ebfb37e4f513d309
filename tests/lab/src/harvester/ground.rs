//! The control plane that plays a Harvester host, and the simulator's runtime beside it.
//!
//! Tests have runtimes of their own that end with them; what several of them share runs here.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use http::{Request, header};
use kube::{Client, api::PostParams};
use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::OnceCell,
};
use tokio_util::sync::CancellationToken;

use super::{
    SOON, agent,
    kinds::{IpPool, IpPoolSpec, Range, ip_pools, pools},
    knobs::Profile,
    listener::{self, Endpoint},
    names,
    review::Hook,
    scenario::{Scenario, Scenarios},
};
use crate::{
    control_plane::{ControlPlane, Settings},
    kubeconfig::base64,
    wait::poll_until,
};

const CRDS: [&str; 4] = [
    include_str!("crds/loadbalancers.yaml"),
    include_str!("crds/ippools.yaml"),
    include_str!("crds/virtualmachines.yaml"),
    include_str!("crds/virtualmachineinstances.yaml"),
];
const SYSTEM: &str = "harvester-system";
const SERVICE: &str = "virt-api";

static SHARED: OnceCell<Arc<Ground>> = OnceCell::const_new();

/// A running host without scenarios.
pub(super) struct Ground {
    runtime: Option<Runtime>,
    pub(super) control_plane: Arc<ControlPlane>,
    /// The administrator's, of the simulator's runtime.
    pub(super) client: Client,
    pub(super) scenarios: Arc<Scenarios>,
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Whoever drops it may be on another runtime, which must not wait.
            runtime.shutdown_background();
        }
    }
}

impl Ground {
    /// The host of this process, started when first asked for.
    pub(super) async fn shared() -> Result<Arc<Self>> {
        let start = async || Self::start().await.map(Arc::new);
        SHARED.get_or_try_init(start).await.cloned()
    }

    pub(super) async fn start() -> Result<Self> {
        let starting = Box::pin(ControlPlane::start(Settings::default()));
        let control_plane = Arc::new(starting.await.context("the host's control plane")?);
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("harvester")
            .enable_all()
            .build()
            .context("the simulator's runtime")?;
        let scenarios = Arc::<Scenarios>::default();
        let (plane, known) = (Arc::clone(&control_plane), Arc::clone(&scenarios));
        let settle = async move {
            let name = format!("{SERVICE}.{SYSTEM}.svc");
            let endpoint = listener::listen(&name, plane.front_proxy(), known).await?;
            anyhow::Ok((plane.admin().await?, endpoint))
        };
        let (client, endpoint) = runtime.spawn(settle).await.context("the simulator")??;
        let ground = Self {
            runtime: Some(runtime),
            control_plane,
            client,
            scenarios,
        };
        let kube = ground.control_plane.admin().await?;
        install(&kube, &endpoint).await?;
        ground.wait_until_it_works(&kube).await?;
        Ok(ground)
    }

    /// Runs a part of the simulator until `end`.
    pub(super) fn spawn(
        &self,
        end: &CancellationToken,
        part: impl Future<Output = ()> + Send + 'static,
    ) {
        let end = end.clone();
        self.handle().spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = part => {}
            }
        });
    }

    fn handle(&self) -> &Handle {
        let runtime = self.runtime.as_ref();
        runtime.expect("it goes when this is dropped").handle()
    }

    /// The API server takes up webhooks and aggregated servers a moment after it was told of them.
    async fn wait_until_it_works(&self, kube: &Client) -> Result<()> {
        let client = self.client.clone();
        let trial = Arc::new(Scenario::new(SYSTEM, Profile::default(), client));
        self.scenarios.add(SYSTEM, &trial);
        poll_until(SOON, "webhooks of the host", async || {
            let mutated = create_for_trial(kube, "192.0.2.0/24").await?;
            let labels = mutated.metadata.labels.unwrap_or_default();
            ensure!(labels.contains_key(names::GLOBAL_POOL), "not mutated");
            let refused = create_for_trial(kube, "nonsense").await;
            ensure!(refused.is_err(), "not validated");
            Ok(Some(()))
        })
        .await?;
        self.scenarios.remove(&trial);
        poll_until(SOON, "aggregated API of the host", async || {
            let path = format!("/apis/{}/{}", agent::GROUP, agent::VERSION);
            kube.request::<Value>(Request::get(path).body(Vec::new())?)
                .await?;
            Ok(Some(()))
        })
        .await
    }
}

async fn create_for_trial(kube: &Client, subnet: &str) -> Result<IpPool> {
    let spec = IpPoolSpec {
        ranges: vec![Range {
            subnet: subnet.to_owned(),
            ..Range::default()
        }],
        ..IpPoolSpec::default()
    };
    let mut pool = IpPool::new("trial", &ip_pools(), spec);
    pool.metadata.labels = Some([(names::SCENARIO.to_owned(), SYSTEM.to_owned())].into());
    let trial = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    Ok(pools(kube).create(&trial, &pool).await?)
}

async fn install(kube: &Client, endpoint: &Endpoint) -> Result<()> {
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for crd in CRDS {
        post(kube, crds, "application/yaml", crd.to_owned()).await?;
    }
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": SYSTEM },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": SERVICE },
        // The API server asks no resolver for a name that is an address. Endpoints may not be loopback's.
        "spec": { "type": "ExternalName", "externalName": endpoint.address.ip() },
    });
    let api_service = json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": { "name": format!("{}.{}", agent::VERSION, agent::GROUP) },
        "spec": {
            "group": agent::GROUP,
            "version": agent::VERSION,
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "caBundle": base64(endpoint.ca_pem.as_bytes()),
            "service": {
                "namespace": SYSTEM, "name": SERVICE, "port": endpoint.address.port(),
            },
        },
    });
    let registration = "/apis/admissionregistration.k8s.io/v1";
    for (path, object) in [
        ("/api/v1/namespaces", namespace),
        ("/api/v1/namespaces/harvester-system/services", service),
        ("/apis/apiregistration.k8s.io/v1/apiservices", api_service),
        (
            &format!("{registration}/mutatingwebhookconfigurations"),
            webhook(Hook::Mutate, endpoint),
        ),
        (
            &format!("{registration}/validatingwebhookconfigurations"),
            webhook(Hook::Validate, endpoint),
        ),
    ] {
        post(kube, path, "application/json", object.to_string()).await?;
    }
    Ok(())
}

fn webhook(hook: Hook, endpoint: &Endpoint) -> Value {
    let (kind, name, failure_policy) = match hook {
        Hook::Mutate => ("MutatingWebhookConfiguration", names::MUTATOR, "Ignore"),
        Hook::Validate => ("ValidatingWebhookConfiguration", names::VALIDATOR, "Fail"),
    };
    let rule = |resource: &str, operations: &[&str]| {
        json!({
            "apiGroups": ["loadbalancer.harvesterhci.io"],
            "apiVersions": ["v1beta1"],
            "resources": [resource],
            "operations": operations,
        })
    };
    let of_pools: &[&str] = match hook {
        Hook::Mutate => &["CREATE", "UPDATE"],
        Hook::Validate => &["CREATE", "UPDATE", "DELETE"],
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": "harvester-load-balancer-webhook" },
        "webhooks": [{
            "name": name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": failure_policy,
            "clientConfig": {
                "url": format!("https://{}{}", endpoint.address, hook.path()),
                "caBundle": base64(endpoint.ca_pem.as_bytes()),
            },
            "rules": [rule("loadbalancers", &["CREATE", "UPDATE"]), rule("ippools", of_pools)],
        }],
    })
}

async fn post(kube: &Client, path: &str, form: &str, body: String) -> Result<()> {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, form)
        .body(body.into_bytes())?;
    let posted = kube.request_text(request).await;
    posted.map(drop).with_context(|| format!("POST {path}"))
}
