//! Every dependency's licence is in the list of `deny.toml`.
//!
//! cargo-deny checks the same and more, but takes minutes to build. This rule asks cargo itself and is part
//! of every test run. Both read the same list.

use crate::Finding;
use serde_json::Value;

/// The list `allow = [..]` below `[licenses]` of deny.toml.
pub fn allowed(deny_toml: &str) -> Vec<String> {
    let section = deny_toml.split("[licenses]").nth(1).unwrap_or("");
    let list = section.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The crates of `exceptions = [..]` below `[licenses]`, each with the licences that only it may have. One
/// line each: `{ crate = "NAME", allow = ["LICENCE", ..] },`.
pub fn exceptions(deny_toml: &str) -> Vec<(String, Vec<String>)> {
    let section = deny_toml.split("[licenses]").nth(1).unwrap_or("");
    let list = section.split("exceptions = [").nth(1).and_then(|rest| rest.split("\n]").next()).unwrap_or("");
    let rows = list.lines().filter(|line| line.trim_start().starts_with('{'));
    let words = rows.map(|row| row.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
    words.filter_map(|words| words.split_first().map(|(name, rest)| (name.clone(), rest.to_vec()))).collect()
}

/// Checks the output of `cargo metadata`. Packages without a source are the workspace's own.
///
/// # Errors
/// The text is not the output of `cargo metadata`.
pub fn check(
    metadata: &str,
    allowed: &[String],
    exceptions: &[(String, Vec<String>)],
) -> Result<Vec<Finding>, String> {
    let metadata: Value =
        serde_json::from_str(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let used: Vec<&str> = metadata["resolve"]["nodes"]
        .as_array()
        .ok_or("cargo metadata: no resolve.nodes")?
        .iter()
        .filter_map(|node| node["id"].as_str())
        .collect();
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let in_use = package["id"].as_str().is_some_and(|id| used.contains(&id));
        if package["source"].is_null() || !in_use {
            continue;
        }
        let licence = package["license"].as_str().unwrap_or("");
        let excepted = exceptions.iter().filter(|(name, _)| package["name"] == **name);
        let allowed: Vec<String> = excepted.flat_map(|(_, more)| more).chain(allowed).cloned().collect();
        if !satisfied(licence, &allowed) {
            let name = format!(
                "{} {}",
                package["name"].as_str().unwrap_or("?"),
                package["version"].as_str().unwrap_or("")
            );
            let message = format!("the licence of {name}, \"{licence}\", is not in the list of deny.toml");
            findings.push(Finding::new("Cargo.lock", 0, message));
        }
    }
    Ok(findings)
}

/// Whether the allowed licences satisfy a licence expression: any side of OR, both sides of AND.
fn satisfied(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    !tokens.is_empty() && any_of(&tokens, &mut at, allowed) && at == tokens.len()
}

fn any_of(tokens: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut good = all_of(tokens, at, allowed);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        good |= all_of(tokens, at, allowed);
    }
    good
}

fn all_of(tokens: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut good = one(tokens, at, allowed);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        good &= one(tokens, at, allowed);
    }
    good
}

fn one(tokens: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let Some(&token) = tokens.get(*at) else {
        return false;
    };
    *at += 1;
    if token == "(" {
        let good = any_of(tokens, at, allowed);
        *at += 1;
        return good;
    }
    let mut name = token.to_owned();
    if tokens.get(*at) == Some(&"WITH") {
        name = format!("{name} WITH {}", tokens.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    allowed.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Vec<String> {
        allowed(
            "[graph]\nx = 1\n[licenses]\nallow = [\n  \"MIT\",\n  \"Apache-2.0 WITH LLVM-exception\",\n  \"ISC\",\n]\n[bans]\nallow = [\"GPL-3.0\"]\n",
        )
    }

    #[test]
    fn the_list_is_read() {
        assert_eq!(list(), ["MIT", "Apache-2.0 WITH LLVM-exception", "ISC"]);
    }

    #[test]
    fn expressions_are_weighed() {
        let good = [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "MIT AND ISC",
            "(GPL-3.0 OR MIT) AND ISC",
            "Apache-2.0 WITH LLVM-exception",
        ];
        let bad = ["", "GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "(MIT OR ISC) AND GPL-3.0", "MIT ISC"];
        for (expressions, expected) in [(&good, true), (&bad, false)] {
            for expression in expressions {
                assert_eq!(satisfied(expression, &list()), expected, "{expression}");
            }
        }
    }

    #[test]
    fn a_refused_licence_is_found() {
        let metadata = r#"{"packages": [
            {"id": "a", "name": "a", "version": "1.0.0", "license": "GPL-3.0", "source": "registry"},
            {"id": "b", "name": "b", "version": "1.0.0", "license": null, "source": "registry"},
            {"id": "c", "name": "c", "version": "1.0.0", "license": "MIT", "source": "registry"},
            {"id": "d", "name": "unused", "version": "1.0.0", "license": "GPL-3.0", "source": "registry"},
            {"id": "e", "name": "ours", "version": "1.0.0", "license": null, "source": null}],
            "resolve": {"nodes": [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "e"}]}}"#;
        let found = check(metadata, &list(), &[]).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        let listed = "[licenses]\nexceptions = [\n    { crate = \"a\", allow = [\"X\", \"GPL-3.0\"] },\n]\n";
        let excepted = exceptions(listed);
        assert_eq!(excepted, [("a".to_owned(), vec!["X".to_owned(), "GPL-3.0".to_owned()])]);
        let found = check(metadata, &list(), &excepted).unwrap();
        assert_eq!(found.len(), 1, "an exception is for one crate: {found:?}");
        assert!(check("no json", &list(), &[]).is_err());
    }
}
