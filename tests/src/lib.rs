//! What the whole-program tests share: a volume, a mount, and the promise to clean up.
//!
//! The tests of this package start the real `covey`, mount it through the real kernel, and look at what programs would
//! see. Everything they start they end: a [`Mounted`] unmounts when it is dropped, also by a panic, and a daemon is killed
//! by its own process id only.
//!
//! Settings, all by environment:
//!
//! - `COVEY_BIN`: the program to test. Without it, cargo builds one once (`COVEY_RELEASE=1`: with optimisation).
//! - `COVEY_TEST_ON=plain`: run on a plain folder instead of a mount. Every test must pass there: it is how a test is
//!   tested. `COVEY_TEST_ON=DIR` runs below DIR, for instance a mount of some other filesystem.
//! - `COVEY_TEST_TMP`: where volumes and mountpoints are made; by default the system's folder for temporary files.
//! - `COVEY_SEED`: the seed of the first random run; every run prints its own.
//!
//! A test that lacks something says so and passes: see [`requires`].

// Tests may unwrap, read the clock and start threads, and so may the library that only they use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

pub mod loopfs;
pub mod need;
pub mod ops;
pub mod proc;
pub mod program;
pub mod rng;
pub mod shrink;
pub mod tree;
pub mod volume;

pub use need::Need;
pub use program::{Finished, run, run_ok};
pub use rng::Rng;
pub use volume::{Mounted, Volume};

use std::path::PathBuf;

/// Ends the test early, saying what is missing, unless everything named is here.
///
/// ```ignore
/// requires!(Need::Root, Need::Program("fio"));
/// ```
#[macro_export]
macro_rules! requires {
    ($($need:expr),+ $(,)?) => {
        $(if let Some(lacking) = $need.lacking() {
            $crate::say(format_args!("skipped: lacks {lacking}"));
            return;
        })+
    };
}

/// Prints a line to the terminal, past the test harness's capture, headed by the test's name.
pub fn say(line: std::fmt::Arguments<'_>) {
    use std::io::Write;
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test").to_owned();
    writeln!(std::io::stderr().lock(), "{name}: {line}").ok();
}

/// A folder for one test's files, removed when it is dropped.
pub fn scratch() -> tempfile::TempDir {
    let below = std::env::var_os("COVEY_TEST_TMP").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::Builder::new().prefix("covey-test-").tempdir_in(&below).unwrap();
    // Programs that run as another user must be able to pass through.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    folder
}

/// Where the tests run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ground {
    /// On a mount of Covey's.
    Covey,
    /// On a plain folder made for the purpose.
    Plain,
    /// Below this folder.
    Below(PathBuf),
}

/// Where the environment says that the tests run.
pub fn ground() -> Ground {
    match std::env::var("COVEY_TEST_ON") {
        Err(_) => Ground::Covey,
        Ok(value) if value == "plain" => Ground::Plain,
        Ok(value) => Ground::Below(PathBuf::from(value)),
    }
}

/// The seeds of `count` runs: a fixed list, or one that starts where `COVEY_SEED` says. `first` differs from test to test.
pub fn seeds(first: u64, count: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("COVEY_SEED").ok().map_or(first, |text| text.parse().unwrap());
    (0..count).map(move |n| first.wrapping_add(n))
}
