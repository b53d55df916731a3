//! The rules of this repository, as tests: what a review forgets, a test does not.
//!
//! Each module holds one rule. A rule is a function from texts to [`Finding`]s and reads no file by itself,
//! so its unit tests can plant a bad sample and see it found: a lint that cannot fail is no lint.
//! `tests/repository.rs` applies all of them to the real tree, which [`tree::Tree`] reads once.
//!
//! - [`arrows`]: which crate may know which.
//! - [`circles`]: the modules of a crate know each other in one direction.
//! - [`lengths`]: files and functions stay short; the exceptions are listed and may only shrink.
//! - [`words`]: what production code may not say, and what it says instead.
//! - [`threads`]: every thread is in the table of ARCHITECTURE.md.
//! - [`safety`]: every `unsafe` says why it is sound.
//! - [`essays`]: every module file opens with what it is for.
//! - [`hygiene`]: no file names a person's folder, a package registry's host or unfinished work.
//! - [`language`]: documents and comments use standard words, and short lines.
//! - [`links`]: every relative link of the documents leads somewhere.
//! - [`licences`]: every dependency's licence is in the list of `deny.toml`.
//! - [`programs`]: the integration tests of a package are one program, or a few that say why.
//! - [`quick`]: the program of `make run` has no crate that it does not need.
//! - [`versions`]: all parts have the version of the changelog's top section.
//!
//! Rust is not parsed but [masked](source): comments and literals become blanks, and what is left is searched
//! by line. That is exact enough for these rules and takes no compiler.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod arrows;
pub mod circles;
pub mod essays;
pub mod hygiene;
pub mod language;
pub mod lengths;
pub mod licences;
pub mod links;
pub mod programs;
pub mod quick;
pub mod safety;
pub mod source;
pub mod threads;
pub mod tree;
pub mod versions;
pub mod words;

use std::fmt;

/// One breach of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the repository.
    pub path: String,
    /// The line, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong and what to do instead.
    pub message: String,
}

impl Finding {
    /// A finding at a line of a file.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(out, "{}: {}", self.path, self.message),
            line => write!(out, "{}:{line}: {}", self.path, self.message),
        }
    }
}
