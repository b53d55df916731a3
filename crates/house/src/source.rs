//! A masked Rust source: the text with comments and the insides of literals replaced by blanks.
//!
//! The mask has the same bytes per line as the text, so a position in one is a position in the other. So no
//! comment or string can hide or fake what a rule looks for. This module also finds out which lines are test
//! code: whole files by their place, parts of files by `#[cfg(test)]` and `#[test]`.

use std::ops::Range;

/// One Rust file.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file's path relative to the repository, with `/`.
    pub path: String,
    /// The text on disk.
    pub text: String,
    /// The text with comments and the insides of literals blanked.
    pub code: String,
    /// Byte ranges of `code` that only tests compile.
    tests: Vec<Range<usize>>,
}

impl Source {
    /// Masks a text.
    pub fn new(path: &str, text: &str) -> Source {
        let code = mask(text);
        let tests =
            if is_test_path(path) { std::iter::once(0..code.len()).collect() } else { test_items(&code) };
        Source { path: path.to_owned(), text: text.to_owned(), code, tests }
    }

    /// Marks the whole file as test code (a module whose `mod` line has `#[cfg(test)]`).
    pub fn set_test(&mut self) {
        self.tests = std::iter::once(0..self.code.len()).collect();
    }

    /// Whether only tests compile the byte at this position.
    pub fn in_test(&self, position: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&position))
    }

    /// Whether only tests compile the whole file.
    pub fn is_test(&self) -> bool {
        self.tests.first().is_some_and(|range| *range == (0..self.code.len()))
    }

    /// The line of a byte position, from 1.
    pub fn line_of(&self, position: usize) -> usize {
        line_of(&self.code, position)
    }

    /// Positions of `word` in the code, where it is not a part of a longer word.
    pub fn find<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        let code = self.code.as_bytes();
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            let joined = |edge: Option<u8>, other: Option<&u8>| {
                edge.is_some_and(is_word) && other.is_some_and(|&byte| is_word(byte))
            };
            let before = at.checked_sub(1).and_then(|i| code.get(i));
            let after = code.get(at + word.len());
            !joined(word.bytes().next(), before) && !joined(word.bytes().last(), after)
        })
    }

    /// Paths (relative, without `.rs`) of the modules that this file declares for tests only.
    pub fn test_modules(&self) -> Vec<String> {
        let stem = self.path.trim_end_matches(".rs");
        let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
        let below = if matches!(name, "lib" | "main" | "mod") { folder } else { stem };
        let declared = self.tests.iter().filter_map(|range| {
            let item = self.code.get(range.clone())?.trim_end();
            item.strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| name.trim())
        });
        declared.map(|module| format!("{below}/{module}")).collect()
    }
}

/// Whether a byte can be part of an identifier.
pub fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// The line of a byte position, from 1.
pub fn line_of(text: &str, position: usize) -> usize {
    1 + text.bytes().take(position).filter(|&byte| byte == b'\n').count()
}

/// The position just past the bracket that closes the one at `open`, or the end.
pub fn close_of(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// The end of the item that begins at `start`: past its `;`, or past the brace that closes its body.
pub fn item_end(code: &str, start: usize) -> usize {
    let bytes = code.as_bytes();
    let mut at = start;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b';' => return at + 1,
            b'{' => return close_of(code, at),
            b'(' | b'[' => at = close_of(code, at),
            _ => at += 1,
        }
    }
    code.len()
}

fn is_test_path(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    ["/tests/", "/benches/", "/examples/"].iter().any(|folder| path.contains(folder))
        || path.starts_with("tests/")
        || path.starts_with("bench/")
        || name == "tests.rs"
}

/// Ranges of the items with a test attribute.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (start, _) in code.match_indices("#[") {
        if found.last().is_some_and(|last| last.contains(&start)) {
            continue;
        }
        let end = close_of(code, start + 1);
        let attribute: String = code.get(start + 2..end - 1).unwrap_or("").split_whitespace().collect();
        let for_tests = attribute == "test"
            || attribute == "cfg(test)"
            || attribute.starts_with("cfg(all(test,") && !attribute.contains("any(");
        if for_tests {
            found.push(start..item_end(code, end));
        }
    }
    found
}

/// Blanks comments and the insides of literals. Line ends stay.
fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let inside = if rest.starts_with(b"//") {
            at..at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            at..at + block_comment(rest)
        } else if let Some(hashes) = raw_string(bytes, at) {
            let open = at + rest.iter().position(|&byte| byte == b'"').unwrap_or(0) + 1;
            open..open + raw_end(&bytes[open..], hashes)
        } else if bytes[at] == b'"' {
            at + 1..at + 1 + quoted(&bytes[at + 1..], b'"')
        } else if bytes[at] == b'\'' {
            at + 1..at + 1 + character(&text[at + 1..])
        } else {
            at += 1;
            continue;
        };
        for byte in &mut out[inside.clone()] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        // A literal's closing quote must not open another literal. Comments have no closing quote to skip.
        at = inside.end + usize::from(!rest.starts_with(b"/"));
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Length of the block comment at the start, including nested ones.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The number of `#` of the raw string that begins here, if one does.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let preceded = at.checked_sub(1).is_some_and(|before| is_word(bytes[before]));
    if preceded {
        return None;
    }
    let prefix = [&b"r"[..], b"br", b"cr"].into_iter().find(|prefix| bytes[at..].starts_with(prefix))?;
    let rest = &bytes[at + prefix.len()..];
    let hashes = rest.iter().take_while(|&&byte| byte == b'#').count();
    (rest.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// Length of a raw string's inside.
fn raw_end(rest: &[u8], hashes: usize) -> usize {
    let closes = |at: &usize| {
        rest[*at] == b'"' && rest[at + 1..].iter().take(hashes).filter(|&&b| b == b'#').count() == hashes
    };
    (0..rest.len()).find(closes).unwrap_or(rest.len())
}

/// Length of a quoted literal's inside, up to its closing quote.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 0;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at.min(rest.len())
}

/// Length of a character literal's inside, or 0 if the quote begins a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.chars();
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => quoted(rest.as_bytes(), b'\''),
        (Some(one), Some('\'')) => one.len_utf8(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_and_lines_keep_their_length() {
        let text = "let a = \"x.unwrap()\"; // y.unwrap()\nlet b = r#\"panic!\"\"#; /* a /* b */ c */ let c = b'\\'';\nlet d: &'a str = \"\\\"q\"; z('\"', '{');\n";
        let code = mask(text);
        assert_eq!(code.len(), text.len());
        for gone in ["unwrap", "panic", "a /* b", "{", "q"] {
            assert!(!code.contains(gone), "{gone} is still in {code}");
        }
        for kept in ["let a = ", "let b = r#\"", "let c = b'", "&'a str", "z('"] {
            assert!(code.contains(kept), "{kept} is gone from {code}");
        }
    }

    #[test]
    fn lifetimes_do_not_swallow_code() {
        let code = mask("fn f<'a>(x: &'a str, y: &'static str) -> char { 'x' }");
        assert!(code.contains("x: &'a str, y: &'static str) -> char { ' ' }"), "{code}");
    }

    #[test]
    fn words_are_whole_words() {
        let source = Source::new("crates/a/src/b.rs", "fn rand() {} my_rand::x(); rand::y();");
        assert_eq!(source.find("rand::").count(), 1);
        assert_eq!(source.find("rand").count(), 2);
    }

    #[test]
    fn test_items_are_known() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(not(test))]\nfn d() {}\n#[test]\nfn e() {}\n";
        let source = Source::new("crates/a/src/b.rs", text);
        let at = |name: &str| source.in_test(text.find(name).unwrap());
        assert_eq!(["fn a", "fn b", "fn c", "fn d", "fn e"].map(at), [false, true, false, false, true]);
    }

    #[test]
    fn test_files_are_known_by_place_and_by_declaration() {
        assert!(Source::new("crates/a/tests/x.rs", "fn a() {}").is_test());
        assert!(Source::new("crates/a/src/b/tests.rs", "fn a() {}").is_test());
        assert!(!Source::new("crates/a/src/b.rs", "fn a() {}").is_test());
        let declares = |path: &str| Source::new(path, "#[cfg(test)]\nmod model;\n").test_modules();
        assert_eq!(declares("crates/a/src/lib.rs"), ["crates/a/src/model"]);
        assert_eq!(declares("crates/a/src/b.rs"), ["crates/a/src/b/model"]);
    }
}
