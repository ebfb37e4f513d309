//! What puts VIPs on the wire in a guest, as its cloud controller manager sees it: annotations of a
//! Service become its status.
//!
//! Static addresses are taken as they are; for `0.0.0.0` it "leases" an address of `10.250.0.0/16` and
//! says so in the annotations that kube-vip writes. It ends when dropped.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::watcher,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{clock, run::lock};

const ADDRESSES: &str = "kube-vip.io/loadbalancerIPs";
/// Without events the Services are looked at again after this time.
const PERIOD: Duration = Duration::from_millis(500);

/// A running companion.
#[derive(Debug)]
pub struct Companion {
    knobs: watch::Sender<Knobs>,
    leases: Arc<Mutex<BTreeMap<String, String>>>,
    _end: DropGuard,
}

#[derive(Debug, Clone, Default)]
struct Knobs {
    stopped: bool,
    delay: Duration,
    keeps_addresses: bool,
    keeps_types: bool,
}

struct Worker {
    client: Client,
    knobs: watch::Receiver<Knobs>,
    leases: Arc<Mutex<BTreeMap<String, String>>>,
    services: BTreeMap<(String, String), Service>,
}

impl Companion {
    /// Starts it on a guest's API server, as its administrator.
    pub fn start(client: Client) -> Self {
        let (knobs, following) = watch::channel(Knobs::default());
        let leases = Arc::default();
        let end = CancellationToken::new();
        let worker = Worker {
            client,
            knobs: following,
            leases: Arc::clone(&leases),
            services: BTreeMap::new(),
        };
        let ended = end.clone();
        tokio::spawn(async move { ended.run_until_cancelled(worker.run()).await });
        Self {
            knobs,
            leases,
            _end: end.drop_guard(),
        }
    }

    /// Does nothing until [`Self::resume`]: Services stay as they are.
    pub fn stop(&self) {
        self.knobs.send_modify(|knobs| knobs.stopped = true);
    }

    pub fn resume(&self) {
        self.knobs.send_modify(|knobs| knobs.stopped = false);
    }

    /// Takes so long before each status.
    pub fn delay(&self, delay: Duration) {
        self.knobs.send_modify(|knobs| knobs.delay = delay);
    }

    /// Ignores an address that changes, as older releases of kube-vip do.
    pub fn keep_addresses(&self, keep: bool) {
        self.knobs.send_modify(|knobs| knobs.keeps_addresses = keep);
    }

    /// Keeps the status of a Service that is no `LoadBalancer` any more.
    pub fn keep_types(&self, keep: bool) {
        self.knobs.send_modify(|knobs| knobs.keeps_types = keep);
    }

    /// The DHCP server gives a Service (`namespace/name`) this address from now on.
    pub fn lease(&self, service: &str, address: &str) {
        lock(&self.leases).insert(service.to_owned(), address.to_owned());
        self.knobs.send_modify(|_| {});
    }
}

impl Worker {
    async fn run(mut self) {
        let api = Api::<Service>::all(self.client.clone());
        let mut events = watcher(api, watcher::Config::default()).boxed();
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(watcher::Event::Apply(it) | watcher::Event::InitApply(it))) => {
                        self.services.insert(key(&it), it);
                    }
                    Some(Ok(watcher::Event::Delete(it))) => {
                        self.services.remove(&key(&it));
                    }
                    Some(Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_)) => {}
                    None => return,
                },
                changed = self.knobs.changed() => if changed.is_err() {
                    return;
                },
                () = clock::sleep(PERIOD) => {}
            }
            self.work().await;
        }
    }

    async fn work(&self) {
        let knobs = self.knobs.borrow().clone();
        if knobs.stopped {
            return;
        }
        for service in self.services.values() {
            if let Some(ingress) = self.wanted(service, &knobs) {
                clock::sleep(knobs.delay).await;
                // Another write was faster: its event brings the Service back.
                let _ = self.write(service, &ingress).await;
            }
        }
    }

    /// The ingress that a Service is to have, if it has another.
    fn wanted(&self, service: &Service, knobs: &Knobs) -> Option<Vec<String>> {
        let now = ingress(service);
        let is_balancer = service.spec.as_ref()?.type_.as_deref() == Some("LoadBalancer");
        if !is_balancer {
            return (!now.is_empty() && !knobs.keeps_types).then(Vec::new);
        }
        let asked = service.annotations().get(ADDRESSES).map(String::as_str);
        let asked = asked.unwrap_or_default();
        if asked.is_empty() || (knobs.keeps_addresses && !now.is_empty()) {
            return None;
        }
        let wanted = match asked {
            "0.0.0.0" => vec![self.leased(service)],
            static_ones => static_ones
                .split(',')
                .map(|it| it.trim().to_owned())
                .collect(),
        };
        (wanted != now).then_some(wanted)
    }

    fn leased(&self, service: &Service) -> String {
        let (namespace, name) = key(service);
        let mut leases = lock(&self.leases);
        let number = leases.len() + 1;
        let lease = leases
            .entry(format!("{namespace}/{name}"))
            .or_insert_with(|| format!("10.250.{}.{}", number / 250, number % 250 + 1));
        lease.clone()
    }

    async fn write(&self, service: &Service, ingress: &[String]) -> Result<()> {
        let (namespace, name) = key(service);
        let api = Api::<Service>::namespaced(self.client.clone(), &namespace);
        let params = PatchParams::default();
        let is_leased = service
            .annotations()
            .get(ADDRESSES)
            .is_some_and(|it| it == "0.0.0.0");
        if is_leased && let Some(address) = ingress.first() {
            let annotations = json!({ "metadata": { "annotations": {
                "kube-vip.io/requestedIP": address,
                "kube-vip.io/hwaddr": "02:00:00:00:00:01",
                "kube-vip.io/vipHost": "node-0",
            } } });
            api.patch(&name, &params, &Patch::Merge(annotations))
                .await?;
        }
        let ingress: Vec<Value> = ingress.iter().map(|ip| json!({ "ip": ip })).collect();
        let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
        api.patch_status(&name, &params, &Patch::Merge(status))
            .await
            .map(drop)
            .context("writing the status of a Service")
    }
}

fn key(service: &Service) -> (String, String) {
    (service.namespace().unwrap_or_default(), service.name_any())
}

fn ingress(service: &Service) -> Vec<String> {
    let status = service.status.as_ref();
    let balancer = status.and_then(|it| it.load_balancer.as_ref());
    let ingress = balancer.and_then(|it| it.ingress.as_ref());
    ingress
        .into_iter()
        .flatten()
        .filter_map(|it| it.ip.clone())
        .collect()
}
