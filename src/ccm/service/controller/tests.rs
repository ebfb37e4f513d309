//! The controller against two API servers that keep objects, versions and watches.

use std::collections::{BTreeMap, HashMap};

use kube::{Api, core::DeserializeGuard};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::*;
use crate::{
    ccm::cache::Source,
    k8s::dialogue::{self, Call, Server},
    runtime::{health::Health, informer::Selection},
};

const SERVICES: &str = "/api/v1/services";
const BALANCERS: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/vms/loadbalancers";

/// What an API server keeps.
#[derive(Default)]
struct Store {
    version: u64,
    /// By the path of the collection that is watched, and name.
    objects: BTreeMap<(String, String), Value>,
    watches: HashMap<String, UnboundedSender<Value>>,
    /// Methods and last path segments of all writes but Events.
    writes: Vec<String>,
    /// Whether the host answers a new object with an address at once.
    allocates: bool,
    refuses: Option<(u16, &'static str)>,
    /// Whether answers to deletions are held back, and those that are.
    holds_deletions: bool,
    held: Vec<(Call, Value)>,
}

impl Store {
    fn put(&mut self, collection: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = (collection.to_owned(), name);
        let terminating = object["metadata"].get("deletionTimestamp").is_some();
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|f| !f.is_empty());
        let kind = if terminating && !held {
            self.objects.remove(&key);
            "DELETED"
        } else if self.objects.insert(key, object.clone()).is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        if let Some(watch) = self.watches.get(collection) {
            watch.send(json!({"type": kind, "object": object})).unwrap();
        }
        object
    }

    fn get(&self, collection: &str, name: &str) -> Option<Value> {
        self.objects
            .get(&(collection.to_owned(), name.to_owned()))
            .cloned()
    }

    fn change(&mut self, collection: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(collection, name).unwrap();
        change(&mut object);
        self.put(collection, object);
    }

    fn allocate(&mut self, name: &str, ip: &str) {
        self.change(BALANCERS, name, |object| {
            object["status"] = json!({"allocatedAddress": {"ip": ip}});
        });
    }

    fn answer(&mut self, call: Call) {
        let uri = call.uri.clone();
        let (path, query) = uri.split_once('?').unwrap_or((&uri, ""));
        if call.method == "GET" && query.contains("watch=true") {
            self.watches.insert(path.to_owned(), call.watch_live());
            return;
        }
        if path.contains("/events") {
            let body = call.body.clone();
            return call.ok(&body);
        }
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (collection, name) = match segments.as_slice() {
            ["api", "v1", "namespaces", _, "services", name, ..] => (SERVICES, *name),
            [.., "loadbalancers", name] => (BALANCERS, *name),
            _ => (path, ""),
        };
        if call.method == "GET" {
            return self.read(call, collection, name);
        }
        self.writes.push(call.method.clone());
        if let Some((code, reason)) = self.refuses {
            return call.fail(code, reason);
        }
        self.write(call, collection, name);
    }

    fn read(&self, call: Call, collection: &str, name: &str) {
        if name.is_empty() {
            let of = self
                .objects
                .iter()
                .filter(|((kind, _), _)| kind == collection);
            let items: Vec<&Value> = of.map(|(_, object)| object).collect();
            let version = self.version.max(1).to_string();
            return call.ok(&json!({
                "apiVersion": "v1", "kind": "List",
                "metadata": {"resourceVersion": version}, "items": items}));
        }
        match self.get(collection, name) {
            Some(object) => call.ok(&object),
            None => call.fail(404, "NotFound"),
        }
    }

    fn write(&mut self, call: Call, collection: &str, name: &str) {
        let body = call.body.clone();
        let stored = match call.method.as_str() {
            "POST" => {
                let mut object = body;
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                if self.get(collection, &name).is_some() {
                    return call.fail(409, "AlreadyExists");
                }
                object["metadata"]["namespace"] = "vms".into();
                object["metadata"]["uid"] = format!("uid-{}", self.version).into();
                object["metadata"]["finalizers"] = json!(["host"]);
                object["metadata"]["annotations"]["loadbalancer.harvesterhci.io/namespace"] =
                    "vms".into();
                let stored = self.put(collection, object);
                if self.allocates {
                    self.allocate(&name, "10.0.0.1");
                }
                stored
            }
            "PUT" => self.put(collection, body),
            method => {
                let Some(mut object) = self.get(collection, name) else {
                    return call.fail(404, "NotFound");
                };
                if method == "DELETE" {
                    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                } else {
                    patch(&mut object, &body);
                }
                let stored = self.put(collection, object);
                if method == "DELETE" && self.holds_deletions {
                    return self.held.push((call, stored));
                }
                stored
            }
        };
        call.ok(&stored);
    }
}

/// A merge patch, with the directives for finalizers of a strategic one.
fn patch(target: &mut Value, patch_: &Value) {
    let Value::Object(changes) = patch_ else {
        *target = patch_.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in changes {
        let list = |target: &Value| -> Vec<Value> {
            target["finalizers"].as_array().cloned().unwrap_or_default()
        };
        match key.as_str() {
            "$setElementOrder/finalizers" => {}
            "finalizers" => {
                let all = list(target)
                    .into_iter()
                    .chain(value.as_array().unwrap().clone());
                target["finalizers"] = all.collect();
            }
            "$deleteFromPrimitiveList/finalizers" => {
                let gone = value.as_array().unwrap();
                target["finalizers"] = list(target)
                    .into_iter()
                    .filter(|name| !gone.contains(name))
                    .collect();
            }
            _ if value.is_null() => {
                target.as_object_mut().unwrap().remove(key);
            }
            _ => patch(&mut target[key], value),
        }
    }
}

#[derive(Clone, Default)]
struct Cluster(Arc<Mutex<Store>>);

impl Cluster {
    fn with<T>(&self, work: impl FnOnce(&mut Store) -> T) -> T {
        work(&mut self.0.lock().unwrap())
    }

    async fn serve(&self, mut server: Server) {
        loop {
            let call = server.next().await;
            self.with(|store| store.answer(call));
        }
    }

    /// Polls until the condition holds.
    async fn until(&self, what: &str, holds: impl Fn(&Store) -> bool) {
        for _ in 0..30_000 {
            if self.with(|store| holds(store)) {
                return;
            }
            clock::sleep(Duration::from_millis(2)).await;
        }
        panic!("never: {what}");
    }
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "a", "name": name, "uid": format!("uid-of-{name}")},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}]},
    })
}

fn object_of(name: &str) -> String {
    super::super::loadbalancer::name("gc", "a", name, &format!("uid-of-{name}"))
}

fn address(store: &Store, name: &str) -> Option<String> {
    let service = store.get(SERVICES, name)?;
    let address = service["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"].as_str()?;
    Some(address.to_owned())
}

fn all<K>(client: &Client) -> Api<DeserializeGuard<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned,
{
    Api::all(client.clone())
}

/// Runs `test` beside the controller, the guest cluster and the host.
async fn with_controller(guest: &Cluster, host: &Cluster, test: impl Future<Output = ()>) {
    let (guest_client, guest_server) = dialogue::pair();
    let (host_client, host_server) = dialogue::pair();
    let mut services = Source::<Service>::default();
    let mut nodes = Source::<Node>::default();
    let mut balancers = Source::<LoadBalancer>::default();
    let mut maps = Source::<ConfigMap>::default();
    let feeds = Feeds {
        services: services.subscribe(),
        nodes: nodes.subscribe(),
        balancers: balancers.subscribe(),
        network_map: maps.subscribe(),
    };
    let (recorder, writer) = Recorder::new(guest_client.clone(), "service-controller", "h");
    let parts = Parts {
        guest: guest_client.clone(),
        host: host_client.clone(),
        host_namespace: "vms".to_owned(),
        settings: Settings {
            cluster: "gc".to_owned(),
            management_network: None,
        },
        syncs: 32,
        resync: Duration::from_secs(3600),
        recorder,
        metrics: Metrics::register(&crate::runtime::metrics::Metrics::new(&Health::new())),
    };
    let controller = Controller::new(parts, &feeds);
    let stop = Shutdown::new();
    let watches = async {
        tokio::join!(
            services.run(all(&guest_client), Selection::default(), |_| {}),
            nodes.run(all(&guest_client), Selection::default(), |_| {}),
            maps.run(all(&guest_client), Selection::default(), |_| {}),
            balancers.run(
                Api::namespaced(host_client.clone(), "vms"),
                Selection::default(),
                |_| {}
            ),
        )
    };
    let everything = async {
        tokio::select! {
            _ = watches => panic!("a watch ended"),
            () = controller.run(feeds, &stop) => panic!("the controller ended"),
            () = writer.run(stop.token(), FINISH) => panic!("the events ended"),
            () = guest.serve(guest_server) => {}
            () = host.serve(host_server) => {}
            () = test => {}
        }
    };
    Box::pin(everything).await;
}

fn clusters() -> (Cluster, Cluster) {
    let (guest, host) = (Cluster::default(), Cluster::default());
    host.with(|store| store.allocates = true);
    (guest, host)
}

#[tokio::test]
async fn fw_s34_s37_s74_s137_a_service_goes_from_its_creation_to_an_address_and_away_with_as_few_writes_as_can_be()
 {
    let (guest, host) = clusters();
    let test = async {
        guest
            .until("watched", |store| store.watches.contains_key(SERVICES))
            .await;
        guest.with(|store| store.put(SERVICES, service("web")));
        let given = |store: &Store| address(store, "web").as_deref() == Some("10.0.0.1");
        guest.until("an address", given).await;
        assert_eq!(guest.with(|store| store.writes.clone()), ["PATCH", "PATCH"]);
        assert_eq!(host.with(|store| store.writes.clone()), ["POST"]);
        guest.with(|store| {
            store.change(SERVICES, "web", |service| {
                service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            });
        });
        let name = object_of("web");
        host.until("a deletion", |store| store.writes.len() == 2)
            .await;
        assert!(
            guest.with(|store| store.get(SERVICES, "web").is_some()),
            "the host has not let go"
        );
        host.with(|store| {
            store.change(BALANCERS, &name, |object| {
                object["metadata"]["finalizers"] = json!([]);
            });
        });
        guest
            .until("its end", |store| store.get(SERVICES, "web").is_none())
            .await;
        assert_eq!(host.with(|store| store.writes.clone()), ["POST", "DELETE"]);
    };
    with_controller(&guest, &host, test).await;
}

/// As when the host is fast and the network of the answer is not.
#[tokio::test]
async fn an_object_whose_end_is_seen_before_the_answer_to_its_deletion_holds_nothing_up() {
    let (guest, host) = clusters();
    host.with(|store| store.holds_deletions = true);
    let test = async {
        guest
            .until("watched", |store| store.watches.contains_key(SERVICES))
            .await;
        guest.with(|store| store.put(SERVICES, service("web")));
        let given = |store: &Store| address(store, "web").is_some();
        guest.until("an address", given).await;
        guest.with(|store| {
            store.change(SERVICES, "web", |service| {
                service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            });
        });
        host.until("a deletion", |store| !store.held.is_empty())
            .await;
        host.with(|store| {
            store.change(BALANCERS, &object_of("web"), |object| {
                object["metadata"]["finalizers"] = json!([]);
            });
        });
        // The watch brings the end meanwhile.
        clock::sleep(Duration::from_millis(200)).await;
        let answered = clock::now();
        for (call, stored) in host.with(|store| std::mem::take(&mut store.held)) {
            call.ok(&stored);
        }
        guest
            .until("its end", |store| store.get(SERVICES, "web").is_none())
            .await;
        let took = answered.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
    };
    with_controller(&guest, &host, test).await;
}

#[tokio::test]
async fn a_service_whose_address_never_comes_delays_nobody() {
    let (guest, host) = clusters();
    host.with(|store| store.allocates = false);
    let test = async {
        let started = clock::now();
        let names: Vec<String> = (0..500).map(|n| format!("s{n}")).collect();
        guest.with(|store| {
            for name in &names {
                store.put(SERVICES, service(name));
            }
        });
        host.until("all objects", |store| store.objects.len() == 500)
            .await;
        host.with(|store| {
            for (n, name) in names.iter().enumerate().skip(1) {
                store.allocate(&object_of(name), &format!("10.0.{}.{}", n / 250, n % 250));
            }
        });
        let given = |store: &Store| {
            names
                .iter()
                .skip(1)
                .all(|name| address(store, name).is_some())
        };
        guest.until("all addresses but one", given).await;
        println!("500 Services in {:?}", clock::now() - started);
        assert_eq!(guest.with(|store| address(store, "s0")), None);
        assert_eq!(host.with(|store| store.writes.len()), 500);
    };
    with_controller(&guest, &host, test).await;
}

#[tokio::test]
async fn an_object_deleted_by_hand_is_made_again_once_it_is_gone_and_a_moved_address_is_followed() {
    let (guest, host) = clusters();
    let test = async {
        guest.with(|store| store.put(SERVICES, service("web")));
        guest
            .until("an address", |store| address(store, "web").is_some())
            .await;
        let name = object_of("web");
        host.with(|store| {
            store.allocates = false;
            store.change(BALANCERS, &name, |object| {
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                object["metadata"]["finalizers"] = json!([]);
            });
        });
        host.until("another", |store| store.get(BALANCERS, &name).is_some())
            .await;
        let still = guest.with(|store| address(store, "web"));
        assert_eq!(still.as_deref(), Some("10.0.0.1"), "never blank");
        host.with(|store| store.allocate(&name, "10.0.0.2"));
        let moved = |store: &Store| address(store, "web").as_deref() == Some("10.0.0.2");
        guest.until("the new address", moved).await;
        guest.with(|store| {
            store.change(SERVICES, "web", |service| {
                service["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"] =
                    "6.6.6.6".into();
            });
        });
        guest.until("what was allocated", moved).await;
    };
    with_controller(&guest, &host, test).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_refuses_is_asked_again_and_nothing_is_lost() {
    let (guest, host) = clusters();
    host.with(|store| store.refuses = Some((403, "Forbidden")));
    let test = async {
        guest.with(|store| store.put(SERVICES, service("web")));
        host.until("two tries", |store| store.writes.len() >= 2)
            .await;
        host.with(|store| store.refuses = None);
        guest
            .until("an address", |store| address(store, "web").is_some())
            .await;
    };
    with_controller(&guest, &host, test).await;
}

#[tokio::test(start_paused = true)]
async fn the_object_of_a_service_that_is_gone_is_deleted_and_others_are_not() {
    let (guest, host) = clusters();
    let object = |cluster: &str, name: &str| {
        json!({
            "metadata": {"name": name, "namespace": "vms", "uid": name, "finalizers": ["host"],
                "labels": {
                    "cloudprovider.harvesterhci.io/cluster": cluster,
                    "cloudprovider.harvesterhci.io/serviceNamespace": "a",
                    "cloudprovider.harvesterhci.io/serviceName": "gone",
                }},
            "spec": {"workloadType": "cluster", "ipam": "pool"},
        })
    };
    let orphan = object_of("gone");
    host.with(|store| {
        store.put(BALANCERS, object("gc", &orphan));
        store.put(BALANCERS, object("other", "gc-a-gone-00000000"));
        store.put(BALANCERS, object("gc", "by-hand"));
    });
    let test = async {
        let going = |store: &Store, name: &str| {
            let object = store.get(BALANCERS, name).unwrap();
            object["metadata"].get("deletionTimestamp").is_some()
        };
        host.until("the orphan's end", |store| going(store, &orphan))
            .await;
        assert_eq!(host.with(|store| store.writes.clone()), ["DELETE"]);
    };
    with_controller(&guest, &host, test).await;
}

#[tokio::test]
async fn a_secondary_follows_its_primary_and_the_primary_stays_until_it_is_gone() {
    let (guest, host) = clusters();
    let test = async {
        guest.with(|store| store.put(SERVICES, service("p")));
        guest
            .until("an address", |store| address(store, "p").is_some())
            .await;
        guest.with(|store| {
            let mut secondary = service("s");
            secondary["spec"]["ports"][0]["port"] = 443.into();
            secondary["metadata"]["annotations"] =
                json!({"cloudprovider.harvesterhci.io/primary-service": "a/p"});
            store.put(SERVICES, secondary);
            store.change(SERVICES, "p", |service| {
                service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}});
            });
        });
        let shared = |store: &Store| address(store, "s").as_deref() == Some("10.0.0.1");
        guest.until("the shared address", shared).await;
        let delete = |name: &str| {
            guest.with(|store| {
                store.change(SERVICES, name, |service| {
                    service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                });
            });
        };
        delete("p");
        delete("s");
        guest
            .until("the secondary's end", |store| {
                store.get(SERVICES, "s").is_none()
            })
            .await;
        let last = |store: &Store| store.writes.last().map(String::as_str) == Some("DELETE");
        host.until("the primary's deletion", last).await;
    };
    with_controller(&guest, &host, test).await;
}

#[test]
fn fw_s138_a_failed_key_is_due_again_by_its_back_off_and_a_success_ends_it() {
    let delay = |failures| BACKOFF.delay(failures, 0.5).as_secs();
    assert_eq!([1, 2, 3, 6, 7, 8].map(delay), [5, 10, 20, 160, 300, 300]);
}
