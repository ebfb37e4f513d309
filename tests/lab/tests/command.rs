//! The command `lab`.

use std::process::{Command, Output};

use anyhow::{Result, ensure};
use lab::unavailable;

/// `lab` with a folder for temporary files of its own, so that it meets no other cluster.
fn lab(folder: &std::path::Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command
        .args(arguments)
        .env("TMPDIR", folder)
        .env_remove("RUST_BACKTRACE");
    Ok(command.output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Takes the cluster down also when the test fails.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(lab(&self.0, &["down"]));
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[test]
fn a_cluster_stands_from_up_to_down() -> Result<()> {
    if let Some(reason) = unavailable() {
        println!("skipped: {reason}");
        return Ok(());
    }
    let folder = Folder(std::env::temp_dir().join(format!("lab-command-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0)?;
    let lab = |arguments: &[&str]| lab(&folder.0, arguments);
    assert_eq!(text(&lab(&["status"])?.stdout), "no cluster stands\n");

    let up = lab(&["up", "--nodes", "1"])?;
    ensure!(up.status.success(), "{}", text(&up.stderr));
    let said = text(&up.stdout);
    let kubeconfig = said
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("export KUBECONFIG="));
    assert!(
        std::path::Path::new(kubeconfig.unwrap_or_default()).is_file(),
        "{said}"
    );
    let enter = said
        .lines()
        .find_map(|line| Some(line.split_once("ip netns exec ")?.1));
    let namespace = enter
        .and_then(|rest| rest.strip_suffix(" bash"))
        .unwrap_or_default();
    let entered = Command::new("ip")
        .args(["netns", "exec", namespace, "true"])
        .status()?;
    assert!(entered.success(), "{said}");

    let again = lab(&["up"])?;
    assert!(!again.status.success());
    assert!(
        text(&again.stderr).contains("stands already"),
        "{}",
        text(&again.stderr)
    );
    assert!(text(&lab(&["status"])?.stdout).contains("  Ready"));

    let down = lab(&["down"])?;
    ensure!(down.status.success(), "{}", text(&down.stderr));
    assert_eq!(text(&lab(&["status"])?.stdout), "no cluster stands\n");
    assert!(!std::path::Path::new("/run/netns").join(namespace).exists());
    assert!(!lab(&["down"])?.status.success());
    Ok(())
}
