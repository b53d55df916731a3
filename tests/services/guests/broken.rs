//! Connections that break and servers that end: nothing is executed twice, and errors are honest.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use covey_tests::program::covey_ok;
use covey_tests::{Need, requires, say};

use super::world::{Guest, Place, Proxy, until};

/// What one program does in a loop. Everything fails if it is executed twice: a second mkdir of a name, a
/// second rename and a second unlink; a second append is counted.
fn churn(dir: &Path, goes_on: impl Fn(usize) -> bool, failed: &mut impl FnMut(std::io::Error)) -> usize {
    let log = dir.join("log");
    let mut file = fs::File::options().append(true).create(true).open(&log).unwrap();
    let mut appended = 0;
    for round in (0..).take_while(|round| goes_on(*round)) {
        let (one, two) = (dir.join(format!("a{round}")), dir.join(format!("b{round}")));
        let mut step = |done: std::io::Result<()>| match done {
            Ok(()) => true,
            Err(error) => {
                failed(error);
                false
            }
        };
        if step(file.write_all(format!("{round:07}\n").as_bytes())) {
            appended += 1;
        }
        if step(fs::create_dir(&one)) && step(fs::rename(&one, &two)) {
            step(fs::remove_dir(&two));
        }
        if step(fs::write(&one, vec![round as u8; 40_000])) {
            step(fs::remove_file(&one));
        }
    }
    appended
}

/// Connections are cut again and again in the middle of frames. Programs notice nothing: no error, nothing
/// twice, nothing lost.
#[test]
fn nothing_happens_twice_when_connections_are_cut() {
    requires!(Need::Root, Need::Covey);
    for connections in ["1", "3"] {
        let place = Place::new();
        let server = place.serve(&["--many"]);
        let proxy = Arc::new(Proxy::start(&place));
        let guest = Guest::attach(&place, "mnt", proxy.address(), &["--connections", connections]);
        let done = Arc::new(AtomicBool::new(false));
        let cutter = {
            let (proxy, done) = (Arc::clone(&proxy), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut pause = 7;
                while !done.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(pause));
                    pause = (pause * 5) % 97 + 5;
                    proxy.cut();
                }
            })
        };
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (dir, proxy) = (guest.join(&format!("w{writer}")), Arc::clone(&proxy));
                let end = std::time::Instant::now() + Duration::from_secs(60);
                std::thread::spawn(move || {
                    fs::create_dir(&dir).unwrap();
                    let few = || proxy.cuts.load(Ordering::Relaxed) <= 20 && std::time::Instant::now() < end;
                    churn(&dir, |round| round < 60 || few(), &mut |error| panic!("a program saw {error}"))
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(std::thread::JoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        cutter.join().unwrap();
        for (writer, ended) in ended.into_iter().enumerate() {
            let text = fs::read_to_string(guest.join(&format!("w{writer}/log"))).unwrap();
            let wanted: String = (0..ended.unwrap()).map(|round| format!("{round:07}\n")).collect();
            assert_eq!(text, wanted, "a record was appended twice, or is lost");
            assert_eq!(fs::read_dir(guest.join(&format!("w{writer}"))).unwrap().count(), 1);
        }
        let cuts = proxy.cuts.load(Ordering::Relaxed);
        say(format_args!("{connections} connections: cut {cuts} times"));
        assert!(cuts > 20, "it was cut {cuts} times only");
        guest.end();
        server.end();
    }
}

/// The server is killed and started again, several times. A program may see EIO for what was in flight. What
/// it was told is done stays done, nothing happens twice, and open files go on.
#[test]
fn a_server_that_is_killed_and_restarted_is_followed() {
    requires!(Need::Root, Need::Covey);
    for sharing in [&["--many"][..], &[]] {
        let place = Place::new();
        let mut server = place.serve(sharing);
        let guest = Guest::attach(&place, "mnt", &place.unix("s"), &["--connections", "2"]);
        fs::write(guest.join("before"), "0123456789").unwrap();
        let mut open = fs::File::options().read(true).write(true).open(guest.join("before")).unwrap();
        let errors = Arc::new(AtomicUsize::new(0));
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (dir, errors) = (guest.join(&format!("w{writer}")), Arc::clone(&errors));
                fs::create_dir(&dir).unwrap();
                std::thread::spawn(move || {
                    let appended = churn(&dir, |round| round < 150, &mut |error| {
                        // EIO: it is unknown whether it happened. So the next step may find what it left.
                        let known = [libc::EIO, libc::EEXIST, libc::ENOENT, libc::ENOTEMPTY, libc::EISDIR];
                        assert!(error.raw_os_error().is_some_and(|e| known.contains(&e)), "{error}");
                        if error.raw_os_error() == Some(libc::EIO) {
                            errors.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                    (dir, appended)
                })
            })
            .collect();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(400));
            server.kill();
            std::thread::sleep(Duration::from_millis(100));
            server = place.serve(sharing);
        }
        for writer in writers {
            let (dir, appended) = writer.join().unwrap();
            let text = fs::read_to_string(dir.join("log")).unwrap();
            let mut rounds: Vec<&str> = text.lines().collect();
            let all = rounds.len();
            rounds.sort_unstable();
            rounds.dedup();
            assert_eq!(rounds.len(), all, "a record was appended twice");
            assert!(all >= appended, "{appended} appends were acknowledged, and {all} are there");
        }
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "0123456789");
        open.seek(SeekFrom::Start(0)).unwrap();
        open.write_all(b"after").unwrap();
        assert_eq!(fs::read_to_string(guest.join("before")).unwrap(), "after56789");
        // The new server knows what the kernel holds: a file lives on without a name.
        fs::remove_file(guest.join("before")).unwrap();
        open.seek(SeekFrom::Start(0)).unwrap();
        text.clear();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "after56789");
        say(format_args!("{sharing:?}: {} requests failed with EIO", errors.load(Ordering::Relaxed)));
        until("the log says it", || guest.log().contains("a new run of the server takes over"));
        drop(open);
        guest.end();
        server.end();
        covey_ok(&["fsck", &place.text("volume")]);
    }
}

/// A file with one open descriptor for appending, and a thread that appends to it while replies are lost. The
/// append happens, and the guest does not hear of it.
fn append_unheard(proxy: &Proxy, guest: &Guest, here: &Path) -> std::thread::JoinHandle<std::io::Result<()>> {
    // The kernel learns at the first close that none needs an answer. A process that is started later closes
    // copies of all files, and would wait.
    fs::write(guest.join("closed"), "x").unwrap();
    let mut file = fs::File::options().append(true).create(true).open(guest.join("log")).unwrap();
    file.write_all(b"first\n").unwrap();
    proxy.lose_replies();
    let writer = std::thread::spawn(move || file.write_all(b"second\n"));
    // Another guest, without the proxy, sees that it has happened.
    until("it was appended", || fs::read(here.join("log")).is_ok_and(|text| text.ends_with(b"second\n")));
    writer
}

/// A reply is lost with its connection. The request has been executed, and is not executed again: the guest
/// gets the reply that the server kept.
#[test]
fn a_reply_that_was_lost_is_sent_again() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let _server = place.serve(&["--many"]);
    let proxy = Proxy::start(&place);
    let guest = Guest::attach(&place, "mnt", proxy.address(), &[]);
    let other = Guest::attach(&place, "other", &place.unix("s"), &[]);
    let writer = append_unheard(&proxy, &guest, other.path());
    proxy.cut();
    proxy.heal();
    writer.join().unwrap().unwrap();
    assert_eq!(fs::read_to_string(guest.join("log")).unwrap(), "first\nsecond\n");
    guest.end();
    other.end();
}

/// The same, and the server is killed before it can send the reply again. The next one cannot know that the
/// request was executed. So the program gets EIO, and the request is not executed a second time.
#[test]
fn a_request_of_a_server_that_is_gone_is_not_executed_by_the_next() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--many"]);
    let proxy = Proxy::start(&place);
    let guest = Guest::attach(&place, "mnt", proxy.address(), &[]);
    let other = Guest::attach(&place, "other", &place.unix("s"), &[]);
    let writer = append_unheard(&proxy, &guest, other.path());
    server.kill();
    let _server = place.serve(&["--many"]);
    proxy.heal();
    assert_eq!(writer.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read_to_string(guest.join("log")).unwrap(), "first\nsecond\n");
    guest.end();
    other.end();
}

/// A request is lost with its connection, and the program is told EIO because no server answers. When one
/// answers again, the request is given up and not executed late.
#[test]
fn a_request_that_failed_is_not_executed_later() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let _server = place.serve(&[]);
    let proxy = Proxy::start(&place);
    let guest = Guest::attach(&place, "mnt", proxy.address(), &["--wait", "1"]);
    // The kernel keeps the name and all attributes, so the next request is the UNLINK.
    fs::write(guest.join("kept"), "x").unwrap();
    assert!(fs::metadata(guest.path()).is_ok() && fs::metadata(guest.join("kept")).is_ok());
    proxy.lose_requests();
    let kept = guest.join("kept");
    let remover = std::thread::spawn(move || fs::remove_file(kept));
    std::thread::sleep(Duration::from_millis(300));
    proxy.cut();
    assert_eq!(remover.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    proxy.heal();
    until("the mount works again", || fs::create_dir(guest.join("next")).is_ok());
    assert_eq!(fs::read_to_string(guest.join("kept")).unwrap(), "x");
    guest.end();
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    assert_eq!(fs::read_to_string(guest.join("kept")).unwrap(), "x");
    guest.end();
}

/// A guest that keeps everything drops it when another run of the server takes over: meanwhile the volume may
/// have been changed in another way.
#[test]
fn what_changed_while_the_server_was_away_is_seen() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&[]);
    let guest = Guest::attach(&place, "guest", &place.unix("s"), &["--wait", "120"]);
    fs::create_dir(guest.join("d")).unwrap();
    fs::write(guest.join("d/f"), "old").unwrap();
    assert_eq!(fs::read_to_string(guest.join("d/f")).unwrap(), "old");
    assert!(!guest.join("d/new").exists() && fs::read_dir(guest.join("d")).unwrap().count() == 1);
    server.kill();
    let volume = covey_tests::Volume::existing(&place.path(""));
    let mounted = volume.mount();
    // Of the same size, so that only the data tells.
    fs::write(mounted.join("d/f"), "NEW").unwrap();
    fs::write(mounted.join("d/new"), "new").unwrap();
    mounted.umount();
    let _server = place.serve(&[]);
    until("the guest follows", || guest.log().contains("takes over"));
    until("it sees the new name", || guest.join("d/new").exists());
    until("it sees the new data", || fs::read_to_string(guest.join("d/f")).unwrap() == "NEW");
    assert_eq!(fs::read_dir(guest.join("d")).unwrap().count(), 2);
    guest.end();
}

/// With the writeback cache, sizes and times are the guest's, and a new run of the server may have others. So
/// it is not followed: programs get EIO and the message says what to do.
#[test]
fn a_guest_that_holds_written_bytes_back_does_not_follow_a_restart() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--writeback"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &["--wait", "1"]);
    fs::write(guest.join("f"), "kept").unwrap();
    fs::File::open(guest.join("f")).unwrap().sync_all().unwrap();
    server.kill();
    let server = place.serve(&["--writeback"]);
    let refused = fs::create_dir(guest.join("d")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    until("the guest says what to do", || guest.log().contains("serve without --writeback"));
    guest.kill();
    drop(server);
    let _server = place.serve(&["--writeback"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    assert_eq!(fs::read_to_string(guest.join("f")).unwrap(), "kept");
    assert!(!guest.join("d").exists());
    guest.end();
}

/// Without a server, requests wait up to `--wait`. Then they fail, with a line in the log, and the mount
/// works again when there is a server.
#[test]
fn without_a_server_requests_wait_and_then_fail() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--many"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &["--wait", "1"]);
    fs::write(guest.join("f"), "x").unwrap();
    server.end();
    let failed = fs::write(guest.join("lost"), "x").unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    until("the log says it", || guest.log().contains("requests fail with EIO until one answers"));
    assert_eq!(fs::read(guest.join("f")).unwrap_err().raw_os_error(), Some(libc::EIO));
    let _server = place.serve(&["--many"]);
    until("it works again", || fs::read_to_string(guest.join("f")).is_ok_and(|text| text == "x"));
    assert!(!guest.join("lost").exists(), "what failed before it was sent never happens");
    fs::write(guest.join("g"), "y").unwrap();
    guest.end();
}

/// A guest that is killed leaves nothing behind: files that it held without a name are removed.
#[test]
fn a_guest_that_is_killed_is_forgotten() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--linger", "1"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    let open = fs::File::create(guest.join("f")).unwrap();
    fs::remove_file(guest.join("f")).unwrap();
    guest.kill();
    drop(open);
    until("the server forgets it", || server.log().contains("is forgotten"));
    let guest = Guest::attach(&place, "other", &place.unix("s"), &[]);
    assert_eq!(fs::read_dir(guest.path()).unwrap().count(), 0);
    guest.end();
    server.end();
    covey_ok(&["fsck", &place.text("volume")]);
}

/// A FORGET that came while no server answered was dropped, so the server held the inode until the guest
/// ended: a served folder kept a removed file open, with all its bytes.
#[test]
fn regression_what_is_forgotten_while_no_server_answers_is_told_later() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    fs::create_dir(place.path("folder")).unwrap();
    let server = super::world::Server::start(&place, &place.text("folder"), &[]);
    let proxy = Proxy::start(&place);
    let guest = Guest::attach(&place, "mnt", proxy.address(), &["--wait", "1"]);
    let removed = || {
        let all = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
        let links = all.filter_map(|line| fs::read_link(line.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().ends_with("gone (deleted)")).count()
    };
    let file = fs::File::create(guest.join("gone")).unwrap();
    fs::remove_file(guest.join("gone")).unwrap();
    assert!(removed() > 0, "the guest has it open");
    proxy.lose_requests();
    proxy.cut();
    until("requests fail", || guest.log().contains("requests fail with EIO until one answers"));
    // The kernel forgets the inode now.
    drop(file);
    std::thread::sleep(Duration::from_millis(200));
    assert!(removed() > 0, "the server cannot know");
    proxy.heal();
    until("the server lets the file go", || removed() == 0);
    guest.end();
    server.end();
}

/// The same, and the server that counted the inode is gone: the next one is not told of it.
#[test]
fn what_was_forgotten_is_not_held_by_the_next_server() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--many"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &["--wait", "1"]);
    let file = fs::File::create(guest.join("gone")).unwrap();
    fs::remove_file(guest.join("gone")).unwrap();
    server.kill();
    until("requests fail", || guest.log().contains("requests fail with EIO until one answers"));
    drop(file);
    let server = place.serve(&["--many", "--linger", "1"]);
    until("it is followed", || guest.log().contains("takes over"));
    let used = || {
        let room = rustix::fs::statvfs(guest.path()).unwrap();
        room.f_files - room.f_ffree
    };
    until("nothing is left of the file", || used() == 1);
    guest.end();
    server.end();
}

/// A file that a guest had open, and that had no name, was deleted by the next run of the server, and by the
/// end of the run before. It lives until the guest lets it go.
#[test]
fn regression_a_file_without_a_name_outlives_its_server() {
    requires!(Need::Root, Need::Covey);
    for (sharing, kills) in [(&["--many"][..], true), (&[], true), (&[], false)] {
        let place = Place::new();
        let server = place.serve(sharing);
        let guest = Guest::attach(&place, "mnt", &place.unix("s"), &["--wait", "120"]);
        fs::write(guest.join("f"), "0123456789").unwrap();
        let mut open = fs::File::options().read(true).write(true).open(guest.join("f")).unwrap();
        fs::remove_file(guest.join("f")).unwrap();
        if kills {
            server.kill()
        } else {
            server.end()
        }
        let server = place.serve(sharing);
        until("the guest follows", || guest.log().contains("takes over"));
        open.write_all(b"after").unwrap();
        open.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "after56789");
        drop(open);
        guest.end();
        server.end();
        covey_ok(&["fsck", &place.text("volume")]);
        let server = place.serve(&["--linger", "1"]);
        let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
        until("nothing is left of the file", || {
            let room = rustix::fs::statvfs(guest.path()).unwrap();
            room.f_files - room.f_ffree == 1
        });
        guest.end();
        server.end();
    }
}

/// A lookup was given up because no server answered, and its reply came later. The server held the inode
/// until the guest ended: a served folder kept a removed file open, with all its bytes.
#[test]
fn regression_the_late_reply_of_a_lookup_holds_nothing() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let folder = place.path("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("late"), "x").unwrap();
    // The kernel keeps the attributes of the folder, so it asks for the name at once.
    let server = super::world::Server::start(&place, &place.text("folder"), &["--one"]);
    let proxy = Proxy::start(&place);
    let guest = Guest::attach(&place, "mnt", proxy.address(), &["--wait", "1"]);
    fs::metadata(guest.join("absent")).unwrap_err();
    let open = || {
        let all = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
        let links = all.filter_map(|line| fs::read_link(line.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("folder/late")).count()
    };
    proxy.lose_replies();
    let late = guest.join("late");
    let asks = std::thread::spawn(move || fs::metadata(late));
    until("the server has looked it up", || open() > 0);
    proxy.cut();
    assert_eq!(asks.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    proxy.heal();
    until("the server lets the file go", || open() == 0);
    guest.end();
    server.end();
}
