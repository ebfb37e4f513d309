//! The network of a guest's LoadBalancer, by the webhook's rules.
//!
//! Pure. In: the LoadBalancer and the virtual machine instances of its namespace, in the order of the
//! host's cache. Out: the name of a network, perhaps empty.

use super::{
    kinds::{LoadBalancer, Machine},
    knobs::Profile,
    names,
};

/// What the annotation of the network becomes.
pub(super) fn network(balancer: &LoadBalancer, instances: &[Machine], profile: Profile) -> String {
    let annotations = balancer.metadata.annotations.as_ref();
    let annotation = |key| {
        let value = annotations.and_then(|it| it.get(key)).map(String::as_str);
        value.filter(|it| !it.is_empty())
    };
    let cluster = annotation(names::CLUSTER);
    if profile.overwrites_network() {
        let found = cluster.and_then(|it| of_namesakes(instances, it));
        return found.unwrap_or_default().to_owned();
    }
    let explicit = annotation(names::NETWORK).or_else(|| annotation(names::MANAGEMENT_NETWORK));
    explicit
        .or_else(|| {
            let cluster = cluster?;
            of_labelled(instances, cluster).or_else(|| of_namesakes(instances, cluster))
        })
        .unwrap_or_default()
        .to_owned()
}

/// Of the machines that say which cluster they belong to.
fn of_labelled<'a>(instances: &'a [Machine], cluster: &str) -> Option<&'a str> {
    let mut members = instances
        .iter()
        .filter(|it| label(it, names::GUEST_CLUSTER) == Some(cluster));
    members.find_map(first_network)
}

/// Of the machines of node drivers whose names begin with the cluster's: which those of `gc-2` do, too,
/// for `gc`.
fn of_namesakes<'a>(instances: &'a [Machine], cluster: &str) -> Option<&'a str> {
    let is_member = |it: &&Machine| {
        let name = it.metadata.name.as_deref().unwrap_or_default();
        label(it, names::CREATOR) == Some(names::NODE_DRIVER) && name.starts_with(cluster)
    };
    instances.iter().filter(is_member).find_map(first_network)
}

fn first_network(instance: &Machine) -> Option<&str> {
    let networks = instance.data.pointer("/spec/networks")?.as_array()?;
    let names = networks
        .iter()
        .filter_map(|it| it.pointer("/multus/networkName")?.as_str());
    names.into_iter().find(|it| !it.is_empty())
}

pub(super) fn label<'a>(machine: &'a Machine, key: &str) -> Option<&'a str> {
    machine
        .metadata
        .labels
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

pub(super) fn annotation<'a>(machine: &'a Machine, key: &str) -> Option<&'a str> {
    let annotations = machine.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::harvester::kinds::{LoadBalancerSpec, instances, load_balancers};

    fn instance(name: &str, labels: &[(&str, &str)], networks: &[&str]) -> Machine {
        let networks: Vec<_> = networks
            .iter()
            .map(|it| match *it {
                "pod" => json!({ "name": "default", "pod": {} }),
                name => json!({ "name": name, "multus": { "networkName": name } }),
            })
            .collect();
        let mut machine = Machine::new(name, &instances());
        machine.data = json!({ "spec": { "networks": networks } });
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        machine.metadata.labels = Some(labels.iter().map(owned).collect());
        machine
    }

    fn resolved(annotations: &[(&str, &str)], instances: &[Machine], profile: Profile) -> String {
        let spec = LoadBalancerSpec::default();
        let mut balancer = LoadBalancer::new("lb", &load_balancers(), spec);
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        balancer.metadata.annotations = Some(annotations.iter().map(owned).collect());
        network(&balancer, instances, profile)
    }

    #[test]
    fn host_networks_are_resolved_in_five_steps() {
        let driver = (names::CREATOR, names::NODE_DRIVER);
        let of_gc = (names::GUEST_CLUSTER, "gc");
        let machines = [
            instance("gc-2-a", &[driver], &["pod", "ns/other"]),
            instance("labelled", &[driver, of_gc], &["pod", "ns/labelled"]),
            instance("gc-silent", &[of_gc], &["pod"]),
        ];
        let (explicit, managed) = (
            (names::NETWORK, "ns/x"),
            (names::MANAGEMENT_NETWORK, "ns/m"),
        );
        let (blank, cluster) = ((names::NETWORK, ""), (names::CLUSTER, "gc"));
        for (annotations, head, old) in [
            (&[explicit, managed, cluster][..], "ns/x", "ns/other"),
            (&[blank, managed, cluster], "ns/m", "ns/other"),
            (&[blank, cluster], "ns/labelled", "ns/other"),
            (&[(names::CLUSTER, "gc-2")], "ns/other", "ns/other"),
            (&[(names::CLUSTER, "none")], "", ""),
            (&[], "", ""),
        ] {
            assert_eq!(resolved(annotations, &machines, Profile::Head), head);
            assert_eq!(resolved(annotations, &machines, Profile::V1_8), old);
        }
    }

    #[test]
    fn host_takes_machines_of_a_cluster_with_a_longer_name_for_its_own() {
        let driver = (names::CREATOR, names::NODE_DRIVER);
        let other = [instance("gc-2-a", &[driver], &["ns/other"])];
        let cluster = [(names::CLUSTER, "gc")];
        assert_eq!(resolved(&cluster, &other, Profile::Head), "ns/other");
    }
}
