//! A daemon that is killed while programs, and the daemon itself, wait for it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, environment, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};
use s3server::{Fault, Method, Proxy, Rule, Server as Store};

const LIMIT: Duration = Duration::from_secs(60);
/// How long the store takes to answer: longer than the test.
const LATE: Duration = Duration::from_secs(50);

/// A thread of the daemon looked again at a file that another node had changed. It waited for a page that the
/// daemon was about to fill. When the daemon was killed, that thread never ended, and with it the connection:
/// all programs on the mount hung.
#[test]
fn regression_nothing_hangs_when_a_daemon_is_killed_that_looks_again_at_a_file() {
    requires!(Need::Covey);
    environment(s3server::environment());
    let (server, store) = (requires_server!(), Store::start());
    let proxy = Proxy::start(store.address(), 1);
    let (folder, hosts) = (covey_tests::scratch(), format!("127.0.0.1:{}", server.port()));
    let (origin, endpoint) = (format!("s3://{}/work", s3server::BUCKET), proxy.endpoint());
    let mut shared = Shared::stored(server, folder, &hosts, 1, &[], &[&origin, "--endpoint", &endpoint]);
    fs::write(shared.path(0, "file"), vec![7; 6 << 20]).unwrap();
    run_ok(covey().arg("flush").arg(shared.path(0, "")), LIMIT);
    // No node has the bytes.
    shared.nodes[0].unmount();
    shared.add();
    shared.add();
    proxy.add(Rule::new(Fault::Wait(LATE)).only(Method::GET));
    let file = File::open(shared.path(1, "file")).unwrap();
    let (say, hear) = mpsc::channel();
    let reader = std::thread::spawn(move || say.send(file.read_at(&mut [0; 4096], 0).map(drop)));
    let end = Instant::now() + LIMIT;
    while proxy.faults().happened() == 0 {
        assert!(Instant::now() < end, "the read does not ask the store");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut written = File::options().append(true).open(shared.path(2, "file")).unwrap();
    written.write_all(b"more").unwrap();
    // The other node has given its lease back. A moment later it looks again.
    std::thread::sleep(Duration::from_secs(1));
    shared.nodes[1].kill();
    let heard = hear.recv_timeout(Duration::from_secs(20));
    if heard.is_err() {
        // This ends the connection, and with it what waits.
        let _ = std::process::Command::new("umount").arg("-f").arg(shared.path(1, "")).output();
    }
    assert!(heard.expect("the read hangs").is_err(), "a read of a killed daemon");
    let _ = reader.join();
}
