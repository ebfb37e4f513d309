//! A host: a network namespace with links, addresses, routes and processes, and its power switch.
//!
//! Switching off ends the namespace itself, so that switching on is a boot: nothing of the kernel's
//! former state (addresses, routes, neighbours, nftables, connections) is left, only what the lab
//! configured. Sockets that the lab's own process made in the host before stay in the ended
//! namespace, cut off for good, as those of any process of the host.
//!
//! A paused host is as a paused VM seen from outside. Unlike there, its kernel's timers go on: an
//! address whose lifetime ends meanwhile is gone when the host resumes.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result};
use serde::Deserialize;
use tokio::net::{TcpSocket, TcpStream};

use crate::{
    iproute,
    mac::MacAddress,
    namespace::Namespace,
    network::Network,
    port::Port,
    probe::Capture,
    process::Process,
    run::{Run, lock},
};

/// A machine of the scenario.
#[derive(Debug, Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    run: Arc<Run>,
    name: String,
    number: u8,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` while the power is off.
    namespace: Option<Arc<Namespace>>,
    ports: Vec<Port>,
    routes: Vec<String>,
    sysctls: Vec<(String, String)>,
    processes: Vec<Process>,
}

impl Host {
    pub(crate) fn create(run: Arc<Run>, name: &str) -> Result<Self> {
        let number = run.number_host();
        let inner = Inner {
            run,
            name: name.to_owned(),
            number,
            state: Mutex::default(),
        };
        lock(&inner.state).namespace = Some(Arc::new(inner.boot()?));
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The host's name in the scenario.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The name for `ip netns exec`.
    pub fn namespace_name(&self) -> String {
        self.inner.namespace_name()
    }

    /// Whether the power is on.
    pub fn is_on(&self) -> bool {
        lock(&self.inner.state).namespace.is_some()
    }

    /// Adds a link into `network`, up, with these addresses (`10.7.0.11/24`) ready for use.
    pub fn connect(&self, network: &Network, link: &str, addresses: &[&str]) -> Result<Port> {
        let run = Arc::clone(&self.inner.run);
        let port = Port::new(run, self.inner.number, network, link, addresses);
        let namespace = self.namespace()?;
        port.install(&namespace)
            .with_context(|| format!("{link} of {}", self.name()))?;
        lock(&self.inner.state).ports.push(port.clone());
        Ok(port)
    }

    /// The port of the link, if the lab connected it.
    pub fn port(&self, link: &str) -> Option<Port> {
        lock(&self.inner.state)
            .ports
            .iter()
            .find(|port| port.link() == link)
            .cloned()
    }

    /// Adds a route; `destination` may be `default`.
    pub fn route(&self, destination: &str, via: IpAddr) -> Result<()> {
        let line = format!("route add {destination} via {via}\n");
        iproute::ip(Some(&*self.namespace()?), &line)?;
        lock(&self.inner.state).routes.push(line);
        Ok(())
    }

    /// Makes the host a router.
    pub fn forwarding(&self) -> Result<()> {
        self.sysctl("net.ipv4.ip_forward", "1")?;
        self.sysctl("net.ipv6.conf.all.forwarding", "1")
    }

    /// Sets a sysctl below `net`, for now and for each time the host is switched on.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.namespace()?.sysctl(key, value)?;
        lock(&self.inner.state)
            .sysctls
            .push((key.to_owned(), value.to_owned()));
        Ok(())
    }

    /// A program that will run in the host, with a `/sys` that shows the host's links.
    pub fn command(&self, program: &str) -> Result<Command> {
        Ok(self.namespace()?.command(program))
    }

    /// Starts a process of [`Self::command`]; its output goes to a log of its own.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        let process = self
            .inner
            .run
            .spawn(&format!("{}-{name}", self.name()), command)?;
        lock(&self.inner.state).processes.push(process.clone());
        Ok(process)
    }

    /// Runs `closure` on a thread in the host. Sockets that it makes belong to the host.
    pub fn inside<T: Send>(&self, closure: impl FnOnce() -> T + Send) -> Result<T> {
        self.namespace()?.inside(closure)
    }

    /// A listener in the host, non-blocking, for use in any runtime of this process.
    pub fn tcp_listener(&self, address: SocketAddr) -> Result<TcpListener> {
        let listener = self.inside(|| TcpListener::bind(address))?;
        let listener = listener.with_context(|| format!("{address} on {}", self.name()))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// A connection from the host.
    pub async fn tcp_connect(&self, to: SocketAddr) -> Result<TcpStream> {
        let socket = self.inside(|| match to {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        })??;
        socket
            .connect(to)
            .await
            .with_context(|| format!("{to} from {}", self.name()))
    }

    /// Captures what a link of the host sends and receives.
    pub fn capture(&self, link: &str, file: &Path) -> Result<Capture> {
        Capture::start(&*self.namespace()?, link, file)
    }

    /// Every address of the host's links, with its link and prefix length.
    pub fn addresses(&self) -> Result<Vec<(String, IpAddr, u8)>> {
        let links: Vec<LinkOutput> = iproute::ip_json(&*self.namespace()?, &["address", "show"])?;
        let rows = links.into_iter().flat_map(|link| {
            let name = link.ifname;
            let row = move |found: AddressOutput| (name.clone(), found.local, found.prefixlen);
            link.addr_info.into_iter().map(row)
        });
        Ok(rows.collect())
    }

    /// Whether a link of the host holds the address.
    pub fn has_address(&self, address: IpAddr) -> Result<bool> {
        Ok(self
            .addresses()?
            .iter()
            .any(|(_, held, _)| *held == address))
    }

    /// Which Ethernet address the host's kernel believes the neighbour has.
    pub fn neighbour(&self, address: IpAddr) -> Result<Option<MacAddress>> {
        let entries: Vec<NeighbourOutput> =
            iproute::ip_json(&*self.namespace()?, &["neighbour", "show"])?;
        let entry = entries.into_iter().find(|entry| entry.dst == address);
        entry
            .and_then(|entry| entry.lladdr)
            .map(|mac| mac.parse())
            .transpose()
    }

    /// Pulls the plug: first no frame passes any more, then every process is killed.
    pub fn power_off(&self) -> Result<()> {
        let mut state = lock(&self.inner.state);
        let Some(namespace) = state.namespace.take() else {
            return Ok(());
        };
        self.inner.switch_ports(&state, Port::isolate)?;
        namespace.kill_all()?;
        for process in state.processes.drain(..) {
            // Killed already, unless it was started outside the host's namespace.
            process.kill9()?;
        }
        state.ports.iter().try_for_each(Port::remove)?;
        namespace.delete()
    }

    /// Boots the host: links, addresses, routes and sysctls as configured, no processes.
    pub fn power_on(&self) -> Result<()> {
        let mut state = lock(&self.inner.state);
        if state.namespace.is_some() {
            return Ok(());
        }
        let namespace = self.inner.boot()?;
        for (key, value) in &state.sysctls {
            namespace.sysctl(key, value)?;
        }
        for port in &state.ports {
            port.install(&namespace)?;
        }
        iproute::ip(Some(&namespace), &state.routes.concat())?;
        state.namespace = Some(Arc::new(namespace));
        Ok(())
    }

    /// Pauses the host as a hypervisor does: no frame passes, no process runs.
    pub fn pause(&self) -> Result<()> {
        let namespace = self.namespace()?;
        self.inner
            .switch_ports(&lock(&self.inner.state), Port::isolate)?;
        namespace.signal_all(libc::SIGSTOP)
    }

    /// Ends [`Self::pause`].
    pub fn resume(&self) -> Result<()> {
        self.namespace()?.signal_all(libc::SIGCONT)?;
        self.inner
            .switch_ports(&lock(&self.inner.state), Port::rejoin)
    }

    pub(crate) fn namespace(&self) -> Result<Arc<Namespace>> {
        let namespace = lock(&self.inner.state).namespace.clone();
        namespace.with_context(|| format!("{} is switched off", self.name()))
    }
}

impl Inner {
    fn namespace_name(&self) -> String {
        format!("{}-{}", self.run.prefix(), self.name)
    }

    fn boot(&self) -> Result<Namespace> {
        Namespace::create(self.namespace_name()).with_context(|| format!("host {}", self.name))
    }

    /// All ports in one go.
    fn switch_ports(&self, state: &State, line: fn(&Port) -> String) -> Result<()> {
        let lines: String = state.ports.iter().map(line).collect();
        iproute::ip(Some(self.run.switch()), &lines)
    }
}

#[derive(Debug, Deserialize)]
struct LinkOutput {
    ifname: String,
    #[serde(default)]
    addr_info: Vec<AddressOutput>,
}

#[derive(Debug, Deserialize)]
struct AddressOutput {
    local: IpAddr,
    prefixlen: u8,
}

#[derive(Debug, Deserialize)]
struct NeighbourOutput {
    dst: IpAddr,
    lladdr: Option<String>,
}
