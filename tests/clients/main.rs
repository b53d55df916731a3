//! Real programs on a mount, and what goes wrong around it.

mod faults;
mod postgres;
mod programs;
mod refusals;
mod sqlite;
