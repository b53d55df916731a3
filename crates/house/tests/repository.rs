//! The rules of `covey-house`, applied to this repository.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

use covey_house::tree::Tree;
use covey_house::{
    Finding, arrows, circles, essays, hygiene, language, lengths, licences, links, programs, quick, safety,
    threads, versions, words,
};
use std::process::Command;
use std::sync::LazyLock;

static TREE: LazyLock<Tree> = LazyLock::new(|| Tree::load().expect("the repository can be read"));

fn none(findings: Vec<Finding>) {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "{} finding(s):\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn the_tree_was_read() {
    assert!(
        TREE.sources.len() > 10 && TREE.texts.contains_key("Cargo.toml"),
        "too few files in {:?}",
        TREE.root
    );
}

#[test]
fn arrows_run_downwards_only() {
    let manifest =
        |name: &&str| arrows::check_manifest(name, &TREE.texts[&format!("crates/{name}/Cargo.toml")]);
    none(TREE.crates().iter().flat_map(manifest).collect());
    none(TREE.sources.iter().flat_map(arrows::check_source).collect());
}

#[test]
fn modules_know_each_other_in_one_direction() {
    none(circles::check(&TREE.sources, circles::LARGE_CIRCLES));
}

#[test]
fn files_are_short() {
    none(lengths::check_files(&TREE.sources, lengths::LONG_FILES));
}

#[test]
fn functions_are_short() {
    none(lengths::check_functions(&TREE.sources, lengths::LONG_FUNCTIONS));
}

#[test]
fn production_code_uses_base_for_clocks_threads_and_random_numbers() {
    none(TREE.sources.iter().flat_map(words::check).collect());
}

#[test]
fn every_thread_is_in_the_table_of_architecture() {
    none(threads::check(&TREE.sources, &TREE.texts["ARCHITECTURE.md"]));
}

#[test]
fn every_test_program_is_the_only_one_or_says_why() {
    none(programs::check(&TREE.texts, programs::PROGRAMS));
}

#[test]
fn all_parts_have_the_version_of_the_changelog() {
    none(versions::check(|path| TREE.texts.get(path).map(String::as_str)));
}

#[test]
fn every_unsafe_says_why() {
    none(TREE.sources.iter().flat_map(safety::check).collect());
}

#[test]
fn every_module_opens_with_an_essay() {
    none(TREE.sources.iter().filter_map(essays::check).collect());
}

#[test]
fn files_name_no_machine_and_nothing_unfinished() {
    none(TREE.texts.iter().flat_map(|(path, text)| hygiene::check(path, text)).collect());
}

#[test]
fn documents_and_comments_use_standard_words_and_short_lines() {
    let rust = TREE.texts.iter().filter(|(path, _)| path.ends_with(".rs"));
    let documents =
        TREE.texts.iter().filter(|(path, _)| path.ends_with(".md") && !path.starts_with("bench/results/"));
    let findings = rust.flat_map(|(path, text)| language::check_source(path, text));
    none(findings.chain(documents.flat_map(|(path, text)| language::check_document(path, text))).collect());
}

#[test]
fn links_of_the_documents_have_targets() {
    let exists = |path: &str| TREE.root.join(path).exists();
    let documents = TREE.texts.keys().filter(|path| path.ends_with(".md"));
    none(documents.flat_map(|path| links::check(path, &TREE.texts, exists)).collect());
}

/// `make run-fleet` ended at once: `scripts/bootstrap` had the packages for its argument, but did not accept
/// the argument.
#[test]
fn regression_bootstrap_takes_every_word_that_the_makefile_gives_it() {
    let bootstrap = &TREE.texts["scripts/bootstrap"];
    let case = bootstrap.lines().skip_while(|line| *line != "case $what in").nth(1).unwrap_or("");
    let known: Vec<&str> = case.trim().trim_end_matches(") ;;").split(" | ").collect();
    let given = TREE.texts["Makefile"].split("scripts/bootstrap ").skip(1);
    let given: Vec<&str> = given.filter_map(|rest| rest.split_whitespace().next()).collect();
    assert!(given.len() > 5 && known.contains(&"build"), "{given:?} {known:?}");
    let unknown: Vec<&&str> = given.iter().filter(|word| !known.contains(word)).collect();
    assert!(unknown.is_empty(), "scripts/bootstrap does not know {unknown:?}: {case}");
}

#[test]
fn licences_of_the_dependencies_are_in_the_list() {
    let allowed = licences::allowed(&TREE.texts["deny.toml"]);
    let exceptions = licences::exceptions(&TREE.texts["deny.toml"]);
    assert!(allowed.len() > 3, "deny.toml lists {allowed:?}");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let metadata = |extra: &[&str]| {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut command = Command::new(&cargo);
        command.current_dir(&TREE.root).args([
            "metadata",
            "--format-version",
            "1",
            "--filter-platform",
            &platform,
        ]);
        command.args(extra).output().expect("cargo runs")
    };
    // All packages are here already, since this was just built. If cargo is configured otherwise, ask online.
    let offline = metadata(&["--offline"]);
    let output = if offline.status.success() { offline } else { metadata(&[]) };
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    none(
        licences::check(&String::from_utf8_lossy(&output.stdout), &allowed, &exceptions)
            .expect("cargo metadata prints JSON"),
    );
}

#[test]
fn the_program_of_make_run_has_no_crate_without_need() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut tree = Command::new(cargo);
    tree.current_dir(&TREE.root).args([
        "tree",
        "--locked",
        "--package",
        "covey-cli",
        "--no-default-features",
    ]);
    let output = tree.args(["--edges", "normal,build", "--prefix", "none"]).output().expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    none(quick::check(&String::from_utf8_lossy(&output.stdout)));
}

/// Rules and dashboards for Prometheus and Grafana name only metrics that exist.
#[test]
fn packaged_dashboards_name_metrics_that_exist() {
    let read = |path: &str| std::fs::read_to_string(TREE.root.join(path)).unwrap();
    let known = read("docs/METRICS.md");
    let mut unknown = Vec::new();
    for path in ["packaging/grafana/covey.json", "packaging/prometheus/alerts.yml"] {
        let text = read(path);
        let words = text.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_');
        let mut found = 0;
        for name in words.filter(|word| word.starts_with("covey_")) {
            found += 1;
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            if !known.contains(&format!("`{name}`")) && !known.contains(&format!("`{name}{{")) {
                unknown.push(format!("{path}: {name}"));
            }
        }
        assert!(found > 5, "{path} names no metrics");
    }
    assert!(unknown.is_empty(), "not in docs/METRICS.md: {unknown:?}");
}
