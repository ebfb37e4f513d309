use std::{
    convert::Infallible,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
};

use super::{ports::Ports, tasks::Cause, *};
use crate::config::{Config, Invocation, Surroundings, load};

fn config(further: &[String]) -> Config {
    let flags = ["--speaker", "--controllers=-*", "--speaker-node-name=n"];
    let mut args: Vec<String> = flags.map(str::to_owned).into();
    args.extend_from_slice(further);
    match load(&args, &Surroundings::default()) {
        Ok(Invocation::Run(config)) => *config,
        other => panic!("{other:?}"),
    }
}

fn signals() -> Signals {
    Signals::install().unwrap()
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn a_failed_task_ends_the_process_after_the_others_withdrew() {
    let (process, failures) = Process::new();
    let ports = Ports::open(&config(&[])).unwrap();
    let (withdraw, withdrawn) = tokio::sync::oneshot::channel();
    let shutdown = process.shutdown.clone();
    process.tasks.spawn("orderly", async move {
        shutdown.requested().await;
        withdraw.send(()).unwrap();
    });
    process
        .tasks
        .spawn("broken", async { panic!("on purpose") });
    let shutdown = process.shutdown.clone();
    let work = async move {
        shutdown.requested().await;
        Ok::<(), Infallible>(())
    };
    let ended = run(process, failures, signals(), ports, work).await;
    let expected = Failure {
        task: "broken",
        cause: Cause::Panicked,
    };
    assert!(matches!(ended, Err(Error::Task(failure)) if failure == expected));
    withdrawn.await.unwrap();
}

#[tokio::test]
async fn work_that_ends_by_itself_is_an_error() {
    let (process, failures) = Process::new();
    let ports = Ports::open(&config(&[])).unwrap();
    let ended = run(process, failures, signals(), ports, async {
        Ok::<(), Infallible>(())
    })
    .await;
    assert!(matches!(ended, Err(Error::Ended)));
}

#[tokio::test(start_paused = true)]
async fn work_that_hangs_does_not_keep_the_process() {
    let (process, failures) = Process::new();
    let ports = Ports::open(&config(&[])).unwrap();
    process.tasks.spawn("early", async {});
    let start = clock::now();
    let hanging = std::future::pending::<Result<(), Infallible>>();
    let ended = run(process.clone(), failures, signals(), ports, hanging).await;
    assert!(matches!(ended, Err(Error::Task(_))));
    assert!(clock::now() - start < STOP_BUDGET + Duration::from_secs(1));
    let ready = process
        .health
        .answer(health::Endpoint::Readyz, false, &[].into());
    assert!(!ready.healthy);
}

#[tokio::test]
async fn health_is_told_while_every_thread_of_the_runtime_hangs() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let (process, _failures) = Process::new();
    let ports = Ports::open(&config(&[format!("--speaker-health-port={port}")])).unwrap();
    let served = ports.serve(&process).await.unwrap();
    let beat = process.health.watchdog("loop", Duration::from_secs(60));
    // These requests block the only thread of this runtime, as a hung loop would.
    assert!(get(port, "/livez").starts_with("HTTP/1.1 200"));
    beat.retire();
    let _dead = process.health.watchdog("loop", Duration::ZERO);
    std::thread::sleep(Duration::from_millis(5));
    for path in ["/livez", "/healthz", "/readyz", "/livez/loop"] {
        let answer = get(port, path);
        assert!(answer.starts_with("HTTP/1.1 500"), "{path}: {answer}");
        assert!(answer.contains("[-]loop failed: reason withheld"), "{path}");
    }
    assert!(get(port, "/livez?exclude=loop").starts_with("HTTP/1.1 200"));
    assert!(get(port, "/livez/nothing").starts_with("HTTP/1.1 404"));
    served.stop().await;
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}

/// A kubeconfig file of a server at an address, and its flags.
fn reviewing(address: std::net::SocketAddr) -> (tempfile::NamedTempFile, Vec<String>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: a,
          contexts: [{{name: a, context: {{cluster: a, user: a}}}}],
          clusters: [{{name: a, cluster: {{server: 'http://{address}'}}}}],
          users: [{{name: a, user: {{}}}}]}}"
    );
    std::fs::write(file.path(), text).unwrap();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let flags = vec![
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", free.local_addr().unwrap().port()),
        "--authentication-skip-lookup=false".to_owned(),
        format!("--authentication-kubeconfig={}", file.path().display()),
    ];
    (file, flags)
}

#[tokio::test]
async fn a_speaker_starts_without_the_clusters_authorities() {
    // It takes connections and never answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (_file, flags) = reviewing(silent.local_addr().unwrap());
    let (process, _failures) = Process::new();
    let ports = Ports::open(&config(&flags)).unwrap();
    let started = tokio::time::timeout(Duration::from_secs(5), ports.serve(&process)).await;
    let mut served = started.expect("not held up").unwrap();
    let failed = tokio::time::timeout(Duration::from_millis(100), served.failed()).await;
    assert!(failed.is_err(), "{failed:?}");
    served.stop().await;
}

#[tokio::test]
async fn other_processes_end_when_authorities_cannot_be_looked_up() {
    let refusing = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (_file, flags) = reviewing(refusing.local_addr().unwrap());
    drop(refusing);
    let config = match load(&flags, &Surroundings::default()) {
        Ok(Invocation::Run(config)) => config,
        other => panic!("{other:?}"),
    };
    let (process, _failures) = Process::new();
    let ports = Ports::open(&config).unwrap();
    let error = ports.serve(&process).await.unwrap_err();
    assert!(matches!(error, ports::Error::Auth(_)), "{error:?}");
}

#[tokio::test]
async fn a_signal_during_the_start_ends_it() {
    // Authentication that takes ten seconds to set up.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (_file, flags) = reviewing(silent.local_addr().unwrap());
    let Ok(Invocation::Run(config)) = load(&flags, &Surroundings::default()) else {
        panic!("it is a plain configuration")
    };
    let (process, failures) = Process::new();
    let ports = Ports::open(&config).unwrap();
    // Other tests of this process must not hear it.
    let signals = Signals::of(tokio::signal::unix::SignalKind::user_defined2()).unwrap();
    let us = std::process::id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-s", "USR2", &us])
        .status();
    assert!(sent.unwrap().success());
    let work = std::future::pending::<Result<(), Infallible>>();
    let ended = run(process, failures, signals, ports, work);
    let ended = tokio::time::timeout(Duration::from_secs(5), ended).await;
    assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
}
