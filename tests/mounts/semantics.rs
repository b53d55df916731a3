//! docs/SEMANTICS.md is true: its table of opcodes is the program's, and every test it names exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fuse::abi::opcodes;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SEMANTICS.md");

/// The names of all functions in the repository that carry `#[test]`.
fn tests_of_the_repository() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![root.join("crates"), root.join("tests")];
    let mut found = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                found.extend(tests_of(&fs::read_to_string(path).unwrap()));
            }
        }
    }
    found
}

/// The functions that have `#[test]` among the attributes on the lines before them. Also functions that a
/// macro of proptest or of a conformance suite turns into tests: there the attribute is in the macro.
fn tests_of(text: &str) -> impl Iterator<Item = String> + '_ {
    let in_a_macro = text.contains("conformance!") || text.contains("proptest!");
    let mut marked = false;
    text.lines().filter_map(move |line| {
        let line = line.trim();
        marked |= line == "#[test]";
        let name = line.strip_prefix("fn ").or_else(|| line.strip_prefix("pub fn "))?;
        let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        (std::mem::take(&mut marked) || in_a_macro).then_some(name)
    })
}

/// Words in backticks that look like the name of a test: three or more words joined by underscores.
fn names_in(text: &str) -> BTreeSet<&str> {
    let spans = text.split('`').skip(1).step_by(2);
    spans
        .filter(|span| {
            span.matches('_').count() >= 3
                && span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        })
        .collect()
}

#[test]
fn every_test_that_the_document_names_exists() {
    let text = fs::read_to_string(DOCUMENT).unwrap();
    let (named, there) = (names_in(&text), tests_of_the_repository());
    assert!(named.len() > 40, "only {named:?} are named");
    let missing: Vec<_> = named.into_iter().filter(|name| !there.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/SEMANTICS.md names tests that do not exist: {missing:#?}");
}

#[test]
fn the_table_of_opcodes_is_the_programs() {
    let text = fs::read_to_string(DOCUMENT).unwrap();
    let table = text.split("<!-- opcodes -->").nth(1).unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let wanted = opcodes::markdown();
    let wanted: Vec<&str> = wanted.lines().skip(2).collect();
    assert_eq!(rows.len(), wanted.len(), "rows in docs/SEMANTICS.md, and opcodes");
    for (row, wanted) in rows.iter().zip(wanted) {
        let shown_by = row.strip_prefix(wanted);
        let shown_by = shown_by
            .unwrap_or_else(|| panic!("docs/SEMANTICS.md says\n{row}\nbut the program\n{wanted} ... |"));
        assert!(!names_in(shown_by).is_empty(), "no test is named: {row}");
    }
}

#[test]
fn a_missing_test_would_be_noticed() {
    let text = "#[test]\nfn one_two_three_four() {}\nfn not_a_test_at_all() {}\n";
    assert_eq!(tests_of(text).collect::<Vec<_>>(), ["one_two_three_four"]);
    let named: Vec<_> = names_in("`one_two_three_four`, `O_TRUNC`, `a_b`, `f_g_h_i`").into_iter().collect();
    assert_eq!(named, ["f_g_h_i", "one_two_three_four"]);
}
