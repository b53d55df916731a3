//! Modules of a crate know each other in one direction.
//!
//! Where files know each other in a circle, none of them can be read, tested or moved without all the others.
//! A circle of up to four files is one thing in several files, and is free. A larger one is listed below by
//! its size and may only shrink: move what both sides need below them, or hand a value or a closure over
//! instead of the room above.
//!
//! Arrows are the paths that begin with `crate::`, `super::` or `self::`, in `use` and elsewhere, outside of
//! tests. A path leads to the longest part of it that is a file. A crate's root is left out: it declares all
//! others.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::source::{Source, close_of, is_word};

/// So many files may know each other in a circle.
pub const FREE: usize = 4;

/// Circles past that: the crate, and the sizes of its circles, the largest first. Sizes are lowered or
/// removed, never added or raised.
pub const LARGE_CIRCLES: &[(&str, &[usize])] = &[];

type Module = Vec<String>;
type Arrows = BTreeMap<Module, BTreeSet<Module>>;

/// Checks the circles of every crate against a list like [`LARGE_CIRCLES`].
pub fn check(sources: &[Source], list: &[(&str, &[usize])]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(Module, &Source)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        if let Some((name, module)) = place(&source.path) {
            crates.entry(name).or_default().push((module, source));
        }
    }
    let mut findings = Vec::new();
    for (name, files) in &crates {
        let listed = list.iter().find(|(listed, _)| listed == name).map_or(&[][..], |(_, sizes)| *sizes);
        let mut large: Vec<Vec<Module>> =
            circles(&arrows(files)).into_iter().filter(|circle| circle.len() > FREE).collect();
        large.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        let path = format!("crates/{name}/src");
        for at in 0..large.len().max(listed.len()) {
            let size = large.get(at).map_or(0, Vec::len);
            let allowed = listed.get(at).copied().unwrap_or(0);
            let message = match size {
                _ if size == allowed => continue,
                0 => format!("a circle of {allowed} files is listed and gone: remove it in LARGE_CIRCLES"),
                _ if size < allowed => {
                    format!("a circle has {size} files, {allowed} are listed: lower it in LARGE_CIRCLES")
                }
                _ => format!(
                    "{size} files know each other in a circle, {} may: {}",
                    allowed.max(FREE),
                    large[at].iter().map(|module| module.join("::")).collect::<Vec<_>>().join(", ")
                ),
            };
            findings.push(Finding::new(&path, 0, message));
        }
    }
    let gone = list.iter().filter(|(name, _)| !crates.contains_key(name));
    findings.extend(gone.map(|(name, _)| {
        Finding::new(&format!("crates/{name}/src"), 0, "is gone: remove its row in LARGE_CIRCLES")
    }));
    findings
}

/// The crate and the module of a file below `crates/`; the module of a root has no parts.
fn place(path: &str) -> Option<(&str, Module)> {
    let (name, rest) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let mut parts: Module = rest.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod") || ["lib", "main"].contains(&&*parts.join("/")) {
        parts.pop();
    }
    Some((name, parts))
}

/// Which file knows which.
fn arrows(files: &[(Module, &Source)]) -> Arrows {
    let known: BTreeSet<&Module> = files.iter().map(|(module, _)| module).collect();
    let longest = |path: &[String]| {
        (1..=path.len()).rev().map(|len| path[..len].to_vec()).find(|part| known.contains(part))
    };
    let mut arrows = Arrows::new();
    for (module, source) in files {
        let to = arrows.entry(module.clone()).or_default();
        for path in paths(module, source) {
            to.extend(longest(&path).filter(|to| to != module));
        }
    }
    arrows
}

/// All paths that a file mentions, from the crate's root.
fn paths(module: &Module, source: &Source) -> Vec<Module> {
    let mut found = Vec::new();
    for root in ["crate", "super", "self"] {
        for at in source.find(root).filter(|&at| !source.in_test(at)) {
            let (before, rest) = source.code.split_at(at);
            // Inside of a longer path, or `&self`.
            if before.trim_end().ends_with("::") || !rest[root.len()..].trim_start().starts_with("::") {
                continue;
            }
            let mut tree = Vec::new();
            walk(rest, &mut Vec::new(), &mut tree);
            found.extend(tree.into_iter().filter_map(|path| from_root(module, path, nested(source, at))));
        }
    }
    found
}

/// How many modules that are written inside of the file a position is in.
fn nested(source: &Source, at: usize) -> usize {
    let inside = |start: usize| {
        let rest = &source.code[start + 3..];
        let name = rest.trim_start();
        let word = name.bytes().take_while(|&byte| is_word(byte)).count();
        let body = rest.len() - name.len() + word;
        let opens = rest[body..].trim_start().starts_with('{');
        let open = start + 3 + body + rest[body..].find('{').unwrap_or(0);
        word > 0 && opens && (open..close_of(&source.code, open)).contains(&at)
    };
    source.find("mod").filter(|&start| start < at && inside(start)).count()
}

/// A path that begins with `crate`, `super` or `self`, from the crate's root.
fn from_root(module: &Module, path: Vec<String>, nested: usize) -> Option<Module> {
    let mut base = module.clone();
    let mut inner = nested;
    let mut parts = path.into_iter().peekable();
    match parts.next()?.as_str() {
        "crate" => base.clear(),
        "super" => {
            let mut up = 1;
            while parts.next_if(|part| part == "super").is_some() {
                up += 1;
            }
            for _ in 0..up {
                match inner.checked_sub(1) {
                    Some(less) => inner = less,
                    None => drop(base.pop()),
                }
            }
        }
        _ => {}
    }
    base.extend(parts);
    Some(base)
}

/// Follows `a::b::{c, d::e}` from its first word; gives the length that was read.
fn walk(code: &str, prefix: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let start = code.len() - code.trim_start().len();
    let rest = &code[start..];
    if rest.starts_with('{') {
        let end = close_of(rest, 0);
        let mut at = 1;
        while at + 1 < end {
            at += walk(&rest[at..end - 1], prefix, found);
            // Past ` as name` and the comma.
            at += rest[at..end].find([',', '}']).unwrap_or(0) + 1;
        }
        return start + end;
    }
    let word = rest.bytes().take_while(|&byte| is_word(byte)).count();
    let after = &rest[word..];
    let colons = after.len() - after.trim_start().len();
    if word > 0 && after.trim_start().starts_with("::") {
        prefix.push(rest[..word].to_owned());
        let read = walk(&after[colons + 2..], prefix, found);
        prefix.pop();
        return start + word + colons + 2 + read;
    }
    let mut path = prefix.clone();
    if word > 0 && &rest[..word] != "self" {
        path.push(rest[..word].to_owned());
    }
    found.push(path);
    start + word
}

/// The sets of more than one module of which each reaches each other.
fn circles(arrows: &Arrows) -> Vec<Vec<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        arrows.keys().map(|module| (module, reach(arrows, module))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for module in arrows.keys() {
        let back = |other: &&Module| reached.get(*other).is_some_and(|its| its.contains(module));
        let circle: Vec<Module> = reached[module].iter().copied().filter(back).cloned().collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            found.push(circle);
        }
    }
    found
}

/// What can be come to from a module.
fn reach<'a>(arrows: &'a Arrows, from: &Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&Module> = arrows.get(from).into_iter().flatten().collect();
    while let Some(module) = left.pop() {
        if reached.insert(module) {
            left.extend(arrows.get(module).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files `a`, `b`, ... of which each says what is given.
    fn files(texts: &[(&str, &str)]) -> Vec<Source> {
        texts.iter().map(|(name, text)| Source::new(&format!("crates/x/src/{name}.rs"), text)).collect()
    }

    fn ring(size: u8) -> Vec<Source> {
        let name = |at: u8| char::from(b'a' + at % size).to_string();
        let texts: Vec<(String, String)> =
            (0..size).map(|at| (name(at), format!("use crate::{}::Thing;", name(at + 1)))).collect();
        files(&texts.iter().map(|(name, text)| (&**name, &**text)).collect::<Vec<_>>())
    }

    #[test]
    fn a_large_circle_is_found() {
        assert_eq!(check(&ring(4), &[]), []);
        let found = check(&ring(5), &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("5 files") && found[0].message.ends_with("a, b, c, d, e"));
    }

    #[test]
    fn the_list_only_shrinks() {
        let findings = |sizes: &[usize]| check(&ring(6), &[("x", sizes)]).len();
        assert_eq!(findings(&[6]), 0);
        assert_eq!(findings(&[5]), 1, "grown");
        assert_eq!(findings(&[7]), 1, "shrunk");
        assert_eq!(findings(&[6, 5]), 1, "the second is gone");
        assert_eq!(check(&[], &[("x", &[5])]).len(), 1, "the crate is gone");
    }

    #[test]
    fn every_way_to_write_a_path_is_an_arrow() {
        let known = |text: &str| {
            let sources =
                files(&[("a/b", text), ("a", ""), ("a/c", ""), ("a/b/d", ""), ("e", ""), ("lib", "")]);
            let placed: Vec<_> =
                sources.iter().map(|source| (place(&source.path).unwrap().1, source)).collect();
            let to = arrows(&placed).remove(&vec!["a".to_owned(), "b".to_owned()]).unwrap();
            to.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(known("use crate::e::Thing;"), "e");
        assert_eq!(known("use crate::{a::{self, c::{X, Y as Z}}, e};"), "a a::c e");
        assert_eq!(known("use super::c::X;\nuse super::super::e;"), "a::c e");
        assert_eq!(known("pub use self::d::X;"), "a::b::d");
        assert_eq!(known("fn f() { super::c::go(crate::e::X); self.c(); }"), "a::c e");
        assert_eq!(known("mod inner { use super::X; use super::super::c::Y; }"), "a::c");
        assert_eq!(known("#[cfg(test)]\nmod tests { use crate::e::X; }\n// crate::e::X"), "");
        assert_eq!(known("use crate::Nothing; pub(crate) fn f(&self) {}"), "");
    }
}
