//! Label selectors in their text form (`a=b,c!=d,e in (f,g),h notin (i),j,!k`): pure.
//!
//! The semantics are those of the Kubernetes API: a requirement on `!=` or `notin` also holds where
//! the label is absent.

use std::{collections::BTreeMap, str::FromStr};

/// Which nodes may announce a Service's VIPs (`cloudprovider.harvesterhci.io/vip-node-selector`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSelector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

/// The text is no label selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("empty label selector")]
    Empty,
    #[error("{0:?} is not a label requirement")]
    Requirement(String),
}

impl NodeSelector {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            match &requirement.test {
                Test::In(allowed) => value.is_some_and(|v| allowed.contains(v)),
                Test::NotIn(forbidden) => value.is_none_or(|v| !forbidden.contains(v)),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
            }
        })
    }
}

impl FromStr for NodeSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let requirements = split_outside_parentheses(text)
            .into_iter()
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(requirement)
            .collect::<Result<Vec<_>, _>>()?;
        if requirements.is_empty() {
            return Err(SelectorError::Empty);
        }
        Ok(Self { requirements })
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

fn requirement(part: &str) -> Result<Requirement, SelectorError> {
    let wrong = || SelectorError::Requirement(part.to_owned());
    let (key, test) = if let Some(key) = part.strip_prefix('!') {
        (key.trim(), Test::Absent)
    } else if let Some((key, value)) = part.split_once("!=") {
        (key.trim(), Test::NotIn(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (key.trim(), Test::In(vec![value.trim().to_owned()]))
    } else if let Some((head, list)) = part.split_once('(') {
        let values: Vec<String> = list
            .strip_suffix(')')
            .ok_or_else(wrong)?
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        match head
            .trim()
            .split_once(char::is_whitespace)
            .map(|(k, op)| (k, op.trim()))
        {
            Some((key, "in")) => (key, Test::In(values)),
            Some((key, "notin")) => (key, Test::NotIn(values)),
            _ => return Err(wrong()),
        }
    } else {
        (part, Test::Exists)
    };
    let values = match &test {
        Test::In(values) | Test::NotIn(values) => values.as_slice(),
        Test::Exists | Test::Absent => &[],
    };
    if !is_key(key) || !values.iter().all(|value| is_value(value)) {
        return Err(wrong());
    }
    Ok(Requirement {
        key: key.to_owned(),
        test,
    })
}

fn is_key(key: &str) -> bool {
    !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
}

fn is_value(value: &str) -> bool {
    value.len() <= 63
        && value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn requirements_follow_the_api_semantics() {
        let node = labels(&[
            ("zone", "a"),
            ("role", "edge"),
            ("node-role.kubernetes.io/worker", ""),
        ]);
        for (selector, expected) in [
            ("zone=a", true),
            ("zone==a", true),
            ("zone=b", false),
            ("zone!=b", true),
            ("zone!=a", false),
            ("absent!=x", true),
            ("zone in (a, b)", true),
            ("zone in (b,c)", false),
            ("zone notin (b,c)", true),
            ("absent notin (b)", true),
            ("role", true),
            ("!role", false),
            ("!absent", true),
            ("node-role.kubernetes.io/worker", true),
            ("zone in (a,b),role=edge", true),
            ("zone in (a,b),role=core", false),
            (" zone = a , role ", true),
        ] {
            let parsed: NodeSelector = selector.parse().unwrap();
            assert_eq!(parsed.matches(&node), expected, "{selector}");
        }
    }

    #[test]
    fn text_that_is_no_selector_is_an_error() {
        for text in [
            "",
            " , ",
            "zone in (a",
            "zone is (a)",
            "zo ne",
            "=a",
            "zone=a b",
            "(a)",
        ] {
            assert!(text.parse::<NodeSelector>().is_err(), "{text}");
        }
    }
}
