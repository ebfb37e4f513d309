//! The end of a lab: asked for, by a panic, by Ctrl-C, by SIGKILL.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use lab::{Lab, poll_until, probe::EchoProbe};

use crate::ground::{SOON, ground, ip, lab, namespaces, sleeper, state};

#[tokio::test]
async fn a_stopped_lab_leaves_nothing() {
    let Some(ground) = ground("stop") else { return };
    let inside = sleeper(&ground.nodes[0]);
    let mut command = Command::new("sleep");
    command.arg("1000");
    let outside = ground.lab.spawn("outside", command).unwrap();
    let prefix = ground.lab.prefix().to_owned();
    let directory = ground.lab.directory().to_owned();
    assert_eq!(namespaces(&prefix), 4);
    // One that still looks at a host must not keep its links alive.
    let probe = EchoProbe::start(&ground.client, ip("10.7.0.10")).unwrap();
    ground.lab.stop().unwrap();
    assert_eq!(namespaces(&prefix), 0);
    assert!(!directory.exists());
    assert_eq!([state(inside.pid()), state(outside.pid())], [None, None]);
    probe.stop().unwrap();
}

#[test]
fn a_lab_of_five_hosts_is_made_and_gone_in_no_time() {
    let started = lab::clock::now();
    let Some(ground) = ground("speed") else {
        return;
    };
    let router = ground.lab.host("router").unwrap();
    let outside = ground.lab.network("outside").unwrap();
    router
        .connect(&ground.network, "eth0", &["10.7.0.254/24", "fd07::254/64"])
        .unwrap();
    router.connect(&outside, "eth1", &["192.0.2.1/24"]).unwrap();
    router.forwarding().unwrap();
    let node2 = ground.lab.host("node2").unwrap();
    node2
        .connect(&ground.network, "eth0", &["10.7.0.12/24", "fd07::12/64"])
        .unwrap();
    let made = started.elapsed();
    let started = lab::clock::now();
    ground.lab.stop().unwrap();
    let stopped = started.elapsed();
    eprintln!("made in {made:?}, gone in {stopped:?}");
    // Far more than it takes, for machines that are busy with other tests.
    assert!(made + stopped < SOON, "{made:?} and {stopped:?}");
}

#[test]
fn a_panic_ends_the_lab() {
    let Some(ground) = ground("panic") else {
        return;
    };
    let prefix = ground.lab.prefix().to_owned();
    let outcome = std::thread::spawn(move || {
        let ground = ground;
        let _process = sleeper(&ground.nodes[0]);
        panic!("as planned");
    })
    .join();
    assert!(outcome.is_err());
    assert_eq!(namespaces(&prefix), 0);
}

/// Makes a lab and waits for its own end; started by the tests below, in a process of its own.
#[tokio::test]
#[ignore = "the victim of other tests"]
async fn victim() {
    let Some(ground) = ground("victim") else {
        return;
    };
    let inside = sleeper(&ground.nodes[0]);
    let mut command = Command::new("setsid");
    command.args(["sleep", "1000"]);
    let outside = ground.lab.spawn("outside", command).unwrap();
    let directory = ground.lab.directory().display().to_string();
    println!(
        "victim {} {directory} {} {}",
        ground.lab.prefix(),
        inside.pid(),
        outside.pid()
    );
    std::future::pending::<()>().await;
}

/// What a victim told before it was killed.
struct Victim {
    process: Child,
    prefix: String,
    directory: PathBuf,
    processes: Vec<u32>,
}

impl Victim {
    fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "end::victim", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).find_map(|line| {
            line.split_once("victim hl")
                .map(|(_, rest)| format!("hl{rest}"))
        });
        let line = line.expect("the victim tells its lab");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [prefix, directory, inside, outside] = words[..] else {
            panic!("{line:?}")
        };
        Self {
            process,
            prefix: prefix.to_owned(),
            directory: directory.into(),
            processes: vec![inside.parse().unwrap(), outside.parse().unwrap()],
        }
    }

    /// The shell that would clean up after it.
    fn reaper(&self) -> u32 {
        let own = self.process.id().to_string();
        let ids = fs::read_dir("/proc").unwrap().flatten();
        let mut ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.find(|id| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit_once(')')
                .and_then(|(_, rest)| rest.split(' ').nth(2));
            let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            parent == Some(own.as_str())
                && command
                    .split(|byte| *byte == 0)
                    .any(|word| word == b"reaper")
        })
        .expect("a reaper")
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn is_gone(&self) -> bool {
        namespaces(&self.prefix) == 0
            && !self.directory.exists()
            && self.processes.iter().all(|pid| state(*pid).is_none())
    }
}

fn kill9(pid: u32) {
    assert!(
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

#[tokio::test]
async fn a_killed_run_is_cleaned_up_by_its_reaper() {
    let Some(_lab) = lab("reaper") else { return };
    let mut victim = Victim::start();
    assert_eq!(namespaces(&victim.prefix), 4);
    victim.kill();
    poll_until(SOON, "clean machine", async || {
        Ok(victim.is_gone().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn ctrl_c_ends_the_lab() {
    let Some(_lab) = lab("interrupt") else { return };
    let mut victim = Victim::start();
    // As the terminal does: to the whole foreground group.
    let group = format!("-{}", victim.process.id());
    assert!(
        Command::new("kill")
            .args(["-INT", "--", &group])
            .status()
            .unwrap()
            .success()
    );
    assert!(!victim.process.wait().unwrap().success());
    poll_until(SOON, "clean machine", async || {
        Ok(victim.is_gone().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn leftovers_of_a_run_whose_reaper_was_killed_too_are_swept_by_the_next() {
    let Some(_lab) = lab("sweep") else { return };
    let mut victim = Victim::start();
    kill9(victim.reaper());
    victim.kill();
    let _next = Lab::new("next").unwrap();
    poll_until(SOON, "clean machine", async || {
        Ok(victim.is_gone().then_some(()))
    })
    .await
    .unwrap();
}
