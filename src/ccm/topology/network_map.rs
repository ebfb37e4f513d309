//! Which networks of the host are on the same guest interface on every node. Pure.
//!
//! In: the instances of this cluster. Out: the value of the `ConfigMap` `kube-system/harvester-nad-mapping`
//! that Rancher's UI and the load balancers read: a JSON object from network to interface with
//! sorted keys, or the empty text.
//!
//! Deviations from the Go program: an instance whose guest agent is silent has no say, instead of
//! emptying the map, and if all are silent the map stays as it is.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::harvester::kubevirt::{CLUSTER_LABEL, VirtualMachineInstance};

/// The map's value, or `None` while no agent of this cluster says anything.
pub(super) fn value<'a>(
    instances: impl Iterator<Item = &'a VirtualMachineInstance>,
    cluster: &str,
) -> Option<String> {
    let ours: Vec<&VirtualMachineInstance> = instances
        .filter(|instance| {
            let label = instance.labels().get(CLUSTER_LABEL);
            label.is_some_and(|label| label == cluster)
        })
        .collect();
    let mut maps = ours
        .iter()
        .filter(|instance| has_say(instance))
        .map(|i| map(i));
    let Some(mut agreed) = maps.next() else {
        return ours.is_empty().then(String::new);
    };
    for other in maps {
        agreed.retain(|network, interface| other.get(network) == Some(interface));
    }
    if agreed.is_empty() {
        return Some(String::new());
    }
    Some(serde_json::to_string(&agreed).unwrap_or_default())
}

fn has_say(instance: &VirtualMachineInstance) -> bool {
    let mut interfaces = instance.interfaces().iter();
    instance.metadata.deletion_timestamp.is_none()
        && instance.phase() == "Running"
        && !instance.is_migrating()
        && interfaces.any(|interface| !interface.interface_name.is_empty())
}

fn map(instance: &VirtualMachineInstance) -> BTreeMap<&str, &str> {
    let networks = instance.networks().iter().filter_map(|network| {
        let attachment = network.multus.as_ref()?.network_name.as_str();
        let mut interfaces = instance.interfaces().iter();
        let interface = interfaces.find(|interface| interface.name == network.name)?;
        let name = interface.interface_name.as_str();
        (!attachment.is_empty() && !name.is_empty()).then_some((attachment, name))
    });
    networks.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::harvester::kubevirt::MigrationState;

    /// Interfaces as `enp1s0→mgmt`; `→mgmt` is one that the agent has not named.
    fn instance(cluster: &str, interfaces: &str) -> VirtualMachineInstance {
        let pairs: Vec<(&str, &str)> = interfaces
            .split_whitespace()
            .filter_map(|pair| pair.split_once('→'))
            .collect();
        let networks = pairs.iter().map(|(_, network)| {
            json!({"name": network, "multus": {"networkName": format!("default/{network}")}})
        });
        let listed = pairs
            .iter()
            .map(|(interface, network)| json!({"name": network, "interfaceName": interface}));
        let value = json!({
            "metadata": {"name": "n", "labels": {CLUSTER_LABEL: cluster}},
            "spec": {"networks": networks.collect::<Vec<_>>()},
            "status": {"phase": "Running", "interfaces": listed.collect::<Vec<_>>()},
        });
        serde_json::from_value(value).unwrap()
    }

    fn of(instances: &[VirtualMachineInstance]) -> Option<String> {
        value(instances.iter(), "c")
    }

    #[test]
    fn the_map_has_what_all_nodes_agree_on() {
        let both = "enp1s0→mgmt enp2s0→net-101";
        for (a, b, expected) in [
            (
                both,
                both,
                r#"{"default/mgmt":"enp1s0","default/net-101":"enp2s0"}"#,
            ),
            (
                both,
                "enp1s0→mgmt enp2s0→net-102 enp3s0→net-101",
                r#"{"default/mgmt":"enp1s0"}"#,
            ),
            ("enp1s0→mgmt", both, r#"{"default/mgmt":"enp1s0"}"#),
            (
                both,
                "→mgmt →net-101",
                r#"{"default/mgmt":"enp1s0","default/net-101":"enp2s0"}"#,
            ),
            (both, "enp1s0→mgmt →net-101", r#"{"default/mgmt":"enp1s0"}"#),
            ("enp1s0→mgmt", "enp1s0→other", ""),
        ] {
            let map = of(&[instance("c", a), instance("c", b)]);
            assert_eq!(map.as_deref(), Some(expected), "{a} | {b}");
        }
    }

    #[test]
    fn other_clusters_have_no_say() {
        let instances = [instance("c", "enp1s0→mgmt"), instance("d", "eth0→mgmt")];
        assert_eq!(
            of(&instances).as_deref(),
            Some(r#"{"default/mgmt":"enp1s0"}"#)
        );
    }

    #[test]
    fn the_map_stays_while_all_agents_are_silent_and_empties_with_the_last_machine() {
        assert_eq!(of(&[instance("c", "→mgmt")]), None);
        assert_eq!(of(&[instance("d", "enp1s0→mgmt")]).as_deref(), Some(""));
        assert_eq!(of(&[]).as_deref(), Some(""));
    }

    #[test]
    fn machines_that_start_stop_or_move_have_no_say() {
        let steady = instance("c", "enp1s0→mgmt");
        let mut starting = instance("c", "eth0→mgmt");
        starting.status.as_mut().unwrap().phase = "Scheduling".to_owned();
        let mut moving = instance("c", "eth0→mgmt");
        moving.status.as_mut().unwrap().migration_state = Some(MigrationState::default());
        assert_eq!(
            of(&[starting, steady, moving]).as_deref(),
            Some(r#"{"default/mgmt":"enp1s0"}"#)
        );
    }
}
