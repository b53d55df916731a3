//! The dashboard of real mounts, asked as a browser asks.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::world::{World, covey, json, kill, kill_and_wait, soon};

/// The address of a URL.
fn address(url: &Value) -> String {
    url.as_str().unwrap().strip_prefix("http://").unwrap().to_owned()
}

/// Sends a request. Returns the status and the body.
fn ask(address: &str, method: &str, path: &str, more: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n{more}\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The JSON in a body, which may come in chunks.
fn json_in(body: &str) -> Value {
    let (from, to) = (body.find(['{', '[']).unwrap(), body.rfind(['}', ']']).unwrap());
    serde_json::from_str(&body[from..=to]).unwrap()
}

#[test]
fn a_mount_shows_itself_in_a_browser() {
    let Some(world) = World::mountable() else { return };
    let token = world.path("token");
    let (volume, mnt) = (world.volume(), world.mnt());
    let words = ["mount", "-d", "--heat=daemon", "--ui=127.0.0.1:0", "--ui-token"];
    covey(&words).arg(&token).arg(&volume).arg(&mnt).status().unwrap();
    let at = address(&world.status()["served"]["ui"]);
    let text = covey(&["status"]).arg(&mnt).output().unwrap().stdout;
    assert!(String::from_utf8(text).unwrap().contains(&format!("http://{at}")), "also for people");
    fs::write(mnt.join("file"), vec![7; 1 << 20]).unwrap();
    let (status, page) = ask(&at, "GET", "/", "");
    assert!(status == 200 && page.contains("<title>Covey"), "{page}");
    assert!(ask(&at, "GET", "/app.js", "").1.len() > 10_000);
    let (status, body) = ask(&at, "GET", "/api/v1/mounts", "");
    assert_eq!((status, &json_in(&body)["changes"]), (200, &true.into()));
    assert_eq!(json_in(&body)["mounts"][0]["mountpoint"], mnt.to_str().unwrap());
    let (_, body) = ask(&at, "GET", "/api/v1/status", "");
    assert_eq!(json_in(&body)["served"]["mountpoint"], mnt.to_str().unwrap());
    assert_eq!(json_in(&ask(&at, "GET", "/api/v1/heat?top=5", "").1)["view"], "daemon");
    assert_eq!(ask(&at, "GET", "/api/v1/fleet", "").0, 404, "it is in none");
    assert!(json_in(&ask(&at, "GET", "/api/v1/requests", "").1)["seconds"].as_f64().unwrap() > 0.5);
    assert!(ask(&at, "GET", "/api/v1/metrics", "").1.contains("covey_"));
    assert_eq!(ask(&at, "POST", "/api/v1/flush", "").0, 401);
    assert_eq!(ask(&at, "POST", "/api/v1/flush", "Authorization: Bearer wrong\r\n").0, 401);
    let right = format!("Authorization: Bearer {}\r\n", fs::read_to_string(&token).unwrap().trim());
    assert_eq!(ask(&at, "POST", "/api/v1/flush", &right).0, 200);
    let taken = json(&["ui", "--listen", &at]);
    taken.fails(1, "io");
    world.umount().ok();
    assert!(TcpStream::connect(&at).is_err(), "it ends with the mount");
}

/// `covey ui` as a process, and its address.
fn dashboard(world: &World) -> (Child, String) {
    let mut command: Command = covey(&["--json", "ui", "--listen", "127.0.0.1:0"]);
    let mut child = command.arg(world.mnt()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut text = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    while !text.contains('}') {
        assert!(lines.read_line(&mut text).unwrap() > 0);
    }
    let said: Value = serde_json::from_str(&text).unwrap();
    (child, address(&said["url"]))
}

#[test]
fn a_killed_daemon_is_shown_as_silent_and_the_stream_goes_on() {
    let Some(world) = World::mountable() else { return };
    let pid = world.mount("");
    let (mut child, at) = dashboard(&world);
    let mut stream = TcpStream::connect(&at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: {at}\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut next = |what: &str| {
        while let Some(Ok(line)) = lines.next() {
            if line.starts_with("data:") && line.contains(what) {
                return;
            }
        }
        panic!("no message with {what}");
    };
    next("\"stats\"");
    next("\"stats\"");
    kill_and_wait(pid);
    next("\"silent\"");
    let (status, body) = ask(&at, "GET", "/api/v1/status", "");
    assert!(status >= 400 && json_in(&body)["error"]["what"].is_string(), "{status} {body}");
    kill(child.id(), libc::SIGTERM);
    soon("the dashboard ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn other_machines_reach_it_only_if_the_user_says_so() {
    let world = World::new();
    let refused = json(&["ui", "--listen", "0.0.0.0:0"]);
    assert!(refused.fails(2, "usage").json().to_string().contains("--ui-insecure"));
    let no_token = json(&["ui", "--listen", "127.0.0.1:0", "--demos", world.folder().to_str().unwrap()]);
    assert!(no_token.fails(2, "usage").json().to_string().contains("--ui-token"));
    json(&["ui", "--listen", "127.0.0.1:0", "--lab", "http://10.0.0.1:8888/"]).fails(2, "usage");
    json(&["ui", world.folder().to_str().unwrap()]).fails(1, "not-mounted");
    let token = world.path("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    json(&["ui", "--listen", "127.0.0.1:0", "--ui-token", token.to_str().unwrap()]).fails(2, "usage");
}
