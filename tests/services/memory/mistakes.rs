//! Command lines that cannot work: a message that says what to do, and status 2 or 1.

use std::fs;

use covey_tests::program::covey_run;

use super::world::Place;

#[test]
fn mistakes_get_a_message_and_a_status() {
    let place = Place::new();
    place.snapshot(8192);
    fs::write(place.path("empty"), "").unwrap();
    let (memory, on) = (place.text("memory"), format!("unix:{}", place.text("s")));
    let cases: &[(&[&str], i32, &str)] = &[
        (&[&memory], 2, "--on"),
        (&[&memory, "--on", "tcp:127.0.0.1:1"], 2, "only a unix socket carries one"),
        (&[&memory, "--on", "/run/s"], 2, "unix:PATH"),
        (&[&memory, "--on", "unix:/nowhere/s"], 1, "cannot listen on unix:/nowhere/s"),
        (&[&place.text("none"), "--on", &on], 1, "not there"),
        (&[&place.text("empty"), "--on", &on], 2, "is empty"),
        (&[&place.text(""), "--on", &on], 2, "is a folder"),
        (&[&memory, "--on", &on, "--record", "/nowhere/list"], 2, "no folder /nowhere"),
        (&[&memory, "--on", &on, "--record", "/tmp"], 2, "is a folder"),
        // The first machine's list replaced the file, here the snapshot itself.
        (&[&memory, "--on", &on, "--record", &memory], 2, "is no list of a memory server"),
        (&[&memory, "--on", &on, "--join", "127.0.0.1:1"], 2, "published tree"),
        (&[&memory, "--on", &on, "--clones", "0"], 2, "1..=65536"),
    ];
    for (args, status, text) in cases {
        let done = covey_run(&[&["memory-server"], *args].concat());
        assert_eq!(done.code(), *status, "{args:?}: {done:?}");
        assert!(done.stderr.contains(text), "{args:?}: {done:?}");
        assert!(!place.path("s").exists());
    }
    let server = place.serve(&memory, &[]);
    let second = covey_run(&["memory-server", &memory, "--on", &on]);
    assert!(second.code() == 1 && second.stderr.contains("another server listens there"), "{second:?}");
    server.end_well();
}
