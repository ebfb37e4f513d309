use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::*;
use crate::{election::LeaseKey, k8s::names, speaker::testing::ip};

struct Scene {
    requests: BTreeMap<ServiceKey, VipRequest>,
    endpoints: Endpoints,
    nodes: BTreeMap<String, NodeFacts>,
    global: bool,
}

impl Scene {
    /// Nodes a, b and c, all fine.
    fn new() -> Self {
        let nodes = ["a", "b", "c"].map(|n| (n.to_owned(), NodeFacts::default()));
        Self {
            requests: BTreeMap::new(),
            endpoints: Endpoints::default(),
            nodes: nodes.into(),
            global: false,
        }
    }

    fn service(mut self, name: &str, gate: EndpointGate, endpoints: &[&str]) -> Self {
        let request = VipRequest {
            uid: String::new(),
            created: None,
            addresses: vec![ip("10.0.0.9")],
            interface: None,
            gate,
            lease: None,
            own_election: false,
            node_selector: None,
            ports: Vec::new(),
        };
        self.requests.insert(ServiceKey::new("shop", name), request);
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|node| serde_json::json!({"addresses": ["10.244.0.1"], "nodeName": node}))
            .collect();
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "shop", "name": name, "labels": {names::label::SERVICE_NAME: name}},
            "addressType": "IPv4", "endpoints": endpoints,
        }))
        .unwrap();
        self.endpoints.upsert(None, &slice);
        self
    }

    fn impeded(mut self, node: &str) -> Self {
        self.nodes.get_mut(node).unwrap().impediment = Some("is not Ready");
        self
    }

    fn selector(mut self, service: &str, selector: &str) -> Self {
        let key = ServiceKey::new("shop", service);
        self.requests.get_mut(&key).unwrap().node_selector = Some(selector.parse().unwrap());
        self
    }

    fn label(mut self, node: &str, key: &str, value: &str) -> Self {
        let labels = &mut self.nodes.get_mut(node).unwrap().labels;
        labels.insert(key.to_owned(), value.to_owned());
        self
    }

    fn on(&self, here: &str) -> Candidacy {
        let requests: BTreeMap<ServiceKey, &VipRequest> =
            self.requests.iter().map(|(k, r)| (k.clone(), r)).collect();
        let group = Group {
            lease: LeaseKey {
                namespace: "shop".to_owned(),
                name: "l".to_owned(),
            },
            services: requests.keys().cloned().collect(),
            global: self.global,
        };
        let cluster = Cluster::new(&requests, &self.endpoints, &self.nodes, here);
        candidacy(&group, cluster)
    }

    /// Standing on a, b, c.
    fn standings(&self) -> String {
        ["a", "b", "c"]
            .map(|n| match self.on(n).standing {
                Standing::Yes => 'Y',
                Standing::Reluctant => 'r',
                Standing::No => '-',
            })
            .iter()
            .collect()
    }

    fn reasons(&self) -> Vec<Reason> {
        self.on("a")
            .facts
            .iter()
            .map(|(_, fact)| fact.reason)
            .collect()
    }
}

use EndpointGate::{Any, Local, None as Open};

#[test]
fn hard_conditions_decide_who_qualifies() {
    for (scene, expected) in [
        (Scene::new().service("s", Open, &[]), "YYY"),
        (Scene::new().service("s", Any, &[]), "---"),
        (Scene::new().service("s", Any, &["b"]), "YYY"),
        (Scene::new().service("s", Local, &["b", "c"]), "-YY"),
        (Scene::new().service("s", Local, &[]), "---"),
        (
            Scene::new()
                .service("s", Open, &[])
                .selector("s", "zone=1")
                .label("c", "zone", "1"),
            "--Y",
        ),
        (
            Scene::new()
                .service("s", Local, &["b"])
                .selector("s", "zone=1")
                .label("c", "zone", "1"),
            "---",
        ),
    ] {
        assert_eq!(scene.standings(), expected);
    }
}

#[test]
fn nobody_is_said_with_the_reason() {
    let scene = Scene::new().service("s", Local, &[]);
    assert_eq!(scene.reasons(), [Reason::NoCandidate]);
    let facts = scene.on("b").facts;
    assert!(
        facts
            .iter()
            .all(|(_, f)| f.message.contains("no node has a ready endpoint")),
        "{facts:?}"
    );
    let everywhere: Vec<_> = ["a", "b", "c"].map(|n| scene.on(n).facts).into();
    assert!(
        everywhere.windows(2).all(|w| w[0] == w[1]),
        "every speaker says the same"
    );
}

#[test]
fn soft_conditions_choose_among_the_qualified_and_are_ignored_where_nobody_passes() {
    let scene = Scene::new().service("s", Open, &[]).impeded("a");
    assert_eq!(scene.standings(), "rYY");
    let all = Scene::new()
        .service("s", Open, &[])
        .impeded("a")
        .impeded("b")
        .impeded("c");
    assert_eq!(all.standings(), "YYY");
    assert_eq!(all.reasons(), [Reason::ConditionsIgnored]);
    let only_endpoint = Scene::new().service("s", Local, &["a"]).impeded("a");
    assert_eq!(only_endpoint.standings(), "Y--");
}

#[test]
fn a_node_without_a_node_object_is_reluctant() {
    let scene = Scene::new().service("s", Open, &[]);
    assert_eq!(scene.on("stranger").standing, Standing::Reluctant);
}

#[test]
fn a_group_goes_to_the_node_that_serves_most() {
    let all = Scene::new()
        .service("s", Local, &["a", "b"])
        .service("t", Local, &["b", "c"]);
    assert_eq!(all.standings(), "-Y-");
    assert_eq!(all.reasons(), []);
    let most = Scene::new()
        .service("s", Local, &["a"])
        .service("t", Local, &["b"])
        .service("u", Open, &[]);
    assert_eq!(most.standings(), "YY-");
    assert!(most.reasons().contains(&Reason::PartiallyServed));
    let one_without = Scene::new()
        .service("s", Local, &["a"])
        .service("t", Local, &[]);
    assert_eq!(one_without.standings(), "Y--");
    assert_eq!(one_without.reasons(), [Reason::NoCandidate]);
}

#[test]
fn the_global_owner_needs_no_endpoints_and_local_services_are_warned() {
    let mut scene = Scene::new().service("s", Local, &["b"]);
    scene.global = true;
    assert_eq!(scene.standings(), "YYY");
    assert_eq!(scene.reasons(), [Reason::GlobalElection]);
    let mut nothing = Scene::new().impeded("a");
    nothing.global = true;
    assert_eq!(nothing.standings(), "rYY");
}
