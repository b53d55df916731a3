//! The real program, as a user runs it: what it prints, how it exits, and that nothing stays mounted.

mod benches;
mod corpora;
mod errors;
mod imports;
mod mounts;
mod offline;
mod watching;
mod world;
