//! Watching a daemon: trace, stats, top, the Prometheus page, log lines. Watching ends when the client does.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::world::{World, alone, covey, end_of, json, kill, run_command, soon};

/// A foreground mount with more arguments and variables. It is ended on drop.
struct Daemon<'a> {
    world: &'a World,
    child: Child,
    log: PathBuf,
}

impl<'a> Daemon<'a> {
    fn start(world: &'a World, args: &[&str], variables: &[(&str, &str)]) -> Daemon<'a> {
        let log = world.path("daemon.log");
        let mut command = covey(&[Path::new("mount"), &world.volume(), &world.mnt()]);
        command.args(args).envs(variables.iter().copied()).stdout(Stdio::null());
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        let daemon = Daemon { world, child, log };
        soon("it is mounted", || world.is_mounted() && daemon.said("Mounted"));
        daemon
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn said(&self, text: &str) -> bool {
        self.log().contains(text)
    }

    fn end(mut self) {
        self.world.umount().ok();
        assert_eq!(end_of(&mut self.child, "the daemon"), 0, "{}", self.log());
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Works in a folder until it is told to stop, and once at least.
fn work(folder: &Path, stop: &AtomicBool) {
    let mut round = 0;
    while round == 0 || !stop.load(Ordering::Relaxed) {
        let path = folder.join(format!("f{}", round % 7));
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![round as u8; 40_000]).unwrap();
        file.sync_all().unwrap();
        // SAFETY: the descriptor is open. The advice drops clean pages, so that a read asks the daemon.
        unsafe {
            libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, libc::POSIX_FADV_DONTNEED)
        };
        assert_eq!(fs::read(&path).unwrap().len(), 40_000);
        fs::remove_file(&path).unwrap();
        round += 1;
    }
}

/// Runs `work_in` while another thread works on the mount.
fn while_busy<T>(world: &World, work_in: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| work(&world.mnt(), &stop));
        // Stop the other thread also if this panics. Otherwise the scope would wait for ever.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work_in));
        stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn lines(out: &str) -> Vec<Value> {
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn ns(line: &Value, part: &str) -> u64 {
    line[format!("{part}_ns")].as_u64().unwrap_or_else(|| panic!("{part} in {line}"))
}

/// The parts of every request add up to its service time, and the final percentiles count all requests.
fn check_trace(out: &str) {
    let all = lines(out);
    let (summary, requests) = all.split_last().unwrap();
    let summary = &summary["summary"];
    let ops: BTreeSet<&str> = requests.iter().map(|line| line["request"]["op"].as_str().unwrap()).collect();
    for op in ["read", "write", "fsync", "mknod", "unlink"] {
        assert!(ops.contains(op), "{op} is missing in {ops:?}");
    }
    for line in requests {
        let line = &line["request"];
        let parts = ["names", "blob", "cache", "peer", "origin", "wait", "own"];
        assert_eq!(parts.iter().map(|part| ns(line, part)).sum::<u64>(), ns(line, "srv"), "{line}");
        assert!(ns(line, "total") >= ns(line, "srv"), "{line}");
    }
    let reads = || requests.iter().map(|line| &line["request"]).filter(|line| line["op"] == "read");
    assert!(reads().any(|line| ns(line, "cache") + ns(line, "origin") > 0), "bytes come from somewhere");
    // A page that could not be dropped stays, and the kernel then reads only the pages around it.
    assert!(reads().any(|line| line["bytes"] == 40_000), "{out}");
    assert!(reads().all(|line| line["bytes"].as_u64().is_some_and(|bytes| bytes <= 40_000)), "{out}");
    let fsyncs = || requests.iter().map(|line| &line["request"]).filter(|line| line["op"] == "fsync");
    assert!(fsyncs().any(|line| ns(line, "wait") > 0), "what is handed to a worker waits for it");
    assert!(fsyncs().any(|line| ns(line, "names") > 0));
    if summary["kernel"].is_null() {
        let seen = requests.iter().filter(|line| line["request"]["queue_ns"].is_u64()).count();
        assert!(seen * 10 > requests.len() * 5, "the kernel speaks of {seen} of {}", requests.len());
        let write = requests.iter().map(|line| &line["request"]).find(|line| line["op"] == "fsync").unwrap();
        assert_eq!(
            ns(write, "total"),
            ns(write, "queue") + ns(write, "srv") + ns(write, "return"),
            "{write}"
        );
    } else {
        println!("{}", summary["kernel"]);
    }
    let operations = summary["operations"].as_array().unwrap();
    let counted: u64 = operations.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!((Some(counted), summary["lost"].as_u64()), (summary["requests"].as_u64(), Some(0)));
    assert!(counted >= requests.len() as u64);
    for row in operations {
        let total = &row["parts"]["total"];
        let at = |name: &str| total[name].as_u64().unwrap();
        assert!(at("p50") <= at("p90") && at("p90") <= at("p99") && at("p99") <= at("max"), "{row}");
        assert!(at("p50") > 0, "{row}");
    }
}

#[test]
fn a_trace_shows_requests_and_percentiles() {
    let Some(world) = World::mountable() else { return };
    let daemon = Daemon::start(&world, &["--transport", "classic"], &[]);
    let path = world.mnt();
    let traced =
        while_busy(&world, || run_command(covey(&["trace", "--for", "1s", "--json"]).arg(&path))).ok();
    check_trace(&traced.out);
    let only = while_busy(&world, || {
        run_command(covey(&["trace", "--op", "read", "--every", "3", "--for", "1s", "--json"]).arg(&path))
    });
    let all = lines(&only.ok().out);
    assert!(
        all.len() > 1 && all[..all.len() - 1].iter().all(|line| line["request"]["op"] == "read"),
        "{all:?}"
    );
    let slow = while_busy(&world, || {
        run_command(covey(&["trace", "--slow", "50s", "--for", "1s"]).arg(world.volume()))
    });
    let slow = slow.ok();
    assert!(
        slow.out.contains("p99") && slow.out.contains("unlink") && !slow.out.contains("inode"),
        "{slow:?}"
    );
    daemon.end();
}

/// The machine's setting for FUSE over io_uring. It is restored on drop.
struct Switch(String);

impl Switch {
    const PATH: &str = "/sys/module/fuse/parameters/enable_uring";

    fn there() -> Option<Switch> {
        match fs::read_to_string(Self::PATH) {
            Ok(was) => Some(Switch(was)),
            Err(error) => {
                println!("{}: {error}: skipped", Self::PATH);
                None
            }
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(Self::PATH, self.0.trim());
    }
}

#[test]
fn a_trace_sees_the_rings_too() {
    let Some(world) = World::mountable() else { return };
    let Some(_switch) = Switch::there() else { return };
    let daemon = Daemon::start(&world, &["--transport", "uring"], &[]);
    assert_eq!(world.status()["served"]["transport"], "uring");
    let path = world.mnt();
    let traced =
        while_busy(&world, || run_command(covey(&["trace", "--for", "1s", "--json"]).arg(&path))).ok();
    check_trace(&traced.out);
    daemon.end();
}

#[test]
fn stats_and_top_say_what_a_mount_does() {
    let Some(world) = World::mountable() else { return };
    let daemon = Daemon::start(&world, &[], &[]);
    let path = world.mnt();
    let stats = while_busy(&world, || {
        run_command(covey(&["stats", "--interval", "500ms", "--count", "2", "--json"]).arg(&path))
    });
    let stats = lines(&stats.ok().out);
    assert_eq!(stats.len(), 2);
    for line in &stats {
        let kinds = line["kinds"].as_object().unwrap();
        let sum: u64 = kinds.values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(line["requests"].as_u64(), Some(sum), "{line}");
        assert!(
            kinds.contains_key("read") && kinds.contains_key("write") && kinds.contains_key("sync"),
            "{line}"
        );
        let (read, written) = (line["read_bytes"].as_u64().unwrap(), line["written_bytes"].as_u64().unwrap());
        assert!(read >= 40_000 && written >= 40_000, "{line}");
        let sources = &line["sources"];
        let from = |source: &str| sources[source]["bytes"].as_u64().unwrap();
        assert!(from("cache") + from("origin") + from("names") >= 40_000, "{line}");
        let (p50, p99) = (line["p50_ns"].as_u64().unwrap(), line["p99_ns"].as_u64().unwrap());
        assert!(0 < p50 && p50 <= p99, "{line}");
    }
    let shown = while_busy(&world, || run_command(covey(&["stats", "--count", "1"]).arg(&path))).ok();
    assert!(shown.out.contains("p99 us") && shown.out.lines().count() == 2, "{shown:?}");
    fs::create_dir(path.join("dir")).unwrap();
    fs::write(path.join("dir/kept"), "x").unwrap();
    let top = while_busy(&world, || {
        run_command(covey(&["top", "--interval", "500ms", "--count", "1", "--json"]).arg(&path))
    });
    let top = &lines(&top.ok().out)[0];
    let names = |of: &str| -> Vec<String> {
        top[of].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names("operations").contains(&"fsync".to_owned()), "{top}");
    // The test harness names its threads after the tests, cut to 15 letters. This thread has no own name, so
    // it has that of the process.
    assert!(names("callers").iter().any(|name| name != "kernel" && name != "?"), "{top}");
    assert!(names("files").contains(&"/".to_owned()), "{top}");
    let mut all = covey(&["top", "--interval", "300ms", "--count", "1"]);
    let all = while_busy(&world, || run_command(alone(&mut all, world.folder())));
    assert!(all.out.contains(path.to_str().unwrap()) && all.out.contains("operation"), "{all:?}");
    daemon.end();
}

/// Requests a page.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Checks the Prometheus text format: each name occurs once and has HELP and TYPE before its values, and
/// values are numbers. Returns the names.
fn check_page(page: &str) -> BTreeSet<String> {
    let (mut names, mut samples) = (BTreeSet::new(), BTreeSet::new());
    let mut current = String::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            current = rest.split(' ').next().unwrap().to_owned();
            assert!(names.insert(current.clone()), "{current} comes twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let words: Vec<_> = rest.split(' ').collect();
            assert!(words[0] == current && ["counter", "gauge", "histogram"].contains(&words[1]), "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
            assert!(sample.starts_with(&current), "{line} belongs to {current}");
            assert!(samples.insert(sample.to_owned()), "{sample} comes twice");
        }
    }
    names
}

/// Checks the page with promtool, where it is installed.
fn check_with_promtool(page: &str) {
    let spawned = Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).spawn();
    let Ok(mut promtool) = spawned else {
        println!("promtool (package prometheus) is not here: skipped");
        return;
    };
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    assert!(promtool.wait().unwrap().success(), "promtool complains");
}

#[test]
fn the_page_for_prometheus_is_valid_and_moves() {
    let Some(world) = World::mountable() else { return };
    let daemon = Daemon::start(&world, &["--metrics", "127.0.0.1:0"], &[]);
    let log = daemon.log();
    let address = log.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| work(&world.mnt(), &stop));
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
    });
    let answer = get(&address, "/metrics");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    let names = check_page(page);
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/METRICS.md")).unwrap();
    for name in &names {
        let is_there =
            document.contains(&format!("| `{name}`")) || document.contains(&format!("| `{name}{{"));
        assert!(is_there, "docs/METRICS.md does not have {name}");
    }
    let value = |sample: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {sample} in {page}")).parse().unwrap()
    };
    assert!(value("covey_fuse_requests_total{op=\"read\"}") >= 1.0);
    assert!(
        value("covey_fuse_read_bytes_total") >= 40_000.0 && value("covey_written_bytes_total") >= 40_000.0
    );
    assert_eq!(
        value("covey_fuse_request_duration_seconds_bucket{op=\"fsync\",le=\"+Inf\"}"),
        value("covey_fuse_request_duration_seconds_count{op=\"fsync\"}")
    );
    assert!(value("process_resident_memory_bytes") > 1e6 && value("process_start_time_seconds") > 1e9);
    check_with_promtool(page);
    assert!(get(&address, "/").starts_with("HTTP/1.1 404"));
    daemon.end();
}

#[test]
fn a_line_for_every_nth_request_goes_to_the_log() {
    let Some(world) = World::mountable() else { return };
    let daemon = Daemon::start(&world, &[], &[("COVEY_FUSE_TRACE_RATE", "2")]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| work(&world.mnt(), &stop));
        soon("lines come", || {
            daemon.log().matches("[TRACE ").count() > 10 && daemon.said("[TRACE fsync] total=")
        });
        stop.store(true, Ordering::Relaxed);
    });
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("[TRACE fsync]")).unwrap();
    for part in ["total=", "us srv=", "us | names=", " blob=", " cache=", " peer=0.0", " origin="] {
        assert!(line.contains(part), "{part} in {line}");
    }
    daemon.end();
}

#[test]
fn what_cannot_be_looked_at_is_said() {
    json(&["trace", "/"]).fails(1, "not-a-volume");
    let Some(world) = World::mountable() else { return };
    for command in ["trace", "stats", "top"] {
        json(&[Path::new(command), &world.volume()]).fails(1, "not-mounted");
        json(&[Path::new(command), &world.path("nowhere")]).fails(1, "not-found");
    }
    json(&[Path::new("trace"), &world.mnt(), Path::new("--op"), Path::new("reed")]).fails(2, "usage");
    json(&[Path::new("stats"), &world.mnt(), Path::new("--interval"), Path::new("1ms")]).fails(2, "usage");
    for bad in [["--every", "0"], ["--slow", "fast"], ["--for", "-1s"]] {
        let done = run_command(covey(&["trace", "/"]).args(bad));
        assert_eq!(done.code, 2, "{bad:?}: {done:?}");
    }
    let mount = |args: &[&str]| {
        run_command(covey(&[Path::new("mount"), &world.volume(), &world.mnt()]).args(args).arg("--json"))
    };
    mount(&["--metrics", "0.0.0.0:0"]).fails(2, "usage");
    mount(&["--metrics", "somewhere"]).fails(2, "usage");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_eq!(mount(&["-d", "--metrics", &address]).fails(1, "io").code, 1);
    assert_eq!(mount(&["--trace-rate", "x"]).code, 2);
    assert!(!world.is_mounted());
}

/// Counts the kernel's tracing instances that belong to a daemon.
fn instances(world: &World, pid: u32) -> Option<usize> {
    let place = world.path("tracefs");
    fs::create_dir_all(&place).unwrap();
    let mounted = Command::new("mount").args(["-t", "tracefs", "none"]).arg(&place).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("tracefs cannot be mounted: not looked at");
        return None;
    }
    let entries = fs::read_dir(place.join("instances")).unwrap().flatten();
    let prefix = format!("covey-{pid}-");
    let count = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count();
    base::trial::unmount(&place).unwrap();
    Some(count)
}

#[test]
fn tracing_ends_with_whoever_looks_on() {
    let Some(world) = World::mountable() else { return };
    let daemon = Daemon::start(&world, &[], &[]);
    let pid = daemon.child.id();
    let start = || {
        let mut command = covey(&[Path::new("trace"), &world.mnt(), Path::new("--json")]);
        let out = world.path("trace.out");
        let child = command.stdout(File::create(&out).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        soon("it traces", || {
            fs::write(world.mnt().join("x"), "x").unwrap();
            fs::read_to_string(&out).unwrap().contains("request")
        });
        (child, out)
    };
    let (mut killed, _) = start();
    let begun = instances(&world, pid);
    killed.kill().unwrap();
    killed.wait().unwrap();
    if begun.is_some_and(|count| count > 0) {
        soon("the kernel's tracing ends with a killed onlooker", || instances(&world, pid) == Some(0));
    }
    let (mut asked, out) = start();
    kill(asked.id(), libc::SIGINT);
    assert_eq!(end_of(&mut asked, "an interrupted trace"), 0);
    let all = lines(&fs::read_to_string(out).unwrap());
    assert!(all.last().unwrap()["summary"]["requests"].as_u64().unwrap() > 0, "{all:?}");
    assert_eq!(instances(&world, pid).unwrap_or(0), 0);
    daemon.end();
}

/// A daemon that unmounted exited before its clients had received their summaries.
#[test]
fn regression_a_trace_ends_with_the_daemon_however_that_ends() {
    let Some(world) = World::mountable() else { return };
    for killed in [false, false, false, true] {
        let mut daemon = Daemon::start(&world, &[], &[]);
        let mut command = covey(&[Path::new("trace"), &world.mnt(), Path::new("--json")]);
        let out = world.path("trace.out");
        let mut onlooker = command.stdout(File::create(&out).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        soon("it traces", || {
            fs::write(world.mnt().join("x"), "x").unwrap();
            fs::read_to_string(&out).unwrap().contains("request")
        });
        if killed {
            daemon.child.kill().unwrap();
            daemon.child.wait().unwrap();
            assert_eq!(end_of(&mut onlooker, "a trace of a killed daemon"), 1);
            assert!(fs::read_to_string(&out).unwrap().contains("no-answer"));
            world.umount().ok();
            let next = Daemon::start(&world, &[], &[]);
            run_command(covey(&["trace", "--for", "100ms"]).arg(world.mnt())).ok();
            assert_eq!(instances(&world, daemon.child.id()).unwrap_or(0), 0, "the next removes what it left");
            next.end();
        } else {
            daemon.end();
            assert_eq!(end_of(&mut onlooker, "a trace of a mount that ends"), 0);
            assert!(fs::read_to_string(&out).unwrap().contains("summary"));
        }
    }
}
