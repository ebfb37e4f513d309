use super::*;
use crate::{
    net::link::LinkAddress,
    speaker::testing::{config, host, host_address, ip, link},
};

fn with(mut host: Snapshot, index: u32, name: &str, nets: &[&str]) -> Snapshot {
    host.links.insert(LinkIndex(index), link(index, name));
    for net in nets {
        let address = host_address(index, net);
        host.addresses.insert(address.key(), address);
    }
    host
}

fn placed(vip: &str, annotation: Option<&str>, config: &SpeakerConfig, host: &Snapshot) -> String {
    match place(
        ip(vip),
        annotation.map(choice).as_ref(),
        config,
        &Ground::new(host, |_| false),
    ) {
        Ok(place) => format!("{}/{}", host.links[&place.link].name, place.prefix_len),
        Err(error) => error.to_string(),
    }
}

fn choice(name: &str) -> InterfaceChoice {
    match name {
        "auto" => InterfaceChoice::Auto,
        name => InterfaceChoice::Named(name.to_owned()),
    }
}

#[test]
fn without_configuration_the_network_of_the_vip_decides_then_the_default_route() {
    let host = with(host(), 3, "eth1", &["10.1.0.1/16", "10.0.0.129/25"]);
    assert_eq!(placed("10.1.0.9", None, &config(), &host), "eth1/32");
    assert_eq!(placed("10.0.0.9", None, &config(), &host), "eth0/32");
    assert_eq!(
        placed("10.0.0.200", None, &config(), &host),
        "eth1/32",
        "longest prefix"
    );
    assert_eq!(
        placed("192.168.7.7", None, &config(), &host),
        "eth0/32",
        "default route"
    );
    assert_eq!(placed("fd00::9", None, &config(), &host), "eth0/128");
    let mut lonely = host;
    lonely.default_routes.clear();
    assert_eq!(
        place(
            ip("192.168.7.7"),
            None,
            &config(),
            &Ground::new(&lonely, |_| false)
        ),
        Err(NoPlace::NoNetwork(ip("192.168.7.7")))
    );
}

#[test]
fn the_annotation_wins_over_the_service_interface_and_that_over_the_nodes() {
    let host = with(host(), 3, "eth1", &["10.1.0.1/16"]);
    let base = config();
    let node = SpeakerConfig {
        interface: Some("eth1".to_owned()),
        ..base.clone()
    };
    let services = SpeakerConfig {
        service_interface: InterfaceChoice::Named("eth0".to_owned()),
        ..node.clone()
    };
    assert_eq!(placed("10.0.0.9", None, &node, &host), "eth1/32");
    assert_eq!(placed("10.0.0.9", None, &services, &host), "eth0/32");
    assert_eq!(
        placed("10.0.0.9", Some("eth1"), &services, &host),
        "eth1/32"
    );
    assert_eq!(
        placed("10.1.0.9", Some("auto"), &services, &host),
        "eth1/32"
    );
    assert_eq!(
        placed("192.168.7.7", Some("auto"), &node, &host),
        "eth1/32",
        "auto without a network falls back to the node's link"
    );
    assert_eq!(
        placed("10.0.0.9", Some("eth9"), &base, &host),
        "there is no link \"eth9\""
    );
    assert_eq!(
        placed("10.0.0.9", Some("lo"), &base, &host),
        "link \"lo\" has no Ethernet address"
    );
}

#[test]
fn a_running_link_is_preferred_and_carrier_is_reported() {
    let mut host = with(host(), 3, "eth1", &["10.0.0.2/24"]);
    host.links.get_mut(&LinkIndex(2)).unwrap().carrier = false;
    assert_eq!(placed("10.0.0.9", None, &config(), &host), "eth1/32");
    let place = place(
        ip("10.0.0.9"),
        Some(&choice("eth0")),
        &config(),
        &Ground::new(&host, |_| false),
    )
    .unwrap();
    assert!(!place.running);
}

#[test]
fn an_automatic_prefix_is_the_links() {
    let auto = SpeakerConfig {
        vip_prefix: crate::config::VipPrefix {
            ipv4: PrefixLength::Auto,
            ipv6: PrefixLength::Fixed(128),
        },
        ..config()
    };
    assert_eq!(placed("10.0.0.9", None, &auto, &host()), "eth0/24");
    assert_eq!(placed("fd00::9", None, &auto, &host()), "eth0/128");
    assert!(
        place(
            ip("192.168.7.7"),
            None,
            &auto,
            &Ground::new(&host(), |_| false)
        )
        .is_err()
    );
}

#[test]
fn addresses_that_are_no_vips_are_refused() {
    let config = SpeakerConfig {
        api_server: vec![ip("10.0.0.77")],
        allowed_cidrs: vec!["10.0.0.0/16".parse().unwrap(), "fd00::/16".parse().unwrap()],
        ..config()
    };
    for vip in [
        "0.0.0.0",
        "127.0.0.2",
        "::1",
        "224.0.0.5",
        "ff02::5",
        "169.254.1.1",
        "fe80::9",
        "255.255.255.255",
        "240.0.0.1",
        "0.1.2.3",
        "10.0.0.77",
        "172.16.0.1",
        "fe00::1",
    ] {
        assert!(refusal_by_kind(ip(vip), &config).is_some(), "{vip}");
    }
    for vip in ["10.0.0.9", "10.0.255.255", "fd00::9"] {
        assert_eq!(refusal_by_kind(ip(vip), &config), None, "{vip}");
    }
}

#[test]
fn this_hosts_addresses_gateways_and_network_edges_are_refused() {
    for vip in [
        "10.0.0.1",
        "fd00::1",
        "10.0.0.254",
        "fd00::ff",
        "10.0.0.0",
        "10.0.0.255",
    ] {
        assert!(
            refusal_here(ip(vip), &Ground::new(&host(), |_| false)).is_some(),
            "{vip}"
        );
    }
    assert_eq!(
        refusal_here(ip("10.0.0.9"), &Ground::new(&host(), |_| false)),
        None
    );
    let point_to_point = with(host(), 3, "eth1", &["10.2.0.0/31"]);
    assert_eq!(
        refusal_here(ip("10.2.0.1"), &Ground::new(&point_to_point, |_| false)),
        None
    );
}

#[test]
fn what_kube_vip_left_on_the_host_is_adopted() {
    let mut host = host();
    let leftover = LinkAddress {
        deprecated: true,
        ..host_address(2, "10.0.0.9/32")
    };
    host.addresses.insert(leftover.key(), leftover);
    assert_eq!(
        refusal_here(ip("10.0.0.9"), &Ground::new(&host, |_| false)),
        None
    );
    let own = host_address(2, "10.0.0.8/32");
    host.addresses.insert(own.key(), own);
    assert!(refusal_here(ip("10.0.0.8"), &Ground::new(&host, |_| false)).is_some());
}
