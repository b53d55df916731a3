//! What people do on a shared tree: unpack archives, and work in one repository from two nodes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use covey_tests::shared::Shared;
use covey_tests::{Finished, Need, Rng, requires, requires_server, run, run_ok, say};

/// The longest time for one program.
const LIMIT: Duration = Duration::from_secs(120);

/// A tree with files of many sizes, links and empty directories, below an existing folder. Returns the number
/// of files.
pub fn make_tree(below: &Path, dirs: usize, files: usize) -> usize {
    let mut rng = Rng::new(7);
    for dir in 0..dirs {
        let folder = below.join(format!("dir{}", dir / 4)).join(format!("sub{dir}"));
        fs::create_dir_all(folder.join("empty")).unwrap();
        for file in 0..files {
            let most = [0, 40, 700, 9000, 90_000][file % 5];
            let len = rng.below(most + 1) as usize;
            fs::write(folder.join(format!("file{file}")), rng.bytes(len)).unwrap();
        }
        fs::hard_link(folder.join("file0"), folder.join("same")).unwrap();
        symlink("file1", folder.join("link")).unwrap();
    }
    dirs * files
}

/// Whether two trees hold the same names and bytes.
pub fn must_be_same(left: &Path, right: &Path) {
    let mut diff = Command::new("diff");
    run_ok(diff.args(["-r", "--no-dereference"]).arg(left).arg(right), LIMIT);
}

/// Packs a tree into an archive.
pub fn pack(tree: &Path, archive: &Path) {
    run_ok(Command::new("tar").arg("cf").arg(archive).arg("-C").arg(tree).arg("."), LIMIT);
}

/// The command that unpacks an archive below a folder.
pub fn unpack(archive: &Path, into: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.arg("xf").arg(archive).arg("-C").arg(into);
    tar
}

#[test]
fn a_tree_unpacked_on_one_node_is_the_same_on_the_other() {
    requires!(Need::Covey, Need::Program("tar"), Need::Program("diff"));
    let shared = Shared::new(requires_server!(), 2);
    let (tree, archive) = (shared.folder.path().join("tree"), shared.folder.path().join("tree.tar"));
    let files = make_tree(&tree, 12, 20);
    pack(&tree, &archive);
    fs::create_dir(shared.path(0, "into")).unwrap();
    let began = std::time::Instant::now();
    run_ok(&mut unpack(&archive, &shared.path(0, "into")), LIMIT);
    say(format_args!("{files} files unpacked in {:?}", began.elapsed()));
    must_be_same(&tree, &shared.path(1, "into"));
    fs::remove_dir_all(shared.path(1, "into")).unwrap();
    assert_eq!(fs::read_dir(shared.path(0, "")).unwrap().count(), 0);
}

fn git(folder: &Path, args: &[&str]) -> Finished {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(args);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{who}_NAME"), "a").env(format!("GIT_{who}_EMAIL"), "a@example.org");
    }
    let done = run(&mut git, LIMIT);
    assert!(done.status.success(), "git {args:?} in {}: {done:?}", folder.display());
    done
}

/// Each of two nodes commits on a branch of its own. They share the objects, the refs and the lock files.
#[test]
fn a_repository_with_writers_on_two_nodes_stays_whole() {
    requires!(Need::Covey, Need::Program("git"));
    const COMMITS: usize = 5;
    let shared = Shared::new(requires_server!(), 2);
    let repository = [0, 1].map(|node| shared.path(node, "repository"));
    git(&shared.path(0, ""), &["init", "--quiet", "--initial-branch=main", "repository"]);
    fs::write(repository[0].join("first"), "first").unwrap();
    git(&repository[0], &["add", "first"]);
    git(&repository[0], &["commit", "--quiet", "-m", "first"]);
    std::thread::scope(|scope| {
        for (node, repository) in repository.iter().enumerate() {
            let own = repository.with_file_name(format!("own{node}"));
            scope.spawn(move || {
                let branch = format!("branch{node}");
                // Relative, because the nodes have the tree at different paths.
                git(repository, &["clone", "--quiet", "--shared", ".", &format!("../own{node}")]);
                git(&own, &["checkout", "--quiet", "-b", &branch]);
                let objects = own.join(".git/objects/info/alternates");
                fs::write(objects, "../../../repository/.git/objects\n").unwrap();
                for n in 0..COMMITS {
                    fs::write(own.join(format!("{branch}-{n}")), format!("{n}\n")).unwrap();
                    git(&own, &["add", "."]);
                    git(&own, &["commit", "--quiet", "-m", &branch]);
                    git(&own, &["push", "--quiet", "../repository", &branch]);
                }
            });
        }
    });
    for (node, repository) in repository.iter().enumerate() {
        git(repository, &["fsck", "--full", "--strict"]);
        for branch in 0..2 {
            let log = git(repository, &["log", "--oneline", &format!("branch{branch}")]);
            assert_eq!(log.stdout.lines().count(), COMMITS + 1, "branch{branch} on node {node}");
        }
        let other = repository.with_file_name(format!("own{}", 1 - node));
        assert_eq!(git(&other, &["status", "--short"]).stdout, "", "what the other node checked out");
    }
}

/// A reader found the size of an inline file before another node cut it, and its bytes after that. It showed
/// zeros that were never in the file.
#[test]
fn regression_a_file_cut_and_written_again_shows_no_zeros() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    let [written, read] = [0, 1].map(|node| shared.path(node, "file"));
    fs::write(&written, "a").unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..400 {
                let (byte, len) = [(b'a', 400), (b'b', 20), (b'c', 3000)][n % 3];
                fs::write(&written, vec![byte; len]).unwrap();
            }
            ended.store(true, Ordering::SeqCst);
        });
        let mut reads = 0;
        while !ended.load(Ordering::SeqCst) {
            let bytes = fs::read(&read).unwrap();
            reads += 1;
            assert!(!bytes.contains(&0), "read {reads}: {} zeros", bytes.iter().filter(|b| **b == 0).count());
        }
        say(format_args!("{reads} reads"));
    });
}

/// The thread that answers a node's kernel used to wait for a lease, and giving that lease back for the
/// thread.
#[test]
fn regression_nodes_in_one_directory_do_not_stop_each_other() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 4);
    fs::create_dir(shared.path(0, "all")).unwrap();
    std::thread::scope(|scope| {
        for node in 0..4 {
            let folder = shared.path(node, "all");
            scope.spawn(move || {
                for n in 0..400 {
                    fs::File::create_new(folder.join(format!("{node}-{n}"))).unwrap();
                }
            });
        }
    });
    for node in 0..4 {
        assert_eq!(fs::read_dir(shared.path(node, "all")).unwrap().count(), 1600);
    }
}
