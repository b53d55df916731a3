//! Locks that reach the filesystem. Two mounts of one memory filesystem are two nodes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fuse::{Transport, Unmount};

use crate::memory::Memory;
use crate::shared::{nodes, shared};
use crate::{Rig, options, rig_with, within};

const SOON: Duration = Duration::from_secs(120);
const NONE: Vec<(&str, u64)> = Vec::new();

#[derive(Clone, Copy, Debug, PartialEq)]
enum Style {
    Posix,
    Ofd,
    Flock,
}

const STYLES: [Style; 3] = [Style::Posix, Style::Ofd, Style::Flock];

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < SOON, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn open(rig: &Rig) -> File {
    try_open(rig).unwrap()
}

fn try_open(rig: &Rig) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(rig.path("file"))
}

fn range(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: len, l_pid: 0 }
}

fn done(result: i32) -> Result<(), i32> {
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
}

fn fcntl(file: &File, command: i32, mut range: libc::flock) -> Result<libc::flock, i32> {
    // SAFETY: the descriptor is open, and `range` is a flock that lives through the call.
    done(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) }).map(|()| range)
}

/// Locks or unlocks the whole file. `kind`: F_RDLCK, F_WRLCK, F_UNLCK.
fn lock(file: &File, style: Style, kind: i32, wait: bool) -> Result<(), i32> {
    match style {
        Style::Posix if wait => fcntl(file, libc::F_SETLKW, range(kind, 0, 0)).map(drop),
        Style::Posix => fcntl(file, libc::F_SETLK, range(kind, 0, 0)).map(drop),
        Style::Ofd if wait => fcntl(file, libc::F_OFD_SETLKW, range(kind, 0, 0)).map(drop),
        Style::Ofd => fcntl(file, libc::F_OFD_SETLK, range(kind, 0, 0)).map(drop),
        Style::Flock => {
            let operation = match kind {
                libc::F_RDLCK => libc::LOCK_SH,
                libc::F_WRLCK => libc::LOCK_EX,
                _ => libc::LOCK_UN,
            };
            let operation = if wait { operation } else { operation | libc::LOCK_NB };
            // SAFETY: the descriptor is open. The call takes numbers only.
            done(unsafe { libc::flock(file.as_raw_fd(), operation) })
        }
    }
}

fn exclusive(file: &File, style: Style) -> Result<(), i32> {
    lock(file, style, libc::F_WRLCK, false)
}

/// A program that locks the file, says so, and waits until it is killed or its input ends.
fn holder(path: &Path, style: Style) -> Child {
    let take = match style {
        Style::Posix => "fcntl.lockf(f, fcntl.LOCK_EX)",
        Style::Ofd => "fcntl.fcntl(f, 38, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))",
        Style::Flock => "fcntl.flock(f, fcntl.LOCK_EX)",
    };
    let script = format!(
        "import fcntl,struct,sys\nf=open(sys.argv[1],'r+b')\nprint('begun',flush=True)\n{take}\nprint('locked',flush=True)\nsys.stdin.read()"
    );
    let mut python = Command::new("python3");
    python.args(["-S", "-E", "-c", &script]).arg(path).current_dir("/");
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

fn said(lines: &mut impl BufRead, expected: &str) {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), expected);
}

#[test]
fn two_nodes_exclude_each_other() {
    let Some([here, there]) = nodes() else { return };
    for style in STYLES {
        let (mine, theirs) = (open(&here), open(&there));
        lock(&mine, style, libc::F_RDLCK, false).unwrap();
        lock(&theirs, style, libc::F_RDLCK, false).unwrap();
        assert_eq!(exclusive(&mine, style), Err(libc::EAGAIN), "{style:?}: both read");
        lock(&theirs, style, libc::F_UNLCK, false).unwrap();
        exclusive(&mine, style).unwrap();
        assert_eq!(lock(&theirs, style, libc::F_RDLCK, false), Err(libc::EAGAIN), "{style:?}");
        drop(mine);
        // RELEASE arrives after close(2) has returned.
        until("the lock ends with its file", || exclusive(&theirs, style).is_ok());
        drop(theirs);
        until("no lock is left", || here.fs.held_locks() == 0);
    }
}

#[test]
fn two_open_files_of_one_process_exclude_each_other() {
    let Some(rig) = shared() else { return };
    for style in [Style::Ofd, Style::Flock] {
        let [one, other] = [open(&rig), open(&rig)];
        exclusive(&one, style).unwrap();
        assert_eq!(exclusive(&other, style), Err(libc::EAGAIN));
        // A second descriptor of the same open file does not end the lock.
        drop(one.try_clone().unwrap());
        assert_eq!(exclusive(&other, style), Err(libc::EAGAIN));
        drop(one);
        until("the lock ends", || exclusive(&other, style).is_ok());
    }
    let [one, other] = [open(&rig), open(&rig)];
    until("no lock is left", || rig.fs.held_locks() == 0);
    exclusive(&one, Style::Posix).unwrap();
    exclusive(&other, Style::Posix).unwrap();
    drop(other);
    assert_eq!(rig.fs.held_locks(), 0, "POSIX: closing any descriptor ends all locks, before close returns");
}

#[test]
fn byte_ranges_are_split_and_tested() {
    let Some([here, there]) = nodes() else { return };
    let (mine, theirs) = (open(&here), open(&there));
    fcntl(&mine, libc::F_SETLK, range(libc::F_WRLCK, 100, 100)).unwrap();
    fcntl(&mine, libc::F_SETLK, range(libc::F_UNLCK, 140, 20)).unwrap();
    let question = |file: &File, command| fcntl(file, command, range(libc::F_RDLCK, 0, 0)).unwrap();
    let held = question(&theirs, libc::F_GETLK);
    assert_eq!((held.l_type, held.l_start, held.l_len), (libc::F_WRLCK as i16, 100, 40));
    assert_eq!(held.l_pid, 0, "the process is on another node");
    let script = "import fcntl,struct,sys\nf=open(sys.argv[1],'rb')\nprint(struct.unpack('hhqqi4x', fcntl.fcntl(f, fcntl.F_GETLK, struct.pack('hhqqi4x', 0, 0, 0, 0, 0)))[4])";
    let python =
        Command::new("python3").args(["-S", "-E", "-c", script]).arg(here.path("file")).output().unwrap();
    let shown = String::from_utf8(python.stdout).unwrap();
    assert_eq!(shown.trim(), std::process::id().to_string(), "the process is here");
    fcntl(&theirs, libc::F_SETLK, range(libc::F_WRLCK, 140, 20)).unwrap();
    fcntl(&theirs, libc::F_SETLK, range(libc::F_WRLCK, 200, 0)).unwrap();
    assert_eq!(fcntl(&theirs, libc::F_SETLK, range(libc::F_RDLCK, 199, 2)).map(drop), Err(libc::EAGAIN));
    let own = question(&mine, libc::F_GETLK);
    assert_eq!((own.l_start, own.l_len), (140, 20), "own locks do not count");
    drop(theirs);
    assert_eq!(question(&mine, libc::F_GETLK).l_type, libc::F_UNLCK as i16);
}

#[test]
fn a_waiter_is_granted_when_the_holder_unlocks() {
    let Some([here, there]) = nodes() else { return };
    for style in STYLES {
        let holds = open(&here);
        exclusive(&holds, style).unwrap();
        let waits = open(&there);
        let waiter = std::thread::spawn(move || (lock(&waits, style, libc::F_WRLCK, true), waits));
        until("it waits", || there.session.lock_waits() == 1);
        assert_eq!(there.session.waiting(), 0, "without a deadline");
        assert!(there.path("file").exists(), "other requests go on");
        lock(&holds, style, libc::F_UNLCK, false).unwrap();
        let (granted, waits) = within(SOON, move || waiter.join().unwrap());
        assert_eq!(granted, Ok(()), "{style:?}");
        assert_eq!(exclusive(&holds, style), Err(libc::EAGAIN), "{style:?}");
        drop((waits, holds));
        until("no lock is left", || here.fs.held_locks() == 0);
    }
}

/// A lock may be waited for longer than the deadline of requests.
#[test]
fn waiting_for_a_lock_has_no_deadline() {
    base::trial::at_some_scale(|scale| waits_for_long(scale * Duration::from_millis(200))).unwrap();
}

/// An error if another request missed this deadline, as on a busy machine.
fn waits_for_long(deadline: Duration) -> Result<(), String> {
    let Some(rig) = rig_with(Memory::shared(), fuse::Options { deadline, ..options() }) else {
        return Ok(());
    };
    let late = |errno: i32| format!("error {errno} of a lock");
    let holds = try_open(&rig).map_err(|error| error.to_string())?;
    exclusive(&holds, Style::Flock).map_err(late)?;
    let waits = try_open(&rig).map_err(|error| error.to_string())?;
    let waiter = std::thread::spawn(move || lock(&waits, Style::Flock, libc::F_WRLCK, true));
    until("it waits", || rig.session.lock_waits() == 1 || waiter.is_finished());
    std::thread::sleep(5 * deadline);
    let is_waiting = !waiter.is_finished();
    drop(holds);
    within(SOON, move || waiter.join().unwrap()).map_err(late)?;
    if is_waiting { Ok(()) } else { Err("it was granted too early".to_owned()) }
}

#[test]
fn locks_of_a_killed_program_end() {
    let Some([here, there]) = nodes() else { return };
    for style in STYLES {
        let file = open(&there);
        let mut child = holder(&here.path("file"), style);
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        said(&mut lines, "begun");
        said(&mut lines, "locked");
        assert_eq!(exclusive(&file, style), Err(libc::EAGAIN), "{style:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        until("its lock ends", || exclusive(&file, style).is_ok());
        // And a killed program that waits does not hang, and gets nothing later.
        let mut child = holder(&here.path("file"), style);
        said(&mut BufReader::new(child.stdout.take().unwrap()), "begun");
        until("it waits", || here.session.lock_waits() == 1);
        child.kill().unwrap();
        within(SOON, move || child.wait().unwrap());
        assert_eq!(here.session.lock_waits(), 0);
        drop(file);
        until("no lock is left", || here.fs.held_locks() == 0);
    }
}

/// With a handler, the program sees EINTR, or its call is restarted, as on a disk.
#[test]
fn a_signal_interrupts_a_program_that_waits_for_a_lock() {
    let Some([here, there]) = nodes() else { return };
    for style in STYLES {
        let file = open(&there);
        exclusive(&file, style).unwrap();
        let take = match style {
            Style::Posix => "libc.fcntl(f.fileno(), 7, struct.pack('hhqqi4x', 1, 0, 0, 0, 0))",
            Style::Ofd => "libc.fcntl(f.fileno(), 38, struct.pack('hhqqi4x', 1, 0, 0, 0, 0))",
            Style::Flock => "libc.flock(f.fileno(), 2)",
        };
        // ctypes does not repeat a call that fails with EINTR. Python installs handlers without SA_RESTART.
        let script = format!(
            "import ctypes,signal,struct,sys\nlibc=ctypes.CDLL(None,use_errno=True)\nsignal.signal(signal.SIGUSR1,lambda *a:None)\nf=open(sys.argv[1],'r+b')\nprint('begun',flush=True)\nprint({take},ctypes.get_errno(),flush=True)"
        );
        let mut child = Command::new("python3")
            .args(["-S", "-E", "-c", &script])
            .arg(here.path("file"))
            .current_dir("/")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        said(&mut lines, "begun");
        until("it waits", || here.session.lock_waits() == 1);
        // SAFETY: the child is ours and has not been reaped. The call takes numbers only.
        unsafe { libc::kill(child.id() as i32, libc::SIGUSR1) };
        let lines = within(SOON, move || {
            said(&mut lines, &format!("-1 {}", libc::EINTR));
            lines
        });
        within(SOON, move || child.wait().unwrap());
        drop(lines);
        assert_eq!(here.session.lock_waits(), 0);
        drop(file);
        until("no lock is left", || here.fs.held_locks() == 0);
    }
}

#[test]
fn a_forced_unmount_ends_waiting_and_holding() {
    let Some([here, there]) = nodes() else { return };
    let (mine, theirs) = (open(&here), open(&there));
    exclusive(&mine, Style::Posix).unwrap();
    exclusive(&theirs, Style::Flock).unwrap();
    let waits = open(&here);
    let waiter = std::thread::spawn(move || lock(&waits, Style::Flock, libc::F_WRLCK, true));
    until("it waits", || here.session.lock_waits() == 1);
    here.session.unmount(Unmount::Force).unwrap();
    assert!(within(SOON, move || waiter.join().unwrap()).is_err());
    drop(mine);
    assert!(here.session.wait_for(SOON).is_some());
    assert_eq!(here.session.lock_waits(), 0);
    assert_eq!(there.fs.held_locks(), 1, "only the lock of the other node");
    exclusive(&theirs, Style::Posix).unwrap();
}

/// Counts in a file, which is wrong if two ever hold the lock. The kernel's pages are right under the lock.
#[test]
fn a_counter_under_a_lock_is_right() {
    let Some(nodes) = nodes() else { return };
    std::fs::write(nodes[0].path("count"), b"0").unwrap();
    for style in [Style::Ofd, Style::Flock] {
        let before: u64 = std::fs::read_to_string(nodes[0].path("count")).unwrap().parse().unwrap();
        let paths = nodes.each_ref().map(|rig| rig.path("count"));
        within(SOON, move || {
            std::thread::scope(|scope| {
                for path in paths.iter().chain(&paths) {
                    scope.spawn(move || {
                        for round in 0..50 {
                            let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                            lock(&file, style, libc::F_WRLCK, true).unwrap();
                            let text = std::io::read_to_string(&file).unwrap();
                            let next = (text.parse::<u64>().unwrap() + 1).to_string();
                            std::os::unix::fs::FileExt::write_all_at(&file, next.as_bytes(), 0).unwrap();
                            if round % 2 == 0 {
                                lock(&file, style, libc::F_UNLCK, false).unwrap();
                            }
                        }
                    });
                }
            });
        });
        let after = std::fs::read_to_string(nodes[1].path("count")).unwrap();
        assert_eq!(after.parse::<u64>().unwrap(), before + 200, "{style:?}");
    }
    until("no lock is left", || nodes[0].fs.held_locks() == 0);
}

/// Over io_uring a request that waits holds an entry of its ring. Many must not keep the holder from
/// unlocking.
#[test]
fn many_waiters_do_not_keep_the_holder_from_unlocking() {
    let Some(rig) = shared() else { return };
    let holds = open(&rig);
    exclusive(&holds, Style::Flock).unwrap();
    let waiters: Vec<_> = (0..60)
        .map(|_| {
            let file = open(&rig);
            std::thread::spawn(move || lock(&file, Style::Flock, libc::F_WRLCK, true))
        })
        .collect();
    let over_rings = rig.session.transport() == Transport::Uring;
    let enough = if over_rings { 1 } else { 60 };
    until("they wait", || rig.session.lock_waits() >= enough);
    std::thread::sleep(Duration::from_millis(200));
    assert!(rig.path("file").exists());
    drop(holds);
    let results =
        within(SOON, move || waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect::<Vec<_>>());
    println!("{} of 60 were granted", results.iter().filter(|result| result.is_ok()).count());
    for result in results {
        assert!(result == Ok(()) || (over_rings && result == Err(libc::ENOLCK)), "{result:?}");
    }
}

/// The requests during `work`, without those of a program that another test started: it gets this test's
/// descriptors for a moment, and closes them.
fn locks_during(rig: &Rig, work: &dyn Fn()) -> Vec<(&'static str, u64)> {
    let mut requests = rig.during(work);
    requests.retain(|(name, _)| !["FLUSH", "RELEASE"].contains(name));
    requests
}

/// A filesystem that never waits is called on the thread that receives the request.
#[test]
fn locks_work_where_nothing_waits_for_another_machine() {
    let mut memory = Memory::shared();
    memory.far = false;
    let Some(rig) = rig_with(memory, options()) else { return };
    for style in STYLES {
        let file = open(&rig);
        let mut child = holder(&rig.path("file"), style);
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        said(&mut lines, "begun");
        said(&mut lines, "locked");
        assert_eq!(exclusive(&file, style), Err(libc::EAGAIN), "{style:?}");
        let waits = open(&rig);
        let waiter = std::thread::spawn(move || lock(&waits, style, libc::F_WRLCK, true));
        until("it waits", || rig.session.lock_waits() == 1);
        drop(child.stdin.take());
        assert_eq!(within(SOON, move || waiter.join().unwrap()), Ok(()));
        child.wait().unwrap();
        drop(file);
        until("no lock is left", || rig.fs.held_locks() == 0);
    }
}

/// A lock that is free costs one request, as does its release.
#[test]
fn locks_cost_what_is_said() {
    let Some(rig) = shared() else { return };
    let mut file = open(&rig);
    file.write_all(b"x").unwrap();
    for style in STYLES {
        let requests = locks_during(&rig, &|| {
            for _ in 0..10 {
                exclusive(&file, style).unwrap();
                lock(&file, style, libc::F_UNLCK, false).unwrap();
            }
        });
        assert_eq!(requests, [("SETLK", 20)], "{style:?}");
        let requests = locks_during(&rig, &|| {
            (0..10).for_each(|_| lock(&file, style, libc::F_RDLCK, true).unwrap());
        });
        assert_eq!(requests, [("SETLKW", 10)], "{style:?}");
        lock(&file, style, libc::F_UNLCK, true).unwrap();
    }
}

/// Where locks stay in the kernel, none reaches the filesystem, and FLUSH is refused once.
#[test]
fn locks_stay_in_the_kernel_unless_the_filesystem_wants_them() {
    let mut memory = Memory::shared();
    memory.fleet_locks = false;
    let Some(rig) = rig_with(memory, options()) else { return };
    drop(open(&rig));
    for style in STYLES {
        let [one, other] = [open(&rig), open(&rig)];
        let requests = rig.during(|| {
            exclusive(&one, style).unwrap();
            if style != Style::Posix {
                assert_eq!(exclusive(&other, style), Err(libc::EAGAIN));
            }
        });
        assert_eq!(requests, NONE);
    }
    assert!(rig.count("FLUSH") <= 2, "refused");
    assert_eq!(rig.fs.held_locks(), 0);
}
