//! What the whole-program tests share: a volume, a mount, and the clean-up.
//!
//! The tests of this package start the real `covey`, mount it through the real kernel, and check what
//! programs would see. They end everything that they start: a [`Mounted`] unmounts when it is dropped, also
//! by a panic, and a daemon is killed only by its own process id.
//!
//! Settings, all by environment:
//!
//! - `COVEY_BIN`: the program to test. Without it, cargo builds one once (`COVEY_RELEASE=1`: with
//!   optimisation).
//! - `COVEY_TEST_ON=plain`: run on a plain folder instead of a mount. Every test must pass there: this tests
//!   the test itself. `COVEY_TEST_ON=DIR` runs below DIR, for instance on a mount of another filesystem.
//! - `COVEY_TEST_TMP`: the folder for volumes and mountpoints; by default the system's temporary folder.
//! - `COVEY_SEED`: the seed of the first random run. Every run prints its own.
//!
//! A test that lacks something says so and passes: see [`requires`].

// Tests may unwrap, read the clock and start threads, and so may this library, which only they use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

pub mod locking;
pub mod loopfs;
pub mod manual;
pub mod need;
pub mod ops;
pub mod proc;
pub mod program;
pub mod rng;
pub mod shared;
pub mod shrink;
pub mod tree;
pub mod volume;

pub use need::Need;
pub use program::{Finished, run, run_ok};
pub use rng::Rng;
pub use servers::free_port;
pub use volume::{Mounted, Volume};

use std::path::PathBuf;

/// Unless everything named exists here, ends the test early and says what is missing.
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

/// Starts a PostgreSQL server. Ends the test early if there is none here.
#[macro_export]
macro_rules! requires_server {
    () => {
        match $crate::shared::Server::start() {
            Some(server) => server,
            None => {
                $crate::say(format_args!("skipped: lacks PostgreSQL's server"));
                return;
            }
        }
    };
}

/// Prints a line to the terminal, bypassing the test harness's capture, prefixed with the test's name.
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
    // Programs that run as another user must be able to traverse it.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    folder
}

/// Where the tests run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ground {
    /// On a mount of Covey's.
    Covey,
    /// On a plain folder created for this.
    Plain,
    /// Below this folder.
    Below(PathBuf),
}

/// Where the tests run, according to the environment.
pub fn ground() -> Ground {
    match std::env::var("COVEY_TEST_ON") {
        Err(_) => Ground::Covey,
        Ok(value) if value == "plain" => Ground::Plain,
        Ok(value) => Ground::Below(PathBuf::from(value)),
    }
}

/// The seeds of `count` runs: a fixed list, or one that starts at `COVEY_SEED`. `first` differs from test to
/// test.
pub fn seeds(first: u64, count: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("COVEY_SEED").ok().map_or(first, |text| text.parse().unwrap());
    (0..count).map(move |n| first.wrapping_add(n))
}
