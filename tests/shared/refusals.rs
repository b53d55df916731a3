//! What cannot work is refused in one line that says what to do, and leaves nothing behind.

use std::time::Duration;

use covey_tests::program::{covey, run};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn mistakes_are_named() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 1);
    let address = shared.address.clone();
    let folder = shared.folder.path().to_owned();
    let origin = format!("file:{}", folder.join("second").display());
    let said = |args: &[&str]| {
        let done = run(covey().args(args), LIMIT);
        assert!(!done.status.success(), "{args:?}");
        let text = format!("{}{}", done.stdout, done.stderr);
        assert!(!text.contains("panicked"), "{text}");
        text
    };
    // A name that is in use. Neither the volume nor the new origin is touched.
    assert!(said(&["format", &address, "--origin", &origin]).contains("already"));
    assert!(!folder.join("second").join("covey-origin").exists());
    assert!(said(&["format", &address]).contains("needs an origin"));
    let other = address.replace("volume=work", "volume=other");
    assert!(said(&["mount", &other, "/mnt"]).contains("has no volume other"));
    // An origin that belongs to another volume: the name is free again afterwards.
    let taken = format!("file:{}", folder.join("origin").display());
    said(&["format", &other, "--origin", &taken]);
    assert!(said(&["mount", &other, "/mnt"]).contains("has no volume other"));
    let nowhere = address.replace("/covey?", "/nowhere?");
    assert!(said(&["mount", &nowhere, "/mnt"]).contains("nowhere"));
    let password = address.replace("covey@", "covey:secret@");
    let text = said(&["mount", &password, "/mnt"]);
    assert!(text.contains("PGPASSFILE") && !text.contains("secret@"), "{text}");
    // The same folder twice.
    let node = shared.nodes[0].folder.to_str().unwrap().to_owned();
    let mnt = folder.join("second-mnt");
    std::fs::create_dir(&mnt).unwrap();
    let mnt = mnt.to_str().unwrap();
    assert!(said(&["mount", &address, mnt, "--cache", &node]).contains("in use"));
    shared.nodes[0].unmount();
    assert!(said(&["mount", "-o", "frozen", &address, mnt, "--cache", &node]).contains("frozen"));
    shared.server.down();
    let text = said(&["mount", &address, mnt, "--cache", &node]);
    assert!(text.contains("database"), "{text}");
    shared.server.up();
    shared.nodes[0].mount();
    // A command that takes a path took the scheme for a volume's folder.
    assert!(said(&["gc", &address]).contains("covey mount -d"));
    assert!(said(&["clone", "s3://b/p@x", mnt]).contains("is an address"));
}

/// The kernel's error was all that a command had to say when a mount answered nothing because its database
/// was away: "input/output error", and the advice to look at the kernel's messages.
#[test]
#[ignore = "waits for the end of a session: make test-shared"]
fn regression_a_command_on_a_mount_names_the_database_that_is_away() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 1);
    let mnt = shared.path(0, "");
    shared.server.down();
    let end = std::time::Instant::now() + LIMIT;
    // Until the session ends, the node answers.
    while std::fs::metadata(&mnt).is_ok() {
        assert!(std::time::Instant::now() < end);
        std::thread::sleep(Duration::from_millis(100));
    }
    for command in ["status", "sessions", "locks"] {
        let done = run(covey().arg(command).arg(&mnt), LIMIT);
        assert!(done.code() == 1 && done.stderr.contains("covey doctor"), "{command}: {done:?}");
    }
    shared.server.up();
    while std::fs::metadata(&mnt).is_err() {
        assert!(std::time::Instant::now() < end);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(run(covey().arg("status").arg(&mnt), LIMIT).code(), 0);
}

/// A copy of a node's folder is another node: it has its own number, and does not pose as the first.
#[test]
fn a_copied_folder_is_another_node() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 1);
    std::fs::write(shared.path(0, "file"), vec![5; 50_000]).unwrap();
    std::fs::File::open(shared.path(0, "file")).unwrap().sync_all().unwrap();
    shared.nodes[0].kill();
    let copy = shared.folder.path().join("node1");
    let status = std::process::Command::new("cp").arg("-a").arg(&shared.nodes[0].folder).arg(&copy).status();
    assert!(status.unwrap().success());
    shared.nodes[0].mount();
    shared.add();
    assert!(std::fs::read(shared.path(1, "file")).unwrap() == vec![5; 50_000]);
    std::fs::write(shared.path(1, "other"), "1").unwrap();
    assert_eq!(std::fs::read_to_string(shared.path(0, "other")).unwrap(), "1");
    let done = run(covey().args(["sessions", "--json"]).arg(&shared.nodes[0].mountpoint), LIMIT);
    let numbers: Vec<i64> =
        done.json().as_array().unwrap().iter().map(|row| row["number"].as_i64().unwrap()).collect();
    assert_eq!(numbers, [1, 2]);
}
