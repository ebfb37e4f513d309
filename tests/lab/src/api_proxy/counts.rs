//! How often a client asked for what, and what it was told.

use std::{collections::BTreeMap, fmt};

/// Requests by verb, resource and answer: a snapshot of a proxy's counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Counted, u64>);

/// What is counted apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counted {
    pub resource: String,
    pub verb: String,
    /// The status code, or none for a request that never got an answer.
    pub code: Option<u16>,
}

impl Counts {
    pub(super) fn add(&mut self, counted: Counted) {
        *self.0.entry(counted).or_default() += 1;
    }

    /// All requests.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Requests of one verb on one resource, whatever the answer.
    pub fn of(&self, verb: &str, resource: &str) -> u64 {
        self.matching(|it| it.verb == verb && it.resource == resource)
    }

    /// Requests that change something.
    pub fn writes(&self) -> u64 {
        self.matching(|it| !matches!(it.verb.as_str(), "get" | "list" | "watch"))
    }

    /// Requests that were answered with `code`.
    pub fn answered(&self, code: u16) -> u64 {
        self.matching(|it| it.code == Some(code))
    }

    /// Requests that satisfy `wanted`.
    pub fn matching(&self, wanted: impl Fn(&Counted) -> bool) -> u64 {
        self.0
            .iter()
            .filter(|(counted, _)| wanted(counted))
            .map(|(_, count)| count)
            .sum()
    }

    /// What came after `earlier` was taken from the same proxy.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let rest = self.0.iter().filter_map(|(counted, &count)| {
            let before = earlier.0.get(counted).copied().unwrap_or_default();
            let more = count.saturating_sub(before);
            (more > 0).then(|| (counted.clone(), more))
        });
        Self(rest.collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Counted, u64)> {
        self.0.iter().map(|(counted, &count)| (counted, count))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .0
            .keys()
            .map(|it| it.resource.len())
            .max()
            .unwrap_or_default()
            .max(8);
        writeln!(f, "{:<width$}  {:<16}  code  requests", "resource", "verb")?;
        for (
            Counted {
                resource,
                verb,
                code,
            },
            count,
        ) in &self.0
        {
            let code = code.map_or_else(|| "-".to_owned(), |code| code.to_string());
            writeln!(f, "{resource:<width$}  {verb:<16}  {code:>4}  {count:>8}")?;
        }
        write!(
            f,
            "{:<width$}  {:<16}  {:>4}  {:>8}",
            "total",
            "",
            "",
            self.total()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(verb: &str, resource: &str, code: u16) -> Counted {
        Counted {
            resource: resource.to_owned(),
            verb: verb.to_owned(),
            code: Some(code),
        }
    }

    #[test]
    fn a_difference_has_only_what_came_after() {
        let mut counts = Counts::default();
        counts.add(counted("list", "services", 200));
        let earlier = counts.clone();
        counts.add(counted("patch", "services/status", 409));
        counts.add(counted("patch", "services/status", 200));

        let later = counts.since(&earlier);
        assert_eq!(later.total(), 2);
        assert_eq!(later.of("patch", "services/status"), 2);
        assert_eq!(later.of("list", "services"), 0);
        assert_eq!(later.answered(409), 1);
        assert_eq!(counts.writes(), 2);
    }

    #[test]
    fn a_table_has_a_line_for_each_and_a_total() {
        let mut counts = Counts::default();
        counts.add(counted("watch", "services", 200));
        counts.add(Counted {
            code: None,
            ..counted("get", "nodes", 0)
        });
        let table = counts.to_string();
        let lines: Vec<_> = table
            .lines()
            .map(|it| it.split_whitespace().collect::<Vec<_>>())
            .collect();
        assert_eq!(lines[1], ["nodes", "get", "-", "1"]);
        assert_eq!(lines[2], ["services", "watch", "200", "1"]);
        assert_eq!(lines[3], ["total", "2"]);
    }
}
