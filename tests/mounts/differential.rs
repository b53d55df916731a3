//! Runs the same operations on a mount and on a plain ext4 folder; the results must be the same.
//!
//! After every operation the test compares the error number, counts, attributes, bytes and listings that it
//! returned; after every few dozen operations, the whole tree. A difference is shrunk to the shortest
//! sequence that still shows it. Not compared are inode and device numbers, block counts, sizes of folders,
//! access times, and times that are "now".

use std::path::{Path, PathBuf};
use std::time::Duration;

use covey_tests::loopfs::LoopFs;
use covey_tests::ops::{Op, Side, sequence};
use covey_tests::{Need, Volume, ground, requires, say, seeds, shrink, tree};

/// Operations between two comparisons of whole trees.
const EVERY: usize = 64;

/// Two folders. Each attempt gets new subfolders.
struct Arena {
    ours: PathBuf,
    plain: PathBuf,
    attempts: usize,
}

impl Arena {
    /// Runs the operations on both sides. Returns the difference, if any.
    fn differs(&mut self, ops: &[Op]) -> Option<String> {
        self.attempts += 1;
        let name = format!("run{}", self.attempts);
        let folders = [self.ours.join(&name), self.plain.join(&name)];
        folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let found = compare(&folders, ops);
        folders.iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
        found
    }

    fn must_agree(&mut self, seed: u64, ops: &[Op]) {
        let Some(reason) = self.differs(ops) else { return };
        say(format_args!("seed {seed} differs; shrinking"));
        let (short, why) = shrink::shrink(ops, reason, Duration::from_secs(60), |some| self.differs(some));
        let lines: Vec<String> = short.iter().map(|op| format!("    {op:x?}")).collect();
        panic!("COVEY_SEED={seed}: {} operations differ:\n{}\n{why}", short.len(), lines.join("\n"));
    }
}

fn compare(folders: &[PathBuf; 2], ops: &[Op]) -> Option<String> {
    let mut sides = [Side::new(&folders[0]), Side::new(&folders[1])];
    let mut user = 0;
    for (number, op) in ops.iter().enumerate() {
        if let Op::Become { user: next } = op {
            user = *next;
            continue;
        }
        let [ours, plain] = [sides[0].run(op, user), sides[1].run(op, user)];
        if ours != plain {
            return Some(format!(
                "the last one, as user {user}: {op:x?}\n  ours:  {ours:x?}\n  plain: {plain:x?}"
            ));
        }
        if number % EVERY == EVERY - 1 || number + 1 == ops.len() {
            let found = tree::differences("ours", &sides[0].tree(), "plain", &sides[1].tree());
            if !found.is_empty() {
                return Some(found.join("\n"));
            }
        }
    }
    None
}

/// An ext4 folder to compare with: in the scratch folder if it is on ext4, otherwise on a small filesystem
/// made for the purpose.
enum Plain {
    Scratch(tempfile::TempDir),
    Loop(LoopFs),
}

impl Plain {
    fn new() -> Option<Plain> {
        const EXT4: i64 = 0xEF53;
        let folder = covey_tests::scratch();
        if rustix::fs::statfs(folder.path()).unwrap().f_type as i64 == EXT4 {
            return Some(Plain::Scratch(folder));
        }
        Need::Ext4.lacking().is_none().then(|| Plain::Loop(LoopFs::new(512)))
    }

    fn path(&self) -> &Path {
        match self {
            Plain::Scratch(folder) => folder.path(),
            Plain::Loop(disk) => disk.path(),
        }
    }
}

fn differential(first: u64, runs: u64, steps: usize, users: bool, options: &[&str]) {
    let Some(plain) = Plain::new() else {
        return say(format_args!("skipped: lacks an ext4 to compare with"));
    };
    let volume = Volume::new();
    let mut options = options.to_vec();
    options.extend(rustix::process::geteuid().is_root().then_some("allow_other"));
    let mounted = volume.mount_with(&options);
    let (ours, plain_root) = (mounted.join("ours"), plain.path().join("plain"));
    std::fs::create_dir(&ours).unwrap();
    std::fs::create_dir(&plain_root).unwrap();
    let mut arena = Arena { ours, plain: plain_root, attempts: 0 };
    for seed in seeds(first, runs) {
        arena.must_agree(seed, &sequence(seed, steps, users));
    }
    say(format_args!("{runs} runs of {steps} operations from seed {first} agree ({:?})", ground()));
    mounted.umount();
    volume.must_be_clean();
}

#[test]
fn operations_answer_as_on_ext4() {
    requires!(Need::Mount);
    differential(1, 12, 800, false, &[]);
}

#[test]
fn operations_of_several_users_answer_as_on_ext4() {
    requires!(Need::Mount, Need::Root);
    differential(1_000, 12, 800, true, &[]);
}

/// Without the kernel's writeback cache, the daemon keeps the times of files.
#[test]
fn operations_without_writeback_answer_as_on_ext4() {
    requires!(Need::Mount);
    differential(2_000, 12, 800, false, &["writeback=off"]);
}

/// fallocate(2) of a range that was there left the file's times as they were.
#[test]
fn regression_an_allocation_that_changes_nothing_changes_the_times() {
    requires!(Need::Mount);
    differential(10_027, 1, 1_500, false, &["writeback=off"]);
}

#[test]
#[ignore = "minutes: make test-posix"]
fn long_operations_answer_as_on_ext4() {
    requires!(Need::Mount, Need::Root);
    differential(10_000, 300, 1_500, false, &[]);
    differential(20_000, 300, 1_500, true, &[]);
    differential(30_000, 300, 1_500, false, &["writeback=off"]);
}
