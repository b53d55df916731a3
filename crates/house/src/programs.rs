//! The integration tests of a package are one program, or a few that say why.
//!
//! Cargo makes a program of every file in `tests/`, and of every folder there with a `main.rs`. Each of them
//! is compiled with all that it shares with the others, and linked with all that the package uses. That takes
//! longer than most tests. So a new test is a module of a program that exists.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;

/// Package, program, and why it cannot be part of another program of its package. If a package has several
/// programs, each has a row.
pub const PROGRAMS: &[(&str, &str, &str)] = &[
    ("covey-tests", "mounts", "one program of all would compile on one processor, and anew after each edit"),
    ("covey-tests", "services", "it alone uses the crates of gRPC, vhost-user and the CSI driver"),
    ("covey-tests", "shared", "it needs databases, and `make test-shared` runs all of it and nothing else"),
];

/// Checks the packages whose manifests are among `texts` (path to text) against a list like [`PROGRAMS`].
pub fn check(texts: &BTreeMap<String, String>, list: &[(&str, &str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut several = BTreeSet::new();
    for (path, manifest) in texts.iter().filter(|(path, _)| is_manifest(path)) {
        let Some((package, programs)) = programs(path, manifest, texts) else {
            continue;
        };
        if programs.len() < 2 {
            continue;
        }
        let is_listed = |program: &String| list.iter().any(|row| (row.0, row.1) == (package, program));
        let (listed, new): (Vec<String>, Vec<String>) = programs.iter().cloned().partition(is_listed);
        if !new.is_empty() {
            let all = [new, listed].concat().join(", ");
            let message = format!(
                "two test programs of {package} could be one: {all}; merge them, or add a row with the \
                 reason to crates/house/src/programs.rs"
            );
            findings.push(Finding::new(path, 0, message));
        }
        several.extend(programs.into_iter().map(|program| (package.to_owned(), program)));
    }
    for (package, program, _) in list {
        if !several.contains(&((*package).to_owned(), (*program).to_owned())) {
            let message =
                format!("the test program {program} of {package} is gone, or the only one: remove its row");
            findings.push(Finding::new("crates/house/src/programs.rs", 0, message));
        }
    }
    findings
}

fn is_manifest(path: &str) -> bool {
    path == "Cargo.toml" || path.ends_with("/Cargo.toml")
}

/// The name of a package and its test programs. None if the manifest is not that of a package.
fn programs<'a>(
    path: &str,
    manifest: &'a str,
    texts: &BTreeMap<String, String>,
) -> Option<(&'a str, BTreeSet<String>)> {
    let settings: Vec<(&str, &str, &str)> = settings(manifest).collect();
    let value = |section, key| settings.iter().find(|row| (row.0, row.1) == (section, key)).map(|row| row.2);
    let package = value("[package]", "name")?;
    let written = settings.iter().filter(|row| (row.0, row.1) == ("[[test]]", "name"));
    let mut programs: BTreeSet<String> = written.map(|row| row.2.to_owned()).collect();
    if value("[package]", "autotests") != Some("false") {
        let paths: Vec<&str> =
            settings.iter().filter(|row| (row.0, row.1) == ("[[test]]", "path")).map(|row| row.2).collect();
        let folder = path.trim_end_matches("Cargo.toml");
        let inside = texts.keys().filter_map(|path| path.strip_prefix(folder));
        // Cargo does not find again what a section names.
        let found = inside.filter(|file| !paths.contains(file)).filter_map(|file| {
            let name = file.strip_prefix("tests/")?;
            let name = name.strip_suffix("/main.rs").or_else(|| name.strip_suffix(".rs"))?;
            (!name.contains('/')).then(|| name.to_owned())
        });
        programs.extend(found);
    }
    Some((package, programs))
}

/// The settings of a manifest: section with its brackets, key, value without quotation marks.
fn settings(manifest: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut section = "";
    manifest.lines().filter_map(move |line| {
        let line = line.trim();
        if line.starts_with('[') {
            section = line;
        }
        let (key, value) = line.split_once('=')?;
        Some((section, key.trim(), value.trim().trim_matches('"')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"covey-a\"\n\n[dependencies]\nb = { path = \"../b\" }\n";

    /// What is found in a package `covey-a` at `a` with this manifest and these files.
    fn found(manifest: &str, files: &[&str], list: &[(&str, &str, &str)]) -> Vec<String> {
        let mut texts: BTreeMap<String, String> =
            files.iter().map(|file| (format!("a/{file}"), String::new())).collect();
        texts.insert("a/Cargo.toml".to_owned(), manifest.to_owned());
        texts.insert("Cargo.toml".to_owned(), "[workspace]\nmembers = [\"a\"]\n".to_owned());
        check(&texts, list).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_second_program_is_found_however_it_is_made() {
        let two = |message: &[String]| {
            assert_eq!(message.len(), 1, "{message:?}");
            assert!(
                message[0].starts_with("two test programs of covey-a could be one: x, y;"),
                "{message:?}"
            );
        };
        two(&found(MANIFEST, &["tests/x.rs", "tests/y.rs"], &[]));
        two(&found(MANIFEST, &["tests/x/main.rs", "tests/y.rs"], &[]));
        let written = |name: &str| format!("\n[[test]]\nname = \"{name}\"\npath = \"tests/{name}.rs\"\n");
        two(&found(&format!("{MANIFEST}{}", written("x")), &["tests/x.rs", "tests/y.rs"], &[]));
        let off = MANIFEST.replace("\n\n", "\nautotests = false\n\n");
        two(&found(&format!("{off}{}{}", written("x"), written("y")), &["tests/z.rs"], &[]));
    }

    #[test]
    fn modules_of_one_program_are_not() {
        let files = ["tests/x/main.rs", "tests/x/y.rs", "tests/support/mod.rs", "src/tests/z.rs"];
        assert_eq!(found(MANIFEST, &files, &[]), [""; 0]);
        assert_eq!(found(MANIFEST, &["tests/x.rs", "b/Cargo.toml", "b/tests/y.rs"], &[]), [""; 0]);
        assert_eq!(found(MANIFEST, &[], &[]), [""; 0]);
    }

    #[test]
    fn each_of_several_programs_has_a_row_and_no_other_has() {
        let files = ["tests/x.rs", "tests/y.rs"];
        let (x, y) = (("covey-a", "x", "why"), ("covey-a", "y", "why"));
        assert_eq!(found(MANIFEST, &files, &[x, y]), [""; 0]);
        assert!(found(MANIFEST, &files, &[x])[0].contains("could be one: y, x;"));
        assert_eq!(found(MANIFEST, &files, &[x, y, ("covey-a", "z", "why")]).len(), 1, "a row of none");
        assert_eq!(found(MANIFEST, &files[..1], &[x]).len(), 1, "it is the only one");
    }
}
