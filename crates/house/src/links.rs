//! Every relative link in the documents has a target: a file or folder of the repository, and a heading if
//! the link names one.

use crate::Finding;
use std::collections::BTreeMap;

/// Checks one Markdown file of `texts`. `exists` says whether a relative path exists.
pub fn check(path: &str, texts: &BTreeMap<String, String>, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let Some(text) = texts.get(path) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (line, target) in targets(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
        let file = if file.is_empty() { path.to_owned() } else { resolve(path, file) };
        if !exists(&file) {
            findings.push(Finding::new(path, line, format!("links to {target}, which does not exist")));
        } else if !heading.is_empty() && texts.get(&file).is_some_and(|text| !has_heading(text, heading)) {
            findings.push(Finding::new(path, line, format!("links to {target}: no such heading")));
        }
    }
    findings
}

/// Lines and targets of the links `[text](target)`, outside code blocks.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for (at, _) in line.match_indices("](") {
            let target = line[at + 2..].split([')', ' ']).next().unwrap_or("");
            found.push((number, target.to_owned()));
        }
    }
    found
}

/// The numbered lines outside fenced code blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((number + 1, line))
    })
}

/// A path relative to the file `from`, made relative to the repository.
fn resolve(from: &str, to: &str) -> String {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in to.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Whether a heading of the text has this anchor, made as the usual renderers make it.
fn has_heading(text: &str, anchor: &str) -> bool {
    prose(text).any(|(_, line)| {
        let kept =
            line.trim_start_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        line.starts_with('#') && kept.collect::<String>().to_lowercase().replace(' ', "-") == anchor
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<Finding> {
        let style = "# Style\n\n## What we refuse, and why\n".to_owned();
        let texts =
            BTreeMap::from([("docs/a.md".to_owned(), text.to_owned()), ("docs/STYLE.md".to_owned(), style)]);
        check("docs/a.md", &texts, |path| texts.contains_key(path) || path == "README.md" || path == "docs")
    }

    #[test]
    fn a_dead_link_is_found() {
        for dead in
            ["[x](GONE.md)", "[x](../docs/GONE.md)", "[x](STYLE.md#no-such)", "[x](#nothing)", "![x](a.png)"]
        {
            assert_eq!(findings(&format!("# A\n\n{dead}\n")).len(), 1, "{dead}");
        }
    }

    #[test]
    fn a_living_link_is_not() {
        let text = "# A b\n[x](STYLE.md) [y](../README.md), [z](STYLE.md#what-we-refuse-and-why) [w](#a-b) [v](https://example.org/x)\n```\n[c](code)\n```\n";
        assert_eq!(findings(text), []);
    }
}
