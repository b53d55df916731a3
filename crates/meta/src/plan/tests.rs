//! Tests of the planner: against a model of POSIX, under two threads, and case by case.

mod acls;
mod cases;
mod doom;
mod interleaved;
mod large;
mod machine;
mod model;
mod packs;
pub(crate) mod store;
mod threads;
mod trash;
pub(crate) mod world;
