//! The real program, as a user runs it: its output, its exit status, and that no mount is left.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod benches;
mod bundles;
mod claims;
mod corpora;
mod dashboard;
mod errors;
mod exports;
mod fidelity;
mod following;
mod imports;
mod logs;
mod mounts;
mod offline;
mod publishing;
mod reading;
mod sent;
mod settings;
mod silent;
mod snapshotter;
mod system;
mod trusting;
mod watching;
mod world;
