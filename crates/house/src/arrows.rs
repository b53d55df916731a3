//! Which crate may know which. Arrows run downwards only:
//!
//! ```text
//! base < blob < meta < fs < fuse, corpus < node
//! base < blob < fetch < cache < node      base < blob < fetch < net < fleet < node
//! base < blob < origin < node      base < blob < meta < tree < node      meta < fs < archive
//! meta < engines < node
//! base < api < archive < node < cli      fs < gateway < cli      watch < node
//! base < stream < guests < virtio < cli      fuse < guests      base < memory < cli
//! archive < oci < snapshotter < cli
//! ```
//!
//! So `fs` sees neither cache nor origin, which never see each other: only `node` and what is above it choose
//! among them. The compiler keeps this once a manifest is right; this rule keeps the manifests right, and the
//! names in the sources, where a crate handed on by another (`pub use meta;`, `fs::meta::x`) would go round
//! the table.

use crate::Finding;
use crate::source::{Source, is_word};

/// Crate, and the crates it may depend on. A new crate gets a row here first, and a place in ARCHITECTURE.md.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("blob", &["base"]),
    ("meta", &["base", "blob"]),
    ("engines", &["base", "meta"]),
    ("fetch", &["base", "blob"]),
    ("cache", &["base", "blob", "fetch"]),
    ("origin", &["base", "blob"]),
    ("fs", &["base", "blob", "meta"]),
    ("tree", &["base", "blob", "meta"]),
    ("net", &["base", "blob", "fetch"]),
    ("fleet", &["base", "blob", "fetch", "net"]),
    ("corpus", &["base", "fs"]),
    ("fuse", &["base", "fs"]),
    ("folder", &["base", "fs"]),
    ("stream", &["base"]),
    ("guests", &["base", "fs", "fuse", "stream"]),
    ("virtio", &["base", "fs", "fuse", "guests", "stream"]),
    ("memory", &["base"]),
    ("api", &["base"]),
    ("archive", &["base", "meta", "fs", "api"]),
    (
        "node",
        &[
            "base", "archive", "blob", "meta", "engines", "tree", "fetch", "cache", "origin", "net", "fleet",
            "fs", "corpus", "fuse", "api", "watch",
        ],
    ),
    ("csi", &["base", "api", "engines", "fuse", "node"]),
    ("oci", &["base", "fs", "api", "archive"]),
    ("snapshotter", &["base", "api", "oci"]),
    ("gateway", &["base", "fs", "api"]),
    ("ui", &["base", "api"]),
    (
        "cli",
        &[
            "base",
            "archive",
            "blob",
            "meta",
            "engines",
            "tree",
            "fetch",
            "cache",
            "origin",
            "net",
            "fleet",
            "fs",
            "corpus",
            "fuse",
            "api",
            "oci",
            "node",
            "gateway",
            "ui",
            "watch",
            "stream",
            "guests",
            "virtio",
            "folder",
            "memory",
            "snapshotter",
            "csi",
        ],
    ),
    ("watch", &[]),
    ("house", &[]),
];

/// Arrows that only tests may draw: a test wires real parts together where the crate itself sees a trait.
pub const TEST_ARROWS: &[(&str, &[&str])] = &[
    ("fs", &["cache", "origin"]),
    ("tree", &["origin"]),
    ("engines", &["blob"]),
    ("gateway", &["blob", "meta", "cache", "origin"]),
    ("guests", &["corpus", "folder"]),
    ("virtio", &["corpus"]),
];

/// Folders of `crates/` that are not called like their crate.
const FOLDERS: &[(&str, &str)] = &[("s3", "gateway")];

/// The crate in a folder of `crates/`.
fn crate_in(folder: &str) -> &str {
    FOLDERS.iter().find(|(name, _)| *name == folder).map_or(folder, |(_, name)| name)
}

fn allowed(table: &[(&str, &'static [&'static str])], name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(from, _)| *from == name).map(|(_, to)| *to)
}

fn is_ours(name: &str) -> bool {
    allowed(ARROWS, name).is_some()
}

/// Checks one manifest, `crates/<folder>/Cargo.toml`.
pub fn check_manifest(folder: &str, text: &str) -> Vec<Finding> {
    let path = format!("crates/{folder}/Cargo.toml");
    let name = crate_in(folder);
    let Some(below) = allowed(ARROWS, name) else {
        return vec![Finding::new(
            &path,
            0,
            "this crate has no row in the table of crates/house/src/arrows.rs",
        )];
    };
    let below_in_tests = allowed(TEST_ARROWS, name).unwrap_or(&[]);
    let mut findings = Vec::new();
    let mut section = "";
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(head) = line.strip_prefix('[') {
            section = head.trim_end_matches(']');
            continue;
        }
        let key = line.split(['=', '.', ' ']).next().unwrap_or("");
        let to = key.strip_prefix("covey-").unwrap_or(key);
        if !section.ends_with("dependencies") || !is_ours(to) {
            continue;
        }
        let free_in_tests = section == "dev-dependencies" && below_in_tests.contains(&to);
        if !(below.contains(&to) || free_in_tests) {
            let message = format!("{name} may not depend on {to}; below it are: {}", below.join(", "));
            findings.push(Finding::new(&path, number + 1, message));
        }
    }
    findings
}

/// Checks the names that a source of `crates/<folder>` mentions.
pub fn check_source(source: &Source) -> Vec<Finding> {
    let name = source.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).map(crate_in);
    let Some((name, below)) = name.and_then(|name| Some((name, allowed(ARROWS, name)?))) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (to, _) in ARROWS.iter().filter(|(to, _)| *to != name) {
        for at in source.find(&format!("covey_{to}")) {
            let message = format!("crates are imported by their short names: {to}, not covey_{to}");
            findings.push(Finding::new(&source.path, source.line_of(at), message));
        }
        let in_tests = allowed(TEST_ARROWS, name).unwrap_or(&[]).contains(to);
        for at in source.find(to).filter(|&at| !(in_tests && source.in_test(at))) {
            if let Some(message) = misused(source, at, to, below) {
                findings.push(Finding::new(&source.path, source.line_of(at), message));
            }
        }
    }
    findings
}

/// What is wrong with the crate name `to` at this position, if anything is.
fn misused(source: &Source, at: usize, to: &str, below: &[&str]) -> Option<String> {
    let before = source.code.get(..at)?.trim_end();
    let after = source.code.get(at + to.len()..)?.trim_start();
    let ends_path = after.starts_with(';') || after.starts_with("as ");
    if ends_path && (before.ends_with("pub use") || before.ends_with("pub extern crate")) {
        return Some(format!(
            "handing on the whole crate {to} would let others go round the table of arrows"
        ));
    }
    let through = before.strip_suffix("::")?;
    let prefix = through.rsplit(|c: char| !c.is_ascii() || !is_word(c as u8)).next().unwrap_or("");
    let absolute = prefix.is_empty() && !through.ends_with('>');
    // A crate can hand on only what is below it; else it is a module of that name, as `fs::api` is.
    let hands_on = allowed(ARROWS, prefix).is_some_and(|its| its.contains(&to));
    let chained = hands_on && below.contains(&prefix) && after.starts_with("::");
    if (absolute || chained) && !below.contains(&to) {
        return Some(format!("{to} is not below this crate; below it are: {}", below.join(", ")));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_upwards_is_found() {
        let text =
            "[package]\nname = \"covey-meta\"\n[dependencies]\nbase.workspace = true\nfs.workspace = true\n";
        let found = check_manifest("meta", text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 5);
    }

    #[test]
    fn every_way_to_write_an_arrow_is_found() {
        for line in
            ["cache = { path = \"../cache\" }", "cache.workspace = true", "covey-cache = \"0.1\"", "cache={}"]
        {
            for section in
                ["dependencies", "dev-dependencies", "build-dependencies", "target.'cfg(unix)'.dependencies"]
            {
                let found = check_manifest("meta", &format!("[{section}]\n{line}\n"));
                assert_eq!(found.len(), 1, "{section} {line}");
            }
        }
    }

    #[test]
    fn tests_may_draw_some_arrows_that_the_crate_may_not() {
        let findings =
            |section: &str| check_manifest("fs", &format!("[{section}]\norigin.workspace = true\n")).len();
        assert_eq!([findings("dev-dependencies"), findings("dependencies")], [0, 1]);
    }

    #[test]
    fn an_unknown_crate_needs_a_row() {
        assert_eq!(check_manifest("nowhere", "").len(), 1);
    }

    #[test]
    fn a_folder_may_be_called_unlike_its_crate() {
        let findings = |line: &str| check_manifest("s3", &format!("[dependencies]\n{line}\n")).len();
        assert_eq!([findings("fs.workspace = true"), findings("node.workspace = true")], [0, 1]);
        assert_eq!(check_manifest("node", "[dependencies]\ngateway.workspace = true\n").len(), 1);
    }

    #[test]
    fn features_and_other_crates_are_no_arrows() {
        assert!(
            check_manifest("base", "[features]\nfs = []\n[dependencies]\nthiserror.workspace = true\n")
                .is_empty()
        );
    }

    #[test]
    fn going_round_the_table_is_found() {
        let findings = |code: &str| check_source(&Source::new("crates/fuse/src/a.rs", code)).len();
        assert_eq!(findings("use covey_meta::Key;"), 1);
        assert_eq!(findings("use ::meta::Key;"), 1);
        assert_eq!(findings("let x = fs::meta::Key;"), 1);
        assert_eq!(findings("use fs::api::Filesystem;"), 0, "a module");
        assert_eq!(findings("pub use fs;"), 1);
    }

    #[test]
    fn modules_of_the_same_name_are_free() {
        let findings = |code: &str| check_source(&Source::new("crates/fs/src/a.rs", code));
        assert_eq!(
            findings(
                "use crate::cache::Entry; mod cache; use base::Ino; let origin = 1; std::fs::read(p); pub use meta::Key;"
            ),
            []
        );
    }
}
