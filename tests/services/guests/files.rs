//! What programs see on a guest's mount.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use covey_tests::program::covey_ok;
use covey_tests::{Need, Rng, requires, run, run_ok, say, tree};

use super::world::{Guest, Place, Server, until};

/// Makes a tree of every kind of thing.
fn make(root: &Path, seed: u64) {
    make_some(root, seed, 8);
}

fn make_some(root: &Path, seed: u64, dirs: usize) {
    let mut rng = Rng::new(seed);
    for dir in 0..dirs {
        let dir = root.join(format!("d{dir}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..12 {
            let path = dir.join(format!("f{file}"));
            let len = [0, 1, 511, 4096, 70_000, 1 << 20, 3_000_001][rng.below(7) as usize];
            fs::write(&path, rng.bytes(len)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600 | rng.below(0o177) as u32)).unwrap();
        }
        fs::hard_link(dir.join("f0"), dir.join("again")).unwrap();
        symlink("f1", dir.join("link")).unwrap();
        fs::rename(dir.join("f2"), dir.join("renamed")).unwrap();
        fs::remove_file(dir.join("f3")).unwrap();
        let sparse = fs::File::create(dir.join("sparse")).unwrap();
        sparse.write_all_at(b"end", 5 << 20).unwrap();
        sparse.set_len(6 << 20).unwrap();
    }
}

fn same(guest: &Path, plain: &Path) {
    let found = tree::differences("guest", &tree::read(guest), "plain", &tree::read(plain));
    // Times are set by two clocks, a moment apart.
    let found: Vec<_> = found.into_iter().filter(|line| !line.contains("time")).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// A tree that is written through a guest reads the same there and as a volume, over every kind of socket.
#[test]
fn a_tree_comes_back_over_every_socket() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let secret = place.secret("secret");
    let on = place.unix("s");
    let server = place.serve(&["--on", &on, "--on", "tcp:127.0.0.1:0", "--secret-file", &secret]);
    let plain = place.path("plain");
    let tcp = server.tcp();
    let ways: [(&str, &[&str]); 3] =
        [(&on, &["--connections", "1"]), (&tcp, &["--connections", "3"]), (&tcp, &["--readers", "1"])];
    for (seed, (address, options)) in ways.into_iter().enumerate() {
        let options = [options, &["--secret-file", &secret]].concat();
        let guest = Guest::attach(&place, "mnt", address, &options);
        let (here, there) = (guest.join(&format!("t{seed}")), plain.join(format!("t{seed}")));
        fs::create_dir(&here).unwrap();
        fs::create_dir_all(&there).unwrap();
        make(&here, seed as u64);
        make(&there, seed as u64);
        same(&here, &there);
        guest.end();
        // Another mount has nothing in its caches.
        let guest = Guest::attach(&place, "mnt", address, &options);
        same(guest.path(), &plain);
        guest.end();
    }
    server.end();
    covey_ok(&["fsck", &place.text("volume")]);
}

/// The usual operations on open files.
#[test]
fn open_files_behave() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let _server = place.serve(&["--many"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    let mut options = fs::File::options();
    let open = options.read(true).write(true).create(true);
    let mut file = open.open(guest.join("f")).unwrap();
    file.write_all(b"0123456789").unwrap();
    fs::remove_file(guest.join("f")).unwrap();
    file.seek(SeekFrom::Start(4)).unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), file.metadata().unwrap().nlink()), ("456789", 0));
    drop(file);
    fs::write(guest.join("g"), vec![7; 3 << 20]).unwrap();
    let made = fs::File::options().write(true).create_new(true).open(guest.join("g"));
    assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::EEXIST));
    let file = fs::File::options().write(true).truncate(true).mode(0o640).open(guest.join("g")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    drop(file);
    let nameless = fs::File::options().write(true).custom_flags(libc::O_TMPFILE).open(guest.path());
    nameless.unwrap().write_all(b"x").unwrap();
    run_ok(
        Command::new("setfattr").args(["-n", "user.a", "-v", "b"]).arg(guest.join("g")),
        Duration::from_secs(20),
    );
    let names: HashSet<_> =
        fs::read_dir(guest.path()).unwrap().map(|line| line.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    guest.end();
}

/// With --writeback the guest's kernel holds written bytes back. Programs see them everywhere all the same,
/// also where they look for data and holes, and another mount finds all of them.
#[test]
fn written_bytes_that_are_held_back_are_seen() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--writeback"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    let plain = place.path("plain");
    fs::create_dir(&plain).unwrap();
    let open = |dir: &Path| fs::File::options().append(true).create(true).open(dir.join("log")).unwrap();
    let mut logs = [open(guest.path()), open(&plain)];
    let line = |at: usize| format!("{at} {}\n", "x".repeat(at % 90));
    for log in &mut logs {
        (0..2000).for_each(|at| log.write_all(line(at).as_bytes()).unwrap());
        log.set_len(70_000).unwrap();
        log.write_all(b"end").unwrap();
    }
    assert_eq!(logs[0].metadata().unwrap().len(), 70_003);
    assert_eq!(fs::read(guest.join("log")).unwrap(), fs::read(plain.join("log")).unwrap());
    // Nothing of this file has reached the server: it would answer that there is no data.
    let sparse =
        fs::File::options().read(true).write(true).create_new(true).open(guest.join("sparse")).unwrap();
    sparse.write_all_at(b"data", 1 << 20).unwrap();
    let seek = |from: i64, whence| {
        // SAFETY: the descriptor is open. The call takes numbers only.
        unsafe { libc::lseek(std::os::fd::AsRawFd::as_raw_fd(&sparse), from, whence) }
    };
    let data = seek(0, libc::SEEK_DATA);
    assert!((0..=1 << 20).contains(&data), "the data was skipped: {data}");
    assert_eq!(seek((1 << 20) + 1, libc::SEEK_DATA), (1 << 20) + 1);
    assert_eq!(seek(1 << 20, libc::SEEK_HOLE), (1 << 20) + 4);
    run_ok(
        Command::new("cp").args(["--sparse=auto", "sparse", "copy"]).current_dir(guest.path()),
        Duration::from_secs(20),
    );
    assert_eq!(fs::read(guest.join("copy")).unwrap(), fs::read(guest.join("sparse")).unwrap());
    drop((logs, sparse));
    make_some(guest.path(), 5, 2);
    make_some(&plain, 5, 2);
    guest.end();
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    assert_eq!(fs::read(guest.join("copy")).unwrap().len(), (1 << 20) + 4);
    ["copy", "sparse"].iter().for_each(|name| fs::remove_file(guest.join(name)).unwrap());
    same(guest.path(), &plain);
    guest.end();
    server.end();
    covey_ok(&["fsck", &place.text("volume")]);
}

/// git works on a guest's mount: what it clones is whole, and its status is clean.
#[test]
fn git_clones_onto_a_guest() {
    requires!(Need::Root, Need::Covey, Need::Program("git"));
    let place = Place::new();
    let _server = place.serve(&[]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &["--connections", "2"]);
    let git = |dir: &Path, args: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]).args(args);
        run_ok(git.current_dir(dir).env("HOME", place.path("")), Duration::from_secs(300)).stdout
    };
    let source = place.path("source");
    fs::create_dir(&source).unwrap();
    git(&source, &["init", "-q"]);
    make_some(&source, 7, 2);
    git(&source, &["add", "."]);
    git(&source, &["commit", "-qm", "all"]);
    let url = format!("file://{}", source.display());
    git(guest.path(), &["clone", "-q", &url, "clone"]);
    let clone = guest.join("clone");
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    git(&clone, &["fsck", "--strict"]);
    fs::write(clone.join("d1/f4"), "changed").unwrap();
    git(&clone, &["commit", "-qam", "change"]);
    assert_eq!(git(&clone, &["log", "--format=%s"]), "change\nall\n");
    guest.end();
}

/// Guests that share a volume see what others did: names and attributes at once, data when they open a file.
#[test]
fn guests_see_one_another() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let _server = place.serve(&["--many"]);
    let [one, two] = ["a", "b"].map(|name| Guest::attach(&place, name, &place.unix("s"), &[]));
    for round in 0..30 {
        let (from, to) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let text = format!("round {round}");
        fs::write(from.join("file"), &text).unwrap();
        assert_eq!(fs::read_to_string(to.join("file")).unwrap(), text);
        assert_eq!(fs::metadata(to.join("file")).unwrap().len(), text.len() as u64);
        fs::create_dir(from.join("dir")).unwrap();
        fs::write(to.join("dir/x"), "x").unwrap();
        fs::rename(from.join("dir"), from.join("moved")).unwrap();
        assert!(!to.join("dir").exists() && to.join("moved/x").exists());
        fs::remove_dir_all(to.join("moved")).unwrap();
        assert!(!from.join("moved").exists());
    }
    // Appends of both, at the same time.
    let append = |guest: &Guest, mark: u8| {
        let path = guest.join("log");
        std::thread::spawn(move || {
            let mut file = fs::File::options().append(true).create(true).open(path).unwrap();
            (0..300).for_each(|_| file.write_all(&[mark; 100]).unwrap());
        })
    };
    [append(&one, b'a'), append(&two, b'b')].into_iter().for_each(|writer| writer.join().unwrap());
    let log = fs::read(one.join("log")).unwrap();
    assert_eq!(log.len(), 60_000);
    assert!(log.chunks(100).all(|record| record.iter().all(|byte| *byte == record[0])));
    one.end();
    assert!(two.join("log").exists());
    two.end();
}

/// A tree that was published is served to any number of guests, and none can change it.
#[test]
fn a_published_tree_is_served() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let plain = place.path("plain");
    fs::create_dir(&plain).unwrap();
    make(&plain, 3);
    covey_ok(&["import", plain.to_str().unwrap(), &format!("{}:/", place.text("volume"))]);
    covey_ok(&["publish", &place.text("volume"), "t"]);
    let tree = format!("file:{}/blobs@t", place.text("volume"));
    let _server = Server::start(&place, &tree, &["--cache", &place.text("cache")]);
    let [one, two] = ["a", "b"].map(|name| Guest::attach(&place, name, &place.unix("s"), &[]));
    for guest in [&one, &two] {
        same(guest.path(), &plain);
        let refused = fs::write(guest.join("new"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    }
    one.end();
    two.end();
}

/// pjdfstest, with guests of both kinds.
#[test]
fn pjdfstest_finds_no_failure_on_a_guest() {
    requires!(Need::Root, Need::Covey, Need::Env("PJDFSTEST"));
    // A plain folder is as good as the filesystem below it, which passes too.
    for (sharing, folder) in [(&[][..], false), (&["--many"], false), (&["--one"], true)] {
        let place = Place::new();
        let source = place.text(if folder { "folder" } else { "volume" });
        fs::create_dir_all(&source).unwrap();
        let _server = Server::start(&place, &source, sharing);
        let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
        let folder = guest.join("suite");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        let config = place.path("pjdfstest.toml");
        fs::write(
            &config,
            "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n\n[settings]\n\
             naptime = 0.01\nallow_remount = false\nexpected_failures = []\n\n[dummy_auth]\n\
             entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
        )
        .unwrap();
        let mut suite = Command::new(std::env::var_os("PJDFSTEST").unwrap());
        suite.arg("-c").arg(&config).arg("-p").arg(&folder).current_dir(&folder);
        let done = run(&mut suite, Duration::from_secs(500));
        let summary = done.stdout.lines().rev().find(|line| line.contains("Summary:")).unwrap_or("none");
        say(format_args!("{sharing:?}: {summary}"));
        let failed: Vec<_> = done.stdout.lines().filter(|line| line.trim_end().ends_with("FAILED")).collect();
        assert!(summary.contains(" 0 failed") && failed.is_empty(), "{summary} {failed:#?}");
        guest.end();
    }
}

/// A caller that is killed while the server does not answer is released, and so is its mount.
#[test]
fn a_killed_program_does_not_wait_for_a_server_that_is_stopped() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--many"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    fs::write(guest.join("f"), "x").unwrap();
    server.signal(libc::SIGSTOP);
    let mut program = Command::new("cat").arg(guest.join("f")).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(program.try_wait().unwrap().is_none(), "it should wait for the server");
    program.kill().unwrap();
    until("the program ends", || program.try_wait().unwrap().is_some());
    server.signal(libc::SIGCONT);
    assert_eq!(fs::read_to_string(guest.join("f")).unwrap(), "x");
    guest.end();
}

/// A plain folder: guests change it, and so do programs of the host, and each sees the other.
#[test]
fn a_plain_folder_is_served() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let folder = place.path("folder");
    fs::create_dir(&folder).unwrap();
    let _server = Server::start(&place, folder.to_str().unwrap(), &[]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &["--connections", "2"]);
    make(guest.path(), 11);
    same(guest.path(), &folder);
    fs::write(folder.join("host"), "of the host").unwrap();
    assert_eq!(fs::read_to_string(guest.join("host")).unwrap(), "of the host");
    fs::write(guest.join("host"), "of the guest").unwrap();
    assert_eq!(fs::read_to_string(folder.join("host")).unwrap(), "of the guest");
    fs::remove_file(folder.join("host")).unwrap();
    assert!(!guest.join("host").exists());
    std::os::unix::fs::chown(guest.join("d0"), Some(1234), Some(4321)).unwrap();
    let found = fs::metadata(folder.join("d0")).unwrap();
    assert_eq!((found.uid(), found.gid()), (1234, 4321));
    // Another filesystem below it stays out of reach, and so does what a link names: guests follow it at
    // home.
    symlink("/etc", folder.join("etc")).unwrap();
    assert_eq!(fs::read_link(guest.join("etc")).unwrap(), Path::new("/etc"));
    guest.end();
}

/// Virtual machines of Firecracker reach a unix socket that has the port in its name. Others reach AF_VSOCK.
#[test]
fn vsock_is_served_in_both_forms() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let machine = format!("vsock:{}:5001", place.text("vm"));
    let _server = place.serve(&["--on", &machine]);
    let guest = Guest::attach(&place, "mnt", &place.unix("vm_5001"), &[]);
    fs::write(guest.join("f"), "x").unwrap();
    guest.end();
    let port = 20_000 + std::process::id() % 10_000;
    let loopback: stream::address::Address = format!("vsock:1:{port}").parse().unwrap();
    let listener = stream::socket::Listener::bind(&format!("vsock:{port}").parse().unwrap());
    let reached = listener
        .as_ref()
        .is_ok_and(|_| stream::socket::Socket::connect(&loopback, Duration::from_secs(5)).is_ok());
    drop(listener);
    if !reached {
        return say(format_args!(
            "skipped: AF_VSOCK, because this kernel has no loopback of it (vsock_loopback)"
        ));
    }
    let other = Place::new();
    let _server = other.serve(&["--on", &format!("vsock:{port}")]);
    let guest = Guest::attach(&other, "mnt", &loopback.to_string(), &[]);
    fs::write(guest.join("f"), "x").unwrap();
    guest.end();
}
