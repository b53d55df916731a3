//! Every module file opens with its purpose. A sibling `tests.rs` belongs to its module and needs no essay of
//! its own.

use crate::Finding;
use crate::source::Source;

/// Checks one source: its first line is a `//!` and is not empty.
pub fn check(source: &Source) -> Option<Finding> {
    let said = source.text.lines().next().and_then(|line| line.strip_prefix("//!"));
    let sibling = source.path.ends_with("/tests.rs");
    if sibling || said.is_some_and(|words| words.trim().len() > 8) {
        return None;
    }
    let message = "begins without `//!`: open with what the module holds and what is always true of it";
    Some(Finding::new(&source.path, 1, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_essay_is_found() {
        for text in [
            "use std::io;\n",
            "",
            "//!\nuse std::io;\n",
            "// A comment for nobody.\n",
            "\n//! Too late for it.\n",
        ] {
            assert!(check(&Source::new("a.rs", text)).is_some(), "{text:?}");
        }
        assert!(check(&Source::new("a.rs", "//! Rows of the table.\n")).is_none());
        assert!(check(&Source::new("a/tests.rs", "use super::*;\n")).is_none());
    }
}
