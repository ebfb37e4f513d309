//! What the scenarios of the cloud controller manager have in common.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Result;
use lab::{Guest, Manager, ManagerSetup, Rights, unavailable};
use serde_json::json;

/// Far more than anything here takes.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// Plays a scenario in a guest cluster, or prints why it cannot.
pub(super) fn play(name: &str, scenario: impl AsyncFnOnce(&Guest) -> Result<()>) {
    if let Some(reason) = unavailable() {
        eprintln!("skipped: {reason}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let played = runtime.block_on(async {
        let guest = Guest::start(name).await?;
        if let Err(error) = scenario(&guest).await {
            show_logs(&guest);
            return Err(error);
        }
        guest.stop().await
    });
    if let Err(error) = played {
        panic!("{error:?}");
    }
}

fn show_logs(guest: &Guest) {
    for entry in fs::read_dir(guest.lab().directory())
        .into_iter()
        .flatten()
        .flatten()
    {
        let file = entry.path();
        if file.extension().is_some_and(|it| it == "log") {
            let log = fs::read_to_string(&file).unwrap_or_default();
            eprintln!("--- {}\n{log}", file.display());
        }
    }
}

/// A cloud-config of a host that nobody reaches: its address takes no connection.
pub(super) fn cloud_config_of_nobody(guest: &Guest) -> Result<PathBuf> {
    let file = guest.lab().directory().join("nobody.kubeconfig");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "host", "cluster": { "server": "http://127.0.0.1:1/k8s/clusters/c-1" } }],
        "users": [{ "name": "host", "user": { "token": "x" } }],
        "contexts": [{ "name": "host", "context": { "cluster": "host", "user": "host", "namespace": "vms" } }],
        "current-context": "host",
    });
    fs::write(&file, config.to_string())?;
    Ok(file)
}

/// The program under test, with these flags.
pub(super) fn setup(cloud_config: PathBuf, args: &[&str]) -> ManagerSetup {
    ManagerSetup {
        binary: env!("CARGO_BIN_EXE_harvester-cloud-provider").into(),
        cloud_config,
        rights: Rights::Full,
        args: args.iter().map(|&it| it.to_owned()).collect(),
    }
}

/// Short enough for a test to see an expiry.
pub(super) const BRIEF_LEASES: [&str; 3] = [
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=1s",
];

/// Who holds the Lease of the managers.
pub(super) async fn leader(guest: &Guest) -> Result<Option<String>> {
    let lease = guest.lease().await?;
    let holder = lease.and_then(|it| it.spec?.holder_identity);
    Ok(holder.filter(|it| !it.is_empty()))
}

/// Waits until the manager ends, as it was asked to.
pub(super) async fn stop(manager: &Manager, within: Duration) -> Result<()> {
    manager.process.terminate()?;
    let status = manager.process.wait(within).await?;
    anyhow::ensure!(status.success(), "it ended with {status}");
    Ok(())
}
