//! Published trees of whole volumes: what they show, what they keep, what a volume restored from one is.
//!
//! Everything runs in this process, over memory: volume, origin, tree; [`seam`] alone mounts, a volume of a folder. What the program does with them through a real mount is in
//! `crates/cli/tests`.

mod follow;
mod keep;
mod million;
mod same;
mod seam;
mod world;
