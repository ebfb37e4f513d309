//! What most of these tests stand on.

use std::{fs, net::IpAddr, time::Duration};

use lab::{Host, Lab, Network, Port, probe::EchoProbe};

pub(crate) const SOON: Duration = Duration::from_secs(5);
pub(crate) const BRIEFLY: Duration = Duration::from_millis(300);

/// A lab, or none and the reason on the terminal.
pub(crate) fn lab(name: &str) -> Option<Lab> {
    if let Some(reason) = lab::unavailable() {
        eprintln!("skipped: {reason}");
        return None;
    }
    Some(Lab::new(name).unwrap())
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Two nodes and a client on one network.
pub(crate) struct Ground {
    pub(crate) lab: Lab,
    pub(crate) network: Network,
    pub(crate) nodes: [Host; 2],
    pub(crate) ports: [Port; 2],
    pub(crate) client: Host,
}

pub(crate) fn ground(name: &str) -> Option<Ground> {
    let lab = lab(name)?;
    let network = lab.network("vips").unwrap();
    let nodes = [lab.host("node0").unwrap(), lab.host("node1").unwrap()];
    let [first, second] = &nodes;
    let ports = [
        first
            .connect(&network, "eth0", &["10.7.0.10/24", "fd07::10/64"])
            .unwrap(),
        second
            .connect(&network, "eth0", &["10.7.0.11/24", "fd07::11/64"])
            .unwrap(),
    ];
    let client = lab.host("client").unwrap();
    client
        .connect(&network, "eth0", &["10.7.0.1/24", "fd07::1/64"])
        .unwrap();
    Some(Ground {
        lab,
        network,
        nodes,
        ports,
        client,
    })
}

pub(crate) async fn reaches(from: &Host, to: &str, within: Duration) -> bool {
    let probe = EchoProbe::start(from, ip(to)).unwrap();
    probe.wait_first(within).await.is_ok()
}

/// Runs a program in the host to its end and gives its output.
pub(crate) fn output(host: &Host, program: &str, arguments: &[&str]) -> String {
    let output = host
        .command(program)
        .unwrap()
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub(crate) fn sleeper(host: &Host) -> lab::Process {
    let mut command = host.command("sleep").unwrap();
    command.arg("1000");
    host.spawn("sleeper", command).unwrap()
}

/// The state letter of a process (proc(5)); none once it is gone.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

pub(crate) fn namespaces(prefix: &str) -> usize {
    let start = format!("{prefix}-");
    let Ok(entries) = fs::read_dir("/run/netns") else {
        return 0;
    };
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(&start)).count()
}
