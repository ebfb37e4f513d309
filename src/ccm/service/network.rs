//! Which interface of the nodes a network is on, from the mapping that the topology controller
//! publishes: pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;

use super::plan::Complaint;

/// The mapping's object, and the key in it.
pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const NAME: &str = "harvester-nad-mapping";
const KEY: &str = "interface-nad-mapping";

/// The interface for `network`. Without a mapping nothing is known and nothing is wrong; an empty
/// one says that the nodes have no network in common.
pub(super) fn interface(
    mapping: Option<&ConfigMap>,
    network: &str,
) -> Result<Option<String>, Complaint> {
    let Some(mapping) = mapping else {
        return Ok(None);
    };
    let text = mapping.data.as_ref().and_then(|data| data.get(KEY));
    let text = text.map(String::as_str).unwrap_or_default();
    if text.is_empty() {
        return Err(Complaint::NoCommonNetwork);
    }
    let networks: Option<BTreeMap<String, String>> =
        serde_json::from_str(text).map_err(|_| Complaint::MappingUnreadable)?;
    let Some(networks) = networks else {
        return Ok(None);
    };
    if networks.is_empty() {
        return Err(Complaint::NoCommonNetwork);
    }
    match networks.get(network) {
        Some(interface) => Ok(Some(interface.clone())),
        None => Err(Complaint::NetworkNotCommon(network.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_is_read_as_the_go_program_reads_it() {
        let map = |text: Option<&str>| ConfigMap {
            data: text.map(|text| BTreeMap::from([(KEY.to_owned(), text.to_owned())])),
            ..ConfigMap::default()
        };
        let found = |text| interface(Some(&map(text)), "default/net");
        assert_eq!(interface(None, "default/net"), Ok(None));
        assert_eq!(found(Some("null")), Ok(None));
        for empty in [None, Some(""), Some("{}")] {
            assert_eq!(found(empty), Err(Complaint::NoCommonNetwork));
        }
        assert_eq!(found(Some("[1]")), Err(Complaint::MappingUnreadable));
        let other = Complaint::NetworkNotCommon("default/net".to_owned());
        assert_eq!(found(Some(r#"{"default/x":"eth0"}"#)), Err(other));
        let text = r#"{"default/net":"enp2s0","default/x":"enp1s0"}"#;
        assert_eq!(found(Some(text)), Ok(Some("enp2s0".to_owned())));
    }
}
