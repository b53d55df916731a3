//! Many files and large files: their cost in memory, disk space and writes.
//!
//! `COVEY_FILES` and `COVEY_GIB` set the sizes of the long forms (1,000,000 files; 20 GiB).

mod memory;
mod million;
mod once;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}
