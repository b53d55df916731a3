//! In place of [`kernel`](super::kernel) where the program is built without eBPF: the daemon counts.

use std::path::Path;
use std::time::Duration;

use api::error::Result;
use api::heat::Program;

use super::counters::Rule;
use super::{Noticed, Seen};

/// No value exists.
pub enum Kernel {}

impl Kernel {
    /// Says that there are no programs.
    ///
    /// # Errors
    /// Always.
    pub fn start(_: &Path, _: Rule) -> std::result::Result<(Kernel, Vec<String>), String> {
        Err("this program was built without eBPF; `make build` makes the one that has it".to_owned())
    }

    /// See `kernel`.
    pub fn measure(&mut self, _: bool) {
        match *self {}
    }

    /// See `kernel`.
    pub fn wait(&mut self, _: Duration) -> Noticed {
        match *self {}
    }

    /// See `kernel`.
    pub fn used(&self, _: u64) -> Vec<(u64, u32)> {
        match *self {}
    }

    /// See `kernel`.
    pub fn chunks(&self) -> Result<Vec<Seen>> {
        match *self {}
    }

    /// See `kernel`.
    pub fn lost(&self) -> Result<u64> {
        match *self {}
    }

    /// See `kernel`.
    pub fn costs(&self) -> Vec<Program> {
        match *self {}
    }
}
