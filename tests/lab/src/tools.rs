//! The real programs of the lab: found, or built once and kept.
//!
//! `KUBEBUILDER_ASSETS` (the convention of envtest) wins for every program it holds. What it does not
//! hold is built from the Go modules in `tests/tools` into
//! `${XDG_CACHE_HOME:-~/.cache}/harvester-cloud-provider-lab/<versions and toolchain>`. A file lock
//! makes concurrent test runs wait for one build, and a program gets its name by rename, so that a
//! build which was cut short is never taken for a program.

use std::{
    fmt::Write,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::clock;

const ASSETS: &str = "KUBEBUILDER_ASSETS";
const OLDEST_GO: (u32, u32) = (1, 25);
const PROGRESS_PERIOD: Duration = Duration::from_secs(10);

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Tools {
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    pub kube_controller_manager: PathBuf,
    pub kube_proxy: PathBuf,
}

/// A program: its Go module under `tests/tools`, the package in it, and the module whose version it has.
struct Recipe {
    name: &'static str,
    module: &'static str,
    package: &'static str,
    versioned_by: &'static str,
}

const ETCD: Recipe = Recipe {
    name: "etcd",
    module: "etcd",
    package: "go.etcd.io/etcd/server/v3",
    versioned_by: "go.etcd.io/etcd/server/v3",
};
const KUBE_APISERVER: Recipe = kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver");
const KUBE_CONTROLLER_MANAGER: Recipe = kubernetes(
    "kube-controller-manager",
    "k8s.io/kubernetes/cmd/kube-controller-manager",
);
const KUBE_PROXY: Recipe = kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy");

const fn kubernetes(name: &'static str, package: &'static str) -> Recipe {
    Recipe {
        name,
        module: "kubernetes",
        package,
        versioned_by: "k8s.io/kubernetes",
    }
}

impl Tools {
    /// Finds every program, building what is missing (about five minutes on two cores, once).
    pub async fn ready() -> Result<Self> {
        tokio::task::spawn_blocking(Self::find_or_build)
            .await
            .context("looking for the programs")?
    }

    /// Every program.
    pub fn all(&self) -> [&Path; 4] {
        [
            &self.etcd,
            &self.kube_apiserver,
            &self.kube_controller_manager,
            &self.kube_proxy,
        ]
    }

    fn find_or_build() -> Result<Self> {
        let mut shelf = Shelf {
            assets: environment(ASSETS).map(PathBuf::from),
            built: None,
        };
        Ok(Self {
            etcd: shelf.program(&ETCD)?,
            kube_apiserver: shelf.program(&KUBE_APISERVER)?,
            kube_controller_manager: shelf.program(&KUBE_CONTROLLER_MANAGER)?,
            kube_proxy: shelf.program(&KUBE_PROXY)?,
        })
    }
}

/// Where programs are looked for.
struct Shelf {
    assets: Option<PathBuf>,
    /// The folder of built programs, once something had to be looked for there.
    built: Option<PathBuf>,
}

impl Shelf {
    fn program(&mut self, recipe: &Recipe) -> Result<PathBuf> {
        let supplied = self.assets.as_ref().map(|assets| assets.join(recipe.name));
        if let Some(supplied) = supplied.filter(|it| it.is_file()) {
            return Ok(supplied);
        }
        let folder = match &self.built {
            Some(folder) => folder,
            None => self.built.insert(cache_folder()?),
        };
        let wanted = folder.join(recipe.name);
        if wanted.is_file() {
            return Ok(wanted);
        }
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let lock = File::create(folder.join("lock")).context("creating the lock of the build")?;
        lock.lock().context("waiting for another build")?;
        if !wanted.is_file() {
            build(recipe, &wanted)?;
        }
        Ok(wanted)
    }
}

fn build(recipe: &Recipe, wanted: &Path) -> Result<()> {
    let partial = wanted.with_extension("partial");
    let log = wanted.with_extension("log");
    let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let child = Command::new("go")
        .args([
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            &linker_flags(recipe)?,
            "-o",
        ])
        .arg(&partial)
        .arg(recipe.package)
        .current_dir(modules().join(recipe.module))
        .env("CGO_ENABLED", "0")
        .stdin(Stdio::null())
        .stdout(output.try_clone().context("sharing the log of the build")?)
        .stderr(output)
        .spawn()
        .context("starting go")?;
    if !with_progress(child, recipe.name)? {
        let said = fs::read_to_string(&log).unwrap_or_default();
        bail!(
            "go could not build {}:\n{}",
            recipe.package,
            said.trim_end()
        );
    }
    fs::rename(&partial, wanted).with_context(|| format!("keeping {}", wanted.display()))?;
    fs::remove_file(&log).context("removing the log of a build that went well")
}

/// Waits for a build, with a line now and then: minutes of silence look like a hang.
fn with_progress(mut build: Child, name: &str) -> Result<bool> {
    let started = clock::now();
    let mut said = started;
    eprintln!("lab: building {name} from source, once; this takes minutes");
    loop {
        if let Some(status) = build.try_wait().context("waiting for go")? {
            eprintln!("lab: {name} took {} s", started.elapsed().as_secs());
            return Ok(status.success());
        }
        if said.elapsed() >= PROGRESS_PERIOD {
            said = clock::now();
            eprintln!(
                "lab: still building {name} ({} s)",
                started.elapsed().as_secs()
            );
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Small binaries, and for Kubernetes the version that its clients get to see (v0.0.0-master otherwise).
fn linker_flags(recipe: &Recipe) -> Result<String> {
    let version = version(recipe)?;
    let mut flags = String::from("-s -w");
    if recipe.module == "kubernetes" {
        let mut parts = version.trim_start_matches('v').split('.');
        let (major, minor) = (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
        for (name, value) in [
            ("gitVersion", &*version),
            ("gitMajor", major),
            ("gitMinor", minor),
        ] {
            write!(flags, " -X k8s.io/component-base/version.{name}={value}")?;
        }
    }
    Ok(flags)
}

fn cache_folder() -> Result<PathBuf> {
    let base = match (environment("XDG_CACHE_HOME"), environment("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => Path::new(&home).join(".cache"),
        (None, None) => bail!("neither XDG_CACHE_HOME nor HOME says where to keep built programs"),
    };
    let (kubernetes, etcd) = (version(&KUBE_APISERVER)?, version(&ETCD)?);
    let key = format!("kubernetes-{kubernetes}-etcd-{etcd}-{}", toolchain()?);
    Ok(base.join("harvester-cloud-provider-lab").join(key))
}

/// The version of a program, from the `go.mod` that pins it.
fn version(recipe: &Recipe) -> Result<String> {
    let file = modules().join(recipe.module).join("go.mod");
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    pinned(&text, recipe.versioned_by)
        .map(str::to_owned)
        .with_context(|| format!("{} does not pin {}", file.display(), recipe.versioned_by))
}

fn pinned<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line
            .split_whitespace()
            .skip_while(|word| *word == "require");
        (words.next()? == module)
            .then(|| words.next())?
            .filter(|word| word.starts_with('v'))
    })
}

/// The Go toolchain and what it builds for (`go1.26.8-linux-amd64`).
fn toolchain() -> Result<String> {
    let hint = format!(
        "the lab needs Go {}.{} or later to build its programs: install it from https://go.dev/dl or \
         your distribution, or set {ASSETS} to a folder with etcd, kube-apiserver, \
         kube-controller-manager and kube-proxy",
        OLDEST_GO.0, OLDEST_GO.1
    );
    let output = Command::new("go")
        .args(["env", "GOVERSION", "GOOS", "GOARCH"])
        .output();
    let output = output.with_context(|| format!("running go failed; {hint}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let name = said.lines().next().unwrap_or_default();
    ensure!(
        go_release(name).is_some_and(|it| it >= OLDEST_GO),
        "found Go {name:?}; {hint}"
    );
    Ok(said.trim_end().replace('\n', "-"))
}

fn go_release(name: &str) -> Option<(u32, u32)> {
    let mut parts = name.strip_prefix("go")?.split(['.', '-', ' ']);
    let major = parts.next()?.parse().ok()?;
    let minor: String = parts
        .next()?
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    Some((major, minor.parse().ok()?))
}

fn modules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools")
}

#[expect(
    clippy::disallowed_methods,
    reason = "where programs are is the machine's, not a setting"
)]
fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_of_a_toolchain_is_read_from_its_name() {
        for (name, release) in [
            ("go1.26.8", Some((1, 26))),
            ("go1.25", Some((1, 25))),
            ("go1.27rc1", Some((1, 27))),
            ("go1.25.3-X:nodwarf5", Some((1, 25))),
            ("devel", None),
            ("", None),
        ] {
            assert_eq!(go_release(name), release, "{name}");
        }
    }

    #[test]
    fn the_version_of_a_module_is_read_from_either_form_of_require() {
        let block = "require (\n\tk8s.io/kubernetes v1.35.4 // indirect\n)\n";
        let line = "tool k8s.io/kubernetes/cmd/kube-proxy\nrequire k8s.io/kubernetes v1.35.4\n";
        for text in [block, line] {
            assert_eq!(pinned(text, "k8s.io/kubernetes"), Some("v1.35.4"), "{text}");
        }
        assert_eq!(
            pinned("replace k8s.io/api => k8s.io/api v0.35.4", "k8s.io/api"),
            None
        );
        assert_eq!(pinned("", "k8s.io/kubernetes"), None);
    }

    #[test]
    fn a_program_in_the_assets_is_taken_from_there() {
        let assets = std::env::temp_dir().join(format!("lab-assets-{}", std::process::id()));
        fs::create_dir_all(&assets).unwrap();
        fs::write(assets.join("etcd"), "").unwrap();
        let built = assets.join("built");
        fs::create_dir_all(&built).unwrap();
        fs::write(built.join("kube-proxy"), "").unwrap();
        let mut shelf = Shelf {
            assets: Some(assets.clone()),
            built: Some(built.clone()),
        };
        assert_eq!(shelf.program(&ETCD).unwrap(), assets.join("etcd"));
        assert_eq!(
            shelf.program(&KUBE_PROXY).unwrap(),
            built.join("kube-proxy")
        );
        fs::remove_dir_all(&assets).unwrap();
    }

    #[test]
    fn every_program_is_pinned() {
        for recipe in [
            &ETCD,
            &KUBE_APISERVER,
            &KUBE_CONTROLLER_MANAGER,
            &KUBE_PROXY,
        ] {
            assert!(version(recipe).unwrap().starts_with('v'), "{}", recipe.name);
        }
    }
}
