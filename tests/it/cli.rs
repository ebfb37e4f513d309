//! The real binary: flags, exit codes, help, signals, ports.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpListener},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Duration,
};

use harvester_cloud_provider::runtime::clock;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::https;

/// How long anything may take that should take no time.
const PATIENCE: Duration = Duration::from_secs(20);

/// capability.h
const CAP_SYS_NICE: u32 = 23;

const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "x",
  "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
  "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}],
  "users": [{"name": "x", "user": {}}]}"#;

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_harvester-cloud-provider"));
    command.env_clear();
    command
}

fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = binary();
    command.args(args).envs(variables.iter().copied());
    command.output().unwrap()
}

/// Runs to its end, expects exit code 1, and returns what it said.
fn refused(args: &[&str], variables: &[(&str, &str)]) -> String {
    let output = run(args, variables);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(output.stdout, b"");
    said
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A speaker that has no cluster, with its ports on loopback.
struct Speaker {
    child: Child,
    secure: SocketAddr,
    _kubeconfig: tempfile::NamedTempFile,
}

impl Speaker {
    async fn start(further: &[&str]) -> Self {
        Self::start_as(binary(), further).await
    }

    /// `command` is the binary, or something that becomes it.
    async fn start_as(mut command: Command, further: &[&str]) -> Self {
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(kubeconfig.path(), KUBECONFIG).unwrap();
        let secure = SocketAddr::from(([127, 0, 0, 1], free_port()));
        command
            .args(["--speaker", "--controllers=-*", "--bind-address=127.0.0.1"])
            .arg("--speaker-node-name=node-1")
            .arg(format!("--secure-port={}", secure.port()))
            .arg(format!("--kubeconfig={}", kubeconfig.path().display()))
            .args(further)
            .stderr(Stdio::piped());
        let speaker = Self {
            child: command.spawn().unwrap(),
            secure,
            _kubeconfig: kubeconfig,
        };
        let end = clock::now() + PATIENCE;
        while get(secure, "/livez").await.is_none() {
            assert!(clock::now() < end, "the secure port does not answer");
            clock::sleep(Duration::from_millis(20)).await;
        }
        speaker
    }

    /// Name and scheduling policy of each thread: fields 2 and 41 of `proc_pid_stat(5)`.
    fn threads(&self) -> Vec<(String, i32)> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let stats = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")));
        let parse = |stat: String| {
            let (_, rest) = stat.split_once('(').unwrap();
            let (name, fields) = rest.rsplit_once(')').unwrap();
            let policy = fields.split_whitespace().nth(41 - 3).unwrap();
            (name.to_owned(), policy.parse().unwrap())
        };
        // A thread of the pool may end meanwhile.
        stats.filter_map(Result::ok).map(parse).collect()
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the end, and returns it with the log.
    async fn ended(mut self) -> (ExitStatus, String) {
        let end = clock::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(clock::now() < end, "the process does not end");
            clock::sleep(Duration::from_millis(10)).await;
        };
        let mut log = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        (status, log)
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        // Already gone, in a test that passed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status code and body of a GET over HTTPS; `None` where nothing listens.
async fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let stream = TcpStream::connect(address).await.ok()?;
    let name = ServerName::try_from("localhost").unwrap();
    let answer = https::get_over(stream, name, path, None).await.unwrap();
    Some((answer.status.as_u16(), answer.body))
}

async fn exchange(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    path: &str,
) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // Whether TLS is closed in form does not matter here.
    let _ = stream.read_to_string(&mut answer).await;
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    (code.unwrap(), body.unwrap().to_owned())
}

#[test]
fn an_unknown_flag_is_named_and_ends_with_code_1() {
    let said = refused(&["--no-such-flag"], &[]);
    assert!(said.contains("unknown flag: --no-such-flag"), "{said}");
    assert!(!said.contains("Speaker flags"), "{said}");
    let said = refused(&["--no-such-flag", "--show-full-help-on-error"], &[]);
    assert!(said.contains("Speaker flags"), "{said}");
}

#[test]
fn mistakes_are_told_before_anything_is_done() {
    for (args, variables, expected) in [
        (
            &["loadbalancer"] as &[&str],
            &[] as &[_],
            "unexpected argument",
        ),
        (&["--controllers=loadbalancer"], &[], "known controllers"),
        (&["manager"], &[("vip_arp", "nope")], "vip_arp"),
        (&["--speaker"], &[("bgp_enable", "true")], "bgp_enable"),
        (&[], &[("svc_enable", "yes")], "svc_enable"),
        (&["--secure-port=0"], &[], "--cloud-config is required"),
    ] {
        let said = refused(args, variables);
        assert!(said.contains(expected), "{args:?} {variables:?}: {said}");
    }
}

#[test]
fn version_and_help_are_printed_and_end_well() {
    let version = run(&["--version"], &[]);
    assert!(version.status.success());
    let text = String::from_utf8(version.stdout).unwrap();
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");

    let help = run(&["--help"], &[]);
    assert!(help.status.success());
    let text = String::from_utf8(help.stdout).unwrap();
    for heading in [
        "Generic flags",
        "Secure serving flags",
        "Authentication flags",
        "Authorization flags",
        "Logging flags",
        "Harvester flags",
        "Speaker flags",
        "Accepted without effect",
        "Commands (first argument)",
    ] {
        assert!(text.contains(heading), "{heading} is missing in\n{text}");
    }
}

#[tokio::test]
async fn health_and_metrics_are_served_over_https() {
    let plain = free_port();
    let health = free_port();
    let metrics = format!("--speaker-metrics-address=127.0.0.1:{plain}");
    let port = format!("--speaker-health-port={health}");
    let speaker = Speaker::start(&[&metrics, &port]).await;
    for (path, code) in [
        ("/healthz", 200),
        ("/livez?verbose", 200),
        ("/livez/runtime", 403),
        ("/metrics", 403),
        ("/nothing", 403),
    ] {
        let (answered, body) = get(speaker.secure, path).await.unwrap();
        assert_eq!(answered, code, "{path}: {body}");
    }
    let stream = TcpStream::connect(("127.0.0.1", plain)).await.unwrap();
    let (code, text) = exchange(stream, "/metrics").await;
    assert_eq!(code, 200);
    assert!(
        text.contains("harvester_cloud_provider_build_info{"),
        "{text}"
    );
    assert!(text.contains("process_resident_memory_bytes "), "{text}");
    let stream = TcpStream::connect(("127.0.0.1", health)).await.unwrap();
    assert_eq!(exchange(stream, "/healthz").await, (200, "ok".to_owned()));
    let stream = TcpStream::connect(("127.0.0.1", health)).await.unwrap();
    assert_eq!(
        exchange(stream, "/livez/runtime").await,
        (200, "ok".to_owned())
    );
}

#[tokio::test]
async fn a_signal_stops_in_order_and_in_time() {
    for signal in ["TERM", "INT"] {
        let speaker = Speaker::start(&[]).await;
        let start = clock::now();
        speaker.signal(signal);
        let (status, log) = speaker.ended().await;
        assert!(status.success(), "{signal}: {status} {log}");
        assert!(clock::now() - start < Duration::from_secs(2), "{signal}");
        assert!(log.contains("stopped"), "{log}");
    }
}

#[tokio::test]
async fn a_port_in_use_ends_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--secure-port={}", taken.local_addr().unwrap().port());
    let args = ["--speaker", "--bind-address=127.0.0.1", &port];
    let said = refused(&[&args[..], &["--speaker-node-name=n"]].concat(), &[]);
    assert!(said.contains("cannot listen on 127.0.0.1"), "{said}");
}

#[tokio::test]
async fn the_log_is_json_when_asked_for_and_tells_the_flags() {
    let speaker = Speaker::start(&["--logging-format=json", "--v=1"]).await;
    speaker.signal("TERM");
    let (_, log) = speaker.ended().await;
    for line in log.lines() {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(line);
        assert!(parsed.is_ok(), "{line}");
    }
    assert!(log.contains("FLAG: --speaker-node-name="), "{log}");
}

#[test]
fn check_prints_the_effective_configuration() {
    let output = run(
        &["check", "--speaker-node-name=n", "--secure-port=0"],
        &[("svc_enable", "true"), ("vip_interface", "nolink0")],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("--speaker-interface=nolink0"), "{text}");
    assert!(
        text.contains("FAILED  link nolink0: there is no such link"),
        "{text}"
    );
}

/// Whether this process may do it decides what the started one may.
fn realtime_is_permitted() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let set = u64::from_str_radix(set.unwrap().trim(), 16).unwrap();
    set & (1 << CAP_SYS_NICE) != 0
}

/// Starts the binary without the capability `SYS_NICE`.
fn without_sys_nice() -> Command {
    let mut command = Command::new("setpriv");
    command
        .env_clear()
        .args(["--bounding-set=-sys_nice", "--inh-caps=-sys_nice"])
        .arg(env!("CARGO_BIN_EXE_harvester-cloud-provider"));
    command
}

#[tokio::test]
async fn a_speaker_runs_in_real_time_and_its_ports_do_not() {
    if !realtime_is_permitted() {
        eprintln!("skipped: needs the capability SYS_NICE");
        return;
    }
    let speaker = Speaker::start(&[]).await;
    let threads = speaker.threads();
    for (name, policy) in &threads {
        let expected = if name == "http" {
            libc::SCHED_OTHER
        } else {
            libc::SCHED_RR
        };
        assert_eq!(*policy, expected, "{name} of {threads:?}");
    }
    assert!(threads.iter().any(|(name, _)| name == "http"));
    assert!(threads.len() >= 4, "main, two workers, http: {threads:?}");
}

#[tokio::test]
async fn without_flag_or_capability_a_speaker_is_an_ordinary_process() {
    let permitted = realtime_is_permitted();
    let plain = Speaker::start(&["--speaker-realtime=false"]).await;
    let mut speakers = vec![(plain, false)];
    if permitted {
        speakers.push((Speaker::start_as(without_sys_nice(), &[]).await, true));
    } else {
        speakers.push((Speaker::start(&[]).await, true));
    }
    for (speaker, says_so) in speakers {
        let threads = speaker.threads();
        let ordinary = threads.iter().all(|(_, p)| *p == libc::SCHED_OTHER);
        assert!(ordinary, "{threads:?}");
        speaker.signal("TERM");
        let (status, log) = speaker.ended().await;
        assert!(status.success(), "{status} {log}");
        let told = log.matches("no real-time scheduling").count();
        assert_eq!(told, usize::from(says_so), "{log}");
    }
}

#[test]
fn check_takes_a_missing_sys_nice_for_no_failure() {
    if !realtime_is_permitted() {
        eprintln!("skipped: needs a capability to drop");
        return;
    }
    let args = [
        "check",
        "--speaker",
        "--speaker-node-name=n",
        "--secure-port=0",
    ];
    let said = |mut command: Command| {
        let output = command.args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = said(binary());
    assert!(text.contains("ok      real-time scheduling"), "{text}");
    let text = said(without_sys_nice());
    assert!(text.contains("note    real-time scheduling"), "{text}");
}
