//! The real program, as a user runs it: its output, its exit status, and that no mount is left.

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
mod system;
mod trusting;
mod watching;
mod world;
