//! A daemon that is killed while programs, and the daemon itself, wait for it.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, environment, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};
use rustix::fs::SeekFrom;
use s3server::{Fault, Method, Proxy, Rule, Server as Store};
use servers::Server;

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

/// SEEK_DATA makes the kernel write back what a program changed in a mapping. A thread of the daemon waited
/// for that, and the WRITE waited for another node. When the daemon was killed, the thread never ended.
#[test]
fn regression_nothing_hangs_when_a_daemon_is_killed_that_flushes_for_a_seek() {
    requires!(Need::Covey);
    for transport in ["classic", "uring"] {
        let (mut shared, file, map) = cut_off(requires_server!(), &["--transport", transport]);
        let (say, hear) = mpsc::channel();
        let seek = std::thread::spawn(move || say.send(rustix::fs::seek(&file, SeekFrom::Data(0)).map(drop)));
        let early = hear.recv_timeout(Duration::from_secs(2));
        assert!(early.is_err(), "the seek does not wait for the other node: {early:?}");
        let hangs = watch(shared.path(0, ""));
        shared.nodes[0].kill();
        let heard = hear.recv_timeout(LIMIT);
        let hangs = hangs();
        shared.nodes[1].freeze(false);
        drop(map);
        assert!(!hangs, "the daemon or the seek hangs");
        assert!(heard.expect("the seek hangs").is_err(), "a seek of a killed daemon");
        let _ = seek.join();
    }
}

/// A daemon has the kernel write back what programs changed before it publishes. It waited for its own mount,
/// and when it was killed meanwhile, it never ended, and all programs on the mount hung.
#[test]
fn regression_nothing_hangs_when_a_daemon_is_killed_that_publishes() {
    requires!(Need::Covey);
    for transport in ["classic", "uring"] {
        let every = ["--transport", transport, "--publish-every", "1s"];
        let (mut shared, _file, map) = cut_off(requires_server!(), &every);
        let end = Instant::now() + LIMIT;
        while !shared.nodes[0].has_thread("fuse-push") {
            assert!(Instant::now() < end, "the daemon does not publish");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_secs(1));
        assert!(shared.nodes[0].has_thread("fuse-push"), "it does not wait for the other node");
        let hangs = watch(shared.path(0, ""));
        shared.nodes[0].kill();
        let hangs = hangs();
        shared.nodes[1].freeze(false);
        drop(map);
        assert!(!hangs, "the daemon hangs");
    }
}

/// Makes two nodes. A program has changed a page on the first one, and the second one, which is stopped, has
/// the lease.
fn cut_off(server: Server, options: &[&'static str]) -> (Shared, File, Mapping) {
    let shared = Shared::with(server, 2, options);
    fs::write(shared.path(0, "file"), vec![7; 8192]).unwrap();
    let file = File::options().read(true).write(true).open(shared.path(0, "file")).unwrap();
    let map = Mapping::of(&file);
    map.change(0);
    // The other node takes the lease, and cannot give it back.
    fs::write(shared.path(1, "file"), vec![8; 8192]).unwrap();
    map.change(4096);
    shared.nodes[1].freeze(true);
    (shared, file, map)
}

/// Ends the connection of a mount in some seconds, and with it what hangs there. The result stops that, and
/// returns whether it was done.
fn watch(path: PathBuf) -> impl FnOnce() -> bool {
    let (done, is_done) = mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        let hangs = is_done.recv_timeout(Duration::from_secs(20)).is_err();
        hangs.then(|| std::process::Command::new("umount").arg("-f").arg(path).output());
        hangs
    });
    move || {
        let _ = done.send(());
        guard.join().unwrap()
    }
}

/// Two pages of a file that are shared with the kernel.
struct Mapping(*mut u8);

impl Mapping {
    fn of(file: &File) -> Mapping {
        let how = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the file is open, and nothing but this process changes the mapping.
        let map =
            unsafe { libc::mmap(std::ptr::null_mut(), 8192, how, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(map, libc::MAP_FAILED);
        Mapping(map.cast())
    }

    fn change(&self, at: usize) {
        // SAFETY: the byte is mapped, and the file has its page.
        unsafe { self.0.add(at).write_volatile(9) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is mapped, and nobody uses it any more.
        unsafe { libc::munmap(self.0.cast(), 8192) };
    }
}
