//! All parts of the repository have the version of the changelog's top section.
//!
//! Users compare what `covey --version` prints with the changelog, and a chart names the image of its own
//! version. A version that is raised in one place only makes one of them wrong.

use crate::Finding;

/// Where a version is, and the words before it. In the manifest of a workspace or package that is the first
/// `version`.
const PLACES: &[(&str, &str)] = &[
    ("Cargo.toml", "\nversion = \""),
    ("fuzz/Cargo.toml", "\nversion = \""),
    ("sdk/python/Cargo.toml", "\nversion = \""),
    ("deploy/helm/covey/Chart.yaml", "\nversion: "),
    ("deploy/helm/covey/Chart.yaml", "\nappVersion: "),
    ("deploy/kubernetes/controller.yaml", " image: covey:"),
    ("deploy/kubernetes/exclusive.yaml", " image: covey:"),
    ("deploy/kubernetes/node.yaml", " image: covey:"),
    ("deploy/Dockerfile", "/covey:"),
    ("docs/KUBERNETES.md", "/covey:"),
];

/// Checks all of them. `read` gives the text of a file.
pub fn check<'a>(read: impl Fn(&str) -> Option<&'a str>) -> Vec<Finding> {
    let Some(wanted) = read("CHANGELOG.md").and_then(|text| after(text, "\n## ")) else {
        return vec![Finding::new(
            "CHANGELOG.md",
            0,
            "no section names a version: write ## 1.2.3, unreleased",
        )];
    };
    let wrong = |(path, before): &(&str, &str)| {
        let found = read(path).and_then(|text| after(text, before));
        let message = match found {
            Some(found) if found == wanted => return None,
            Some(found) => {
                format!("has the version {found}, and the changelog {wanted}: write the same to both")
            }
            None => format!("has no version after {before:?}: name the new place in versions.rs"),
        };
        Some(Finding::new(path, 0, message))
    };
    PLACES.iter().filter_map(wrong).collect()
}

/// The version behind the first of these words. Not empty.
fn after<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    let rest = &text[text.find(words)? + words.len()..];
    let end = rest.find(|part: char| !(part.is_ascii_alphanumeric() || ".-+".contains(part)));
    Some(&rest[..end.unwrap_or(rest.len())]).filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_forgotten_is_found() {
        let all = "\n## 1.2.3, unreleased\nversion = \"1.2.3\"\nversion: 1.2.3\nappVersion: 1.2.3\n\
                   image: covey:1.2.3\n x/covey:1.2.3 .\n"
            .replace("\nimage", "\n image");
        assert_eq!(check(|_| Some(&all)), []);
        for (path, before) in PLACES {
            let old = all.replacen(before, &format!("{before}0.9.0+"), 1);
            let missing = all.replacen(before, "\n", 1);
            for text in [&old, &missing] {
                let found = check(|asked| Some(if asked == *path { text } else { &all }));
                assert_eq!(found.len(), 1, "{path} {before:?}: {found:?}");
            }
        }
        assert_eq!(check(|_| None)[0].path, "CHANGELOG.md");
    }
}
