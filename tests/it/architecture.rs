//! The rules of where code belongs, read off the sources: who may import whom, how long files may
//! be, and which words name nothing.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Lines of a file, its tests beside it included.
const LONGEST: usize = 700;

/// Words that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["util", "utils", "helpers", "common", "misc"];

/// What is left to be done is not left in the code.
const UNFINISHED: [&str; 5] = [
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
];

/// The packet socket, the scheduling of threads, and the network namespaces of tests.
const UNSAFE: [&str; 3] = [
    "net/packet_socket.rs",
    "net/testing.rs",
    "runtime/realtime.rs",
];

/// For each module of the crate, the others of the crate that it may use.
const MAY_USE: [(&str, &[&str]); 10] = [
    ("config", &[]),
    ("runtime", &["config"]),
    ("net", &["runtime"]),
    // The store of Leases speaks the elections' records.
    ("k8s", &["runtime", "config", "election"]),
    ("harvester", &["runtime", "config", "k8s"]),
    ("election", &["runtime", "config", "k8s"]),
    ("check", &["runtime", "config", "k8s", "harvester", "net"]),
    (
        "ccm",
        &["runtime", "config", "k8s", "harvester", "net", "election"],
    ),
    (
        "speaker",
        &["runtime", "config", "k8s", "harvester", "net", "election"],
    ),
    ("lib", &[]),
];

/// Files that decide and do nothing else. Those of a folder end in `/`.
const PURE: [&str; 34] = [
    "config/controllers.rs",
    "config/duration.rs",
    "config/env.rs",
    "election/elector.rs",
    "election/record.rs",
    "k8s/patch.rs",
    "net/bpf.rs",
    "net/frame.rs",
    "runtime/auth/identity.rs",
    "runtime/backoff.rs",
    "speaker/announcer/schedule.rs",
    "speaker/announcer/witness.rs",
    "speaker/desired.rs",
    "speaker/dhcp/client.rs",
    "speaker/dhcp/lease.rs",
    "speaker/endpoints.rs",
    "speaker/ownership/",
    "speaker/plan.rs",
    "speaker/selection.rs",
    "ccm/instance.rs",
    "ccm/node/addresses.rs",
    "ccm/node/provided.rs",
    "ccm/node/vips.rs",
    "ccm/node/hostnames.rs",
    "ccm/service/due.rs",
    "ccm/service/loadbalancer.rs",
    "ccm/service/network.rs",
    "ccm/service/nodes.rs",
    "ccm/service/notes.rs",
    "ccm/service/orphans.rs",
    "ccm/service/recent.rs",
    "ccm/service/sharing.rs",
    "ccm/service/turns.rs",
    "ccm/topology/network_map.rs",
];

/// What a pure file must not import; `driver.rs` is pure nowhere.
const EFFECTS: [&str; 8] = [
    "tokio::",
    "kube::Client",
    "kube::Api",
    "kube::{Api",
    "kube::{Client",
    "socket2::",
    "rtnetlink::",
    "std::net::UdpSocket",
];

struct Source {
    /// Relative to `src`, with `/`.
    name: String,
    text: String,
}

impl Source {
    /// The crate's module that the file belongs to.
    fn module(&self) -> &str {
        let first = self.name.split('/').next().unwrap_or_default();
        first.trim_end_matches(".rs")
    }

    /// `use` items outside of the file's tests, each on one line.
    fn imports(&self) -> Vec<String> {
        let code = self.text.split("#[cfg(test)]").next().unwrap_or_default();
        code.split(';')
            .filter_map(|item| {
                let lines = item.lines().map(str::trim);
                let words: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
                let joined = words.join(" ");
                let start = joined.find("use ").filter(|at| {
                    let before = joined[..*at].trim_end();
                    before.is_empty()
                        || before.ends_with(['}', ')', ']'])
                        || before.ends_with("pub")
                })?;
                Some(joined[start + 4..].trim().to_owned())
            })
            .collect()
    }

    /// Modules of the crate that it names in `use crate::…`.
    fn crate_modules(&self) -> Vec<String> {
        let mut modules = Vec::new();
        for import in self.imports() {
            let Some(rest) = import.strip_prefix("crate::") else {
                continue;
            };
            match rest.strip_prefix('{') {
                None => modules.push(first_word(rest)),
                Some(list) => {
                    let list = list.trim_end().trim_end_matches('}');
                    modules.extend(top_level(list).into_iter().map(first_word));
                }
            }
        }
        modules
    }

    fn is_pure(&self) -> bool {
        let driver = self.name.ends_with("/driver.rs") || self.name.ends_with("/tests.rs");
        let named = |pure: &&str| {
            self.name == **pure || (pure.ends_with('/') && self.name.starts_with(*pure))
        };
        !driver && (PURE.iter().any(named) || self.name.ends_with("/plan.rs"))
    }
}

/// The items of `a, b::{c, d}, e` that stand outside of inner braces.
fn top_level(list: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(list[start..].trim());
    items.retain(|item| !item.is_empty());
    items
}

fn first_word(path: &str) -> String {
    path.trim()
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn tree(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let all = files(&root).into_iter().map(|path| Source {
        name: path
            .strip_prefix(&root)
            .unwrap()
            .to_string_lossy()
            .into_owned(),
        text: fs::read_to_string(&path).unwrap(),
    });
    all.collect()
}

#[test]
fn modules_import_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    let tests = |source: &Source| source.name.ends_with("tests.rs");
    for source in tree("src").into_iter().filter(|s| !tests(s)) {
        let Some((module, allowed)) = MAY_USE.iter().find(|(name, _)| *name == source.module())
        else {
            assert_eq!(source.name, "main.rs", "a module without a place");
            continue;
        };
        for used in source.crate_modules() {
            if used != *module && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{} imports {used}", source.name));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn pure_files_import_nothing_that_acts() {
    let mut wrong = Vec::new();
    for source in tree("src").into_iter().filter(Source::is_pure) {
        for import in source.imports() {
            if EFFECTS.iter().any(|effect| import.starts_with(effect)) {
                wrong.push(format!("{} imports {import}", source.name));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn files_are_short_named_and_introduced() {
    let mut wrong = Vec::new();
    for source in tree("src").into_iter().chain(tree("tests")) {
        let lines = source.text.lines().count();
        if lines > LONGEST {
            wrong.push(format!("{} has {lines} lines", source.name));
        }
        if !source.text.starts_with("//!") && !source.name.ends_with("tests.rs") {
            wrong.push(format!("{} does not begin with //!", source.name));
        }
        for word in UNFINISHED {
            if source.text.contains(word) {
                wrong.push(format!("{} contains {word}", source.name));
            }
        }
        let mut words = source.name.split(['/', '_', '.']);
        if let Some(word) = words.find(|word| EMPTY_NAMES.contains(word)) {
            wrong.push(format!("{}: {word} names nothing", source.name));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn unsafe_code_is_where_it_is_expected() {
    let keyword = concat!("unsafe", " {");
    let mut wrong = Vec::new();
    for source in tree("src") {
        let code = source
            .text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let found = code.filter(|line| line.contains(keyword)).count();
        if found > 0 && !UNSAFE.contains(&source.name.as_str()) {
            wrong.push(source.name);
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn imports_are_read_with_groups_and_nesting() {
    let source = Source {
        name: "speaker/plan.rs".to_owned(),
        text: "//! x\nuse std::fmt;\nuse crate::{\n    net::{a, b},\n    config,\n};\npub use crate::k8s::x;\n"
            .to_owned(),
    };
    assert_eq!(source.crate_modules(), ["net", "config", "k8s"]);
    assert!(source.is_pure());
}
