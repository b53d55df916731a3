//! What programs cost that read a tree which another node has written: round trips to the database. The table
//! is in docs/SEMANTICS.md.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use covey_tests::program::{covey, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, Rng, requires, say};
use servers::Server;

const LIMIT: Duration = Duration::from_secs(120);
const DIRS: usize = 50;
/// Files of a folder.
const FILES: usize = 20;
const MODULES: usize = 100;
const TARGETS: usize = 200;

/// The first cell of a row, and what it says is done.
const WORKS: [(&str, &[&str]); 6] = [
    ("`find` through 1,000 files in 50 folders", &["find", "tree"]),
    ("`ls -lR` of them", &["ls", "-lR", "tree"]),
    ("`grep -r` in them, 4 KB each", &["grep", "-r", "-c", "-m1", "no such words", "tree"]),
    (
        "`git status` of a repository with as many",
        &["git", "-c", "safe.directory=*", "-C", "repository", "status"],
    ),
    ("`python3` that imports 100 modules", &["python3", "-B", "modules/main.py"]),
    ("`make -n` with 200 targets", &["make", "-n", "-C", "targets"]),
];

/// The table in docs/SEMANTICS.md: the first cells, and the bounds.
fn told() -> Vec<(String, usize)> {
    let page = include_str!("../../docs/SEMANTICS.md");
    let rows =
        page.lines().skip_while(|line| !line.starts_with("| program on a tree of another node |")).skip(2);
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        Some((cells.next()?.to_owned(), cells.next()?.parse().ok()?))
    };
    rows.take_while(|line| line.starts_with('|')).filter_map(row).collect()
}

/// Runs a program in a folder. `grep` finds nothing, and says so by its status.
fn run(folder: &Path, work: &[&str]) {
    let mut program = Command::new(work[0]);
    program.args(&work[1..]).current_dir(folder).env("GIT_CONFIG_GLOBAL", "/dev/null");
    let done = program.output().unwrap();
    let is_fine = done.status.success() || work[0] == "grep" && done.status.code() == Some(1);
    assert!(is_fine && done.stderr.is_empty(), "{work:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn make_files(folder: &Path) {
    let mut random = Rng::new(7);
    for dir in (0..DIRS).flat_map(|dir| [format!("tree/dir{dir}"), format!("repository/dir{dir}")]) {
        let dir = folder.join(dir);
        fs::create_dir_all(&dir).unwrap();
        (0..FILES).for_each(|file| fs::write(dir.join(format!("file{file}")), random.bytes(4096)).unwrap());
    }
    let who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-C", "repository"];
    for work in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "all"]] {
        run(folder, &[&["git"], &who[..], work].concat());
    }
    fs::create_dir(folder.join("modules")).unwrap();
    let names: Vec<String> = (0..MODULES).map(|n| format!("module{n}")).collect();
    for name in &names {
        fs::write(folder.join(format!("modules/{name}.py")), format!("name = '{name}'\n").repeat(100))
            .unwrap();
    }
    fs::write(folder.join("modules/main.py"), format!("import {}\n", names.join(", "))).unwrap();
    fs::create_dir(folder.join("targets")).unwrap();
    let targets: Vec<String> = (0..TARGETS).map(|n| format!("target{n}")).collect();
    let rules = "all: $(T)\n%: %.c\n\tcc -o $@ $<\n";
    fs::write(folder.join("targets/Makefile"), format!("T = {}\n{rules}", targets.join(" "))).unwrap();
    for target in &targets {
        fs::write(folder.join(format!("targets/{target}.c")), "int main() { return 0; }\n").unwrap();
    }
}

#[test]
fn programs_take_no_more_round_trips_than_the_table_says() {
    requires!(Need::Covey, Need::Program("git"), Need::Program("python3"), Need::Program("make"));
    let Some(server) = Server::start() else {
        return say(format_args!("skipped: lacks PostgreSQL's server"));
    };
    server.log_statements();
    let mut shared = Shared::new(server, 1);
    make_files(&shared.path(0, ""));
    run_ok(covey().arg("flush").arg(shared.path(0, "")), LIMIT);
    let told = told();
    assert_eq!(told.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), WORKS.map(|(name, _)| name));
    let mut more = Vec::new();
    for (node, ((name, work), (_, most))) in (1..).zip(WORKS.iter().zip(&told)) {
        // It has just been mounted, and knows nothing of the tree.
        shared.add();
        let before = shared.server.statements();
        run(&shared.path(node, ""), work);
        let took = shared.server.statements() - before;
        println!("{name}: {took} round trips, at most {most}");
        if took > *most {
            more.push(format!("{name}: {took}, not {most}"));
        }
        shared.nodes[node].unmount();
    }
    assert!(more.is_empty(), "docs/SEMANTICS.md differs: {more:?}");
}
