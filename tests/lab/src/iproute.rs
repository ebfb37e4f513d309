//! Runs `ip` and `nft`, many changes in one process.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::{namespace::Namespace, syscall};

/// The programs that every lab needs, and the Debian package of each.
const PROGRAMS: [(&str, &str); 2] = [("ip", "iproute2"), ("nft", "nftables")];

/// Why no lab can be made on this machine, if so: not root, or a program is missing.
pub fn unavailable() -> Option<String> {
    if !syscall::is_root() {
        return Some("network namespaces need root".to_owned());
    }
    PROGRAMS.into_iter().find_map(|(program, package)| {
        let mut command = Command::new(program);
        command.arg("-V").stdin(Stdio::null());
        command.output().err().map(|error| {
            format!("`{program}` does not start ({error}); it is in Debian's package {package}")
        })
    })
}

/// Applies lines of `ip` commands, in the root namespace or in `namespace`.
pub(crate) fn ip(namespace: Option<&Namespace>, lines: &str) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    feed(namespace, "ip", &["-batch", "-"], lines)
}

/// Applies an nftables script as one transaction.
pub(crate) fn nft(namespace: &Namespace, script: &str) -> Result<()> {
    feed(Some(namespace), "nft", &["-f", "-"], script)
}

/// What `ip -json <arguments>` tells.
pub(crate) fn ip_json<T: DeserializeOwned>(namespace: &Namespace, arguments: &[&str]) -> Result<T> {
    let mut command = namespace.command("ip");
    command.arg("-json").args(arguments).stdin(Stdio::null());
    let output = command.output().context("ip does not start")?;
    if !output.status.success() {
        bail!(
            "ip {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("output of ip {arguments:?}"))
}

fn feed(
    namespace: Option<&Namespace>,
    program: &str,
    arguments: &[&str],
    input: &str,
) -> Result<()> {
    let mut command = match namespace {
        Some(namespace) => namespace.command(program),
        None => Command::new(program),
    };
    command.args(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("{program} does not start"))?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // A program that stops reading has an error to tell; that error is the one to show.
    let written = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{program} refuses: {}\n{input}", complaint.trim());
    }
    written.with_context(|| format!("input of {program}"))
}
