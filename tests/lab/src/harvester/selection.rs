//! Which pool serves a LoadBalancer that names none.
//!
//! Pure. In: the pools in the order of the host's cache, and what the LoadBalancer's annotations ask
//! for. Out: a pool or none; whether it has an address left is not asked, so there is no second choice.

use std::fmt;

use super::{
    kinds::{CLUSTER, IpPool, LoadBalancer, Scope},
    knobs::Profile,
    names,
};

/// What a pool must be for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Requirement {
    pub(super) network: String,
    pub(super) project: String,
    pub(super) namespace: String,
    pub(super) cluster: String,
    /// A guest's LoadBalancer is also served by pools that leave project and cluster open.
    pub(super) guest: bool,
}

impl Requirement {
    pub(super) fn of(balancer: &LoadBalancer) -> Self {
        let annotations = balancer.metadata.annotations.as_ref();
        let annotation = |key| annotations.and_then(|it| it.get(key)).cloned();
        let own = balancer.metadata.namespace.clone();
        Self {
            network: annotation(names::NETWORK).unwrap_or_default(),
            project: annotation(names::PROJECT).unwrap_or_default(),
            namespace: annotation(names::NAMESPACE)
                .filter(|it| !it.is_empty())
                .or(own)
                .unwrap_or_default(),
            cluster: annotation(names::CLUSTER).unwrap_or_default(),
            guest: balancer.spec.workload_type == CLUSTER,
        }
    }

    fn fits(&self, scope: &Scope, loose: bool) -> bool {
        let is = |asked: &str, offered: &str| asked == offered || asked == "*" || offered == "*";
        let open = |offered: &str| loose && offered.is_empty();
        (is(&self.project, &scope.project) || open(&scope.project))
            && is(&self.namespace, &scope.namespace)
            && (is(&self.cluster, &scope.guest_cluster) || open(&scope.guest_cluster))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            network,
            project,
            namespace,
            cluster,
            ..
        } = self;
        write!(
            f,
            "&{{Network:{network} Project:{project} Namespace:{namespace} Cluster:{cluster}}}"
        )
    }
}

/// The pool that serves it.
pub(super) fn choose<'a>(
    pools: &'a [IpPool],
    wanted: &Requirement,
    profile: Profile,
) -> Option<&'a IpPool> {
    let strict = pass(pools, wanted, profile, false);
    strict.or_else(|| {
        wanted
            .guest
            .then(|| pass(pools, wanted, profile, true))
            .flatten()
    })
}

fn pass<'a>(
    pools: &'a [IpPool],
    wanted: &Requirement,
    profile: Profile,
    loose: bool,
) -> Option<&'a IpPool> {
    let (mut best, mut global) = (None::<&IpPool>, None);
    for pool in pools {
        let selector = &pool.spec.selector;
        let on_network = selector.network == wanted.network;
        if is_global(pool, profile) {
            // HEAD takes it whatever its network is.
            if on_network || profile != Profile::V1_9Rc {
                global = Some(pool);
            }
            continue;
        }
        let fits = on_network && selector.scope.iter().any(|it| wanted.fits(it, loose));
        if fits && best.is_none_or(|it| it.spec.selector.priority <= selector.priority) {
            best = Some(pool);
        }
    }
    best.or(global)
}

fn is_global(pool: &IpPool, profile: Profile) -> bool {
    if profile == Profile::V1_9Rc {
        return pool.spec.is_global();
    }
    let labels = pool.metadata.labels.as_ref();
    labels
        .and_then(|it| it.get(names::GLOBAL_POOL))
        .is_some_and(|it| it == "true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harvester::kinds::{IpPoolSpec, Selector, ip_pools};

    fn pool(name: &str, network: &str, scope: Option<(&str, &str, &str)>, priority: u32) -> IpPool {
        let scope =
            scope.map(|(project, namespace, cluster)| Scope::new(project, namespace, cluster));
        let spec = IpPoolSpec {
            selector: Selector {
                priority,
                network: network.to_owned(),
                scope: scope.into_iter().collect(),
            },
            ..IpPoolSpec::default()
        };
        let global = spec.is_global().to_string();
        let mut pool = IpPool::new(name, &ip_pools(), spec);
        pool.metadata.labels = Some([(names::GLOBAL_POOL.to_owned(), global)].into());
        pool
    }

    fn pools(letters: &str) -> Vec<IpPool> {
        let pool_of = |letter| match letter {
            'A' => pool("A", "n1", Some(("*", "default", "*")), 0),
            'B' => pool("B", "n1", Some(("", "default", "")), 0),
            'C' => pool("C", "n1", Some(("c/p", "default", "gc")), 5),
            'G' => pool("G", "n2", Some(("*", "*", "*")), 0),
            _ => pool("E", "n1", None, 0),
        };
        letters.chars().map(pool_of).collect()
    }

    fn guest(network: &str, namespace: &str) -> Requirement {
        Requirement {
            network: network.to_owned(),
            project: "c/p".to_owned(),
            namespace: namespace.to_owned(),
            cluster: "gc".to_owned(),
            guest: true,
        }
    }

    fn chosen(letters: &str, wanted: &Requirement, profile: Profile) -> String {
        let pools = pools(letters);
        let mut reversed = pools.clone();
        reversed.reverse();
        let name = |pools: &[IpPool]| {
            let pool = choose(pools, wanted, profile);
            pool.and_then(|it| it.metadata.name.clone())
                .unwrap_or_else(|| "none".to_owned())
        };
        assert_eq!(name(&pools), name(&reversed), "the order decides");
        name(&pools)
    }

    #[test]
    fn host_pools_are_chosen_as_in_the_table() {
        let machine = Requirement {
            network: "n1".to_owned(),
            namespace: "default".to_owned(),
            ..Requirement::default()
        };
        for (letters, wanted, head, rc) in [
            ("A", guest("n1", "default"), "A", "A"),
            ("A", guest("n2", "default"), "none", "none"),
            ("AG", guest("n2", "default"), "G", "G"),
            ("AG", guest("n1", "other"), "G", "none"),
            ("B", guest("n1", "default"), "B", "B"),
            ("BG", guest("n1", "default"), "G", "B"),
            ("B", machine, "B", "B"),
            ("AC", guest("n1", "default"), "C", "C"),
            ("E", guest("n1", "default"), "none", "none"),
            ("G", guest("", "default"), "G", "none"),
            // Whether A is full is no question here: a full pool is chosen all the same.
            ("AG", guest("n1", "default"), "A", "A"),
        ] {
            assert_eq!(
                chosen(letters, &wanted, Profile::Head),
                head,
                "{letters} {wanted}"
            );
            assert_eq!(
                chosen(letters, &wanted, Profile::V1_9Rc),
                rc,
                "{letters} {wanted}"
            );
        }
    }

    #[test]
    fn host_says_what_no_pool_is_for() {
        let said = "&{Network:n1 Project:c/p Namespace:default Cluster:gc}";
        assert_eq!(guest("n1", "default").to_string(), said);
    }
}
