use serde_json::json;

use super::*;
use crate::ccm::instance;

const PROVIDED: &str = "provided=";
const ADDITIONAL: &str = "additional=";
const CIDR: &str = "cidr=";
const EXCLUDE: &str = "exclude=";
const DISABLE: &str = "disable";

/// A row of the specification's table: settings, what the VM reports, what is written.
fn written(settings: &[&str], reported: &str) -> Option<String> {
    let value = |key: &str| {
        settings
            .iter()
            .find_map(|setting| setting.strip_prefix(key))
    };
    let prefixes = |key: &str| -> Vec<IpNet> {
        let texts = value(key).unwrap_or_default().split(',');
        texts
            .filter(|text| !text.is_empty())
            .map(|text| {
                text.parse()
                    .unwrap_or_else(|_| text.parse::<IpAddr>().unwrap().into())
            })
            .collect()
    };
    let mut annotations = serde_json::Map::new();
    for (setting, key) in [
        (PROVIDED, annotation::PROVIDED_NODE_IP),
        (ADDITIONAL, harvester::ADDITIONAL_INTERNAL_IPS),
    ] {
        if let Some(value) = value(setting) {
            annotations.insert(key.to_owned(), value.into());
        }
    }
    let node = json!({"metadata": {"name": "n1", "annotations": annotations}});
    let node: Node = serde_json::from_value(node).unwrap();
    let vmi = json!({
        "metadata": {"name": "n1"},
        "spec": {"networks": [{"name": "nic", "multus": {"networkName": "default/a"}}]},
        "status": {"interfaces": [
            {"name": "nic", "ipAddresses": reported.split_whitespace().collect::<Vec<_>>()}]},
    });
    let vmi = serde_json::from_value(vmi).unwrap();
    let machine = serde_json::from_value(json!({"metadata": {"name": "n1", "uid": "u1"}})).unwrap();
    let reported = instance::metadata(&machine, Some(&vmi), None)
        .addresses
        .ok()?;
    let rules = Rules {
        internal: &prefixes(CIDR),
        excluded: &prefixes(EXCLUDE),
        ignore_annotations: settings.contains(&DISABLE),
    };
    let addresses = desired(&node, &reported, |_| false, &rules).ok()?;
    Some(short(&addresses))
}

/// `I 10.0.0.5, H n1`
fn short(addresses: &[NodeAddress]) -> String {
    let entries: Vec<String> = addresses
        .iter()
        .map(|entry| format!("{} {}", &entry.type_[..1], entry.address))
        .collect();
    entries.join(", ")
}

const EIGHT: &str = "10.0.0.5 10.0.0.10 fd00::5 1.1.1.1";
const CIDRS: &str = "cidr=10.0.0.0/24,fd00::/64";

/// Number in the specification, settings, what the VM reports, what is written.
type Row = (
    u32,
    &'static [&'static str],
    &'static str,
    Option<&'static str>,
);

const ROWS: &[Row] = &[
    (1, &[], "10.0.0.5", Some("I 10.0.0.5, H n1")),
    (
        2,
        &[],
        "10.0.0.5 10.0.0.10 fd00::5",
        Some("I 10.0.0.5, E 10.0.0.10, I fd00::5, H n1"),
    ),
    (
        3,
        &["provided=10.0.0.10"],
        "10.0.0.5 10.0.0.10",
        Some("I 10.0.0.10, E 10.0.0.5, H n1"),
    ),
    (
        4,
        &["provided=10.0.0.10"],
        "10.0.0.10 10.0.0.5 fd00::5",
        Some("I 10.0.0.10, E 10.0.0.5, E fd00::5, H n1"),
    ),
    (5, &["provided=abc"], "10.0.0.5", None),
    (6, &["provided=10.9.9.9"], "10.0.0.5", None),
    (
        7,
        &["provided=10.0.0.5,fd00::5"],
        "10.0.0.5 fd00::5",
        Some("I 10.0.0.5, I fd00::5, H n1"),
    ),
    (
        8,
        &[CIDRS],
        EIGHT,
        Some("I 10.0.0.5, E 10.0.0.10, I fd00::5, E 1.1.1.1, H n1"),
    ),
    (
        9,
        &[CIDRS, "exclude=10.0.0.10"],
        EIGHT,
        Some("I 10.0.0.5, I fd00::5, E 1.1.1.1, H n1"),
    ),
    (
        10,
        &[CIDRS, "exclude=10.0.0.5"],
        EIGHT,
        Some("I 10.0.0.5, E 10.0.0.10, I fd00::5, E 1.1.1.1, H n1"),
    ),
    (
        11,
        &["cidr=192.168.0.0/16", "exclude=192.168.0.0/16"],
        "192.168.100.10 192.168.120.10",
        Some("I 192.168.100.10, H n1"),
    ),
    (
        12,
        &["cidr=192.168.200.0/24"],
        "192.168.100.10 192.168.120.10",
        Some("E 192.168.100.10, E 192.168.120.10, H n1"),
    ),
    (
        13,
        &["cidr=192.168.1.0/24"],
        "192.168.1.7 fd00::7",
        Some("I 192.168.1.7, E fd00::7, H n1"),
    ),
    (
        14,
        &["exclude=10.0.0.10"],
        "10.0.0.5 10.0.0.10",
        Some("I 10.0.0.5, E 10.0.0.10, H n1"),
    ),
    (
        15,
        &[r#"additional=["10.0.0.10"]"#],
        "10.0.0.5 10.0.0.10",
        Some("I 10.0.0.5, H n1"),
    ),
    (
        16,
        &[r#"additional=["10.0.0.10"]"#, "cidr=10.0.0.0/24"],
        "10.0.0.5 10.0.0.10",
        Some("I 10.0.0.5, E 10.0.0.10, H n1"),
    ),
    (
        17,
        &["provided=10.0.0.5", "cidr=10.0.0.0/24", DISABLE],
        "10.0.0.10 10.0.0.5",
        Some("E 10.0.0.5, I 10.0.0.10, H n1"),
    ),
    (18, &[], "127.0.0.1", None),
    (
        19,
        &[],
        "169.254.10.1 fe80::1 10.0.0.5",
        Some("I 10.0.0.5, H n1"),
    ),
    (20, &[], "10.0.0.1 not-an-ip", Some("I 10.0.0.1, H n1")),
    (27, &["provided=10.0.0.5"], "", None),
];

#[test]
fn the_table_of_the_go_programs_addresses_with_its_better_rows() {
    for (number, settings, reported, expected) in ROWS {
        assert_eq!(
            written(settings, reported).as_deref(),
            *expected,
            "row {number}"
        );
    }
}

#[test]
fn the_list_of_hidden_addresses_may_be_anything() {
    let two = "10.0.0.5 10.0.0.10 fd00::5 fd00::10";
    let all = Some("I 10.0.0.5, E 10.0.0.10, I fd00::5, E fd00::10, H n1");
    for (list, expected) in [
        ("", all),
        ("[]", all),
        ("null", all),
        ("10.0.0.10", all),
        (r#"["x", "10.0.0.5"]"#, all),
        (
            r#"["10.0.0.10", "FD00:0::10"]"#,
            Some("I 10.0.0.5, I fd00::5, H n1"),
        ),
    ] {
        let setting = format!("{ADDITIONAL}{list}");
        assert_eq!(written(&[&setting], two).as_deref(), expected, "{list:?}");
    }
    let all_hidden = &["cidr=192.168.0.0/16", "exclude=10.0.0.0/8"];
    assert_eq!(written(all_hidden, "10.0.0.5"), None);
}

fn node(annotation: Option<&str>, internal: &str) -> Node {
    let annotations = annotation.map(|text| json!({"alpha.kubernetes.io/provided-node-ip": text}));
    let node = json!({
        "metadata": {"name": "n1", "annotations": annotations},
        "status": {"addresses": [{"type": "InternalIP", "address": internal}]},
    });
    serde_json::from_value(node).unwrap()
}

#[test]
fn vips_are_no_node_addresses_but_a_nodes_own_address_is_no_vip() {
    let rules = Rules {
        internal: &[],
        excluded: &[],
        ignore_annotations: false,
    };
    let ips = |text: &str| -> Vec<IpAddr> {
        text.split_whitespace()
            .map(|ip| ip.parse().unwrap())
            .collect()
    };
    for (what, node, reported, vips, expected) in [
        (
            "a VIP behind",
            node(None, "10.0.0.5"),
            "10.0.0.5 10.0.0.100",
            "10.0.0.100",
            Some("I 10.0.0.5, H n1"),
        ),
        (
            "a VIP in front, before there are addresses",
            node(None, ""),
            "10.0.0.100 10.0.0.5",
            "10.0.0.100",
            Some("I 10.0.0.5, H n1"),
        ),
        (
            "only a VIP",
            node(None, ""),
            "10.0.0.100",
            "10.0.0.100",
            None,
        ),
        (
            "a Service that claims the node's address",
            node(None, "10.0.0.5"),
            "10.0.0.5 10.0.0.6",
            "10.0.0.5",
            Some("I 10.0.0.5, E 10.0.0.6, H n1"),
        ),
        (
            "a Service that claims the address the kubelet was given",
            node(Some("10.0.0.5"), ""),
            "10.0.0.5",
            "10.0.0.5",
            Some("I 10.0.0.5, H n1"),
        ),
    ] {
        let vips = ips(vips);
        let addresses = desired(&node, &ips(reported), |ip| vips.contains(ip), &rules);
        let addresses = addresses.ok().map(|addresses| short(&addresses));
        assert_eq!(addresses.as_deref(), expected, "{what}");
    }
}
