//! What the host's webhooks change and refuse.
//!
//! Pure. In: objects as the API server sends them, and what is looked up for them. Out: the object's new
//! parts, or the text of a refusal (what the host puts before it included, what the API server puts
//! before that not).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    kinds::{CLUSTER, DHCP, IpPool, LoadBalancer, Machine},
    knobs::Profile,
    names,
    ranges::Ranges,
    resolution::{annotation, label},
};

/// The annotations of a LoadBalancer as they are stored.
pub(super) fn annotations(
    balancer: &LoadBalancer,
    project: &str,
    network: String,
) -> BTreeMap<String, String> {
    let mut annotations = balancer.metadata.annotations.clone().unwrap_or_default();
    let namespace = balancer.metadata.namespace.clone().unwrap_or_default();
    annotations.insert(names::NAMESPACE.to_owned(), namespace);
    if balancer.spec.workload_type == CLUSTER {
        annotations.insert(names::PROJECT.to_owned(), project.to_owned());
        annotations.insert(names::NETWORK.to_owned(), network);
    }
    annotations
}

/// `<cluster>/<project>` of what Rancher writes on a namespace.
pub(super) fn project(namespace_annotation: &str) -> String {
    namespace_annotation.replacen(':', "/", 1)
}

/// A health check that is on gets what it does not say.
pub(super) fn complete(health_check: &Map<String, Value>) -> Option<Map<String, Value>> {
    let number = |name: &str| health_check.get(name).and_then(Value::as_i64).unwrap_or(0);
    if number("port") == 0 {
        return None;
    }
    let mut complete = health_check.clone();
    for (name, default) in [
        ("successThreshold", 2),
        ("failureThreshold", 2),
        ("periodSeconds", 1),
        ("timeoutSeconds", 1),
    ] {
        if number(name) == 0 {
            complete.insert(name.to_owned(), default.into());
        }
    }
    (complete != *health_check).then_some(complete)
}

/// What a LoadBalancer may not become.
pub(super) fn check_update(old: &LoadBalancer, new: &LoadBalancer) -> Result<(), String> {
    if new.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let refused = |what: &str, from: &str, to: &str| {
        let id = id(new);
        Err(format!(
            "update loadbalancer {id} failed: can't change the {what} from {from} to {to}"
        ))
    };
    let (from, to) = (&old.spec.ipam, &new.spec.ipam);
    if (from == DHCP) != (to == DHCP) {
        return refused("IPAM", from, to);
    }
    let (from, to) = (&old.spec.workload_type, &new.spec.workload_type);
    if (from == CLUSTER) != (to == CLUSTER) {
        return refused("WorkloadType", from, to);
    }
    Ok(())
}

/// Whether a guest's LoadBalancer may come to be, as far as its cluster is concerned. `machines` are the
/// VMs of its namespace.
pub(super) fn check_create(
    balancer: &LoadBalancer,
    machines: &[Machine],
    profile: Profile,
) -> Result<(), String> {
    if !profile.cleans_up() || balancer.spec.workload_type != CLUSTER {
        return Ok(());
    }
    let refused = |why: String| {
        let id = id(balancer);
        Err(format!(
            "create loadbalancer {id} failed with guest cluster check: {why}"
        ))
    };
    let labels = balancer.metadata.labels.as_ref();
    let cluster = labels
        .and_then(|it| it.get(names::OWNER))
        .map_or("", String::as_str);
    let named = !matches!(cluster, "" | "kubernetes");
    let mut members = machines
        .iter()
        .filter(|it| named && is_member(it, cluster))
        .peekable();
    if profile == Profile::V1_8_0 && members.peek().is_none() {
        return refused("it has no running vm".to_owned());
    }
    match members.find(|it| is_being_removed(it)) {
        Some(machine) => refused(format!(
            "the vm {}/{} shows guest cluster {cluster} is being removed",
            machine.metadata.namespace.as_deref().unwrap_or_default(),
            machine.metadata.name.as_deref().unwrap_or_default(),
        )),
        None => Ok(()),
    }
}

/// Whether a VM is a node that a node driver made for this cluster.
fn is_member(machine: &Machine, cluster: &str) -> bool {
    label(machine, names::CREATOR) == Some(names::NODE_DRIVER)
        && label(machine, names::GUEST_CLUSTER) == Some(cluster)
}

pub(super) fn is_being_removed(machine: &Machine) -> bool {
    annotation(machine, names::BEING_REMOVED) == Some("true")
}

/// The labels of a pool as they are stored. The lab has no network definitions, hence no VLAN.
pub(super) fn pool_labels(pool: &IpPool) -> BTreeMap<String, String> {
    let mut labels = pool.metadata.labels.clone().unwrap_or_default();
    let global = pool.spec.is_global().to_string();
    labels.insert(names::GLOBAL_POOL.to_owned(), global);
    labels.insert(names::POOL_VLAN.to_owned(), "0".to_owned());
    labels
}

/// Whether a pool may be like this beside `others`.
pub(super) fn check_pool(
    old: Option<&IpPool>,
    new: &IpPool,
    others: &[IpPool],
    profile: Profile,
) -> Result<(), String> {
    if new.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let name = pool_name(new);
    let deed = if old.is_some() { "update" } else { "create" };
    let because = |why: String| format!("can't {deed} IP pool {name} because {why}");
    let ranges = Ranges::parse(&new.spec.ranges).map_err(because)?;
    let others = others.iter().filter(|it| pool_name(it) != name);
    let one_global = profile != Profile::V1_9Rc && new.spec.is_global();
    for other in others {
        let theirs = Ranges::parse(&other.spec.ranges);
        if theirs.is_ok_and(|theirs| theirs.overlaps(&ranges)) {
            let ranges = ranges.text();
            return Err(because(format!(
                "the ranges {ranges} overlap with other pools"
            )));
        }
        if one_global && other.spec.is_global() {
            let other = pool_name(other);
            return Err(because(format!(
                "there is already a global IP pool: {other}"
            )));
        }
    }
    let books = old.and_then(|it| it.status.as_ref());
    let mut booked = books.into_iter().flat_map(|it| it.allocated.keys());
    match booked.find(|ip| !ranges.contains(ip)) {
        Some(ip) => Err(because(format!("allocated IP {ip} is excluded"))),
        None => Ok(()),
    }
}

/// Whether a pool may go.
pub(super) fn check_pool_delete(pool: &IpPool) -> Result<(), String> {
    let books = pool.status.as_ref();
    if books.is_none_or(|it| it.allocated.is_empty()) {
        return Ok(());
    }
    Err("can't delete pool before releasing all the allocated IP".to_owned())
}

fn pool_name(pool: &IpPool) -> &str {
    pool.metadata.name.as_deref().unwrap_or_default()
}

/// `<namespace>/<name>`, by which pools book, too.
pub(super) fn id(balancer: &LoadBalancer) -> String {
    let meta = &balancer.metadata;
    let part = |it: &Option<String>| it.clone().unwrap_or_default();
    format!("{}/{}", part(&meta.namespace), part(&meta.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::harvester::kinds::{LoadBalancerSpec, load_balancers, machines};

    fn balancer(workload: &str, ipam: &str, cluster: &str) -> LoadBalancer {
        let spec = LoadBalancerSpec {
            workload_type: workload.to_owned(),
            ipam: ipam.to_owned(),
            ..LoadBalancerSpec::default()
        };
        let mut balancer = LoadBalancer::new("lb", &load_balancers(), spec).within("ns");
        balancer.metadata.labels = Some([(names::OWNER.to_owned(), cluster.to_owned())].into());
        balancer
    }

    fn machine(cluster: &str, being_removed: bool) -> Machine {
        let mut machine = Machine::new("vm-0", &machines()).within("ns");
        let labels = [
            (names::CREATOR, names::NODE_DRIVER),
            (names::GUEST_CLUSTER, cluster),
        ];
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        machine.metadata.labels = Some(labels.map(owned).into());
        let removed = owned((names::BEING_REMOVED, "true"));
        machine.metadata.annotations = being_removed.then(|| [removed].into());
        machine
    }

    #[test]
    fn host_refuses_what_a_balancer_may_not_become() {
        for (from, to, refusal) in [
            (("cluster", "pool"), ("cluster", "pool"), None),
            (("cluster", ""), ("cluster", "pool"), None),
            (("", "pool"), ("vm", "pool"), None),
            (
                ("cluster", "pool"),
                ("cluster", "dhcp"),
                Some("can't change the IPAM from pool to dhcp"),
            ),
            (
                ("cluster", "pool"),
                ("vm", "pool"),
                Some("can't change the WorkloadType from cluster to vm"),
            ),
        ] {
            let (old, new) = (balancer(from.0, from.1, ""), balancer(to.0, to.1, ""));
            let text = refusal.map(|it| format!("update loadbalancer ns/lb failed: {it}"));
            assert_eq!(check_update(&old, &new).err(), text);
        }
    }

    #[test]
    fn host_refuses_balancers_of_a_cluster_that_is_being_removed() {
        let removed = "create loadbalancer ns/lb failed with guest cluster check: \
            the vm ns/vm-0 shows guest cluster gc is being removed";
        let none =
            "create loadbalancer ns/lb failed with guest cluster check: it has no running vm";
        for (cluster, machines, profile, refusal) in [
            (
                "gc",
                vec![machine("gc", true)],
                Profile::Head,
                Some(removed),
            ),
            ("gc", vec![machine("gc", true)], Profile::V1_7, None),
            ("gc", vec![machine("gc", false)], Profile::Head, None),
            ("other", vec![machine("gc", true)], Profile::Head, None),
            (
                "kubernetes",
                vec![machine("kubernetes", true)],
                Profile::Head,
                None,
            ),
            ("", vec![machine("", true)], Profile::Head, None),
            ("gc", vec![], Profile::Head, None),
            ("gc", vec![], Profile::V1_8_0, Some(none)),
        ] {
            let balancer = balancer("cluster", "pool", cluster);
            let said = check_create(&balancer, &machines, profile).err();
            assert_eq!(said.as_deref(), refusal, "{cluster} {profile:?}");
        }
    }

    #[test]
    fn host_completes_a_health_check_that_is_on() {
        let check = |value: Value| complete(value.as_object().unwrap());
        assert_eq!(check(json!({ "port": 0 })), None);
        let completed = check(json!({ "port": 80, "periodSeconds": 7 })).unwrap();
        let expected = json!({
            "port": 80, "periodSeconds": 7, "timeoutSeconds": 1,
            "successThreshold": 2, "failureThreshold": 2,
        });
        assert_eq!(Value::Object(completed), expected);
    }

    #[test]
    fn host_takes_only_the_first_colon_of_a_project() {
        assert_eq!(project("c-m-1:p:2"), "c-m-1/p:2");
    }
}
