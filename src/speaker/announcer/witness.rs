//! Questions to the wire, answers, and who else claims what we announce. Sans-IO.
//!
//! Three duties, each per address:
//!
//! * **New**: asked at 0, 3 and 6 ms; [`Finding::Clear`] at 10 ms if nobody answered; asked again
//!   at 250, 500 and 1,000 ms, and an answer that comes then still is one. This is the shape of
//!   RFC 5227 section 2.1 in a hundredth of its time: a Linux owner answers within 1 ms, and the
//!   late questions find the slow ones.
//! * **Until silent**: asked every 25 ms until three in a row are unanswered, or still answered at
//!   the limit.
//! * **Defence** of announced addresses (RFC 5227 section 2.4): a foreign claim is answered by one
//!   announcement per 10 s. That of a cluster node is one of a rival who will give up: it is
//!   answered at most every 100 ms, late rather than never, so that ours is the last word.
//!
//! An answer is any claim ([`crate::net::frame::Claim`]) of the address by a MAC that is not ours.
//! Questions from 0.0.0.0 and `::` claim nothing.
//!
//! A cluster node that answers for what it does not own is kube-proxy at work, not a stranger.
//! To tell, node addresses are asked for when an unexpected claim comes from an unknown MAC, and
//! the finding waits for their answers, 20 ms at most.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{Question, agenda::Agenda};
use crate::net::{
    frame::{Claim, Heard},
    link::MacAddress,
};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Ask,
    Judge,
    Close,
}

/// A new address, counted from the first question.
const NEW: [(Duration, Step); 8] = [
    (ms(0), Step::Ask),
    (ms(3), Step::Ask),
    (ms(6), Step::Ask),
    (ms(10), Step::Judge),
    (ms(250), Step::Ask),
    (ms(500), Step::Ask),
    (ms(1000), Step::Ask),
    (ms(1050), Step::Close),
];

/// Until silent: between questions, and how many of them in a row mean silence.
const PERIOD: Duration = ms(25);
const SILENT: u8 = 3;

/// How many questions may wait to be sent: their answers are heard before more are asked.
const QUESTIONS: usize = 64;

/// Before a question is tried again that could not be sent.
const RETRY: Duration = ms(250);

/// How long nodes have to say who they are, and how long that knowledge is fresh.
const ROUND: Duration = ms(20);
const ROUND_IS_FRESH: Duration = Duration::from_secs(10);

/// Between defences: against strangers, against the cluster's own nodes; and between reports.
const STRANGER_PAUSE: Duration = Duration::from_secs(10);
const NODE_PAUSE: Duration = ms(100);
const REPORT_PAUSE: Duration = Duration::from_secs(10);

/// Former MACs of ours whose frames may still be under way.
const OWN_MACS: usize = 4;

/// What came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    Clear {
        vip: IpAddr,
    },
    Answered {
        vip: IpAddr,
        by: MacAddress,
        node: Option<IpAddr>,
    },
    Conflict {
        vip: IpAddr,
        by: MacAddress,
        node: Option<IpAddr>,
    },
    /// Announce it once, now.
    Defend {
        vip: IpAddr,
    },
}

/// What was made of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// It claims nothing that is of interest.
    Nothing,
    /// It is one of our own.
    Own,
    /// A cluster node said where it is.
    Node,
    /// It answers an open question.
    Answer,
    /// It claims what we announce.
    Rival,
}

#[derive(Debug, Clone, Copy)]
enum Open {
    New {
        began: Instant,
        step: usize,
    },
    UntilSilent {
        until: Instant,
        /// Unanswered in a row.
        misses: u8,
        last: Last,
    },
}

/// The last question about an address.
#[derive(Debug, Clone, Copy)]
enum Last {
    NotAsked,
    Asked,
    Answered(MacAddress),
}

#[derive(Debug, Default)]
struct Defence {
    defended: Option<Instant>,
    reported: Option<Instant>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Node {
    mac: Option<MacAddress>,
    heard: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charge {
    Answered,
    Conflict,
}

/// A finding that waits for the name of its cause.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    vip: IpAddr,
    by: MacAddress,
    charge: Charge,
}

/// Asks, listens and judges for one link.
#[derive(Debug)]
pub(super) struct Witness {
    /// The present MAC first.
    ours: VecDeque<MacAddress>,
    /// Those of this host's other links.
    host: Vec<MacAddress>,
    nodes: HashMap<IpAddr, Node>,
    questions: HashMap<IpAddr, Open>,
    announced: HashMap<IpAddr, Defence>,
    /// The next step of each question.
    steps: Agenda<IpAddr>,
    /// Defences that had to wait.
    defences: Agenda<IpAddr>,
    suspects: Vec<Suspect>,
    /// When nodes were last asked who they are.
    round: Option<Instant>,
    inquiries: VecDeque<IpAddr>,
    findings: VecDeque<Finding>,
}

impl Witness {
    pub(super) fn new(mac: MacAddress, nodes: &[IpAddr]) -> Self {
        let mut witness = Self {
            ours: VecDeque::new(),
            host: Vec::new(),
            nodes: HashMap::new(),
            questions: HashMap::new(),
            announced: HashMap::new(),
            steps: Agenda::new(),
            defences: Agenda::new(),
            suspects: Vec::new(),
            round: None,
            inquiries: VecDeque::new(),
            findings: VecDeque::new(),
        };
        witness.handle_facts(mac, nodes);
        witness
    }

    /// The MACs of all links of this host.
    pub(super) fn handle_host(&mut self, macs: &[MacAddress]) {
        self.host = macs.to_vec();
    }

    pub(super) fn handle_facts(&mut self, mac: MacAddress, nodes: &[IpAddr]) {
        self.ours.retain(|known| *known != mac);
        self.ours.push_front(mac);
        self.ours.truncate(OWN_MACS);
        let known = std::mem::take(&mut self.nodes);
        self.nodes = nodes
            .iter()
            .map(|ip| (*ip, known.get(ip).copied().unwrap_or_default()))
            .collect();
        if !nodes.iter().all(|ip| known.contains_key(ip)) {
            self.round = None;
        }
    }

    /// Opens a question, or opens it anew.
    pub(super) fn handle_ask(&mut self, vip: IpAddr, question: Question, now: Instant) {
        self.handle_forget(vip);
        let open = match question {
            Question::New => Open::New {
                began: now,
                step: 0,
            },
            Question::UntilSilent { limit } => Open::UntilSilent {
                until: now + limit,
                misses: 0,
                last: Last::NotAsked,
            },
        };
        self.questions.insert(vip, open);
        self.steps.set(vip, now);
    }

    pub(super) fn handle_forget(&mut self, vip: IpAddr) {
        self.close(vip);
        self.acquit(vip, Charge::Answered);
    }

    pub(super) fn handle_announcing(&mut self, vip: IpAddr) {
        self.announced.entry(vip).or_default();
    }

    pub(super) fn handle_silenced(&mut self, vip: IpAddr) {
        self.announced.remove(&vip);
        self.defences.cancel(vip);
        self.acquit(vip, Charge::Conflict);
    }

    /// A question did not leave: its silence means nothing.
    pub(super) fn handle_unsent(&mut self, vip: IpAddr, now: Instant) {
        match self.questions.get_mut(&vip) {
            Some(Open::New { began, step }) if !judged(*step) => {
                *began = now + RETRY;
                *step = 0;
            }
            Some(Open::UntilSilent { misses, last, .. }) => {
                *misses = 0;
                *last = Last::NotAsked;
            }
            _ => return,
        }
        self.steps.set(vip, now + RETRY);
    }

    /// Takes what a neighbour said.
    pub(super) fn handle_heard(&mut self, heard: &Heard, now: Instant) -> Notice {
        let Some(claim) = heard.claim() else {
            return Notice::Nothing;
        };
        if self.is_own(claim.mac) || self.is_own(heard.ethernet_source()) {
            return Notice::Own;
        }
        if let Some(node) = self.nodes.get_mut(&claim.address) {
            node.mac = Some(claim.mac);
            node.heard = Some(now);
            self.name_suspects(now);
            return Notice::Node;
        }
        match self.questions.get_mut(&claim.address) {
            Some(Open::New { .. }) => {
                self.close(claim.address);
                self.accuse(claim, Charge::Answered, now);
                Notice::Answer
            }
            Some(Open::UntilSilent { last, .. }) => {
                *last = Last::Answered(claim.mac);
                Notice::Answer
            }
            None if claim.overrides && self.announced.contains_key(&claim.address) => {
                self.accuse(claim, Charge::Conflict, now);
                Notice::Rival
            }
            None => Notice::Nothing,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let round = self.round.filter(|_| !self.suspects.is_empty());
        [
            self.steps.next(),
            self.defences.next(),
            round.map(|began| began + ROUND),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// What is due; where much is, the rest stays due until the questions have been taken.
    pub(super) fn handle_deadline(&mut self, now: Instant) {
        while self.inquiries.len() < QUESTIONS
            && let Some(vip) = self.steps.pop_due(now)
        {
            self.step(vip, now);
        }
        while let Some(vip) = self.defences.pop_due(now) {
            self.defend(vip, now);
        }
        self.name_suspects(now);
    }

    /// The next address to ask the link for.
    pub(super) fn poll_transmit(&mut self) -> Option<IpAddr> {
        self.inquiries.pop_front()
    }

    pub(super) fn poll_event(&mut self) -> Option<Finding> {
        self.findings.pop_front()
    }

    fn step(&mut self, vip: IpAddr, now: Instant) {
        match self.questions.get(&vip).copied() {
            Some(Open::New { began, step }) => self.step_new(vip, began, step, now),
            Some(Open::UntilSilent {
                until,
                misses,
                last,
            }) => self.step_until_silent(vip, until, misses, last, now),
            None => {}
        }
    }

    fn step_new(&mut self, vip: IpAddr, began: Instant, step: usize, now: Instant) {
        let (Some((offset, due)), following) = (NEW.get(step), NEW.get(step + 1)) else {
            return self.close(vip);
        };
        match due {
            Step::Ask => self.inquiries.push_back(vip),
            Step::Judge => self.findings.push_back(Finding::Clear { vip }),
            Step::Close => {}
        }
        let Some((following, _)) = following else {
            return self.close(vip);
        };
        // Late steps keep their distance: an answer needs time, however late the question.
        let least = now + following.saturating_sub(*offset) / 2;
        self.steps.set(vip, least.max(began + *following));
        let step = step + 1;
        self.questions.insert(vip, Open::New { began, step });
    }

    fn step_until_silent(
        &mut self,
        vip: IpAddr,
        until: Instant,
        misses: u8,
        last: Last,
        now: Instant,
    ) {
        let misses = match last {
            Last::NotAsked => misses,
            Last::Asked => misses + 1,
            Last::Answered(by) if now >= until => {
                let claim = Claim {
                    address: vip,
                    mac: by,
                    overrides: true,
                };
                self.close(vip);
                return self.accuse(claim, Charge::Answered, now);
            }
            Last::Answered(_) => 0,
        };
        if misses >= SILENT {
            self.close(vip);
            self.findings.push_back(Finding::Clear { vip });
            return;
        }
        let open = Open::UntilSilent {
            until,
            misses,
            last: Last::Asked,
        };
        self.questions.insert(vip, open);
        self.inquiries.push_back(vip);
        self.steps.set(vip, now + PERIOD);
    }

    fn close(&mut self, vip: IpAddr) {
        self.questions.remove(&vip);
        self.steps.cancel(vip);
        self.inquiries.retain(|waiting| *waiting != vip);
    }

    fn acquit(&mut self, vip: IpAddr, charge: Charge) {
        self.suspects.retain(|s| s.vip != vip || s.charge != charge);
    }

    /// Finds against a MAC, at once if it can be named or all nodes are known.
    fn accuse(&mut self, claim: Claim, charge: Charge, now: Instant) {
        let vip = claim.address;
        if self
            .suspects
            .iter()
            .any(|s| s.vip == vip && s.charge == charge)
        {
            return;
        }
        let suspect = Suspect {
            vip,
            by: claim.mac,
            charge,
        };
        let fresh = self
            .round
            .is_some_and(|began| now.saturating_duration_since(began) < ROUND_IS_FRESH);
        if !fresh && self.node_of(vip, claim.mac).is_none() && !self.nodes.is_empty() {
            self.round = Some(now);
            self.inquiries.extend(self.nodes.keys());
        }
        let over = self.round_is_over(now);
        self.judge(suspect, over, now);
    }

    /// Finds against those suspects that are named, and against all once nobody else will be.
    fn name_suspects(&mut self, now: Instant) {
        if self.suspects.is_empty() {
            return;
        }
        let over = self.round_is_over(now);
        for suspect in std::mem::take(&mut self.suspects) {
            self.judge(suspect, over, now);
        }
    }

    /// Whether nobody else will say which node it is.
    fn round_is_over(&self, now: Instant) -> bool {
        self.round.is_none_or(|began| {
            now.saturating_duration_since(began) >= ROUND
                || self.nodes.values().all(|node| node.heard >= Some(began))
        })
    }

    fn judge(&mut self, suspect: Suspect, over: bool, now: Instant) {
        let node = self.node_of(suspect.vip, suspect.by);
        if node.is_none() && !over {
            self.suspects.push(suspect);
        } else {
            self.find(suspect, node, now);
        }
    }

    fn find(&mut self, Suspect { vip, by, charge }: Suspect, node: Option<IpAddr>, now: Instant) {
        if charge == Charge::Answered {
            self.findings.push_back(Finding::Answered { vip, by, node });
            return;
        }
        let Some(defence) = self.announced.get_mut(&vip) else {
            return;
        };
        if passed(defence.reported, REPORT_PAUSE, now) {
            defence.reported = Some(now);
            self.findings.push_back(Finding::Conflict { vip, by, node });
        }
        let defended = defence.defended;
        match (node, defended) {
            (Some(_), Some(last)) if !passed(defended, NODE_PAUSE, now) => {
                if !self.defences.contains(vip) {
                    self.defences.set(vip, last + NODE_PAUSE);
                }
            }
            (None, _) if !passed(defended, STRANGER_PAUSE, now) => {}
            _ => self.defend(vip, now),
        }
    }

    fn defend(&mut self, vip: IpAddr, now: Instant) {
        if let Some(defence) = self.announced.get_mut(&vip) {
            defence.defended = Some(now);
            self.findings.push_back(Finding::Defend { vip });
        }
    }

    fn is_own(&self, mac: MacAddress) -> bool {
        self.ours.contains(&mac) || self.host.contains(&mac)
    }

    /// The node with this MAC; by its address of the VIP's family where it has two.
    fn node_of(&self, vip: IpAddr, mac: MacAddress) -> Option<IpAddr> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.mac == Some(mac))
            .map(|(ip, _)| *ip)
            .min_by_key(|ip| (ip.is_ipv6() != vip.is_ipv6(), *ip))
    }
}

/// Whether the step of judging a new address is behind.
fn judged(step: usize) -> bool {
    NEW.iter().take(step).any(|(_, done)| *done == Step::Judge)
}

fn passed(last: Option<Instant>, pause: Duration, now: Instant) -> bool {
    last.is_none_or(|at| now.saturating_duration_since(at) >= pause)
}

#[cfg(test)]
mod tests;
