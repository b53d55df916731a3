//! Names on disk and in memory: the journal under kills, power cuts, damage and full disks, and leases.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_meta as meta;

mod journal_crash;
mod journal_damage;
mod journal_full_disk;
mod journal_kill;
mod lease_journal;
mod leases;
mod mortal;

#[path = "../support/mod.rs"]
mod support;
