//! Tests of fleets on this machine, each node in a network namespace of its own.

mod depots;
mod faults;
mod images;
mod in_flight;
mod rounds;
mod shared;
mod sweeping;
mod watch;
