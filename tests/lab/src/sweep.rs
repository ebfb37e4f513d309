//! Finds the leftovers of dead runs, and claims a directory for a new one.
//!
//! A run is dead if its owner is gone: no process has the owner's id, or one that started at
//! another time. All of this happens under one lock of the machine, so that no run is swept
//! between the making of its directory and the note of its owner.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{namespace, run};

const DIRECTORY: &str = "harvester-lab-";
const NAMESPACE: &str = "hl";

/// Sweeps leftovers and makes the directory of this process's run `number`.
pub(crate) fn claim(number: u32) -> Result<PathBuf> {
    let parent = std::env::temp_dir();
    let lock_path = parent.join("harvester-lab.lock");
    let lock = File::options().create(true).append(true).open(&lock_path);
    let lock = lock.with_context(|| format!("lock {}", lock_path.display()))?;
    lock.lock()?;
    sweep(&parent)?;
    let own = std::process::id();
    let directory = parent.join(format!("{DIRECTORY}{own}-{number}"));
    fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
    let started = start_time(own).context("the start time of this process")?;
    fs::write(directory.join("owner"), started.to_string())?;
    Ok(directory)
}

/// The namespaces of the run `prefix` that still have their names.
pub(crate) fn namespaces(prefix: &str) -> Result<Vec<String>> {
    let start = format!("{prefix}-");
    Ok(names(Path::new(namespace::FOLDER))?
        .into_iter()
        .filter(|name| name.starts_with(&start))
        .collect())
}

fn sweep(parent: &Path) -> Result<()> {
    let mut dead: BTreeSet<String> = BTreeSet::new();
    for name in names(parent)? {
        if let Some(run) = name.strip_prefix(DIRECTORY)
            && let Some(owner) = owner(run)
            && !lives(owner, &parent.join(&name))
        {
            dead.insert(run.to_owned());
        }
    }
    // A namespace may have lost its directory, or have it elsewhere (another TMPDIR): then only
    // the absence of any process with the owner's id proves it dead.
    for name in names(Path::new(namespace::FOLDER))? {
        if let Some(rest) = name.strip_prefix(NAMESPACE)
            && let Some((pid, rest)) = rest.split_once('-')
            && let Some((number, _)) = rest.split_once('-')
            && let run = format!("{pid}-{number}")
            && let Some(owner) = owner(&run)
            && start_time(owner).is_none()
        {
            dead.insert(run);
        }
    }
    for run in dead {
        let prefix = format!("{NAMESPACE}{run}");
        run::reap_now(&prefix, &parent.join(format!("{DIRECTORY}{run}")))?;
    }
    Ok(())
}

/// The process id in `<pid>-<number>`.
fn owner(run: &str) -> Option<u32> {
    let (pid, number) = run.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

fn lives(owner: u32, directory: &Path) -> bool {
    let noted = fs::read_to_string(directory.join("owner")).ok();
    let noted: Option<u64> = noted.and_then(|text| text.trim().parse().ok());
    noted.is_some() && noted == start_time(owner)
}

/// When a living process started, in ticks since the machine did (proc(5), field 22 of `stat`).
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// The names in a directory; none if it does not exist.
fn names(directory: &Path) -> Result<Vec<String>> {
    match fs::read_dir(directory) {
        Ok(entries) => Ok(entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("list {}", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_only_with_its_own_start_time() {
        let own = std::process::id();
        let directory = std::env::temp_dir().join(format!("sweep-test-{own}"));
        fs::create_dir_all(&directory).unwrap();
        let started = start_time(own).unwrap();
        fs::write(directory.join("owner"), started.to_string()).unwrap();
        assert!(lives(own, &directory));
        fs::write(directory.join("owner"), (started + 1).to_string()).unwrap();
        assert!(!lives(own, &directory));
        fs::write(directory.join("owner"), "").unwrap();
        assert!(!lives(own, &directory));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn only_whole_run_names_have_owners() {
        assert_eq!(owner("12-3"), Some(12));
        assert_eq!(owner("12"), None);
        assert_eq!(owner("12-x"), None);
        assert_eq!(owner("x-1"), None);
    }
}
