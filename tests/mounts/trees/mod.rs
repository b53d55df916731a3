//! Published trees of whole volumes: what they show, what they keep, and what a volume restored from one is.
//!
//! Everything runs in this process, in memory: volume, origin, tree. Only [`seam`] mounts, a volume in a
//! folder. `crates/cli/tests` shows what the program does with them through a real mount.

mod follow;
mod keep;
mod million;
mod same;
mod seam;
mod world;
