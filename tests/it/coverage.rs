//! `tests/COVERAGE.md` names only tests that exist.

use std::{fs, path::Path};

/// What the names of tests begin with that stand for a case of somebody else's list.
const PREFIXES: [&str; 3] = ["fw_", "host_", "kv_"];

fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|it| it == "rs") {
            all.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_test_that_the_coverage_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("tests/COVERAGE.md")).unwrap();
    let mut code = String::new();
    for folder in ["src", "tests"] {
        sources(&root.join(folder), &mut code);
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    let named = words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)));
    // A name may be cut off, as `fw_s1_…`.
    let missing: Vec<&str> = named
        .filter(|name| !code.contains(&format!("fn {name}")))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}
