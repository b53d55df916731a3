//! The table of budgets.

use covey_tests::need::which;

use super::works::{self, Work};

/// How often each line is run; its budget is per round.
pub const ROUNDS: u64 = 6;

/// The kind of request that depends on a tick of the clock.
pub const TICKING: &str = "SETATTR";

type Budget = &'static [(&'static str, u64)];

/// One operation.
pub struct Line {
    /// Its name in the document.
    pub what: &'static str,
    /// Done in an earlier mount.
    pub prepare: Work,
    /// Done in this mount before counting begins.
    pub warm: Work,
    /// What is counted.
    pub work: Work,
    /// Requests with `-o writeback=on`.
    pub cached: Budget,
    /// Requests with `-o writeback=off`.
    pub plain: Budget,
    /// So many of the SETATTRs of `cached` are sent only if the kernel's clock ticked between the creation
    /// and the write.
    pub tick: u64,
    /// A program that it needs.
    pub program: Option<&'static str>,
}

impl Line {
    /// What is missing to run it on this machine.
    pub fn lacks(&self) -> Option<String> {
        let program = self.program.filter(|name| which(name).is_none())?;
        Some(format!("\"{}\" lacks the program {program}", self.what))
    }
}

const fn line(what: &'static str, steps: [Work; 3], cached: Budget, plain: Budget) -> Line {
    let [prepare, warm, work] = steps;
    Line { what, prepare, warm, work, cached, plain, tick: 0, program: None }
}

const fn with(program: &'static str, line: Line) -> Line {
    Line { program: Some(program), ..line }
}

const fn ticking(tick: u64, line: Line) -> Line {
    Line { tick, ..line }
}

const NONE: Budget = &[];

use works::nothing as no;

/// Every operation with a budget.
pub const LINES: &[Line] = &[
    line("stat, warm", [works::make, works::stat, works::stat], NONE, NONE),
    line("stat, cold", [works::make, no, works::stat], &[("LOOKUP", 1)], &[("LOOKUP", 1)]),
    line("stat of a missing name, warm", [no, works::stat_missing, works::stat_missing], NONE, NONE),
    line("open, read 64 KiB, close, warm", [works::make, works::open_read, works::open_read], NONE, NONE),
    line(
        "open, read 64 KiB, close, cold",
        [works::make, no, works::open_read],
        &[("LOOKUP", 1), ("READ", 1)],
        &[("LOOKUP", 1), ("READ", 1)],
    ),
    with(
        "python3",
        line(
            "the same by Python's open(), warm",
            [works::make, works::python_twice, works::python],
            &[("IOCTL", 1), ("GETATTR", 1)],
            &[("IOCTL", 1)],
        ),
    ),
    with(
        "python3",
        line(
            "the same by Python's os.open() and os.pread(), warm",
            [works::make, works::python_twice, works::python_pread],
            NONE,
            NONE,
        ),
    ),
    line(
        "first stat after pages were read",
        [works::make, works::open_read, works::stat],
        &[("GETATTR", 1)],
        &[("GETATTR", 1)],
    ),
    line(
        "first stat after write and close",
        [no, works::make, works::stat],
        &[("GETATTR", 1)],
        &[("GETATTR", 1)],
    ),
    line("mmap and touch 64 KiB, warm", [works::make, works::map, works::map], NONE, NONE),
    line(
        "mmap and touch 64 KiB, cold",
        [works::make, no, works::map],
        &[("LOOKUP", 1), ("READ", 1)],
        &[("LOOKUP", 1), ("READ", 1)],
    ),
    line("list 100 files, warm", [works::folder, works::list_twice, works::list], NONE, NONE),
    line(
        "list 100 files, cold",
        [works::folder, no, works::list],
        &[("LOOKUP", 1), ("READDIRPLUS", 1), ("READDIR", 1)],
        &[("LOOKUP", 1), ("READDIRPLUS", 1), ("READDIR", 1)],
    ),
    line(
        "list and stat 100 files, warm",
        [works::folder, works::list_twice, works::list_and_stat],
        NONE,
        NONE,
    ),
    line(
        "list and stat 100 files, cold",
        [works::folder, no, works::list_and_stat],
        &[("LOOKUP", 1), ("READDIRPLUS", 2)],
        &[("LOOKUP", 1), ("READDIRPLUS", 2)],
    ),
    ticking(
        1,
        line(
            "create, write 4 KiB, close, unlink",
            [no, no, works::cycle],
            &[
                ("LOOKUP", 1),
                ("GETATTR", 2),
                ("MKNOD", 1),
                ("GETXATTR", 1),
                ("WRITE", 1),
                ("SETATTR", 2),
                ("UNLINK", 1),
            ],
            &[("LOOKUP", 1), ("GETATTR", 2), ("MKNOD", 1), ("GETXATTR", 1), ("WRITE", 1), ("UNLINK", 1)],
        ),
    ),
    line(
        "create, close",
        [no, no, works::create_empty],
        &[("LOOKUP", 1), ("GETATTR", 1), ("MKNOD", 1)],
        &[("LOOKUP", 1), ("GETATTR", 1), ("MKNOD", 1)],
    ),
    ticking(
        1,
        line(
            "create, write 4 KiB, close",
            [no, no, works::write_new],
            &[("LOOKUP", 1), ("GETATTR", 1), ("MKNOD", 1), ("GETXATTR", 1), ("WRITE", 1), ("SETATTR", 1)],
            &[("LOOKUP", 1), ("GETATTR", 1), ("MKNOD", 1), ("GETXATTR", 1), ("WRITE", 1)],
        ),
    ),
    ticking(
        1,
        line(
            "create, write 4 KiB, fsync, close",
            [no, no, works::write_synced],
            &[
                ("LOOKUP", 1),
                ("GETATTR", 1),
                ("MKNOD", 1),
                ("GETXATTR", 1),
                ("WRITE", 1),
                ("FSYNC", 1),
                ("SETATTR", 1),
            ],
            &[("LOOKUP", 1), ("GETATTR", 1), ("MKNOD", 1), ("GETXATTR", 1), ("WRITE", 1), ("FSYNC", 1)],
        ),
    ),
    line(
        "overwrite 4 KiB",
        [works::make, works::read, works::overwrite],
        &[("GETXATTR", 1), ("WRITE", 1), ("SETATTR", 1)],
        &[("GETXATTR", 1), ("WRITE", 1)],
    ),
    line(
        "change 13 bytes in the middle",
        [works::make, works::read, works::change_middle],
        &[("GETXATTR", 1), ("WRITE", 1), ("SETATTR", 1)],
        &[("GETXATTR", 1), ("WRITE", 1)],
    ),
    line(
        "50 appends of 4107 bytes, close",
        [no, works::create_empty, works::append],
        &[("GETXATTR", 1), ("WRITE", 1), ("SETATTR", 1)],
        &[("GETXATTR", 1), ("WRITE", 99)],
    ),
    line(
        "unlink",
        [works::make, works::stat, works::unlink],
        &[("GETATTR", 1), ("SETATTR", 1), ("UNLINK", 1)],
        &[("GETATTR", 1), ("UNLINK", 1)],
    ),
    line(
        "unlink while open, then read",
        [works::make, works::read, works::unlink_open],
        &[("GETATTR", 1), ("SETATTR", 1), ("UNLINK", 1)],
        &[("GETATTR", 1), ("UNLINK", 1)],
    ),
    line(
        "mkdir, rmdir",
        [no, no, works::folder_cycle],
        &[("LOOKUP", 1), ("GETATTR", 2), ("MKDIR", 1), ("RMDIR", 1)],
        &[("LOOKUP", 1), ("GETATTR", 2), ("MKDIR", 1), ("RMDIR", 1)],
    ),
    line(
        "rename",
        [works::make, works::stat, works::rename],
        &[("LOOKUP", 1), ("GETATTR", 1), ("SETATTR", 1), ("RENAME", 1)],
        &[("LOOKUP", 1), ("GETATTR", 1), ("RENAME", 1)],
    ),
    line(
        "rename over another",
        [works::make_two, works::stat, works::rename_over],
        &[("LOOKUP", 1), ("GETATTR", 1), ("SETATTR", 2), ("RENAME", 1)],
        &[("LOOKUP", 1), ("GETATTR", 1), ("RENAME", 1)],
    ),
    ticking(
        1,
        line(
            "write beside, rename over (git, editors)",
            [works::make, works::stat, works::replace],
            &[
                ("LOOKUP", 2),
                ("GETATTR", 2),
                ("MKNOD", 1),
                ("GETXATTR", 1),
                ("WRITE", 1),
                ("SETATTR", 3),
                ("RENAME", 1),
            ],
            &[("LOOKUP", 2), ("GETATTR", 2), ("MKNOD", 1), ("GETXATTR", 1), ("WRITE", 1), ("RENAME", 1)],
        ),
    ),
    line(
        "truncate",
        [works::make, works::stat, works::truncate],
        &[("GETXATTR", 1), ("SETATTR", 1)],
        &[("GETXATTR", 1), ("SETATTR", 1)],
    ),
    line(
        "open with O_TRUNC",
        [works::make, works::stat, works::open_truncating],
        &[("GETXATTR", 1), ("SETATTR", 1)],
        &[("GETXATTR", 1), ("SETATTR", 1)],
    ),
    line("chmod", [works::make, works::stat, works::chmod], &[("SETATTR", 1)], &[("SETATTR", 1)]),
    line(
        "link",
        [works::make, works::stat, works::link],
        &[("LOOKUP", 1), ("GETATTR", 1), ("LINK", 1), ("SETATTR", 1)],
        &[("LOOKUP", 1), ("GETATTR", 1), ("LINK", 1)],
    ),
    line(
        "symlink, readlink",
        [no, no, works::make_symlink],
        &[("LOOKUP", 1), ("GETATTR", 1), ("SYMLINK", 1), ("READLINK", 1)],
        &[("LOOKUP", 1), ("GETATTR", 1), ("SYMLINK", 1), ("READLINK", 1)],
    ),
    line("readlink, warm", [works::make_symlink, works::readlink, works::readlink], NONE, NONE),
    with(
        "tar",
        ticking(
            100,
            line(
                "tar x of 100 files of 4 KiB",
                [no, works::make_into, works::untar],
                &[
                    ("LOOKUP", 101),
                    ("GETATTR", 100),
                    ("MKNOD", 100),
                    ("MKDIR", 1),
                    ("GETXATTR", 200),
                    ("WRITE", 100),
                    ("SETATTR", 403),
                ],
                &[
                    ("LOOKUP", 101),
                    ("GETATTR", 100),
                    ("MKNOD", 100),
                    ("MKDIR", 1),
                    ("GETXATTR", 200),
                    ("WRITE", 135),
                    ("SETATTR", 303),
                ],
            ),
        ),
    ),
    with(
        "rm",
        line(
            "rm -rf of 100 files",
            [works::folder, works::list_twice, works::remove_all],
            &[("GETATTR", 100), ("SETATTR", 100), ("UNLINK", 100), ("RMDIR", 1), ("STATFS", 1)],
            &[("GETATTR", 100), ("UNLINK", 100), ("RMDIR", 1), ("STATFS", 1)],
        ),
    ),
    with(
        "rm",
        line(
            "rm -rf of 100 files, cold",
            [works::folder, no, works::remove_all],
            &[
                ("LOOKUP", 1),
                ("GETATTR", 101),
                ("READDIRPLUS", 2),
                ("READDIR", 1),
                ("SETATTR", 100),
                ("UNLINK", 100),
                ("RMDIR", 1),
                ("STATFS", 1),
            ],
            &[
                ("LOOKUP", 1),
                ("GETATTR", 101),
                ("READDIRPLUS", 2),
                ("READDIR", 1),
                ("UNLINK", 100),
                ("RMDIR", 1),
                ("STATFS", 1),
            ],
        ),
    ),
];

fn cell(budget: Budget, tick: u64) -> String {
    let range = |most: u64, spared: u64| match spared {
        0 => most.to_string(),
        spared => format!("{} to {most}", most - spared),
    };
    let total: u64 = budget.iter().map(|(_, n)| n).sum();
    let spared = |kind: &str| if kind == TICKING { tick } else { 0 };
    let kinds: Vec<String> =
        budget.iter().map(|(kind, n)| format!("{kind} {}", range(*n, spared(kind)))).collect();
    if kinds.is_empty() {
        "none".to_owned()
    } else {
        format!("**{}**: {}", range(total, tick), kinds.join(", "))
    }
}

/// The table of the document.
pub fn markdown() -> String {
    let mut text = "| operation | `writeback=on` | `writeback=off` |\n|---|---|---|\n".to_owned();
    for line in LINES {
        let same = line.plain == line.cached;
        let plain = if same { "the same".to_owned() } else { cell(line.plain, 0) };
        text.push_str(&format!("| {} | {} | {plain} |\n", line.what, cell(line.cached, line.tick)));
    }
    text
}
