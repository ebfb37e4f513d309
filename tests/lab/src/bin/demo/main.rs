//! `demo`: a guest cluster and its Harvester host in a minute. Nodes are initialised, three Services get
//! VIPs, a client uses them, processes are stopped, then the power of the node is cut that owns the VIPs
//! and leads the cloud controllers, and what the client lost is measured.

mod scene;
mod screen;
mod table;
mod vip;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use lab::tools::Tools;
use tokio::signal::unix::{SignalKind, signal};

use crate::{scene::Scene, screen::Screen};

const PROGRAM: &str = "harvester-cloud-provider";
/// What a shell reports for a program that ended by Ctrl-C.
const INTERRUPTED: u8 = 130;

#[derive(Debug, Parser)]
#[command(about = "Shows VIPs of Services in a guest cluster on this machine, and their failover")]
struct Arguments {
    /// The program under test [default: harvester-cloud-provider beside this program]
    #[arg(long, value_name = "PATH")]
    speaker: Option<PathBuf>,
    /// Leave the cluster up at the end, until Ctrl-C
    #[arg(long)]
    hold: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut screen = Screen::new();
    let outcome = run(&Arguments::parse(), &mut screen).await;
    screen.finish();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments, screen: &mut Screen) -> Result<ExitCode> {
    if let Some(reason) = lab::unavailable() {
        bail!("it needs network namespaces of this machine: {reason}");
    }
    let speaker = speaker(arguments)?;
    // Registered before there is anything to clean up.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut stop = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };

    // Cleans up by itself when it is dropped half made.
    let scene = tokio::select! {
        () = stop() => return Ok(ExitCode::from(INTERRUPTED)),
        scene = async {
            // The first time this builds for minutes, and says so.
            Tools::ready().await?;
            Scene::set(&speaker, screen).await
        } => scene,
    };
    let mut scene = scene?;
    let played = tokio::select! {
        () = stop() => None,
        played = scene.play(screen) => Some(played),
    };
    let code = match played {
        None => ExitCode::from(INTERRUPTED),
        Some(Ok(())) if arguments.hold => {
            let advice = scene.advice(screen).await;
            if advice.is_ok() {
                tokio::select! {
                    () = stop() => {}
                    () = scene.go_on(screen) => {}
                }
            }
            advice.map(|()| ExitCode::SUCCESS)?
        }
        Some(Ok(())) => {
            screen.say("\nTry it by hand: `make demo HOLD=1` leaves the cluster up.");
            ExitCode::SUCCESS
        }
        Some(Err(error)) => {
            screen.leave_table();
            scene.show_logs();
            let _ = scene.end().await;
            return Err(error);
        }
    };
    screen.leave_table();
    scene.end().await.context("cleaning up")?;
    Ok(code)
}

fn speaker(arguments: &Arguments) -> Result<PathBuf> {
    let path = match &arguments.speaker {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .context("finding this program")?
            .with_file_name(PROGRAM),
    };
    ensure!(
        path.is_file(),
        "{} does not exist; `make demo` builds it",
        path.display()
    );
    path.canonicalize()
        .with_context(|| format!("finding {}", path.display()))
}
