//! The real program, as a user runs it: what it prints, how it exits, and that nothing stays mounted.

mod benches;
mod bundles;
mod claims;
mod corpora;
mod errors;
mod exports;
mod fidelity;
mod following;
mod imports;
mod logs;
mod mounts;
mod offline;
mod publishing;
mod settings;
mod system;
mod trusting;
mod watching;
mod world;
