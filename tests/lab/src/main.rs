//! `lab`: a whole guest cluster on this machine, to look at and to play with.
#![expect(clippy::print_stdout, reason = "what a command says to its user")]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use lab::{
    standing::{self, Wanted},
    tools::Tools,
};

#[derive(Debug, Parser)]
#[command(about = "A whole guest cluster of real parts in network namespaces of this machine")]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start a cluster that stands until `lab down`
    Up(Wanted),
    /// End the standing cluster and wait until all of it is gone
    Down,
    /// Show the standing cluster
    Status,
    /// Find the programs of the control plane, or build them, and say where they are
    Tools,
    /// Hold a cluster in this process
    #[command(hide = true)]
    Keep(Wanted),
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse().action).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(action: Action) -> Result<()> {
    match action {
        Action::Up(wanted) => print!("{}", standing::up(&wanted).await?),
        Action::Down => standing::down().await?,
        Action::Keep(wanted) => standing::keep(wanted).await?,
        Action::Tools => {
            let tools = Tools::ready().await?;
            for program in tools.all() {
                println!("{}", program.display());
            }
        }
        Action::Status => match standing::status().await? {
            None => println!("no cluster stands"),
            Some((standing, nodes)) => {
                print!("{standing}");
                println!();
                for (name, ready) in nodes {
                    println!("{name:<12}  {}", if ready { "Ready" } else { "NotReady" });
                }
            }
        },
    }
    Ok(())
}
