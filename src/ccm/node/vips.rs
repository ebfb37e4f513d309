//! The addresses of the guest's load balancers, which are on a node's interface today and on
//! another's tomorrow. A machine without I/O.
//!
//! In: Services as they come, change and go. Out: whether an address is a VIP. An address that no
//! Service has any more still counts for [`LINGER`]: until then an agent may report it.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use crate::{ccm::cache::ObjectKey, k8s::names::kube_vip};

/// Agents are asked every few seconds to a minute.
const LINGER: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub(super) struct Vips {
    services: HashMap<ObjectKey, BTreeSet<IpAddr>>,
    /// How many Services have the address, and when the last one lost it.
    claims: HashMap<IpAddr, Claim>,
}

#[derive(Debug, Default)]
struct Claim {
    services: usize,
    /// `None` while there are such Services.
    ended: Option<Instant>,
}

impl Vips {
    /// Takes in a Service's addresses, none for one that is gone; says which are new.
    pub(super) fn handle_service(
        &mut self,
        key: ObjectKey,
        addresses: BTreeSet<IpAddr>,
        now: Instant,
    ) -> Vec<IpAddr> {
        let old = self.services.remove(&key).unwrap_or_default();
        for lost in old.difference(&addresses) {
            if let Some(claim) = self.claims.get_mut(lost) {
                claim.services = claim.services.saturating_sub(1);
                claim.ended = (claim.services == 0).then_some(now);
            }
        }
        let mut new = Vec::new();
        for gained in addresses.difference(&old) {
            let claim = self.claims.entry(*gained).or_default();
            if claim.services == 0 {
                new.push(*gained);
            }
            claim.services += 1;
            claim.ended = None;
        }
        if !addresses.is_empty() {
            self.services.insert(key, addresses);
        }
        self.claims.retain(|_, claim| !claim.is_over(now));
        new
    }

    pub(super) fn contains(&self, address: &IpAddr, now: Instant) -> bool {
        let claim = self.claims.get(address);
        claim.is_some_and(|claim| !claim.is_over(now))
    }
}

impl Claim {
    fn is_over(&self, now: Instant) -> bool {
        let lasts = |ended: Instant| now.saturating_duration_since(ended) < LINGER;
        !self.ended.is_none_or(lasts)
    }
}

/// What a Service has or is to have.
pub(super) fn of_service(service: &Service) -> BTreeSet<IpAddr> {
    let asked = service.annotations().get(kube_vip::LOADBALANCER_IPS);
    let asked = asked.map_or("", String::as_str).split(',').map(str::trim);
    let status = service.status.as_ref();
    let given = status
        .and_then(|status| status.load_balancer.as_ref())
        .and_then(|balancer| balancer.ingress.as_ref())
        .into_iter()
        .flatten()
        .filter_map(|ingress| ingress.ip.as_deref());
    asked
        .chain(given)
        .filter_map(|text| text.parse().ok())
        .filter(|address: &IpAddr| !address.is_unspecified())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::clock;

    fn ips(text: &str) -> BTreeSet<IpAddr> {
        text.split_whitespace()
            .map(|ip| ip.parse().unwrap())
            .collect()
    }

    #[test]
    fn an_address_is_a_vip_as_long_as_a_service_has_it_and_a_while_longer() {
        let start = clock::now();
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let vip: IpAddr = "10.0.0.100".parse().unwrap();
        let mut vips = Vips::default();
        let mut handle = |service: &str, addresses: &str, minutes| {
            let new =
                vips.handle_service(ObjectKey::new("ns", service), ips(addresses), at(minutes));
            (new.len(), vips.contains(&vip, at(minutes)))
        };
        assert_eq!(handle("a", "10.0.0.100", 0), (1, true));
        assert_eq!(handle("a", "10.0.0.100", 1), (0, true));
        assert_eq!(handle("b", "10.0.0.100 fd00::1", 1), (1, true));
        assert_eq!(handle("a", "", 2), (0, true));
        assert_eq!(handle("b", "", 10), (0, true));
        assert!(vips.contains(&vip, at(14)));
        assert!(!vips.contains(&vip, at(15)));
        let new = vips.handle_service(ObjectKey::new("ns", "c"), ips("10.0.0.100"), at(12));
        assert_eq!(new.len(), 1);
        assert!(vips.contains(&vip, at(60)));
    }

    #[test]
    fn annotation_and_status_both_name_vips() {
        let service = json!({
            "metadata": {"name": "s", "annotations": {
                "kube-vip.io/loadbalancerIPs": "10.0.0.1, fd00::1,host.example,0.0.0.0"}},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.2"}, {"hostname": "x"}]}},
        });
        let service: Service = serde_json::from_value(service).unwrap();
        assert_eq!(of_service(&service), ips("10.0.0.1 10.0.0.2 fd00::1"));
        assert!(of_service(&Service::default()).is_empty());
    }
}
