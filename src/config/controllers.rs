//! The `--controllers` list: names, aliases and which controllers a list enables. Pure.
//!
//! As in the Go framework the first item that mentions a controller wins, `*` stands for all, and a
//! list without `*` is an exact allow-list. Two extensions: the framework's short names are accepted
//! (the Go program refuses them), and `-*` switches off everything, the VMI controller included.

use std::collections::BTreeSet;

/// The controllers of the cloud provider, by their published names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    CloudNode,
    CloudNodeLifecycle,
    Service,
    Route,
}

impl Controller {
    pub const ALL: [Self; 4] = [
        Self::CloudNode,
        Self::CloudNodeLifecycle,
        Self::Service,
        Self::Route,
    ];

    /// The name in logs, health checks and the flag.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CloudNode => "cloud-node-controller",
            Self::CloudNodeLifecycle => "cloud-node-lifecycle-controller",
            Self::Service => "service-lb-controller",
            Self::Route => "node-route-controller",
        }
    }

    /// The framework's short name, also the label of its metrics.
    pub const fn alias(self) -> &'static str {
        match self {
            Self::CloudNode => "cloud-node",
            Self::CloudNodeLifecycle => "cloud-node-lifecycle",
            Self::Service => "service",
            Self::Route => "route",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|c| c.name() == name || c.alias() == name)
    }
}

/// What a `--controllers` list enables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controllers {
    pub enabled: BTreeSet<Controller>,
    /// `-*` was given: no controller at all, also none that is outside the list's names.
    pub none: bool,
}

/// An item that names no controller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not in the list of known controllers")]
pub struct UnknownController(pub String);

impl Controllers {
    /// Reads the items of the flag, in their order.
    pub fn from_items<'a>(
        items: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, UnknownController> {
        let mut mentioned = BTreeSet::new();
        let mut enabled = BTreeSet::new();
        let mut all = None;
        for item in items.into_iter().filter(|item| !item.is_empty()) {
            let (on, name) = match item.strip_prefix('-') {
                Some(name) => (false, name),
                None => (true, item),
            };
            if name == "*" {
                all.get_or_insert(on);
                continue;
            }
            let controller =
                Controller::from_name(name).ok_or_else(|| UnknownController(name.to_owned()))?;
            if mentioned.insert(controller) && on {
                enabled.insert(controller);
            }
        }
        if all == Some(true) {
            enabled.extend(Controller::ALL.iter().filter(|c| !mentioned.contains(c)));
        }
        let none = all == Some(false) && enabled.is_empty();
        Ok(Self { enabled, none })
    }
}

/// The framework's list language for names of which this program has none (`--webhooks`).
pub fn unknown_items<'a>(items: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    items
        .into_iter()
        .map(|item| item.strip_prefix('-').unwrap_or(item))
        .filter(|name| !name.is_empty() && *name != "*")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        Controller::{CloudNode, CloudNodeLifecycle, Route, Service},
        *,
    };

    fn read(list: &str) -> Result<Vec<Controller>, UnknownController> {
        Controllers::from_items(list.split(',')).map(|c| c.enabled.into_iter().collect())
    }

    #[test]
    fn fw_o5_lists_enable_what_the_framework_enables() {
        let all = vec![CloudNode, CloudNodeLifecycle, Service, Route];
        for (list, expected) in [
            ("*", all.clone()),
            ("", vec![]),
            ("service-lb-controller", vec![Service]),
            ("service,route", vec![Service, Route]),
            ("*,-service", vec![CloudNode, CloudNodeLifecycle, Route]),
            ("-cloud-node,*", vec![CloudNodeLifecycle, Service, Route]),
            ("-service-lb-controller", vec![]),
            ("service,-service-lb-controller", vec![Service]),
            ("-service,service-lb-controller", vec![]),
            ("-*", vec![]),
            ("-*,*", vec![]),
            ("*,-*", all),
            ("-*,service", vec![Service]),
        ] {
            assert_eq!(read(list), Ok(expected), "{list:?}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused_without_its_minus() {
        let expected = UnknownController("loadbalancer".to_owned());
        assert_eq!(read("*,-loadbalancer"), Err(expected));
    }

    #[test]
    fn only_minus_star_alone_switches_off_everything() {
        let none = |list: &str| Controllers::from_items(list.split(',')).map(|c| c.none);
        assert_eq!(none("-*"), Ok(true));
        assert_eq!(none("-service"), Ok(false));
        assert_eq!(none("-*,service"), Ok(false));
    }

    #[test]
    fn fw_o12_o13_names_are_lower_case_words_that_end_in_controller() {
        for controller in Controller::ALL {
            let name = controller.name();
            assert!(name.ends_with("-controller"));
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
        }
    }

    #[test]
    fn the_star_is_the_only_webhook_known() {
        assert_eq!(unknown_items(["*", "-a", "b", ""]), ["a", "b"]);
    }
}
