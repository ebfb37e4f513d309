//! The lab's own cluster: what the other tests stand on.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Result, ensure};
use futures_util::TryStreamExt;
use http::StatusCode;
use k8s_openapi::api::{
    core::v1::{Event, Namespace, Node as NodeObject, Service as ServiceObject},
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::{
    Api,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
};
use lab::{
    Cluster, Failure, Node, Settings, clock,
    cluster::{PodAnswer, Service},
    http_client, poll_until, unavailable,
};

const SOON: Duration = Duration::from_secs(30);
const HTTP: Duration = Duration::from_secs(2);

/// Whether the test can run; says why not.
fn possible() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_none()
}

/// Asks a Service from the client until a pod answers.
async fn ask(cluster: &Cluster, address: impl Into<IpAddr>) -> Result<PodAnswer> {
    let to = SocketAddr::new(address.into(), 80);
    poll_until(SOON, "answer of the Service", async || {
        let answer = http_client::get(cluster.client(), to, "/", HTTP).await?;
        Ok(Some(serde_json::from_str(&answer.body)?))
    })
    .await
}

/// Plays the load balancer: the VIPs on a node's link, and in the status.
async fn place(service: &Service, node: &Node, vips: &[IpAddr]) -> Result<()> {
    for vip in vips {
        let mut add = node.host().command("ip")?;
        add.args(["address", "add", &vip.to_string(), "dev", "eth0"]);
        if vip.is_ipv6() {
            add.arg("nodad");
        }
        ensure!(add.status()?.success(), "no address {vip}");
    }
    service.set_status_ips(vips).await
}

/// The endpoints of a Service's IPv4 slices.
async fn endpoints(cluster: &Cluster, service: &str) -> Result<Vec<Endpoint>> {
    let slices = Api::<EndpointSlice>::namespaced(cluster.kube(), cluster.namespace());
    let selector = format!("kubernetes.io/service-name={service}");
    let slices = slices
        .list(&ListParams::default().labels(&selector))
        .await?;
    let ipv4 = slices
        .items
        .into_iter()
        .filter(|it| it.address_type == "IPv4");
    Ok(ipv4.flat_map(|it| it.endpoints).collect())
}

async fn wait_ready(node: &Node, wanted: bool) -> Result<()> {
    poll_until(SOON, "change of the node's Ready condition", async || {
        Ok((node.is_ready().await? == wanted).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_answers_over_both_families_from_a_pod_on_another_node() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let started = clock::now();
    let cluster = Cluster::start(3).await?;
    println!(
        "cluster of 3 nodes with kube-proxy: {:?}",
        started.elapsed()
    );
    let pod = cluster
        .pod("web")
        .on(cluster.node(1))
        .serve_http(8080)
        .await?;
    let service = cluster
        .service("web")
        .dual_stack()
        .port(80, 8080)
        .create()
        .await?;
    let (vip, vip6) = (cluster.vip(0), cluster.vip6(0));
    let placed = clock::now();
    place(&service, cluster.node(0), &[vip.into(), vip6.into()]).await?;

    let expected = (pod.name().to_owned(), cluster.node(1).name().to_owned());
    for address in [IpAddr::from(vip), vip6.into()] {
        let answer = ask(&cluster, address).await?;
        println!(
            "{address} answered {:?} after its placement",
            placed.elapsed()
        );
        assert_eq!((answer.pod, answer.node), expected);
    }
    assert_eq!(
        service.status_ips().await?,
        [IpAddr::from(vip), vip6.into()]
    );
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_service_is_dropped_where_no_pod_is_and_shows_the_client_where_one_is() -> Result<()>
{
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::start(2).await?;
    cluster
        .pod("web")
        .on(cluster.node(1))
        .serve_http(8080)
        .await?;
    let service = cluster
        .service("web")
        .etp_local()
        .port(80, 8080)
        .create()
        .await?;
    let with = cluster.vip(1).into();
    place(&service, cluster.node(1), &[with]).await?;
    let without = cluster.vip(0).into();
    place(&service, cluster.node(0), &[without]).await?;
    service.set_status_ips(&[with, without]).await?;

    assert_eq!(
        ask(&cluster, with).await?.client,
        IpAddr::from(cluster.addressing().client().0)
    );
    let refused = http_client::get(cluster.client(), (without, 80).into(), "/", HTTP).await;
    assert!(refused.is_err(), "{refused:?}");
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminating_pod_serves_on_and_its_slice_says_so() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::builder("slices")
        .nodes(1)
        .kube_proxy(false)
        .start()
        .await?;
    let pod = cluster.pod("web").serve_http(8080).await?;
    let (address, _) = pod.addresses();
    cluster.service("web").port(80, 8080).create().await?;
    let conditions = async |wanted: (bool, bool, bool)| {
        poll_until(SOON, "conditions of the endpoint", async || {
            let all = endpoints(&cluster, "web").await?;
            let found = all.first().and_then(|it| it.conditions.clone()).map(|it| {
                let is = |it: Option<bool>| it.unwrap_or_default();
                (is(it.ready), is(it.serving), is(it.terminating))
            });
            Ok((found == Some(wanted)).then_some(()))
        })
        .await
    };
    conditions((true, true, false)).await?;
    pod.set_ready(false).await?;
    conditions((false, false, false)).await?;
    pod.set_ready(true).await?;
    conditions((true, true, false)).await?;

    pod.terminate(Duration::from_secs(2)).await?;
    conditions((false, true, true)).await?;
    let to = SocketAddr::new(address.into(), 8080);
    let host = cluster.node(0).host();
    assert_eq!(
        http_client::get(host, to, "/", HTTP).await?.status,
        StatusCode::OK
    );
    poll_until(SOON, "end of the pod", async || {
        Ok(endpoints(&cluster, "web").await?.is_empty().then_some(()))
    })
    .await?;
    assert!(http_client::get(host, to, "/", HTTP).await.is_err());
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_power_becomes_not_ready_and_comes_back_with_its_pods() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::start(2).await?;
    let node = cluster.node(1);
    let pod = cluster.pod("web").on(node).serve_http(8080).await?;
    wait_ready(node, true).await?;

    let off = clock::now();
    node.power_off().await?;
    println!("power-off took {:?}", off.elapsed());
    wait_ready(node, false).await?;
    println!("NotReady {:?} after the power-off", off.elapsed());
    assert!(cluster.node(0).is_ready().await?);

    let on = clock::now();
    node.power_on().await?;
    println!("power-on with kube-proxy took {:?}", on.elapsed());
    wait_ready(node, true).await?;
    let to = SocketAddr::new(pod.addresses().0.into(), 8080);
    let answer = http_client::get(cluster.node(0).host(), to, "/", HTTP).await?;
    assert_eq!(answer.status, StatusCode::OK);
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_node_is_silent_and_resumes_where_it_was() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::builder("pause")
        .nodes(1)
        .kube_proxy(false)
        .start()
        .await?;
    let node = cluster.node(0);
    let api = SocketAddr::from(([127, 0, 0, 1], 6443));
    node.pause().await?;
    let short = Duration::from_millis(300);
    assert!(
        http_client::get(node.host(), api, "/readyz", short)
            .await
            .is_err()
    );
    wait_ready(node, false).await?;
    node.resume().await?;
    assert_eq!(
        http_client::get(node.host(), api, "/readyz", HTTP)
            .await?
            .body,
        "ok"
    );
    wait_ready(node, true).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_from_the_api_still_reaches_its_neighbours() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::start(2).await?;
    let (node, other) = (cluster.node(0), cluster.node(1));
    let pod = cluster.pod("web").on(other).serve_http(8080).await?;
    let api = SocketAddr::from(([127, 0, 0, 1], 6443));
    let neighbour = SocketAddr::new(pod.addresses().1.into(), 8080);
    let short = Duration::from_millis(300);

    node.cut_from_api().await?;
    assert!(
        http_client::get(node.host(), api, "/readyz", short)
            .await
            .is_err()
    );
    assert!(
        http_client::get(node.host(), neighbour, "/", HTTP)
            .await
            .is_ok()
    );
    node.api().heal();
    assert!(
        http_client::get(node.host(), api, "/readyz", short)
            .await
            .is_err()
    );
    node.restore_api().await?;
    assert!(
        http_client::get(node.host(), api, "/readyz", HTTP)
            .await
            .is_ok()
    );

    let requests = cluster.requests();
    assert_eq!(requests[node.name()].of("get", "/readyz"), 3);
    assert!(requests[&format!("{}-kube-proxy", node.name())].of("watch", "services") > 0);
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_of_a_scenario_can_be_changed_and_looked_at() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::builder("objects")
        .nodes(1)
        .kube_proxy(false)
        .start()
        .await?;
    let node = cluster.node(0);
    node.cordon().await?;
    node.label("color", "blue").await?;
    node.taint("lab.invalid/broken", "NoSchedule").await?;
    let nodes = Api::<NodeObject>::all(cluster.kube());
    let tainted = |node: &NodeObject| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        taints.is_some_and(|all| all.iter().any(|it| it.key == "lab.invalid/broken"))
    };
    let object = nodes.get(node.name()).await?;
    assert_eq!(
        object
            .metadata
            .labels
            .iter()
            .flatten()
            .filter(|it| it.1 == "blue")
            .count(),
        1
    );
    assert_eq!(
        object.spec.as_ref().and_then(|spec| spec.unschedulable),
        Some(true)
    );
    assert!(tainted(&object));
    node.uncordon().await?;
    node.unlabel("color").await?;
    node.untaint("lab.invalid/broken").await?;
    let object = nodes.get(node.name()).await?;
    assert!(
        !object
            .metadata
            .labels
            .unwrap_or_default()
            .contains_key("color")
    );
    assert!(
        cluster
            .lease("kube-node-lease", node.name())
            .await?
            .is_some()
    );

    let service = cluster
        .service("web")
        .load_balancer_ip(cluster.vip(0))
        .class("lab.invalid/class")
        .annotation("color", "blue")
        .port(80, 8080)
        .create()
        .await?;
    let edited = service
        .edit(|it| it.spec.get_or_insert_default().load_balancer_ip = None)
        .await?;
    let spec = edited.spec.unwrap_or_default();
    assert_eq!(
        spec.load_balancer_class.as_deref(),
        Some("lab.invalid/class")
    );
    assert_eq!(spec.load_balancer_ip, None);
    let event = serde_json::from_value::<Event>(serde_json::json!({
        "metadata": { "name": "web.1" },
        "involvedObject": { "kind": "Service", "name": "web", "namespace": cluster.namespace() },
        "type": "Warning",
        "reason": "Test",
        "message": "as a speaker would",
    }))?;
    let proxy = cluster.speaker_proxy("speaker")?;
    let events = Api::<Event>::namespaced(proxy.client()?, cluster.namespace());
    events.create(&PostParams::default(), &event).await?;
    let incidents = service.events().await?;
    assert_eq!(incidents.len(), 1);
    assert_eq!(
        (&*incidents[0].kind, &*incidents[0].reason),
        ("Warning", "Test")
    );
    service.delete().await?;
    assert_eq!(service.status_ips().await?, [] as [IpAddr; 0]);
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_stand_side_by_side_and_leave_nothing() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let (one, other) = tokio::try_join!(Cluster::start(1), Cluster::start(1))?;
    assert_ne!(one.namespace(), other.namespace());
    for cluster in [&one, &other] {
        cluster.pod("web").serve_http(8080).await?;
        let service = cluster.service("web").port(80, 8080).create().await?;
        place(&service, cluster.node(0), &[cluster.vip(0).into()]).await?;
        assert_eq!(
            ask(cluster, cluster.vip(0)).await?.node,
            cluster.node(0).name()
        );
    }
    let kube = other.kube();
    let (name, node, prefix) = (
        one.namespace().to_owned(),
        one.node(0).name().to_owned(),
        one.lab().prefix().to_owned(),
    );
    one.stop().await?;

    let left = std::fs::read_dir("/run/netns")?.flatten().any(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with(&format!("{prefix}-"))
    });
    assert!(!left, "namespaces of {prefix} are left");
    assert!(
        Api::<NodeObject>::all(kube.clone())
            .get_opt(&node)
            .await?
            .is_none()
    );
    poll_until(SOON, "end of the namespace in the API", async || {
        let namespace = Api::<Namespace>::all(kube.clone()).get_opt(&name).await?;
        Ok(namespace.is_none().then_some(()))
    })
    .await?;
    other.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_a_proxy_strikes_and_heals() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::builder("faults").nodes(0).start().await?;
    let proxy = cluster.speaker_proxy("client")?;
    let services = Api::<ServiceObject>::namespaced(proxy.client()?, cluster.namespace());
    let list = async || services.list(&ListParams::default()).await;
    let code = async || match list().await {
        Err(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    };
    let hangs = async || {
        tokio::time::timeout(Duration::from_millis(300), list())
            .await
            .is_err()
    };
    list().await?;

    proxy.fail(
        Failure::status(StatusCode::TOO_MANY_REQUESTS)
            .resource("services")
            .times(1),
    );
    assert_eq!((code().await, code().await), (Some(429), None));

    let begun = clock::now();
    proxy.latency(Duration::from_millis(100));
    list().await?;
    assert!(begun.elapsed() >= Duration::from_millis(100));

    proxy.blackhole();
    assert!(hangs().await);
    proxy.heal();
    list().await?;

    proxy.refuse();
    assert!(list().await.is_err());
    proxy.heal();
    list().await?;

    // A client that hangs up is noticed, and counted, a moment later.
    poll_until(SOON, "the request that hung", async || {
        let unanswered = proxy.counts().matching(|it| it.code.is_none());
        Ok((unanswered == 1).then_some(()))
    })
    .await?;
    let counts = proxy.counts();
    assert_eq!(counts.answered(429), 1, "{counts}");
    assert!(counts.of("list", "services") >= 6, "{counts}");
    println!("{counts}");
    proxy.reset_counts();
    assert_eq!(proxy.counts().total(), 0);
    drop(services);
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_delayed_held_back_and_cut() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::builder("watch").nodes(0).start().await?;
    let proxy = cluster.speaker_proxy("client")?;
    let services = Api::<ServiceObject>::namespaced(proxy.client()?, cluster.namespace());
    let watch = services.watch(&WatchParams::default(), "0").await?;
    let mut watch = std::pin::pin!(watch);
    // Between the Services there may be bookmarks.
    let mut added = async || loop {
        match watch.try_next().await? {
            Some(WatchEvent::Added(service)) => return anyhow::Ok(service.metadata.name),
            Some(_) => {}
            None => anyhow::bail!("the watch ended"),
        }
    };

    cluster.service("one").port(80, 80).create().await?;
    assert_eq!(added().await?.as_deref(), Some("one"));

    proxy.latency(Duration::from_millis(200));
    let created = clock::now();
    cluster.service("two").port(80, 80).create().await?;
    assert_eq!(added().await?.as_deref(), Some("two"));
    assert!(created.elapsed() >= Duration::from_millis(200));

    proxy.heal();
    proxy.blackhole();
    cluster.service("three").port(80, 80).create().await?;
    let silent = tokio::time::timeout(Duration::from_millis(300), added()).await;
    assert!(silent.is_err(), "{silent:?}");
    proxy.heal();
    assert_eq!(added().await?.as_deref(), Some("three"));

    proxy.cut_watches();
    assert!(added().await.is_err());
    assert_eq!(proxy.counts().of("watch", "services"), 1);
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_speaker_may_do_what_it_needs_and_no_more() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::builder("rights").nodes(0).start().await?;
    let proxy = cluster.speaker_proxy("client")?;
    let services = Api::<ServiceObject>::namespaced(proxy.client()?, cluster.namespace());
    let nodes = Api::<NodeObject>::all(proxy.client()?);
    services.list(&ListParams::default()).await?;
    nodes.list(&ListParams::default()).await?;
    let denied = services
        .delete("any", &kube::api::DeleteParams::default())
        .await;
    assert!(matches!(denied, Err(kube::Error::Api(status)) if status.is_forbidden()));
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_of_its_own_may_stop() -> Result<()> {
    if !possible() {
        return Ok(());
    }
    let started = clock::now();
    let builder = Cluster::builder("own")
        .nodes(0)
        .own_control_plane(Settings::default());
    let cluster = builder.start().await?;
    println!("control plane of its own: {:?}", started.elapsed());
    let service = cluster.service("web").port(80, 80).create().await?;
    let proxy = cluster.speaker_proxy("client")?;
    let services = Api::<ServiceObject>::namespaced(proxy.client()?, cluster.namespace());
    cluster.control_plane().stop_apiserver()?;
    assert!(services.list(&ListParams::default()).await.is_err());
    cluster.control_plane().start_apiserver().await?;
    assert_eq!(services.list(&ListParams::default()).await?.items.len(), 1);
    assert_eq!(service.events().await?, []);
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_adds_little_to_a_request() -> Result<()> {
    const REQUESTS: usize = 200;
    if !possible() {
        return Ok(());
    }
    let cluster = Cluster::builder("overhead").nodes(0).start().await?;
    let proxy = cluster.speaker_proxy("client")?;
    let median = async |api: Api<Namespace>| {
        let mut times = Vec::new();
        for _ in 0..REQUESTS {
            let begun = clock::now();
            api.list(&ListParams::default().limit(1)).await.ok();
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        times[REQUESTS / 2]
    };
    let direct = median(Api::all(cluster.kube())).await;
    let through = median(Api::all(proxy.client()?)).await;
    proxy.fail(Failure::status(StatusCode::SERVICE_UNAVAILABLE));
    let alone = median(Api::all(proxy.client()?)).await;
    println!(
        "median of a request: direct {direct:?}, through a proxy {through:?}, to it {alone:?}"
    );
    assert!(
        through < direct + Duration::from_millis(10),
        "{direct:?} {through:?}"
    );
    cluster.stop().await
}
