//! Wrong words: one clear error and a status, and nothing lost.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use covey_tests::program::{covey, covey_ok};
use covey_tests::{Need, requires, run};

use super::driver::Vmm;
use super::world::{PATIENCE, Program};

fn refused(volume: &Path, on: &str, more: &[&str], code: i32, words: &[&str]) {
    let mut command = covey();
    command.arg("serve").arg(volume).args(["--on", on]).args(more);
    let done = run(&mut command, PATIENCE);
    assert_eq!(done.code(), code, "{on}: {done:?}");
    words.iter().for_each(|word| assert!(done.stderr.contains(word), "no {word:?} in {done:?}"));
}

#[test]
fn a_wrong_socket_is_named() {
    requires!(Need::Covey);
    let dir = covey_tests::scratch();
    let volume = dir.path().join("volume");
    covey_ok(&["format", volume.to_str().unwrap()]);
    let on = |name: &str| format!("vhost-user:{}", dir.path().join(name).display());
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    refused(&volume, &on("file"), &[], 1, &["cannot listen on vhost-user:", "something else than a socket"]);
    // A stream's socket has the same rules.
    let unix = format!("unix:{}", file.display());
    refused(&volume, &unix, &[], 1, &["cannot listen on unix:", "something else than a socket"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    refused(&volume, &on("absent/s"), &[], 1, &["there is no folder", "make it"]);
    refused(&volume, &on(&"x".repeat(150)), &[], 1, &["a socket's may have 107"]);
    let _other = UnixListener::bind(dir.path().join("taken")).unwrap();
    refused(&volume, &on("taken"), &[], 1, &["another server listens there"]);
    refused(&volume, "vhost-user:", &[], 2, &["is no address", "vhost-user:PATH"]);
    refused(&volume, "unix:/x", &["--keep", "5"], 2, &["--keep is for virtiofs", "vhost-user:PATH"]);
    refused(&volume, "unix:/x", &["--tag", "t"], 2, &["--tag is for virtiofs"]);
    refused(&volume, &on("s"), &["--tag", &"t".repeat(37)], 2, &["37 bytes", "at most 36"]);
    let secret = dir.path().join("secret");
    covey_ok(&["fleet", "secret", secret.to_str().unwrap()]);
    let words = ["a VMM cannot be asked for a secret"];
    refused(&volume, &on("s"), &["--secret-file", secret.to_str().unwrap()], 2, &words);
}

/// The socket of a server that was killed is replaced.
#[test]
fn a_dead_socket_is_replaced() {
    requires!(Need::Covey);
    let dir = covey_tests::scratch();
    let (volume, socket) = (dir.path().join("volume"), dir.path().join("s"));
    covey_ok(&["format", volume.to_str().unwrap()]);
    Program::start(dir.path(), &volume, &socket, &[]).kill();
    assert!(socket.exists());
    let program = Program::start(dir.path(), &volume, &socket, &[]);
    assert!(Vmm::mounted(&socket, 2).is_served());
    program.end();
    assert!(!socket.exists());
}
