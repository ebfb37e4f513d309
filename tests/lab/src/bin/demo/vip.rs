//! One VIP as its clients see it: who answers on the wire, which Pods answer HTTP, what was lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::Result;
use lab::{
    Cluster, MacAddress, Node, clock,
    cluster::PodAnswer,
    probe::{Asker, EchoProbe, HttpProbe},
};

use crate::table::{Owner, Row, State};

pub(crate) const LINK: &str = "eth0";
pub(crate) const PORT: u16 = 80;
/// So many unanswered requests, 2 ms apart, are silence; fewer in a look say nothing: the machine is busy.
const SILENCE: u64 = 20;
const HTTP_PERIOD: Duration = Duration::from_millis(10);
const HTTP_TIMEOUT: Duration = Duration::from_millis(200);

/// A client without answers for longer is not served.
const PATIENCE: Duration = Duration::from_secs(1);

/// One address of a Service.
#[derive(Debug)]
pub(crate) struct Vip {
    pub(crate) address: IpAddr,
    pub(crate) service: &'static str,
    policy: &'static str,
    http: HttpProbe,
    echo: EchoProbe,
    before: Look,
}

/// What had been seen of a VIP at the last look.
#[derive(Debug, Default)]
struct Look {
    asked: u64,
    answered: u64,
    /// HTTP answers of each Pod.
    answers: BTreeMap<String, usize>,
    /// When the last of them was seen.
    answered_at: Option<Instant>,
    state: Option<State>,
}

impl Vip {
    /// Starts the clients of one address.
    pub(crate) fn watch(
        cluster: &Cluster,
        address: IpAddr,
        service: &'static str,
        policy: &'static str,
    ) -> Result<Self> {
        let url = format!("http://{}/", SocketAddr::new(address, PORT));
        Ok(Self {
            address,
            service,
            policy,
            http: HttpProbe::start(cluster.client(), &url, HTTP_PERIOD, HTTP_TIMEOUT)?,
            echo: EchoProbe::start(cluster.client(), address)?,
            before: Look::default(),
        })
    }

    pub(crate) fn row(&mut self, cluster: &Cluster, asker: &Asker) -> Row {
        let seen = asker.answers(self.address);
        let http = self.http_state();
        let before = &mut self.before;
        let answered = seen.answered > before.answered;
        let state = match seen.last {
            None => State::New,
            Some(_) if answered => http,
            Some((last, _)) if seen.asked >= before.asked + SILENCE => {
                State::Silent(last.elapsed())
            }
            Some(_) => before.state.take().unwrap_or(State::New),
        };
        (before.asked, before.answered) = (seen.asked, seen.answered);
        before.state = Some(state.clone());
        let is_silent = matches!(state, State::New | State::Silent(_));
        let mac = seen.last.map(|(_, mac)| mac).filter(|_| !is_silent);
        Row {
            vip: self.address,
            service: self.service,
            policy: self.policy,
            owner: mac.and_then(|mac| self.owner(cluster, mac)),
            state,
        }
    }

    /// The node with this MAC.
    fn owner(&self, cluster: &Cluster, mac: MacAddress) -> Option<Owner> {
        let is_owner = |node: &&Node| mac_of(node) == Some(mac);
        let node = cluster.nodes().iter().find(is_owner)?;
        // A node that is switched off this very moment has no addresses.
        let addresses = node.host().addresses().unwrap_or_default();
        let link = addresses
            .into_iter()
            .find_map(|(link, held, _)| (held == self.address).then_some(link));
        Some(Owner {
            node: node.name().to_owned(),
            mac: mac.to_string(),
            link,
        })
    }

    /// What the HTTP client makes of a VIP that is answered on the wire.
    fn http_state(&mut self) -> State {
        let seen = self.http.snapshot();
        let mut answers: BTreeMap<String, usize> = BTreeMap::new();
        for (body, count) in seen.bodies {
            let pod = serde_json::from_str(&body).map_or(body, |answer: PodAnswer| answer.pod);
            *answers.entry(pod).or_default() += count;
        }
        let before = &mut self.before;
        let pods: BTreeSet<String> = answers
            .iter()
            .filter(|(pod, count)| before.answers.get(*pod) != Some(*count))
            .map(|(pod, _)| pod.clone())
            .collect();
        before.answers = answers;
        if !pods.is_empty() {
            before.answered_at = Some(clock::now());
            return State::Served(pods);
        }
        match &before.state {
            // A Pod of a dead node keeps a client waiting now and then; another one answers.
            Some(State::Served(pods)) if before.answered_at.is_some_and(is_recent) => {
                State::Served(pods.clone())
            }
            _ => State::OnTheWire,
        }
    }

    /// The longest time without an echo that began after `since`.
    pub(crate) fn lost_since(&self, since: Instant) -> Duration {
        let gaps = self.echo.snapshot().gaps;
        let later = gaps.iter().filter(|gap| gap.start >= since);
        later.map(|gap| gap.length).max().unwrap_or_default()
    }
}

pub(crate) fn mac_of(node: &Node) -> Option<MacAddress> {
    node.host().port(LINK).map(|port| port.mac())
}

fn is_recent(at: Instant) -> bool {
    at.elapsed() < PATIENCE
}
