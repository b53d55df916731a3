//! containerd's filters, by which it lists snapshots.
//!
//! ```text
//!   filter     selector ("," selector)*        all of them must hold
//!   selector   path [("==" | "!=") value]      without a value: there is something at the path
//!   path       name ("." name)*                name, parent, kind, labels.LABEL
//!   value      quoted, or everything up to a comma
//! ```
//!
//! A name or a value may be quoted, as Go writes strings. Regular expressions (`~=`) are refused: containerd
//! itself never sends one.

use crate::record::Record;

/// One filter.
#[derive(Debug, PartialEq, Eq)]
pub struct Filter(Vec<Selector>);

#[derive(Debug, PartialEq, Eq)]
struct Selector {
    path: Vec<String>,
    test: Test,
}

#[derive(Debug, PartialEq, Eq)]
enum Test {
    Present,
    Equal(String),
    Other(String),
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// It cannot be understood. The text says why.
    pub fn parse(text: &str) -> Result<Filter, String> {
        let mut rest = text;
        let mut selectors = Vec::new();
        while !rest.is_empty() {
            selectors.push(selector(&mut rest)?);
            match rest.strip_prefix(',') {
                Some("") => return Err("it ends with a comma".to_owned()),
                Some(after) => rest = after,
                None if rest.is_empty() => {}
                None => return Err(format!("a comma is missing before {rest:?}")),
            }
        }
        Ok(Filter(selectors))
    }

    /// Whether a snapshot matches. `parent` is the name of the one below it.
    pub fn matches(&self, record: &Record, parent: &str) -> bool {
        self.0.iter().all(|selector| {
            let value = value_of(record, parent, &selector.path);
            match &selector.test {
                Test::Present => value.is_some(),
                Test::Equal(wanted) => value == Some(wanted.as_str()),
                Test::Other(unwanted) => value != Some(unwanted.as_str()),
            }
        })
    }
}

/// What a snapshot has at a path.
fn value_of<'a>(record: &'a Record, parent: &'a str, path: &[String]) -> Option<&'a str> {
    match path.first().map(String::as_str) {
        Some("labels") => record.labels.get(&path[1..].join(".")).map(String::as_str),
        Some("name") => Some(&record.name),
        Some("parent") => Some(parent),
        Some("kind") => Some(record.kind.word()),
        _ => None,
    }
}

fn selector(rest: &mut &str) -> Result<Selector, String> {
    let mut path = vec![name(rest)?];
    while let Some(after) = rest.strip_prefix('.') {
        *rest = after;
        path.push(name(rest)?);
    }
    if rest.starts_with("~=") {
        return Err("regular expressions are not supported".to_owned());
    }
    let equal = rest.starts_with("==");
    if !equal && !rest.starts_with("!=") {
        return Ok(Selector { path, test: Test::Present });
    }
    *rest = &rest[2..];
    let value = if rest.starts_with(['"', '`']) {
        quoted(rest)?
    } else {
        let end = rest.find(|c: char| c == ',' || c.is_whitespace()).unwrap_or(rest.len());
        take(rest, end).to_owned()
    };
    Ok(Selector { path, test: if equal { Test::Equal(value) } else { Test::Other(value) } })
}

fn take<'a>(rest: &mut &'a str, end: usize) -> &'a str {
    let (taken, after) = rest.split_at(end);
    *rest = after;
    taken
}

fn name(rest: &mut &str) -> Result<String, String> {
    if rest.starts_with(['"', '`']) {
        return quoted(rest);
    }
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
    if end == 0 {
        return Err(format!("the name of a field is missing before {rest:?}"));
    }
    Ok(take(rest, end).to_owned())
}

/// A string between quotation marks or back quotes, as Go writes it.
fn quoted(rest: &mut &str) -> Result<String, String> {
    let unclosed = || "a quotation mark is not closed".to_owned();
    if let Some(raw) = rest.strip_prefix('`') {
        let (text, after) = raw.split_once('`').ok_or_else(unclosed)?;
        *rest = after;
        return Ok(text.to_owned());
    }
    let mut text = String::new();
    let mut chars = rest[1..].char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                *rest = &rest[at + 2..];
                return Ok(text);
            }
            '\\' => match chars.next().map(|(_, c)| c) {
                Some(c @ ('"' | '\\' | '\'')) => text.push(c),
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some(c @ ('x' | 'u' | 'U')) => text.push(code_point(c, &mut chars)?),
                other => return Err(format!("the escape \\{} is not supported", other.unwrap_or(' '))),
            },
            c => text.push(c),
        }
    }
    Err(unclosed())
}

/// The character of `\xNN`, `\uNNNN` or `\UNNNNNNNN`. Of the first kind only ASCII.
fn code_point(kind: char, chars: &mut std::str::CharIndices<'_>) -> Result<char, String> {
    let digits = match kind {
        'x' => 2,
        'u' => 4,
        _ => 8,
    };
    let text: String = chars.take(digits).map(|(_, c)| c).collect();
    let code = u32::from_str_radix(&text, 16)
        .ok()
        .filter(|code| text.len() == digits && (digits > 2 || *code < 128));
    code.and_then(char::from_u32).ok_or_else(|| format!("the escape \\{kind}{text} is no character"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Kind, REFERENCE, Used, VERSION};

    fn record() -> Record {
        let labels = [(REFERENCE, "sha256:ab"), ("containerd.io/gc.root", "x, \"y\"")];
        Record {
            version: VERSION,
            id: 1,
            name: "k8s.io/3/sha256:ab".to_owned(),
            parent: None,
            kind: Kind::Committed,
            chain: None,
            layer: None,
            created_ns: 0,
            updated_ns: 0,
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            used: Used::default(),
        }
    }

    #[test]
    fn filters_select_as_containerd_means_them() {
        let cases = [
            ("", true),
            // What containerd sends after "it exists already".
            (r#"labels."containerd.io/snapshot.ref"==sha256:ab,parent=="k8s.io/2/sha256:cd""#, true),
            (r#"labels."containerd.io/snapshot.ref"==sha256:ab,parent=="""#, false),
            (r#"labels."containerd.io/snapshot.ref"==sha256:ac"#, false),
            ("kind==committed", true),
            ("kind!=committed", false),
            ("kind!=active,name", true),
            ("labels.none!=x", true),
            ("labels.none", false),
            (r#"labels."containerd.io/gc.root"=="x, \"y\"""#, true),
            ("labels.`containerd.io/gc.root`==\"x, \\u0022y\\x22\"", true),
            ("size", false),
        ];
        for (text, expected) in cases {
            assert_eq!(
                Filter::parse(text).unwrap().matches(&record(), "k8s.io/2/sha256:cd"),
                expected,
                "{text}"
            );
        }
        assert!(Filter::parse(r#"parent=="""#).unwrap().matches(&record(), ""), "no parent");
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for text in [
            ",",
            "kind==a,",
            "kind=a",
            r#"name=="a"#,
            r#"name=="\q""#,
            r#"name=="\xff""#,
            "name~=a.*",
            "a b",
            ".",
        ] {
            assert!(Filter::parse(text).is_err(), "{text}");
        }
    }
}
