//! The binary: reads argv and the environment, picks the shape of the process or the command, runs
//! it, and maps its error to an exit code.

use std::{
    error::Error as StdError,
    fmt::Write as _,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use harvester_cloud_provider::{
    ccm, check,
    config::{self, Config, Invocation, Surroundings},
    k8s::{self, ClientSource, client::Rate},
    runtime::{self, Process, logging, ports, ports::Ports, realtime::Realtime, shutdown::Signals},
    speaker,
};

/// Threads of the runtime beside that of the ports.
const WORKERS: usize = 2;

/// Why the process ends with exit code 1.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Vips(#[from] speaker::vips::Error),
    #[error("the command vips is about the speaker: --speaker=false makes no sense with it")]
    NoSpeaker,
    #[error(transparent)]
    Logging(#[from] logging::Error),
    #[error("cannot take over signals")]
    Signals(#[source] io::Error),
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Ports(#[from] ports::Error),
    #[error(transparent)]
    Run(#[from] runtime::Error<WorkError>),
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

/// What a half of the program fails with.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Speaker(#[from] speaker::Error),
    #[error(transparent)]
    Controllers(#[from] ccm::Error),
}

fn main() -> ExitCode {
    // The first argument is the program's name.
    let args: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let invocation = match config::load(&args, &Surroundings::read()) {
        Ok(invocation) => invocation,
        Err(refused) => {
            eprintln!("Error: {refused}");
            match refused.help {
                Some(help) => eprintln!("\n{help}"),
                None => eprintln!("Run with --help for all flags."),
            }
            return ExitCode::FAILURE;
        }
    };
    match start(invocation) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let error = chain(&error);
            if tracing::dispatcher::has_been_set() {
                tracing::error!("{error}");
            } else {
                eprintln!("Error: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all is well.
fn start(invocation: Invocation) -> Result<bool, Error> {
    match invocation {
        Invocation::Print(text) => io::stdout().write_all(text.as_bytes())?,
        Invocation::Vips { config, json } => {
            let speaker = config.speaker.ok_or(Error::NoSpeaker)?;
            let table = in_runtime(speaker::vips::vips(&speaker, json))??;
            io::stdout().write_all(table.as_bytes())?;
        }
        Invocation::Check(config) => {
            let report = in_runtime(check::run(&config))?;
            io::stdout().write_all(report.text.as_bytes())?;
            return Ok(report.sound);
        }
        Invocation::Run(config) => in_runtime(serve(*config))??,
    }
    Ok(true)
}

async fn serve(config: Config) -> Result<(), Error> {
    logging::install(&config.logging)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        "harvester-cloud-provider"
    );
    if config.logging.verbosity > 0 {
        for (flag, value) in &config.flags {
            tracing::info!("FLAG: --{flag}={value:?}");
        }
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    // Before anything is waited for: as process 1 of a container, a signal that nobody takes is lost.
    let signals = Signals::install().map_err(Error::Signals)?;
    let ports = Ports::open(&config)?;
    let (process, failures) = Process::new();
    process.metrics.with(k8s::metrics::register);
    if config.speaker.as_ref().is_some_and(|it| it.realtime) {
        // The threads until here are those of the runtime.
        match Realtime::claim() {
            Ok(realtime) => {
                let shutdown = process.shutdown.clone();
                process.tasks.spawn("realtime", realtime.keep(shutdown));
            }
            Err(error) => tracing::info!(%error, "no real-time scheduling"),
        }
    }
    let controllers = (!config.ccm.controllers.none).then(|| ccm::Setup {
        guest: ClientSource {
            kubeconfig: config.kubeconfig,
            master: config.master,
            rate: config.ccm.api_rate.map(|limit| Rate {
                per_second: limit.per_second,
                burst: limit.burst,
            }),
        },
        config: config.ccm,
        hostname: config.host_name,
        beside_speaker: config.speaker.is_some(),
    });
    let speaker = config
        .speaker
        .map(|speaker| speaker::run(speaker, process.clone()));
    let controllers = controllers.map(|setup| ccm::run(setup, process.clone()));
    let work = Box::pin(async {
        tokio::try_join!(
            async { present(speaker).await.map_err(WorkError::from) },
            async { present(controllers).await.map_err(WorkError::from) },
        )?;
        Ok(())
    });
    runtime::run(process, failures, signals, ports, work).await?;
    tracing::info!("stopped");
    Ok(())
}

/// The work of a half that was switched on.
async fn present<E>(work: Option<impl Future<Output = Result<(), E>>>) -> Result<(), E> {
    match work {
        Some(work) => work.await,
        None => Ok(()),
    }
}

/// What hangs when the future is done does not keep the process alive.
fn in_runtime<T>(work: impl Future<Output = T>) -> Result<T, Error> {
    // Nothing else installs one; if a library did, it is the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_millis(100));
    Ok(outcome)
}

/// An error with all that is below it.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        // Writing to a string does not fail.
        let _ = write!(text, ": {error}");
        below = error.source();
    }
    text
}
