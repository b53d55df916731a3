//! Wrong words, secrets and versions: a clear error on both sides, and nothing is mounted.

use std::fs;
use std::net::TcpListener;

use covey_tests::program::{Finished, covey, covey_ok, covey_run};
use covey_tests::{Need, requires, run};
use stream::address::Address;
use stream::frame::{Head, Kind, PAYLOAD_MAX};
use stream::hello::{Challenge, Hello, Refusal, VERSION, decode_refusal};
use stream::socket::{Listener, Receiver, Socket};

use super::world::{Attempt, Guest, PATIENCE, Place, until};

fn attach(place: &Place, address: &str, more: &[&str]) -> Finished {
    let mountpoint = place.path("refused");
    fs::create_dir_all(&mountpoint).unwrap();
    let mut command = covey();
    command.args(["attach", address]).arg(&mountpoint).args(more);
    let done = run(&mut command, PATIENCE);
    assert!(!covey_tests::proc::is_fuse_mount(&mountpoint));
    done
}

fn refused(done: &Finished, code: i32, words: &[&str]) {
    assert_eq!(done.code(), code, "{done:?}");
    words.iter().for_each(|word| assert!(done.stderr.contains(word), "no {word:?} in {done:?}"));
}

#[test]
fn a_wrong_secret_is_refused_and_other_guests_go_on() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let (right, wrong) = (place.secret("right"), place.secret("wrong"));
    let server = place.serve(&["--many", "--on", "tcp:127.0.0.1:0", "--secret-file", &right]);
    let guest = Guest::attach(&place, "mnt", &server.tcp(), &["--secret-file", &right]);
    refused(&attach(&place, &server.tcp(), &["--secret-file", &wrong]), 1, &["the secret is wrong"]);
    refused(&attach(&place, &server.tcp(), &[]), 1, &["asks for a secret", "--secret-file"]);
    until("the server says so too", || server.log().contains("the secret is wrong"));
    fs::write(guest.join("f"), "x").unwrap();
    guest.end();
    let open = Place::new();
    let _server = open.serve(&[]);
    refused(&attach(&open, &open.unix("s"), &["--secret-file", &right]), 1, &["it has no secret"]);
}

#[test]
fn another_version_is_named_on_both_sides() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--many"]);
    let address: Address = place.unix("s").parse().unwrap();
    // A guest of another version.
    let socket = Socket::connect(&address, PATIENCE).unwrap();
    let hello = Hello { version: VERSION + 1, features: 0, session: [0; 16], nonce: [1; 32], index: 0 };
    socket.send(&Head::plain(Kind::Hello), &[&hello.encode(), b"and more"]).unwrap();
    let (mut receiver, mut room) = (Receiver::new(socket), vec![0; PAYLOAD_MAX]);
    let got = receiver.receive(&mut room).unwrap();
    assert_eq!(Challenge::decode(&room[..got.len]).unwrap().version, VERSION);
    let got = receiver.receive(&mut room).unwrap();
    let (why, text) = decode_refusal(&room[..got.len]).unwrap();
    assert!(why == Refusal::Version && text.contains("version 2") && text.contains("version 1"), "{text}");
    until("the server says so", || server.log().contains("speaks version 2"));
    // A server of another version.
    let listener = Listener::bind(&Address::Unix(place.path("other"))).unwrap();
    let other = std::thread::spawn(move || {
        let mut receiver = Receiver::new(listener.accept().unwrap());
        receiver.receive(&mut vec![0; PAYLOAD_MAX]).unwrap();
        receiver.socket().send(&Head::plain(Kind::Challenge), &[&7_u16.to_le_bytes(), b"strange"]).unwrap();
    });
    refused(&attach(&place, &place.unix("other"), &[]), 1, &["version 7", "version 1", "one release"]);
    other.join().unwrap();
}

#[test]
fn one_guest_at_a_time_means_one() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let _server = place.serve(&[]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    refused(&attach(&place, &place.unix("s"), &[]), 1, &["another guest is attached", "--many"]);
    guest.end();
    Guest::attach(&place, "mnt", &place.unix("s"), &[]).end();
}

#[test]
fn a_server_that_refuses_changes_refuses_them() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let _server = place.serve(&["--read-only"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    assert_eq!(fs::write(guest.join("f"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    guest.end();
}

#[test]
fn a_folder_that_others_change_allows_no_writeback_cache() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    fs::create_dir(place.path("plain")).unwrap();
    let words = ["serve", &place.text("plain"), "--writeback", "--on", &place.unix("s")];
    refused(&covey_run(&words), 2, &["--writeback is for one guest", "--one"]);
}

/// A server that accepts and says nothing kept the command from ending for ten seconds after Ctrl-C.
#[test]
fn regression_ctrl_c_ends_an_attempt_at_a_silent_server() {
    requires!(Need::Covey);
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    let attempt = Attempt::start(&place, &address);
    let (silent, _) = listener.accept().unwrap();
    let (code, log) = attempt.interrupted();
    // Otherwise it says that the server did not answer in time.
    assert!(code == 130 && log.contains("was stopped before") && log.contains("nothing is mounted"), "{log}");
    drop(silent);
}

#[test]
fn wrong_words_are_named() {
    let place = Place::new();
    refused(&attach(&place, "/run/x", &[]), 2, &["unix:PATH"]);
    refused(&attach(&place, &place.unix("none"), &[]), 1, &["cannot connect", "covey serve"]);
    refused(&attach(&place, "unix:/x", &["-o", "what"]), 2, &["no mount option what"]);
    let volume = place.text("volume");
    refused(&covey_run(&["serve", &volume, "--on", "tcp:127.0.0.1:0"]), 2, &["secret", "covey fleet secret"]);
    refused(&covey_run(&["serve", &volume, "--on", "vsock:3:5"]), 2, &["--on vsock:5"]);
    refused(&covey_run(&["serve", &place.text("none"), "--on", &place.unix("s")]), 1, &["none"]);
    refused(&covey_run(&["serve", &volume]), 2, &["--on"]);
    let both = ["serve", &volume, "--many", "--writeback", "--on", &place.unix("s")];
    refused(&covey_run(&both), 2, &["--writeback", "--many"]);
}

/// An option without an effect was accepted: a tree was served to any number of guests after `--one`.
#[test]
fn regression_what_would_be_ignored_is_refused() {
    requires!(Need::Covey);
    let place = Place::new();
    covey_ok(&["publish", &place.text("volume"), "tree"]);
    let tree = format!("file:{}@tree", place.text("volume/blobs"));
    let (volume, vmm) = (place.text("volume"), format!("vhost-user:{}", place.text("v")));
    let cases: [(&str, &[&str], &[&str]); 6] = [
        (&tree, &["--one"], &["--one is for what can change", "any number of guests", "leave --one out"]),
        (&volume, &["--guests", "7"], &["one guest at a time", "--many"]),
        (&volume, &["--cache", "/x"], &["--cache has no effect on", "published trees"]),
        ("mem:", &["--endpoint", "http://127.0.0.1:1"], &["--endpoint has no effect on mem:"]),
        (&volume, &["--on", &vmm, "--linger", "7"], &["--linger is for guests over a stream"]),
        (&volume, &["--on", &vmm, "--requests", "7"], &["--requests is for guests over a stream"]),
    ];
    for (source, more, words) in cases {
        let on = place.unix("s");
        let mut all = vec!["serve", source];
        all.extend(more);
        if !more.contains(&"--on") {
            all.extend(["--on", &on]);
        }
        refused(&covey_run(&all), 2, words);
    }
    let mount = ["mount", "--accept-older", &volume, &place.text("volume")];
    refused(&covey_run(&mount), 2, &["--accept-older has no effect on", "leave --accept-older out"]);
}

/// A volume that is mounted is refused with what to do, and a second server of a socket too.
#[test]
fn what_is_in_use_is_refused() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let volume = covey_tests::Volume::existing(&place.path(""));
    let mounted = volume.mount();
    let done = covey_run(&["serve", &place.text("volume"), "--on", &place.unix("s")]);
    refused(&done, 1, &["in use", "has it mounted"]);
    mounted.umount();
    let _server = place.serve(&[]);
    let done = covey_run(&["serve", "mem:", "--on", &place.unix("s")]);
    refused(&done, 1, &["cannot listen", "another server"]);
}
