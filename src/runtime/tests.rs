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
    let served = Ports::open(&config(&[])).unwrap();
    let served = served.serve(&process).await.unwrap();
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
    let ended = run(process, failures, served, work).await;
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
    let served = ports.serve(&process).await.unwrap();
    let ended = run(process, failures, served, async {
        Ok::<(), Infallible>(())
    })
    .await;
    assert!(matches!(ended, Err(Error::Ended)));
}

#[tokio::test(start_paused = true)]
async fn work_that_hangs_does_not_keep_the_process() {
    let (process, failures) = Process::new();
    let ports = Ports::open(&config(&[])).unwrap();
    let served = ports.serve(&process).await.unwrap();
    process.tasks.spawn("early", async {});
    let start = clock::now();
    let hanging = std::future::pending::<Result<(), Infallible>>();
    let ended = run(process.clone(), failures, served, hanging).await;
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
