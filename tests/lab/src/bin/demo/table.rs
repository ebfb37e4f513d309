//! The table of VIPs: what a row says, and how it is aligned. Pure.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

const COLUMNS: [&str; 7] = ["VIP", "SERVICE", "TRAFFIC", "OWNER", "LINK", "MAC", "STATE"];
const NOTHING: &str = "-";
/// The widest cells that will come: lines that were printed before keep to the same columns.
const ROOM: [&str; 7] = ["", "", "", "c00-node0", "eth0", "00:00:00:00:00:00", ""];

/// What is seen of a VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) vip: IpAddr,
    pub(crate) service: &'static str,
    /// `externalTrafficPolicy`.
    pub(crate) policy: &'static str,
    pub(crate) owner: Option<Owner>,
    pub(crate) state: State,
}

/// Whose answers the wire gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) node: String,
    pub(crate) mac: String,
    /// The link that holds the address, unless it has just gone.
    pub(crate) link: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody has answered yet.
    New,
    /// ARP requests or neighbour solicitations are answered, HTTP requests are not (yet).
    OnTheWire,
    /// The client's HTTP requests are answered by these Pods.
    Served(BTreeSet<String>),
    /// Nobody has answered for so long.
    Silent(Duration),
}

impl Row {
    pub(crate) fn is_served(&self) -> bool {
        matches!(self.state, State::Served(_))
    }

    /// Nothing in `next` that a reader of lines needs to be told anew.
    pub(crate) fn looks_like(&self, next: &Self) -> bool {
        let same_owner = match (&self.owner, &next.owner) {
            (Some(owner), Some(next)) => {
                owner.node == next.node && (next.link.is_none() || owner.link == next.link)
            }
            (owner, next) => owner == next,
        };
        same_owner && std::mem::discriminant(&self.state) == std::mem::discriminant(&next.state)
    }

    fn cells(&self) -> [String; 7] {
        let owner = self.owner.as_ref();
        let or_nothing =
            |text: Option<&String>| text.map_or_else(|| NOTHING.to_owned(), Clone::clone);
        [
            self.vip.to_string(),
            self.service.to_owned(),
            self.policy.to_owned(),
            or_nothing(owner.map(|it| &it.node)),
            or_nothing(owner.and_then(|it| it.link.as_ref())),
            or_nothing(owner.map(|it| &it.mac)),
            self.state_text(),
        ]
    }

    fn state_text(&self) -> String {
        let asked_by = if self.vip.is_ipv4() { "ARP" } else { "NDP" };
        match &self.state {
            State::New => "waiting for an owner".to_owned(),
            State::OnTheWire => format!("answers {asked_by}"),
            State::Served(pods) => {
                let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
                format!("HTTP from {}", pods.join(", "))
            }
            State::Silent(time) => format!("silent for {:.1} s", time.as_secs_f64()),
        }
    }
}

/// The head and a line for each row.
pub(crate) fn lines(rows: &[Row]) -> Vec<String> {
    let fixed = [ROOM, COLUMNS].map(|row| row.map(str::to_owned));
    let cells: Vec<[String; 7]> = fixed
        .into_iter()
        .chain(rows.iter().map(Row::cells))
        .collect();
    align(&cells).split_off(1)
}

/// Cells in columns of equal width.
pub(crate) fn align<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// A time without answers, for people.
pub(crate) fn gap(time: Duration) -> String {
    if time.is_zero() {
        "nothing".to_owned()
    } else if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: State) -> Row {
        Row {
            vip: "10.1.0.200".parse().unwrap(),
            service: "web",
            policy: "Cluster",
            owner: None,
            state,
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let served = State::Served(["web-0".to_owned(), "web-1".to_owned()].into());
        let with_owner = Row {
            owner: Some(Owner {
                node: "node1".to_owned(),
                mac: "02:00:00:04:00:03".to_owned(),
                link: Some("eth0".to_owned()),
            }),
            ..row(served)
        };
        assert_eq!(
            lines(&[row(State::New), with_owner]),
            [
                "VIP         SERVICE  TRAFFIC  OWNER      LINK  MAC                STATE",
                "10.1.0.200  web      Cluster  -          -     -                  waiting for an owner",
                "10.1.0.200  web      Cluster  node1      eth0  02:00:00:04:00:03  HTTP from web-0, web-1",
            ]
        );
    }

    #[test]
    fn a_row_that_stays_silent_is_told_once() {
        let silent = |millis| row(State::Silent(Duration::from_millis(millis)));
        assert!(silent(100).looks_like(&silent(900)));
        assert!(!silent(100).looks_like(&row(State::OnTheWire)));
    }

    #[test]
    fn gaps_are_told_in_the_unit_that_fits() {
        for (millis, text) in [(0, "nothing"), (7, "7 ms"), (17_340, "17.3 s")] {
            assert_eq!(gap(Duration::from_millis(millis)), text);
        }
    }
}
