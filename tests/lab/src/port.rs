//! A host's link into a network, and the faults of that link.
//!
//! The host's end is a veth named in the scenario (`eth0`). Its other end is in the switch
//! namespace: `p<n>`, a port of the bridge. With a delay the forwarder sits between `p<n>` and the
//! bridge, and the port is `p<n>b`, one end of a further pair whose other end `p<n>f` it reads.
//!
//! Every fault is remembered, and stands again after the host's power was off.

use std::{
    collections::BTreeSet,
    fmt::Write,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Result, ensure};

use crate::{
    clock,
    delay::{Forwarder, Timing},
    iproute,
    mac::MacAddress,
    namespace::Namespace,
    network::Network,
    rules::{self, Direction, Traffic},
    run::{Run, lock},
};

/// One end of a cable: the host's link, and the switch's port.
#[derive(Debug, Clone)]
pub struct Port {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    run: Arc<Run>,
    link: String,
    /// With prefix length, as given.
    addresses: Vec<String>,
    mac: MacAddress,
    bridge: String,
    /// The switch's end of the veth; also the name of the port's rules.
    end: String,
    state: Mutex<State>,
}

/// What the port knows of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostState {
    /// No links exist.
    Off,
    Running,
    /// Paused, or about to be off: the links exist, the port is off the bridge.
    Isolated,
}

#[derive(Debug)]
struct State {
    host: HostState,
    cut: bool,
    carrier: bool,
    loss: f64,
    blocked: BTreeSet<(Direction, Traffic)>,
    delay: Option<Timing>,
    forwarder: Option<Forwarder>,
}

impl Port {
    pub(crate) fn new(
        run: Arc<Run>,
        host: u8,
        network: &Network,
        link: &str,
        addresses: &[&str],
    ) -> Self {
        let number = run.number_port();
        let [.., high, low] = number.to_be_bytes();
        let state = State {
            host: HostState::Off,
            cut: false,
            carrier: true,
            loss: 0.0,
            blocked: BTreeSet::new(),
            delay: None,
            forwarder: None,
        };
        let inner = Inner {
            run,
            link: link.to_owned(),
            addresses: addresses
                .iter()
                .map(|&address| address.to_owned())
                .collect(),
            // Readable in a capture: network, host, port.
            mac: MacAddress([0x02, 0, network.number(), host, high, low]),
            bridge: network.bridge().to_owned(),
            end: format!("p{number}"),
            state: Mutex::new(state),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The name of the host's link.
    pub fn link(&self) -> &str {
        &self.inner.link
    }

    /// The Ethernet address of the host's link.
    pub fn mac(&self) -> MacAddress {
        self.inner.mac
    }

    /// The addresses that the lab gave to the link, without its link-local one.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let parse = |text: &String| text.split('/').next()?.parse().ok();
        self.inner.addresses.iter().filter_map(parse).collect()
    }

    /// Takes the port off the bridge; the host sees a carrier as before.
    pub fn cut(&self) -> Result<()> {
        let mut state = lock(&self.inner.state);
        state.cut = true;
        self.inner.attach(&state)
    }

    /// Undoes [`Self::cut`].
    pub fn restore(&self) -> Result<()> {
        let mut state = lock(&self.inner.state);
        state.cut = false;
        self.inner.attach(&state)
    }

    /// Pulls the plug at the switch (the host sees NO-CARRIER), or puts it back.
    pub fn carrier(&self, on: bool) -> Result<()> {
        let mut state = lock(&self.inner.state);
        state.carrier = on;
        if state.host == HostState::Off {
            return Ok(());
        }
        let set = if on { "up" } else { "down" };
        self.inner
            .switch(&format!("link set {} {set}\n", self.inner.end))
    }

    /// Takes the carrier away and gives it back, `times` times, each for `period`.
    pub async fn flap(&self, times: usize, period: Duration) -> Result<()> {
        for _ in 0..times {
            self.carrier(false)?;
            clock::sleep(period).await;
            self.carrier(true)?;
            clock::sleep(period).await;
        }
        Ok(())
    }

    /// Loses so many percent of the frames in each direction; 0 for none.
    pub fn loss(&self, percent: f64) -> Result<()> {
        ensure!(
            (0.0..=100.0).contains(&percent),
            "{percent} is no percentage"
        );
        let mut state = lock(&self.inner.state);
        state.loss = percent;
        self.inner.filter(&state)
    }

    /// Drops chosen frames in one direction, besides those already blocked.
    pub fn block(&self, direction: Direction, traffic: Traffic) -> Result<()> {
        let mut state = lock(&self.inner.state);
        state.blocked.insert((direction, traffic));
        self.inner.filter(&state)
    }

    /// Undoes one [`Self::block`].
    pub fn unblock(&self, direction: Direction, traffic: Traffic) -> Result<()> {
        let mut state = lock(&self.inner.state);
        state.blocked.remove(&(direction, traffic));
        self.inner.filter(&state)
    }

    /// Undoes every [`Self::block`].
    pub fn unblock_all(&self) -> Result<()> {
        let mut state = lock(&self.inner.state);
        state.blocked.clear();
        self.inner.filter(&state)
    }

    /// Holds each frame for `delay` and up to `jitter` more, in each direction, so a round trip
    /// takes twice that; both zero for a plain port again. Frames keep their order.
    pub fn delay(&self, delay: Duration, jitter: Duration) -> Result<()> {
        let mut state = lock(&self.inner.state);
        let before = state.delay;
        state.delay = Some(Timing { delay, jitter }).filter(|_| !(delay + jitter).is_zero());
        if state.host == HostState::Off {
            return Ok(());
        }
        match (before, state.delay) {
            (Some(_), Some(timing)) => {
                if let Some(forwarder) = &state.forwarder {
                    forwarder.set(timing);
                }
                Ok(())
            }
            (None, Some(_)) => self.inner.interpose(&mut state),
            (Some(_), None) => self.inner.withdraw(&mut state),
            (None, None) => Ok(()),
        }
    }

    /// Makes the links, in a host that has just been made, with all faults that were set.
    pub(crate) fn install(&self, host: &Namespace) -> Result<()> {
        let inner = &self.inner;
        let mut state = lock(&inner.state);
        let (end, link, mac) = (&inner.end, &inner.link, inner.mac);
        let carrier = if state.carrier { "up" } else { "down" };
        inner.switch(&format!(
            "link add {end} group 7 type veth peer name {link} netns {} address {mac}\n\
             link set {end} {carrier}\n",
            host.name()
        ))?;
        state.host = HostState::Running;
        // The lab's own addresses are ready at once; those that a program under test adds get the
        // duplicate address detection of any other host.
        let mut lines = format!("link set {link} addrgenmode none\n");
        for address in &inner.addresses {
            let extra = if address.contains(':') {
                "nodad"
            } else {
                "brd +"
            };
            let _ = writeln!(lines, "addr add {address} {extra} dev {link}");
        }
        let _ = writeln!(lines, "addr add {}/64 nodad dev {link}", mac.link_local());
        let _ = writeln!(lines, "link set {link} up");
        iproute::ip(Some(host), &lines)?;
        if state.delay.is_some() {
            inner.interpose(&mut state)?;
        } else {
            inner.attach(&state)?;
            inner.filter_if_any(&state)?;
        }
        Ok(())
    }

    /// Notes that the host is paused or goes off, and gives the `ip` line that isolates it.
    pub(crate) fn isolate(&self) -> String {
        self.follow(HostState::Isolated)
    }

    /// Notes that the host runs on, and gives the `ip` line that puts the port back.
    pub(crate) fn rejoin(&self) -> String {
        self.follow(HostState::Running)
    }

    fn follow(&self, host: HostState) -> String {
        let mut state = lock(&self.inner.state);
        state.host = host;
        self.inner.attachment(&state)
    }

    /// Removes the links of a host that was switched off.
    pub(crate) fn remove(&self) -> Result<()> {
        let inner = &self.inner;
        let mut state = lock(&inner.state);
        if state.host == HostState::Off {
            return Ok(());
        }
        state.host = HostState::Off;
        let mut lines = format!("link del {}\n", inner.end);
        if state.forwarder.take().is_some() {
            let _ = writeln!(lines, "link del {}b", inner.end);
        }
        inner.switch(&lines)
    }
}

impl Inner {
    fn switch(&self, lines: &str) -> Result<()> {
        iproute::ip(Some(self.run.switch()), lines)
    }

    /// The link that is the bridge's port.
    fn member(&self, state: &State) -> String {
        let suffix = if state.delay.is_some() { "b" } else { "" };
        format!("{}{suffix}", self.end)
    }

    fn attachment(&self, state: &State) -> String {
        if state.host == HostState::Off {
            return String::new();
        }
        let member = self.member(state);
        if state.cut || state.host == HostState::Isolated {
            format!("link set {member} nomaster\n")
        } else {
            format!("link set {member} master {}\n", self.bridge)
        }
    }

    fn attach(&self, state: &State) -> Result<()> {
        self.switch(&self.attachment(state))
    }

    fn filter(&self, state: &State) -> Result<()> {
        if state.host == HostState::Off {
            return Ok(());
        }
        let script = rules::script(&self.end, &self.member(state), state.loss, &state.blocked);
        iproute::nft(self.run.switch(), &script)
    }

    /// As [`Self::filter`], for a port that has no table unless it needs one.
    fn filter_if_any(&self, state: &State) -> Result<()> {
        if state.loss > 0.0 || !state.blocked.is_empty() {
            self.filter(state)?;
        }
        Ok(())
    }

    /// Puts the forwarder between the host and the bridge.
    fn interpose(&self, state: &mut State) -> Result<()> {
        let Some(timing) = state.delay else {
            return Ok(());
        };
        let end = &self.end;
        self.switch(&format!(
            "link set {end} nomaster\n\
             link add {end}b group 7 type veth peer name {end}f group 7\n\
             link set {end}b up\n\
             link set {end}f up\n"
        ))?;
        let far = format!("{end}f");
        state.forwarder = Some(Forwarder::start(self.run.switch(), end, &far, timing)?);
        self.filter_if_any(state)?;
        self.attach(state)
    }

    /// Makes the host's veth a plain port of the bridge again.
    fn withdraw(&self, state: &mut State) -> Result<()> {
        state.forwarder = None;
        self.switch(&format!("link del {}b\n", self.end))?;
        self.filter_if_any(state)?;
        self.attach(state)
    }
}
