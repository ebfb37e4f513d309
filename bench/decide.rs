//! What a decision costs: a node that owns a third of 1,000 Services decides again, with nothing new and
//! after a change; and what a frame costs to build and to read. CPU time, so other load on the machine
//! does not show.
#![expect(clippy::print_stdout, reason = "what a benchmark says")]

mod stage;

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use harvester_cloud_provider::{
    config::{self, Invocation, SpeakerConfig, Surroundings},
    election::{Acquisition, Notice},
    net::{
        frame,
        link::{DefaultRoute, Link, LinkAddress, LinkEvent, LinkIndex, MacAddress, Snapshot},
    },
    runtime::{clock, informer::Delta},
    speaker::{
        announcer::AnnouncerEvent,
        desired::desired,
        event::{Event, Outcome},
        model::Model,
        plan::{Action, plan},
        status::{Served, StatusWish},
    },
};
use k8s_openapi::api::core::v1::{Node, Service};
use serde_json::json;

const SERVICES: u16 = 1_000;
/// One of three nodes: it owns every third group.
const NODES: usize = 3;
const LINK: LinkIndex = LinkIndex(2);
const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
/// Rounds until nothing is left to do, at most.
const ROUNDS: usize = 20;

fn main() -> Result<()> {
    let mode = stage::in_full("", " (quick: these figures mean nothing)");
    println!("\ndecide: cargo bench --bench decide{mode}");
    let mut model = synced()?;
    let now = clock::now();
    settle(&mut model, now)?;
    let owned = model.observed.own.len();
    println!("  {SERVICES} Services, {owned} of them owned by this node");

    cost("decision (desired and plan), nothing new", || {
        let wanted = desired(black_box(&model), now);
        wanted.map_or(0, |wanted| plan(&model, &wanted, now).len())
    })?;
    let mut port = 0;
    let mut changed = synced()?;
    settle(&mut changed, now)?;
    cost("a changed Service: apply and decision", || {
        port = (port + 1) % 1_000;
        let event = Event::Service(upsert(service(0, 8_000 + port)));
        changed.apply(event, now);
        let wanted = desired(&changed, now);
        wanted.map_or(0, |wanted| plan(&changed, &wanted, now).len())
    })?;

    let v4 = Ipv4Addr::new(10, 1, 0, 1);
    let v6 = Ipv6Addr::LOCALHOST;
    let reply = frame::gratuitous_reply(MAC, v4);
    let advertisement = frame::unsolicited_advertisement(MAC, v6, v6);
    cost("build a gratuitous ARP reply", || {
        frame::gratuitous_reply(black_box(MAC), black_box(v4))
    })?;
    cost("build an unsolicited advertisement", || {
        frame::unsolicited_advertisement(black_box(MAC), v6, black_box(v6))
    })?;
    cost("read an ARP frame", || {
        frame::parse(black_box(&reply)).is_ok()
    })?;
    cost("read an advertisement, checksum included", || {
        frame::parse(black_box(&advertisement)).is_ok()
    })
}

/// Prints the CPU time of one call.
fn cost<T>(what: &str, mut call: impl FnMut() -> T) -> Result<()> {
    let budget = stage::in_full(Duration::from_secs(2), Duration::ZERO);
    let start = stage::thread_cpu()?;
    let (mut calls, mut batch) = (0_u32, 1_u32);
    let used = loop {
        for _ in 0..batch {
            black_box(call());
        }
        calls = calls.saturating_add(batch);
        let used = stage::thread_cpu()?.saturating_sub(start);
        if used >= budget {
            break used;
        }
        // The clock is read seldom: reading it costs more than a frame.
        batch = batch.saturating_mul(2).min(1 << 20);
    };
    println!("  {what:<45} {:>12.3?}  ({calls} calls)", used / calls);
    Ok(())
}

/// A model with all first lists.
fn synced() -> Result<Model> {
    let mut model = Model::new(Arc::new(speaker_config()?));
    let now = clock::now();
    let nodes = (0..NODES).map(|index| Event::Node(upsert(node(index))));
    let services = (0..SERVICES).map(|number| Event::Service(upsert(service(number, 8_080))));
    let ends = [
        Event::Service(Delta::Synced),
        Event::Slice(Delta::Synced),
        Event::Node(Delta::Synced),
        Event::Link(LinkEvent::Resync(links())),
    ];
    for event in nodes.chain(services).chain(ends) {
        model.apply(event, now);
    }
    Ok(model)
}

fn speaker_config() -> Result<SpeakerConfig> {
    let args = ["--speaker", "--controllers=-*", "--speaker-node-name=node0"].map(str::to_owned);
    let loaded = config::load(&args, &Surroundings::default());
    let Invocation::Run(config) = loaded.map_err(|refused| anyhow::anyhow!("{refused}"))? else {
        anyhow::bail!("the flags ask for something else");
    };
    config.speaker.context("the flags ask for no speaker")
}

/// Decides and acts until nothing is left to do, in a world that obeys at once.
fn settle(model: &mut Model, now: Instant) -> Result<()> {
    for _ in 0..ROUNDS {
        let wanted = desired(model, now).context("a list is missing")?;
        model.remember(&wanted, now);
        let actions = plan(model, &wanted, now);
        if actions.is_empty() {
            return Ok(());
        }
        for action in actions {
            model.observed.started(&action, now);
            effect(model, &action, now);
        }
    }
    ensure!(false, "the plan does not settle");
    Ok(())
}

fn effect(model: &mut Model, action: &Action, now: Instant) {
    let event = match action {
        Action::Contend { lease, .. } => {
            let number = lease.name.rsplit('-').next().unwrap_or_default();
            if number.parse::<usize>().is_ok_and(|it| it % NODES != 0) {
                return;
            }
            Event::Election(Notice::Acquired {
                lease: lease.clone(),
                how: Acquisition::Created,
            })
        }
        Action::Ask { link, vip, .. } => Event::Announcer(AnnouncerEvent::Clear {
            link: *link,
            vip: *vip,
        }),
        Action::Add(address, _) => Event::Outcome(Outcome::Added(vec![(address.key, Ok(()))])),
        Action::Write {
            service, uid, wish, ..
        } => {
            if let (Some(state), StatusWish::Serve { vip_host, ingress }) =
                (model.services.get_mut(service), wish.clone())
            {
                state.served = Served {
                    vip_host: Some(vip_host),
                    ingress,
                    foreign: false,
                };
            }
            Event::Outcome(Outcome::Written {
                service: service.clone(),
                uid: uid.clone(),
                result: Ok(()),
            })
        }
        _ => return,
    };
    model.apply(event, now);
}

fn upsert<K>(object: K) -> Delta<K> {
    Delta::Upsert {
        old: None,
        new: Arc::new(object),
    }
}

fn vip(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 1, 100 + high, low).into()
}

fn service(number: u16, port: u16) -> Service {
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "shop",
            "name": format!("web-{number}"),
            "uid": format!("uid-{number}"),
            "annotations": { "kube-vip.io/loadbalancerIPs": vip(number) },
        },
        "spec": {
            "type": "LoadBalancer",
            "ports": [{ "port": port, "protocol": "TCP" }],
        },
    }))
    .expect("it is a Service")
}

fn node(index: usize) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": format!("node{index}") },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": format!("10.1.0.{}", 11 + index) }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    }))
    .expect("it is a Node")
}

/// `eth0` with 10.1.0.11/16 and a default route.
fn links() -> Snapshot {
    let link = Link {
        index: LINK,
        name: "eth0".to_owned(),
        alias: None,
        mac: Some(MAC),
        parent: None,
        loopback: false,
        up: true,
        carrier: true,
        mtu: 1_500,
    };
    let address = LinkAddress {
        link: LINK,
        address: Ipv4Addr::new(10, 1, 0, 11).into(),
        prefix_len: 16,
        marked: false,
        usable: true,
        deprecated: false,
    };
    Snapshot {
        links: [(LINK, link)].into(),
        addresses: [(address.key(), address)].into(),
        default_routes: vec![DefaultRoute {
            ipv6: false,
            link: LINK,
            gateway: Some(Ipv4Addr::new(10, 1, 0, 1).into()),
            metric: 0,
        }],
    }
}
