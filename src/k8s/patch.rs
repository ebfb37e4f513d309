//! Differences of objects as JSON merge patches (RFC 7396). Pure.
//!
//! A patch names only what differs, so fields that this program does not know survive; lists are
//! replaced whole. `None` means there is nothing to write.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::LoadBalancerStatus;
use serde_json::{Map, Value, json};

/// The patch that turns `before` into `after`, both objects without null members.
pub fn diff(before: &Map<String, Value>, after: &Map<String, Value>) -> Option<Value> {
    let mut patch = Map::new();
    for (key, old) in before {
        match (old, after.get(key)) {
            (_, None) => {
                patch.insert(key.clone(), Value::Null);
            }
            (Value::Object(old), Some(Value::Object(new))) => {
                if let Some(inner) = diff(old, new) {
                    patch.insert(key.clone(), inner);
                }
            }
            (old, Some(new)) if old != new => {
                patch.insert(key.clone(), new.clone());
            }
            _ => {}
        }
    }
    for (key, new) in after {
        if !before.contains_key(key) {
            patch.insert(key.clone(), new.clone());
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The patch of `metadata.annotations`.
pub fn annotations(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Option<Value> {
    let object = |map: &BTreeMap<String, String>| -> Map<String, Value> {
        map.iter()
            .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
            .collect()
    };
    let annotations = diff(&object(before), &object(after))?;
    Some(json!({"metadata": {"annotations": annotations}}))
}

/// The patch of a Service's `status.loadBalancer`.
pub fn load_balancer(
    before: Option<&LoadBalancerStatus>,
    after: &LoadBalancerStatus,
) -> Option<Value> {
    let object = |status: &LoadBalancerStatus| match serde_json::to_value(status) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    };
    let before = before.map(object).unwrap_or_default();
    let load_balancer = diff(&before, &object(after))?;
    Some(json!({"status": {"loadBalancer": load_balancer}}))
}

/// `patch`, to be refused with a conflict unless the object still has this version.
pub fn locked(mut patch: Value, resource_version: &str) -> Value {
    if let Value::Object(object) = &mut patch
        && let Value::Object(metadata) = object.entry("metadata").or_insert_with(|| json!({}))
    {
        metadata.insert("resourceVersion".to_owned(), resource_version.into());
    }
    patch
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{LoadBalancerIngress, PortStatus};
    use proptest::prelude::*;

    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn status(addresses: &[&str]) -> LoadBalancerStatus {
        let ingress = addresses.iter().map(|ip| LoadBalancerIngress {
            ip: Some((*ip).to_owned()),
            ports: Some(vec![PortStatus {
                port: 80,
                protocol: "TCP".to_owned(),
                error: None,
            }]),
            ..LoadBalancerIngress::default()
        });
        LoadBalancerStatus {
            ingress: Some(ingress.collect()).filter(|list: &Vec<_>| !list.is_empty()),
        }
    }

    #[test]
    fn annotations_that_stay_are_not_mentioned_and_removed_ones_are_null() {
        let before = map(&[("stays", "1"), ("goes", "2"), ("changes", "3")]);
        let after = map(&[("stays", "1"), ("changes", "4"), ("comes", "5")]);
        let expected = json!({"goes": null, "changes": "4", "comes": "5"});
        assert_eq!(
            annotations(&before, &after),
            Some(json!({"metadata": {"annotations": expected}}))
        );
        assert_eq!(annotations(&before, &before), None);
    }

    #[test]
    fn a_status_is_written_whole_cleared_with_null_and_left_alone_when_equal() {
        let one = json!([{"ip": "10.0.0.1", "ports": [{"port": 80, "protocol": "TCP"}]}]);
        assert_eq!(
            load_balancer(None, &status(&["10.0.0.1"])),
            Some(json!({"status": {"loadBalancer": {"ingress": one}}}))
        );
        assert_eq!(
            load_balancer(Some(&status(&["10.0.0.1"])), &status(&[])),
            Some(json!({"status": {"loadBalancer": {"ingress": null}}}))
        );
        assert_eq!(load_balancer(None, &status(&[])), None);
        assert_eq!(load_balancer(Some(&status(&["a"])), &status(&["a"])), None);
    }

    #[test]
    fn a_locked_patch_carries_the_version_beside_the_annotations() {
        let patch = json!({"metadata": {"annotations": {"a": "b"}}});
        let expected = json!({"metadata": {"annotations": {"a": "b"}, "resourceVersion": "7"}});
        assert_eq!(locked(patch, "7"), expected);
        let expected = json!({"status": {}, "metadata": {"resourceVersion": "7"}});
        assert_eq!(locked(json!({"status": {}}), "7"), expected);
    }

    fn object() -> impl Strategy<Value = Map<String, Value>> {
        let leaf = prop_oneof![
            (0..3_i64).prop_map(Value::from),
            "[xy]".prop_map(Value::from),
            proptest::collection::vec(0..3_i64, 0..3).prop_map(Value::from),
        ];
        let value = leaf.prop_recursive(3, 24, 4, |inner| {
            proptest::collection::btree_map("[abcd]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
        });
        proptest::collection::btree_map("[abcd]", value, 0..4)
            .prop_map(|map| map.into_iter().collect())
    }

    /// RFC 7396, section 2.
    fn apply(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
        for (key, value) in patch {
            match value {
                Value::Null => {
                    target.remove(key);
                }
                Value::Object(inner) => {
                    let entry = target.entry(key.clone()).or_insert(Value::Null);
                    if !entry.is_object() {
                        *entry = json!({});
                    }
                    apply(entry.as_object_mut().unwrap(), inner);
                }
                other => {
                    target.insert(key.clone(), other.clone());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_patch_turns_one_into_the_other(before in object(), after in object()) {
            let mut patched = before.clone();
            match diff(&before, &after) {
                None => prop_assert_eq!(&before, &after),
                Some(patch) => apply(&mut patched, patch.as_object().unwrap()),
            }
            prop_assert_eq!(patched, after);
        }
    }
}
