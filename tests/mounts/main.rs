//! Tests of a mount: the real program on this kernel, from one request to millions of files.
//!
//! Each module is one subject: see the essay at its top. All of them are one program, because each
//! program is linked with most of the product.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod access;
mod away;
mod crash;
mod decoders;
mod differential;
mod fsx;
mod handles;
mod host;
mod index;
mod join;
mod objects;
mod posix;
mod publishers;
mod requests;
mod roundtrip;
mod scale;
mod semantics;
mod suites;
mod trees;
mod upload;
