//! Tests of fleets on this machine, each node in a network namespace of its own.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod depots;
mod faults;
mod images;
mod in_flight;
mod rounds;
mod shared;
mod sweeping;
mod watch;
