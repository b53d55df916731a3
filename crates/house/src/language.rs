//! Documents and comments use standard words, and short lines.
//!
//! `docs/STYLE.md` has the table of terms. This rule keeps the part of it that can be searched for: coined
//! words, sentences that begin with the word for a person where a program is meant, doc comments that begin
//! with a pronoun, and prose lines of more than [`WIDE`] columns. Code lines are rustfmt's. Tables, links and
//! code in documents may be longer, because they cannot be wrapped.

use crate::Finding;

/// The most columns of a prose line.
pub const WIDE: usize = 110;

/// Words and phrases that a reader who does not know this project cannot know, and what to write instead.
// Written in pieces, so that this file passes its own rule.
const COINED: &[(&str, &str)] = &[
    (concat!("who", "ever"), "name the program, the node or the reader"),
    (concat!("who", "soever"), "name the program, the node or the reader"),
    (concat!("ri", "ders"), "waiters"),
    (concat!("roo", "my"), "with free space"),
    (concat!("of ", "late"), "recently, or the exact time"),
    (concat!("comes to ", "nothing"), "fails"),
    (concat!("is let ", "be"), "is left unchanged"),
    (concat!("passen", "gers"), "followers"),
];

/// What a doc comment of a crate may not begin with: it would refer to something else.
const POINTERS: &[&str] = &["The same", "It", "They", "This", "These", "Its", "Their", "He", "That", "Those"];

/// Documents that quote the words, to say what to use instead.
const QUOTES: &[&str] = &["docs/STYLE.md"];

/// The comment text of a line of Rust, without the slashes.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']))
}

fn is_word(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn coined(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let bytes = lower.as_bytes();
    for (word, instead) in COINED {
        for (at, _) in lower.match_indices(word) {
            let before = at.checked_sub(1).map(|before| &bytes[before]);
            // A name in backticks is code.
            let joined = before == Some(&b'`') || is_word(before) || is_word(bytes.get(at + word.len()));
            if !joined {
                return Some(format!("\"{word}\": {instead}"));
            }
        }
    }
    let begins = concat!("Who", " ");
    let sentence = text.trim_start().starts_with(begins) || text.contains(&format!(". {begins}"));
    (sentence && !text.contains('?'))
        .then(|| format!("a sentence begins with \"{begins}\": begin it with its subject"))
}

/// What a doc comment that begins with this line begins with, if that refers to something else.
fn pointer(line: &str) -> Option<&'static str> {
    let text = line.trim_start().strip_prefix("///")?.trim_start();
    let begins =
        |word: &&&str| text.strip_prefix(**word).is_some_and(|rest| !is_word(rest.as_bytes().first()));
    POINTERS.iter().find(begins).copied()
}

/// Checks the comments of a source.
pub fn check_source(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_product = path.starts_with("crates/") && path.contains("/src/");
    let mut in_doc = false;
    for (number, line) in text.lines().enumerate() {
        let begins = !std::mem::replace(&mut in_doc, line.trim_start().starts_with("///"));
        if let Some(word) = pointer(line).filter(|_| begins && is_product) {
            let what = format!("a doc comment that begins with \"{word}\": name what it documents");
            findings.push(Finding::new(path, number + 1, what));
        }
        let Some(comment) = comment(line) else { continue };
        findings.extend(coined(comment).map(|message| Finding::new(path, number + 1, message)));
        let is_table = comment.trim_start().starts_with('|') || comment.contains("://");
        if line.chars().count() > WIDE && !is_table {
            findings.push(Finding::new(path, number + 1, format!("a comment of more than {WIDE} columns")));
        }
    }
    findings
}

/// Checks a document.
pub fn check_document(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if !QUOTES.contains(&path) {
            findings.extend(coined(line).map(|message| Finding::new(path, number + 1, message)));
        }
        let cannot_be_wrapped = in_code || line.starts_with('|') || line.contains("](");
        if line.chars().count() > WIDE && !cannot_be_wrapped {
            findings.push(Finding::new(path, number + 1, format!("a line of more than {WIDE} columns")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coined_words_are_found_in_comments_and_documents() {
        for (word, _) in COINED {
            let found = check_source("a.rs", &format!("let x = 1;\n    /// It {word} here.\n"));
            assert_eq!((found.len(), found[0].line), (1, 2), "{word}");
            assert_eq!(check_document("docs/a.md", &format!("It {word}.\n")).len(), 1, "{word}");
        }
        let sentence = format!("{}reads it gets it.", concat!("Who", " "));
        assert_eq!(check_document("a.md", &sentence).len(), 1);
        assert_eq!(check_source("a.rs", &format!("// All. {sentence}")).len(), 1);
    }

    #[test]
    fn doc_comments_name_what_they_document() {
        let found = |path: &str, text: &str| check_source(path, text).len();
        let product = "crates/fs/src/a.rs";
        assert_eq!(found(product, "    /// The same for two.\nfn a() {}\n"), 1);
        assert_eq!(found(product, "/// It's one.\nfn a() {}\n/// This one.\nfn b() {}\n"), 2);
        assert_eq!(found(product, "/// Reads a row.\n/// It may wait.\n///\n/// This waits.\n"), 0);
        assert_eq!(found(product, "/// Items. They are kept.\n// This is a remark.\n//! It is.\n"), 0);
        assert_eq!(found("tests/a.rs", "/// It fails.\n"), 0);
    }

    #[test]
    fn code_quotes_and_longer_words_are_free() {
        let word = COINED[0].0;
        assert_eq!(check_source("a.rs", &format!("let {word} = 1;\n// x{word} {word}_y\n")), []);
        assert_eq!(check_document(QUOTES[0], word), []);
        assert_eq!(check_document("a.md", &format!("## {}may write?", concat!("Who", " "))), []);
    }

    #[test]
    fn long_prose_is_found_and_long_tables_are_not() {
        let long = "x".repeat(WIDE + 1);
        assert_eq!(
            check_source("a.rs", &format!("// {long}\nlet y = \"{long}\";\n//! | {long} |\n")).len(),
            1
        );
        assert_eq!(check_document("a.md", &format!("{long}\n| {long} |\n```\n{long}\n```\n")).len(), 1);
    }
}
