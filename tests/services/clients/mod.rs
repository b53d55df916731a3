//! Real programs on a mount, and failures around it.

mod faults;
mod interrupts;
mod postgres;
mod programs;
mod quotas;
mod refusals;
mod sqlite;
mod trash;
