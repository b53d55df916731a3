//! Real programs on a mount, and failures around it.

mod faults;
mod postgres;
mod programs;
mod refusals;
mod sqlite;
