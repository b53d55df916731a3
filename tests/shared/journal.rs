//! A node that is killed loses nothing that it had acknowledged, if it is mounted again before its session
//! ends. Otherwise it says what was refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run_ok};
use covey_tests::shared::names::round_again;
use covey_tests::shared::{Node, Shared};
use covey_tests::{Need, requires, requires_server, say, seeds};
use servers::Server;

const LIMIT: Duration = Duration::from_secs(60);

fn rounds() -> u64 {
    std::env::var("COVEY_ROUNDS").ok().map_or(5, |text| text.parse().unwrap())
}

/// Two nodes. The second has a folder of its own, and all that it needs to change it without the database.
fn warm() -> Option<(Shared, PathBuf)> {
    let server = Server::start()?;
    let shared = Shared::new(server, 2);
    let folder = shared.path(1, "folder");
    fs::create_dir(&folder).unwrap();
    for n in 0..8 {
        fs::write(folder.join(format!("old{n}")), vec![n; 3000]).unwrap();
    }
    fs::File::open(&folder).unwrap().sync_all().unwrap();
    let rows = || {
        let row = "encode(k, 'hex') || encode(v, 'hex')";
        shared.server.sql(&format!("select md5(string_agg({row}, '' order by k)) from covey_kv"))
    };
    let before = rows();
    // fsync(2) sealed the open pack. This opens the next one. All of it has to be stored.
    fs::write(folder.join("old7"), vec![7; 3000]).unwrap();
    let (mut last, end) = (before.clone(), Instant::now() + LIMIT);
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = rows();
        if now != before && now == last {
            break;
        }
        assert!(Instant::now() < end, "the change is not stored");
        last = now;
    }
    Some((shared, folder))
}

/// Changes that a node acknowledges while the database is stopped.
fn change(folder: &Path) {
    fs::write(folder.join("small"), "small").unwrap();
    // What comes now is in a later batch than what was first.
    std::thread::sleep(Duration::from_millis(60));
    for n in 0..8u8 {
        fs::write(folder.join(format!("new{n}")), vec![n + 1; 5000 + usize::from(n)]).unwrap();
    }
    fs::rename(folder.join("old0"), folder.join("renamed")).unwrap();
    fs::rename(folder.join("old1"), folder.join("old2")).unwrap();
    fs::remove_file(folder.join("old3")).unwrap();
    fs::write(folder.join("old4"), vec![44; 70_000]).unwrap();
    fs::create_dir(folder.join("below")).unwrap();
    fs::write(folder.join("below/file"), vec![9; 2000]).unwrap();
    std::os::unix::fs::symlink("old5", folder.join("link")).unwrap();
}

/// All of [`change`] is there, once and whole.
fn must_be_changed(folder: &Path, what: &str) {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected: Vec<String> = (0..8).map(|n| format!("new{n}")).collect();
    expected.extend(
        ["below", "link", "old2", "old4", "old5", "old6", "old7", "renamed", "small"].map(String::from),
    );
    expected.sort();
    assert_eq!(names, expected, "{what}");
    let read =
        |name: &str| fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
    assert_eq!(read("small"), b"small", "{what}");
    (0..8u8).for_each(|n| assert!(read(&format!("new{n}")) == vec![n + 1; 5000 + usize::from(n)], "{what}"));
    assert!(read("renamed") == vec![0; 3000] && read("old2") == vec![1; 3000], "{what}");
    assert!(read("old4") == vec![44; 70_000] && read("below/file") == vec![9; 2000], "{what}");
    assert!(read("link") == vec![5; 3000], "{what}");
}

fn refused(node: &Node) -> Vec<PathBuf> {
    let all = fs::read_dir(node.folder.join("changes")).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("refused-")).collect()
}

fn clean(shared: &Shared) {
    run_ok(covey().args(["fsck", &shared.address]), LIMIT);
}

/// The database has none of it, or the first part, when the daemon is killed. The commit that was on its way
/// arrives after that.
#[test]
fn what_a_killed_node_acknowledged_is_there_again() {
    requires!(Need::Covey);
    let Some((mut shared, folder)) = warm() else {
        return say(format_args!("skipped: lacks PostgreSQL's server"));
    };
    shared.server.freeze(true);
    change(&folder);
    shared.nodes[1].kill();
    shared.server.freeze(false);
    shared.nodes[1].mount();
    for node in 0..2 {
        must_be_changed(&shared.path(node, "folder"), &format!("node {node}"));
    }
    let log = shared.nodes[1].log();
    assert!(log.contains("that an earlier process had acknowledged are in the database"), "{log}");
    assert!(refused(&shared.nodes[1]).is_empty());
    fs::write(folder.join("after"), "after").unwrap();
    assert_eq!(fs::read_to_string(shared.path(0, "folder/after")).unwrap(), "after");
    // Mounted again, there is nothing left to store.
    let before = log.matches("earlier process").count();
    shared.nodes[1].unmount();
    shared.nodes[1].mount();
    assert_eq!(shared.nodes[1].log().matches("earlier process").count(), before);
    clean(&shared);
}

/// A mount that changes nothing stores it too, and so does one after another kill.
#[test]
fn a_read_only_mount_stores_what_was_acknowledged() {
    requires!(Need::Covey);
    let Some((mut shared, folder)) = warm() else {
        return say(format_args!("skipped: lacks PostgreSQL's server"));
    };
    shared.server.freeze(true);
    change(&folder);
    shared.nodes[1].kill();
    shared.server.freeze(false);
    shared.nodes[1].try_mount(&["-o", "ro"]).unwrap();
    fs::write(folder.join("no"), "no").unwrap_err();
    for node in 0..2 {
        must_be_changed(&shared.path(node, "folder"), &format!("node {node}"));
    }
    shared.nodes[1].kill();
    shared.nodes[1].mount();
    must_be_changed(&folder, "after all");
    clean(&shared);
}

/// The other nodes went on when the session was over. What they did stays, and nothing is lost in silence.
#[test]
fn what_another_node_took_over_is_refused_and_said() {
    requires!(Need::Covey);
    let Some((mut shared, folder)) = warm() else {
        return say(format_args!("skipped: lacks PostgreSQL's server"));
    };
    shared.server.freeze(true);
    change(&folder);
    shared.nodes[1].kill();
    shared.server.freeze(false);
    // This waits until the session is over.
    fs::write(shared.path(0, "folder/new1"), "another").unwrap();
    shared.nodes[1].mount();
    for node in 0..2 {
        assert_eq!(fs::read_to_string(shared.path(node, "folder/new1")).unwrap(), "another", "node {node}");
        assert!(!shared.path(node, "folder/below").exists(), "node {node}");
    }
    let log = shared.nodes[1].log();
    // It is sure if the row that counts what was stored is there. The other node removes it at some time.
    let said = ["may not be stored", "could not be stored"];
    let said =
        said.map(|became| format!("{became}: the session in which they were made was ended meanwhile"));
    assert!(
        said.iter().any(|words| log.contains(&format!("which this node had acknowledged, {words}"))),
        "{log}"
    );
    let [file] = &refused(&shared.nodes[1])[..] else { panic!("{log}") };
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains("name \"below\" in folder"), "{text}");
    let status = run_ok(covey().arg("status").arg(&shared.nodes[1].mountpoint), LIMIT);
    assert!(said.iter().any(|words| status.stdout.contains(words)), "{status:?}");
    fs::remove_file(file).unwrap();
    let status = run_ok(covey().arg("status").arg(&shared.nodes[1].mountpoint), LIMIT);
    assert!(!status.stdout.contains("not be stored"), "{status:?}");
    clean(&shared);
}

/// Nothing that a node has said is taken back by a kill, if it is mounted again at once.
#[test]
fn names_are_linearizable_when_a_killed_node_comes_back() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 3);
    let said = |shared: &Shared| -> usize {
        shared.nodes.iter().map(|node| node.log().matches("earlier process").count()).sum()
    };
    // On a busy machine it may happen that no kill came at the right moment. Then there are more rounds.
    for seed in seeds(400, rounds()).chain(10_000..10_020) {
        if seed >= 10_000 && said(&shared) > 0 {
            break;
        }
        let name = format!("round{seed}");
        fs::create_dir(shared.path(0, &name)).unwrap();
        let victim = (seed % 3) as usize;
        // Most clients are on that node, so it often has the lease.
        let nodes = [0, 1, 0, 0, 2, 0].map(|node| (victim + node) % 3);
        let folders: Vec<PathBuf> = nodes.iter().map(|node| shared.path(*node, &name)).collect();
        round_again(&folders, 6, 16, seed, || {
            std::thread::sleep(Duration::from_millis(5 + seed * 37 % 60));
            fs::write(shared.path(victim, &name).join("lease"), "").unwrap();
            // Nothing that is acknowledged from now on is stored before the kill.
            shared.server.freeze(true);
            std::thread::sleep(Duration::from_millis(2 + seed * 11 % 30));
            shared.nodes[victim].kill();
            shared.server.freeze(false);
            shared.nodes[victim].mount();
        });
    }
    let said = said(&shared);
    say(format_args!("{said} kills left changes that were stored by the next process"));
    assert!(said > 0);
    assert!(shared.nodes.iter().all(|node| refused(node).is_empty()));
}
