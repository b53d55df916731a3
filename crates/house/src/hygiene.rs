//! No file names a person's folder, the host of a package registry, or unfinished work.
//!
//! A path of one machine is wrong on every other machine. A registry is the package manager's business.
//! Unfinished work is finished before it is committed, or left out and described in the documents.

use crate::Finding;
use crate::source::{is_word, line_of};

/// Files that other programs or people write byte by byte: the licence, and cargo's lock files.
const FOREIGN: &[&str] = &["LICENSE", "Cargo.lock", "fuzz/Cargo.lock", "sdk/python/Cargo.lock"];

// Written in pieces, so that this file passes its own rule.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const FOLDERS: &[&str] =
    &[concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/"), concat!("/wo", "rk/")];
const HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("proxy.golang", ".org"),
    concat!("deb.debian", ".org"),
    concat!("static.rust-lang", ".org"),
];

/// Checks one file.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    if FOREIGN.contains(&path) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let bytes = text.as_bytes();
    let before = |at: usize| at.checked_sub(1).map(|at| bytes[at]);
    for word in UNFINISHED {
        for (at, _) in text.match_indices(word) {
            let joined =
                before(at).is_some_and(is_word) || bytes.get(at + word.len()).copied().is_some_and(is_word);
            if !joined {
                findings.push(Finding::new(
                    path,
                    line_of(text, at),
                    format!("{word}: finish it, or leave it out"),
                ));
            }
        }
    }
    for folder in FOLDERS {
        for (at, _) in text.match_indices(folder) {
            let inside_a_path = before(at).is_some_and(|byte| is_word(byte) || b".-}~*".contains(&byte));
            if !inside_a_path {
                let message = format!("an absolute path below {folder} is right on one machine only");
                findings.push(Finding::new(path, line_of(text, at), message));
            }
        }
    }
    for host in HOSTS {
        for (at, _) in text.match_indices(host) {
            findings.push(Finding::new(path, line_of(text, at), format!("names the registry host {host}")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_word_is_found() {
        for word in UNFINISHED.iter().chain(HOSTS) {
            assert_eq!(check("docs/a.md", &format!("first\nsecond {word}: x\n"))[0].line, 2, "{word}");
        }
        for folder in FOLDERS {
            for form in [format!("cd {folder}me/x"), format!("\"{folder}me\""), format!("p={folder}")] {
                assert_eq!(check("scripts/a", &form).len(), 1, "{form}");
            }
        }
    }

    #[test]
    fn parts_of_words_and_paths_are_free() {
        let text = format!("{}S net{}x a{}b", UNFINISHED[0], FOLDERS[3], FOLDERS[0]);
        assert_eq!(check("docs/a.md", &text), []);
        assert_eq!(check("Cargo.lock", HOSTS[0]), []);
    }
}
