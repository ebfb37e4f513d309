//! Builders for the tests of decisions.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Node, Service};

use super::{
    announcer::{AnnouncerEvent, Question},
    desired::desired,
    event::{Event, Outcome},
    model::Model,
    observed::Phase,
    plan::{Action, plan},
    status::{Served, StatusWish},
};
use crate::{
    config::{
        ApiOutagePolicy, ClassRules, ConflictPolicy, ElectionMode, ElectionScope, InterfaceChoice,
        LeaseConfig, SpeakerConfig, VipPrefix,
    },
    election::{Acquisition, Holder, LeaseKey, Loss, Notice},
    net::link::{DefaultRoute, Link, LinkAddress, LinkEvent, LinkIndex, MacAddress, Snapshot},
    runtime::informer::Delta,
};

/// Defaults, on `node0`.
pub(crate) fn config() -> SpeakerConfig {
    SpeakerConfig {
        node_name: "node0".to_owned(),
        namespace: "kube-system".to_owned(),
        service_namespace: None,
        interface: None,
        service_interface: InterfaceChoice::Auto,
        vip_prefix: VipPrefix::default(),
        class: ClassRules {
            name: "kube-vip.io/kube-vip-class".to_owned(),
            only: false,
            legacy: true,
        },
        disable_service_updates: false,
        require_endpoints: false,
        election: ElectionMode::Lease,
        election_scope: ElectionScope::Service,
        election_on_demand: false,
        lease: LeaseConfig {
            namespace: "kube-system".to_owned(),
            name: "plndr-svcs-lock".to_owned(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        },
        announce_interval: Duration::from_secs(60),
        conflict: ConflictPolicy::Refuse,
        allowed_cidrs: Vec::new(),
        api_outage: ApiOutagePolicy::Hold,
        address_lifetime: Some(Duration::from_secs(5)),
        realtime: true,
        metrics_address: None,
        health_port: None,
        kubeconfig: None,
        master: None,
        api_server: Vec::new(),
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address in a test")
}

/// A running link with this index and name.
pub(crate) fn link(index: u32, name: &str) -> Link {
    Link {
        index: LinkIndex(index),
        name: name.to_owned(),
        alias: None,
        mac: Some(MacAddress([
            2,
            0,
            0,
            0,
            0,
            u8::try_from(index).expect("a small index"),
        ])),
        parent: None,
        loopback: name == "lo",
        up: true,
        carrier: true,
        mtu: 1500,
    }
}

/// An address of the host itself.
pub(crate) fn host_address(index: u32, net: &str) -> LinkAddress {
    let net: ipnet::IpNet = net.parse().expect("a prefix in a test");
    LinkAddress {
        link: LinkIndex(index),
        address: net.addr(),
        prefix_len: net.prefix_len(),
        marked: false,
        usable: true,
        deprecated: false,
    }
}

/// `lo`, and `eth0` (2) with `10.0.0.1/24`, `fd00::1/64`, a link-local address and default routes.
pub(crate) fn host() -> Snapshot {
    let mut host = Snapshot::default();
    for link in [link(1, "lo"), link(2, "eth0")] {
        host.links.insert(link.index, link);
    }
    for (index, net) in [
        (1, "127.0.0.1/8"),
        (1, "::1/128"),
        (2, "10.0.0.1/24"),
        (2, "fd00::1/64"),
        (2, "fe80::1/64"),
    ] {
        let address = host_address(index, net);
        host.addresses.insert(address.key(), address);
    }
    host.default_routes = vec![
        DefaultRoute {
            ipv6: false,
            link: LinkIndex(2),
            gateway: Some(ip("10.0.0.254")),
            metric: 0,
        },
        DefaultRoute {
            ipv6: true,
            link: LinkIndex(2),
            gateway: Some(ip("fd00::ff")),
            metric: 0,
        },
    ];
    host
}

/// A world around one model: a kernel that obeys at once, a link and an election that do what the
/// test says, and a log of every action.
pub(crate) struct World {
    pub(crate) model: Model,
    pub(crate) now: Instant,
    pub(crate) log: Vec<String>,
    /// Address operations fail.
    pub(crate) kernel_fails: bool,
    /// This address is never taken.
    pub(crate) kernel_refuses: Option<IpAddr>,
}

impl World {
    /// `node0` of three nodes, synced, nothing to do.
    pub(crate) fn new() -> Self {
        Self::with(config())
    }

    pub(crate) fn with(config: SpeakerConfig) -> Self {
        let mut world = Self {
            model: Model::new(Arc::new(config)),
            now: crate::runtime::clock::now(),
            log: Vec::new(),
            kernel_fails: false,
            kernel_refuses: None,
        };
        for (index, node) in ["node0", "node1", "node2"].iter().enumerate() {
            world.apply(Event::Node(upsert(node_object(node, index + 1, true))));
        }
        for synced in [
            Event::Service(Delta::Synced),
            Event::Slice(Delta::Synced),
            Event::Node(Delta::Synced),
            Event::Link(LinkEvent::Resync(host())),
        ] {
            world.apply(synced);
        }
        world.settle();
        world
    }

    pub(crate) fn apply(&mut self, event: Event) {
        self.model.apply(event, self.now);
    }

    /// Decides and acts until nothing is left to do now.
    pub(crate) fn settle(&mut self) {
        for _ in 0..20 {
            let Some(wanted) = desired(&self.model, self.now) else {
                return;
            };
            self.model.remember(&wanted, self.now);
            let actions = plan(&self.model, &wanted, self.now);
            if actions.is_empty() {
                let late = wanted.wake.is_some_and(|wake| wake <= self.now);
                assert!(!late, "a wake-up in the past would turn the loop for ever");
                return;
            }
            for action in actions {
                self.check(&action);
                self.model.observed.started(&action, self.now);
                self.log.push(describe(&action));
                self.effect(&action);
            }
        }
        panic!("the plan never settles: {:?}", self.log);
    }

    /// The orders that keep two nodes from answering for one VIP.
    fn check(&self, action: &Action) {
        let observed = &self.model.observed;
        match action {
            Action::Retire { lease, .. } => {
                assert!(
                    !observed.own.values().any(|under| under == lease),
                    "{lease} still protects"
                );
            }
            Action::Announce { link, vip, .. } => {
                let on_link = observed.links.addresses.keys();
                assert!(
                    on_link
                        .clone()
                        .any(|k| k.link == *link && k.address == *vip),
                    "{vip} is not there"
                );
            }
            Action::Remove(key) => {
                let announcing = observed.announcing.contains_key(&(key.link, key.address));
                assert!(!announcing, "{} is still announced", key.address);
            }
            Action::Add(_, lease) => {
                let held = observed
                    .contests
                    .get(lease)
                    .is_some_and(|c| matches!(c.phase, Phase::Held { .. }));
                assert!(held, "{lease} is not ours");
            }
            _ => {}
        }
    }

    fn effect(&mut self, action: &Action) {
        let result = || {
            if self.kernel_fails {
                Err(crate::net::netlink::Error::Disconnected)
            } else {
                Ok(())
            }
        };
        match action {
            Action::Add(address, _) => {
                let refused = self.kernel_refuses == Some(address.key.address);
                let result = if refused {
                    Err(crate::net::netlink::Error::Ipv6Disabled)
                } else {
                    result()
                };
                let outcome = Outcome::Added(vec![(address.key, result)]);
                self.apply(Event::Outcome(outcome));
            }
            Action::Remove(key) => {
                let outcome = Outcome::Removed(vec![(*key, result())]);
                self.apply(Event::Outcome(outcome));
            }
            Action::Retire { lease, .. } => {
                self.apply(Event::Election(Notice::Retired {
                    lease: lease.clone(),
                }));
            }
            Action::Write {
                service, wish, uid, ..
            } => {
                let state = self
                    .model
                    .services
                    .get_mut(service)
                    .expect("a written Service exists");
                state.served = match wish.clone() {
                    StatusWish::Serve { vip_host, ingress } => Served {
                        vip_host: Some(vip_host),
                        ingress,
                        foreign: false,
                    },
                    StatusWish::Clear => Served::default(),
                };
                let outcome = Outcome::Written {
                    service: service.clone(),
                    uid: uid.clone(),
                    result: Ok(()),
                };
                self.apply(Event::Outcome(outcome));
            }
            _ => {}
        }
    }

    /// Time passes; deadlines are kept.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let wake = desired(&self.model, self.now).and_then(|d| d.wake);
            match wake.filter(|wake| *wake <= end) {
                Some(wake) => self.now = wake.max(self.now + Duration::from_millis(1)),
                None => break,
            }
        }
        self.now = end;
        self.settle();
    }

    pub(crate) fn service(&mut self, name: &str, vips: &str) {
        self.service_with(name, vips, |_| {});
    }

    pub(crate) fn service_with(
        &mut self,
        name: &str,
        vips: &str,
        change: impl FnOnce(&mut Service),
    ) {
        let mut service = service_object(name, vips);
        change(&mut service);
        self.apply(Event::Service(upsert(service)));
        self.settle();
    }

    pub(crate) fn delete_service(&mut self, name: &str) {
        self.apply(Event::Service(Delta::Delete(Arc::new(service_object(
            name, "",
        )))));
        self.settle();
    }

    /// The endpoints of a Service are on these nodes.
    pub(crate) fn endpoints(&mut self, service: &str, nodes: &[&str]) {
        let endpoints: Vec<_> = nodes
            .iter()
            .map(|node| serde_json::json!({"addresses": ["10.244.0.1"], "nodeName": node}))
            .collect();
        let slice = serde_json::from_value(serde_json::json!({
            "metadata": {
                "namespace": "shop", "name": service,
                "labels": {crate::k8s::names::label::SERVICE_NAME: service},
            },
            "addressType": "IPv4", "endpoints": endpoints,
        }))
        .expect("a slice in a test");
        self.apply(Event::Slice(upsert(slice)));
        self.settle();
    }

    pub(crate) fn node_ready(&mut self, name: &str, ready: bool) {
        let index = name
            .trim_start_matches("node")
            .parse::<usize>()
            .expect("nodeN")
            + 1;
        self.apply(Event::Node(upsert(node_object(name, index, ready))));
        self.settle();
    }

    pub(crate) fn acquired(&mut self, lease: &str, how: Acquisition) {
        let lease = lease_key(lease);
        let holder = Holder {
            identity: "node0_speaker".to_owned(),
            live: true,
            renewed: true,
        };
        self.apply(Event::Election(Notice::Seen {
            lease: lease.clone(),
            holder: Some(holder),
        }));
        self.apply(Event::Election(Notice::Acquired { lease, how }));
        self.settle();
    }

    pub(crate) fn lost(&mut self, lease: &str) {
        let lease = lease_key(lease);
        self.apply(Event::Election(Notice::Lost {
            lease,
            why: Loss::Deadline,
        }));
        self.settle();
    }

    pub(crate) fn seen(&mut self, lease: &str, identity: Option<&str>) {
        let holder = identity.map(|identity| Holder {
            identity: identity.to_owned(),
            live: true,
            renewed: true,
        });
        self.apply(Event::Election(Notice::Seen {
            lease: lease_key(lease),
            holder,
        }));
        self.settle();
    }

    pub(crate) fn clear(&mut self, vip: &str) {
        let event = AnnouncerEvent::Clear {
            link: LinkIndex(2),
            vip: ip(vip),
        };
        self.apply(Event::Announcer(event));
        self.settle();
    }

    pub(crate) fn answered(&mut self, vip: &str, node: Option<&str>) {
        let by = MacAddress([2, 0, 0, 0, 0, 9]);
        let node = node.map(ip);
        let event = AnnouncerEvent::Answered {
            link: LinkIndex(2),
            vip: ip(vip),
            by,
            node,
        };
        self.apply(Event::Announcer(event));
        self.settle();
    }

    /// A foreign host claims a VIP that stands here.
    pub(crate) fn claimed(&mut self, vip: &str) {
        let by = MacAddress([2, 0, 0, 0, 0, 9]);
        let event = AnnouncerEvent::Conflict {
            link: LinkIndex(2),
            vip: ip(vip),
            by,
            node: None,
        };
        self.apply(Event::Announcer(event));
        self.settle();
    }

    pub(crate) fn link(&mut self, event: LinkEvent) {
        self.apply(Event::Link(event));
        self.settle();
    }

    /// VIPs that stand here, as the kernel and the announcers know it.
    pub(crate) fn standing(&self) -> Vec<String> {
        let observed = &self.model.observed;
        let on_link = observed.links.addresses.values().filter(|a| a.marked);
        on_link
            .filter(|a| observed.announcing.contains_key(&(a.link, a.address)))
            .map(|a| a.address.to_string())
            .collect()
    }

    pub(crate) fn contending(&self) -> Vec<String> {
        self.model
            .observed
            .contests
            .keys()
            .map(|lease| lease.name.clone())
            .collect()
    }

    /// The log since the last call.
    pub(crate) fn drain(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    /// A VIP of `web` stands here after the usual sequence.
    pub(crate) fn serve(&mut self, name: &str, vip: &str) {
        self.service(name, vip);
        self.clear(vip);
        self.acquired(&format!("kubevip-{name}"), Acquisition::Created);
        self.pass(Duration::from_secs(2));
        assert!(
            self.standing().contains(&vip.to_owned()),
            "{vip} does not stand"
        );
        self.drain();
    }
}

fn describe(action: &Action) -> String {
    match action {
        Action::Silence { vip, .. } => format!("silence {vip}"),
        Action::Forget { vip, .. } => format!("forget {vip}"),
        Action::Remove(key) => format!("remove {}", key.address),
        Action::Retire {
            lease,
            delete: false,
        } => format!("retire {}", lease.name),
        Action::Retire {
            lease,
            delete: true,
        } => format!("retire and delete {}", lease.name),
        Action::Contend {
            lease, hesitation, ..
        } if hesitation.is_zero() => {
            format!("contend {}", lease.name)
        }
        Action::Contend {
            lease, hesitation, ..
        } => {
            format!("contend {} after {hesitation:?}", lease.name)
        }
        Action::Attend(facts) => format!("attend {}", facts.name),
        Action::Ask {
            vip,
            question: Question::New,
            ..
        } => format!("ask {vip}"),
        Action::Ask { vip, .. } => format!("ask until silent {vip}"),
        Action::Add(address, _) => format!("add {}", address.key.address),
        Action::Announce {
            vip, rival: false, ..
        } => format!("announce {vip}"),
        Action::Announce {
            vip, rival: true, ..
        } => format!("announce {vip} often"),
        Action::Leave(link) => format!("leave {link}"),
        Action::Write {
            service,
            wish: StatusWish::Clear,
            ..
        } => format!("clear {}", service.name),
        Action::Write { service, .. } => format!("write {}", service.name),
        Action::Tell {
            key: (service, reason, _),
            ..
        } => {
            format!("tell {} {}", service.name, reason.as_str())
        }
    }
}

pub(crate) fn lease_key(name: &str) -> LeaseKey {
    let namespace = if name.starts_with("kubevip-") {
        "shop"
    } else {
        "kube-system"
    };
    LeaseKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn upsert<K>(object: K) -> Delta<K> {
    Delta::Upsert {
        old: None,
        new: Arc::new(object),
    }
}

fn node_object(name: &str, index: usize, ready: bool) -> Node {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": "InternalIP", "address": format!("10.0.0.{index}")}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        },
    }))
    .expect("a Node in a test")
}

pub(crate) fn service_object(name: &str, vips: &str) -> Service {
    serde_json::from_value(serde_json::json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": format!("uid-{name}"),
            "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", name.len() % 60),
            "annotations": {crate::k8s::names::kube_vip::LOADBALANCER_IPS: vips},
        },
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}]},
    }))
    .expect("a Service in a test")
}
