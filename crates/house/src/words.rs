//! What production code may not use, and what it uses instead.
//!
//! Clocks, random numbers, threads and "cannot happen" are each accessible in one place in `base`. Outside of
//! it a test could not control them. So are locks on files, which must not end by closing. Tests may use all
//! of this. tokio runtimes are built in a few places.

use crate::Finding;
use crate::source::Source;

/// A banned word: what it is, what to use instead, and the files that may use it.
struct Ban {
    word: &'static str,
    instead: &'static str,
    exempt: &'static [&'static str],
}

const TIME: &[&str] = &["crates/base/src/time.rs"];
const THREAD: &[&str] = &["crates/base/src/thread.rs"];
const RANDOM: &[&str] = &["crates/base/src/random.rs"];
const LOCK: &[&str] = &["crates/base/src/lock.rs"];
const MUST: &[&str] = &["crates/base/src/must.rs"];
/// ARCHITECTURE.md says why each of them has its own.
const RUNTIMES: &[&str] = &[
    "crates/csi/src/server.rs",
    "crates/engines/src/etcd/link.rs",
    "crates/engines/src/postgres/link.rs",
    "crates/net/src/transport/mod.rs",
    "crates/oci/src/registry.rs",
    "crates/origin/src/remote/mod.rs",
    "crates/s3/src/server.rs",
    "crates/snapshotter/src/server.rs",
    "crates/ui/src/server.rs",
];

const CANNOT_HAPPEN: &str = "return an error, or say why it cannot happen with base::Must";
const UNLOCKS: &str = "a lock on a file is a base::lock::FileLock, which unlocks when it is dropped";
const BUSY: &str = "unmount with base::lock::unmount, which waits for a process that was just forked";
const RUNTIME: &str = "use a runtime that exists, or give the reason in ARCHITECTURE.md, Threads";
const PRINTS: &str = "print with base::out, which does not panic when nobody reads it any more";
const FINISH: &str = "finish it or leave it out";

const BANS: &[Ban] = &[
    Ban { word: ".unwrap()", instead: CANNOT_HAPPEN, exempt: &[] },
    Ban { word: ".expect(", instead: CANNOT_HAPPEN, exempt: &[] },
    Ban { word: ".unwrap_err()", instead: CANNOT_HAPPEN, exempt: &[] },
    Ban { word: "panic!", instead: CANNOT_HAPPEN, exempt: MUST },
    Ban { word: "SystemTime::now", instead: "the time of day comes from base::time::now", exempt: TIME },
    Ban { word: "Instant::now", instead: "measure with base::time::monotonic", exempt: TIME },
    Ban {
        word: "std::thread::spawn",
        instead: "base::thread::spawn gives the thread a name",
        exempt: THREAD,
    },
    Ban { word: "thread::Builder", instead: "base::thread::spawn gives the thread a name", exempt: THREAD },
    Ban { word: "Builder::new_multi_thread", instead: RUNTIME, exempt: RUNTIMES },
    Ban { word: "Builder::new_current_thread", instead: RUNTIME, exempt: RUNTIMES },
    Ban { word: "runtime::Runtime::new", instead: RUNTIME, exempt: RUNTIMES },
    Ban { word: "rand::", instead: "random bytes come from base::random", exempt: RANDOM },
    Ban { word: "getrandom::", instead: "random bytes come from base::random", exempt: RANDOM },
    Ban { word: "fs::TryLockError", instead: UNLOCKS, exempt: LOCK },
    Ban { word: ".try_lock_shared()", instead: UNLOCKS, exempt: LOCK },
    Ban { word: "FlockOperation", instead: UNLOCKS, exempt: LOCK },
    Ban { word: "mount::unmount(", instead: BUSY, exempt: LOCK },
    Ban { word: "todo!", instead: FINISH, exempt: &[] },
    Ban { word: "unimplemented!", instead: FINISH, exempt: &[] },
    Ban { word: "dbg!", instead: "take it out", exempt: &[] },
];

/// Checks one source.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |at: usize, word: &str, instead: &str| {
        if !source.in_test(at) {
            findings.push(Finding::new(&source.path, source.line_of(at), format!("{word}: {instead}")));
        }
    };
    for ban in BANS.iter().filter(|ban| !ban.exempt.contains(&source.path.as_str())) {
        source.find(ban.word).for_each(|at| found(at, ban.word, ban.instead));
    }
    // Programs for developers may end when nobody reads what they print.
    if source.path.starts_with("crates/") {
        for word in ["println!", "eprintln!"] {
            source.find(word).for_each(|at| found(at, word, PRINTS));
        }
    }
    if imports_std_thread(source) && !THREAD.contains(&source.path.as_str()) {
        let spawns = source.find("thread::spawn").filter(|&at| !source.code[..at].ends_with("::"));
        spawns.for_each(|at| found(at, "thread::spawn", "base::thread::spawn gives the thread a name"));
    }
    findings
}

/// Whether `thread::spawn` is the standard library's here: `use std::thread;`, `use std::{.., thread, ..};`.
fn imports_std_thread(source: &Source) -> bool {
    source.find("use").any(|at| {
        let statement = source.code[at..].split(';').next().unwrap_or("");
        let tail = |form: &str| statement.split(form).nth(1).is_some_and(|rest| !rest.starts_with("::"));
        statement.starts_with("use std") && (tail("std::thread") || tail("{thread") || tail(" thread"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, code: &str) -> usize {
        check(&Source::new(path, code)).len()
    }

    #[test]
    fn products_do_not_print_with_a_panic() {
        let code = "fn a() { eprintln!(\"x\"); }\n";
        assert_eq!(findings("crates/fs/src/a.rs", code), 1);
        assert_eq!(findings("bench/src/a.rs", code), 0);
    }

    #[test]
    fn every_banned_word_is_found_in_production_code_only() {
        for ban in BANS {
            let code = format!("fn a() {{ x {} y }}\n", ban.word);
            assert!(findings("crates/fs/src/a.rs", &code) > 0, "{}", ban.word);
            assert_eq!(findings("crates/fs/src/a/tests.rs", &code), 0, "{}", ban.word);
            assert_eq!(findings("crates/fs/tests/a.rs", &code), 0, "{}", ban.word);
            let inside = format!("#[cfg(test)]\nmod tests {{ {code} }}\n");
            assert_eq!(findings("crates/fs/src/a.rs", &inside), 0, "{}", ban.word);
            let spoken = format!("// {}\nlet a = \"{}\";\n", ban.word, ban.word);
            assert_eq!(findings("crates/fs/src/a.rs", &spoken), 0, "{}", ban.word);
            for path in ban.exempt {
                assert_eq!(findings(path, &code), 0, "{} in {path}", ban.word);
            }
        }
    }

    #[test]
    fn the_standard_threads_are_found_however_imported() {
        for import in ["use std::thread;", "use std::{io, thread};", "use std::{thread, io};"] {
            let code = format!("{import}\nfn a() {{ thread::spawn(f); }}\n");
            assert_eq!(findings("crates/fs/src/a.rs", &code), 1, "{import}");
        }
        assert_eq!(findings("crates/fs/src/a.rs", "fn a() { std::thread::spawn(f); }"), 1);
    }

    #[test]
    fn files_that_provide_access_are_exempt() {
        let code = "use base::thread;\nuse std::thread::JoinHandle;\nfn a() { thread::spawn(\"x\", f); base::thread::spawn(\"y\", g); }\n";
        assert_eq!(findings("crates/fs/src/a.rs", code), 0);
        assert_eq!(
            findings("crates/fs/src/a.rs", "fn a() { base::random::u64(); brand::new(); debug_assert!(x); }"),
            0
        );
    }
}
