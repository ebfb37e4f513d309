//! LoadBalancer objects whose Service is gone: pure.
//!
//! Only the guest cluster can find them, and a mistake takes an address from under a Service that
//! works. So an object is an orphan only if it is this guest cluster's by label, by name and, where it
//! says so, by the cluster's UID; if the cluster's name is not one that others have too; if nobody
//! shares its address; and after [`GRACE`]. The API server is then asked for the Service itself.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use kube::ResourceExt;

use super::loadbalancer::{Settings, is_named_for};
use crate::{ccm::cache::ObjectKey, harvester::loadbalancer::LoadBalancer, k8s::names::harvester};

pub(super) const GRACE: Duration = Duration::from_secs(10);

/// Which Service an object of this guest cluster says it is for.
pub(super) fn owner(settings: &Settings, object: &LoadBalancer) -> Option<ObjectKey> {
    if object.label(harvester::CLUSTER) != Some(&*settings.cluster) {
        return None;
    }
    let namespace = object.label(harvester::SERVICE_NAMESPACE)?;
    let name = object.label(harvester::SERVICE_NAME)?;
    Some(ObjectKey::new(namespace, name))
}

/// Whether `object` is left over from an earlier Service named `service`; `current` is the name of the
/// object that today's Service of this name has.
pub(super) fn is_orphan(
    settings: &Settings,
    guest: Option<&str>,
    object: &LoadBalancer,
    service: &ObjectKey,
    current: Option<&str>,
) -> bool {
    let name = object.name_any();
    let creator = object.annotation(harvester::GUEST_CLUSTER_UID);
    !settings.is_ambiguous()
        && !object.is_terminating()
        && owner(settings, object).as_ref() == Some(service)
        && object.spec.workload_type.as_deref() == Some("cluster")
        && is_named_for(&name, &settings.cluster, &service.namespace, &service.name)
        && creator.is_none_or(|creator| Some(creator) == guest)
        && current != Some(&*name)
}

/// The objects of each Service by their labels, and since when orphans are known.
#[derive(Debug, Default)]
pub(super) struct Owners {
    objects: HashMap<ObjectKey, BTreeSet<String>>,
    suspects: HashMap<String, Instant>,
}

impl Owners {
    pub(super) fn add(&mut self, service: ObjectKey, object: String) {
        self.objects.entry(service).or_default().insert(object);
    }

    pub(super) fn remove(&mut self, service: &ObjectKey, object: &str) {
        self.suspects.remove(object);
        if let Some(objects) = self.objects.get_mut(service) {
            objects.remove(object);
            if objects.is_empty() {
                self.objects.remove(service);
            }
        }
    }

    pub(super) fn of(&self, service: &ObjectKey) -> Vec<String> {
        let objects = self.objects.get(service);
        objects.into_iter().flatten().cloned().collect()
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &ObjectKey> {
        self.objects.keys()
    }

    /// How much longer an orphan is left alone.
    pub(super) fn grace(&mut self, object: &str, now: Instant) -> Duration {
        let since = self.suspects.entry(object.to_owned()).or_insert(now);
        (*since + GRACE).saturating_duration_since(now)
    }

    /// The object is none after all.
    pub(super) fn acquit(&mut self, object: &str) {
        self.suspects.remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::loadbalancer, *};

    fn settings(cluster: &str) -> Settings {
        Settings {
            cluster: cluster.to_owned(),
            management_network: None,
        }
    }

    fn object(cluster: &str, uid: &str) -> LoadBalancer {
        let name = loadbalancer::name(cluster, "ns1", "lb", uid);
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "labels": {
                "cloudprovider.harvesterhci.io/cluster": cluster,
                "cloudprovider.harvesterhci.io/serviceNamespace": "ns1",
                "cloudprovider.harvesterhci.io/serviceName": "lb",
            }},
            "spec": {"workloadType": "cluster", "ipam": "pool"},
        }))
        .unwrap()
    }

    #[test]
    fn only_what_is_surely_this_clusters_and_nobodys_is_an_orphan() {
        let service = ObjectKey::new("ns1", "lb");
        let ours = settings("gc");
        let own = loadbalancer::name("gc", "ns1", "lb", "new");
        let orphan =
            |object: &LoadBalancer| is_orphan(&ours, Some("here"), object, &service, Some(&own));
        assert!(orphan(&object("gc", "old")));
        assert!(is_orphan(&ours, None, &object("gc", "old"), &service, None));
        assert!(!orphan(&object("gc", "new")), "the Service's own");
        assert!(!orphan(&object("gc-2", "old")), "another cluster's");
        let mut changed = object("gc", "old");
        changed.metadata.name = Some("by-hand".to_owned());
        assert!(!orphan(&changed), "named by somebody else");
        let mut changed = object("gc", "old");
        changed.spec.workload_type = Some("vm".to_owned());
        assert!(!orphan(&changed), "for VMs");
        let mut changed = object("gc", "old");
        let creator = harvester::GUEST_CLUSTER_UID.to_owned();
        changed
            .annotations_mut()
            .insert(creator.clone(), "there".to_owned());
        assert!(!orphan(&changed), "of a cluster with the same name");
        assert!(
            !is_orphan(&ours, None, &changed, &service, None),
            "of nobody knows whom"
        );
        changed.annotations_mut().insert(creator, "here".to_owned());
        assert!(orphan(&changed));
        let mut changed = object("gc", "old");
        changed.metadata.deletion_timestamp =
            serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap();
        assert!(!orphan(&changed), "going already");
    }

    #[test]
    fn a_cluster_name_that_others_have_too_has_no_orphans() {
        let service = ObjectKey::new("ns1", "lb");
        for cluster in ["", "kubernetes"] {
            let object = object(cluster, "old");
            assert!(!is_orphan(
                &settings(cluster),
                None,
                &object,
                &service,
                None
            ));
        }
    }

    #[test]
    fn the_grace_of_a_suspect_ends_and_begins_anew_after_an_acquittal() {
        let mut owners = Owners::default();
        let start = crate::runtime::clock::now();
        assert_eq!(owners.grace("o", start), GRACE);
        assert_eq!(owners.grace("o", start + GRACE), Duration::ZERO);
        owners.acquit("o");
        assert_eq!(owners.grace("o", start + GRACE), GRACE);
    }

    #[test]
    fn objects_are_known_by_their_service() {
        let mut owners = Owners::default();
        let service = ObjectKey::new("ns1", "lb");
        owners.add(service.clone(), "a".to_owned());
        owners.add(service.clone(), "b".to_owned());
        owners.remove(&service, "a");
        assert_eq!(owners.of(&service), ["b"]);
        owners.remove(&service, "b");
        assert_eq!(owners.services().count(), 0);
    }
}
