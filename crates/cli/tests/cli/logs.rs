//! What daemons write: log levels, JSON, and notifications for a service manager.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::world::{World, covey, end_of, run_command, soon};

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn every_line_of_a_json_log_is_one_object() {
    let Some(world) = World::mountable() else { return };
    let volume = world.volume();
    let mut args = vec![Path::new("mount"), Path::new("-d"), Path::new("--log-format"), Path::new("json")];
    let mnt = world.mnt();
    args.extend([volume.as_path(), mnt.as_path()]);
    run_command(covey(&args).env("COVEY_LOG", "debug")).ok();
    world.umount().ok();
    let log = lines(&fs::read_to_string(volume.join("covey.log")).unwrap());
    let level = |line: &Value| line["level"].as_str().unwrap().to_owned();
    assert!(
        log.iter().any(|line| level(line) == "debug") && log.iter().any(|line| level(line) == "info"),
        "{log:?}"
    );
    for line in &log {
        assert_eq!(line["volume"].as_str(), volume.canonicalize().unwrap().to_str(), "{line}");
        assert!(line["time"].as_str().unwrap().ends_with('Z') && line["message"].is_string(), "{line}");
    }
}

#[test]
fn a_higher_level_says_less_and_failures_are_lines_too() {
    let Some(world) = World::mountable() else { return };
    let (volume, mnt) = (world.volume(), world.mnt());
    let args = [Path::new("mount"), Path::new("-d"), Path::new("--log-level=error"), &volume, &mnt];
    run_command(&mut covey(&args)).ok();
    world.umount().ok();
    assert_eq!(fs::read_to_string(volume.join("covey.log")).unwrap(), "");
    let args = [Path::new("mount"), Path::new("--log-format=json"), &volume, &world.path("nowhere")];
    let done = run_command(&mut covey(&args));
    let said = lines(&done.err);
    assert!(done.code == 1 && said.last().unwrap()["level"] == "error", "{done:?}");
    let done = run_command(&mut covey(&["mount", "--log-level=loud", "a", "b"]));
    assert!(done.code == 2 && done.err.contains("debug"), "{done:?}");
}

#[test]
fn lines_in_a_journal_begin_with_their_priority() {
    let Some(world) = World::mountable() else { return };
    let log = File::create(world.path("log")).unwrap();
    let meta = log.metadata().unwrap();
    let mut child = covey(&[Path::new("mount"), &world.volume(), &world.mnt()]);
    child.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino())).stdout(Stdio::null());
    let mut child = child.stderr(log).spawn().unwrap();
    let said = || fs::read_to_string(world.path("log")).unwrap();
    soon("it is mounted", || said().contains("<6>mounted "));
    world.umount().ok();
    assert_eq!(end_of(&mut child, "the daemon"), 0);
    assert!(said().lines().all(|line| line.starts_with('<')), "{}", said());
}

#[test]
fn a_service_manager_hears_of_beginning_and_end() {
    let Some(world) = World::mountable() else { return };
    let path = world.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let hear = || {
        let mut got = [0; 512];
        let len = socket.recv(&mut got).unwrap();
        String::from_utf8_lossy(&got[..len]).into_owned()
    };
    let log = File::create(world.path("log")).unwrap();
    let mut child = covey(&[Path::new("mount"), &world.volume(), &world.mnt()]);
    let mut child = child.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let ready = hear();
    assert!(ready.starts_with("READY=1\n") && ready.contains(&format!("MAINPID={}", child.id())), "{ready}");
    soon("it is mounted", || world.is_mounted());
    world.umount().ok();
    assert!(hear().starts_with("STOPPING=1"));
    assert_eq!(end_of(&mut child, "the daemon"), 0);
}
