//! Demos from the page. A Makefile with a few lines of shell stands in for a checkout of the project.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{TOKEN, Two};
use crate::server::{Bound, Options, Server};

/// Says two points, junk and a line that is too long, and ends well. `small` says so.
const CACHE: &str = r#"
demo-cache:
	@echo "begins"; python3 report.py "$(BENCH_ARGS)"
"#;
const REPORT: &str = r#"
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["COVEY_DEMO_EVENTS"])
say = lambda **event: link.sendall(json.dumps({"demo": "cache", **event}).encode() + b"\n")
say(kind="progress", done=0.25, step="first pass " + sys.argv[1])
say(kind="point", chart="loopback", series="MinIO", x=1, y=4.2, unit="ms")
link.sendall(b"junk\n" + b"x" * 200_000 + b"\n")
say(kind="point", chart="loopback", series="MinIO", x=2, y=4.1, unit="ms")
say(kind="table", head=["reader", "time"], rows=[["MinIO", "4.2 ms"]])
say(kind="end", ok=True, message="")
"#;
/// Runs until it is asked to end, which takes a moment, with a process beside it that ignores that.
const SCALE: &str = r#"
demo-scale:
	@bash scale.sh
"#;
const LONG: &str = r#"
trap 'sleep 0.2; echo cleaned >cleaned; exit 3' TERM
(trap '' TERM; while [ ! -e cleaned ]; do sleep 0.05; done) &
echo "$COVEY_DEMO_EVENTS" >events
echo $$ >pids; echo $! >>pids; mv pids running
while :; do sleep 0.05; done
"#;
const SORT: &str = "demo-sort:\n\t@echo one; echo the disk is full >&2; exit 2\n";

struct World {
    folder: tempfile::TempDir,
    server: Option<Server>,
    at: SocketAddr,
}

fn options(folder: &Path) -> Options {
    let token = folder.join("token");
    if !token.exists() {
        fs::write(&token, TOKEN).unwrap();
        std::process::Command::new("chmod").arg("600").arg(&token).status().unwrap();
    }
    Options {
        listen: "127.0.0.1:0".into(),
        insecure: false,
        token: Some(token),
        demos: Some(folder.to_owned()),
        lab: None,
    }
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("Makefile"), format!("{CACHE}{SCALE}{SORT}")).unwrap();
        fs::write(folder.path().join("report.py"), REPORT).unwrap();
        fs::write(folder.path().join("scale.sh"), LONG).unwrap();
        let server = Bound::new(&options(folder.path())).unwrap().serve(Arc::new(Two)).unwrap();
        World { at: server.address(), server: Some(server), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ask(&self, method: &str, path: &str, token: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.at).unwrap();
        write!(
            stream,
            "{method} /api/v1{path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n",
            self.at
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn page(&self, origin: &str) -> Result<Page, String> {
        let mut stream = TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(
            stream,
            "GET /api/v1/demos/live HTTP/1.1\r\nHost: {}\r\nOrigin: {origin}\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            self.at
        )
        .unwrap();
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        if !first.contains(" 101 ") {
            return Err(first);
        }
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        Ok(Page(reader))
    }

    fn own_page(&self) -> Page {
        self.page(&format!("http://{}", self.at)).unwrap()
    }

    /// Waits until the long demo runs. Returns its two processes.
    fn processes(&self) -> Vec<PathBuf> {
        while !self.path("running").exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = fs::read_to_string(self.path("running")).unwrap();
        text.lines().map(|pid| Path::new("/proc").join(pid)).collect()
    }
}

/// The page's end of a WebSocket.
struct Page(BufReader<TcpStream>);

impl Page {
    fn next(&mut self) -> Value {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        assert_eq!(head[0], 0x81, "a whole message of text");
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.0.read_exact(&mut length).unwrap();
                usize::from(u16::from_be_bytes(length))
            }
            short => usize::from(short),
        };
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// The messages up to the first of this kind.
    fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            all.push(self.next());
            if all[all.len() - 1]["kind"] == kind {
                return all;
            }
        }
    }
}

fn of_kind<'a>(messages: &'a [Value], kind: &str) -> Vec<&'a Value> {
    messages.iter().filter(|message| message["kind"] == kind).collect()
}

#[test]
fn a_demo_reports_to_pages_that_look_and_to_those_that_come_later() {
    let world = World::new();
    let mut page = world.own_page();
    assert_eq!(page.next()["kind"], "idle");
    assert_eq!(world.ask("POST", "/demos/cache?small=true", TOKEN).0, 200);
    let live = page.until("ended");
    assert_eq!(
        (&live[0]["kind"], &live[0]["demo"], &live[0]["small"]),
        (&"start".into(), &"cache".into(), &true.into())
    );
    assert_eq!(of_kind(&live, "progress")[0]["step"], "first pass --small", "the short form");
    assert_eq!(of_kind(&live, "point").len(), 2);
    let ended = &live[live.len() - 1];
    assert_eq!(
        (&ended["ok"], &ended["ignored"], &ended["stopped"]),
        (&true.into(), &2.into(), &false.into()),
        "{ended}"
    );
    let later = world.own_page().until("ended");
    assert_eq!(of_kind(&later, "table")[0]["rows"][0][1], "4.2 ms");
    assert_eq!((of_kind(&later, "point").len(), of_kind(&later, "progress").len()), (2, 1));
    let (_, state) = world.ask("GET", "/demos", TOKEN);
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(
        (&state["running"], &state["demo"], &state["ok"]),
        (&false.into(), &"cache".into(), &true.into())
    );
}

#[test]
fn a_demo_that_fails_is_shown_with_its_last_lines() {
    let world = World::new();
    let mut page = world.own_page();
    assert_eq!(world.ask("POST", "/demos/sort", TOKEN).0, 200);
    let live = page.until("ended");
    let ended = &live[live.len() - 1];
    assert_eq!(
        (&ended["ok"], &ended["said_end"], &ended["how"]),
        (&false.into(), &false.into(), &"exit status: 2".into())
    );
    let lines: Vec<_> =
        ended["output"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert!(lines.contains(&"one") && lines.contains(&"the disk is full"), "{lines:?}");
}

#[test]
fn one_demo_runs_at_a_time_and_only_with_the_token() {
    let world = World::new();
    assert_eq!(world.ask("POST", "/demos/scale", "wrong").0, 401);
    assert_eq!(world.ask("DELETE", "/demos/scale", "wrong").0, 401);
    assert_eq!(world.ask("DELETE", "/demos/scale", TOKEN).0, 404, "it does not run");
    assert_eq!(world.ask("POST", "/demos/other", TOKEN).0, 400);
    assert_eq!(world.ask("POST", "/demos/scale", TOKEN).0, 200);
    let processes = world.processes();
    let (status, body) = world.ask("POST", "/demos/cache", TOKEN);
    assert!(status == 409 && body.contains("demo-runs"), "{status} {body}");
    assert_eq!(world.ask("DELETE", "/demos/cache", TOKEN).0, 404, "another one runs");
    let mut page = world.own_page();
    assert_eq!(world.ask("DELETE", "/demos/scale", TOKEN).0, 200);
    assert!(world.path("cleaned").exists(), "it was given time");
    assert!(processes.iter().all(|process| !process.exists()), "{processes:?}");
    let live = page.until("ended");
    assert_eq!(live[live.len() - 1]["stopped"], true);
    assert_eq!(world.ask("POST", "/demos/sort", TOKEN).0, 200, "the next one");
}

#[test]
fn a_demo_ends_with_the_dashboard() {
    let mut world = World::new();
    let mut page = world.own_page();
    assert_eq!(world.ask("POST", "/demos/scale", TOKEN).0, 200);
    let processes = world.processes();
    page.until("start");
    let events = fs::read_to_string(world.path("events")).unwrap();
    let folder = Path::new(events.trim()).parent().unwrap();
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    drop(world.server.take());
    assert!(world.path("cleaned").exists() && processes.iter().all(|process| !process.exists()));
    assert!(!folder.exists());
}

#[test]
fn a_page_of_another_site_hears_nothing() {
    let world = World::new();
    let refused = world.page("http://evil.example").err().unwrap();
    assert!(refused.contains("403"), "{refused}");
}

#[test]
fn demos_need_a_token_a_checkout_and_an_own_address() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let failure = |options: &Options| Bound::new(options).err().unwrap().to_string();
    assert!(failure(&options).contains("Makefile"));
    fs::write(folder.path().join("Makefile"), "all:\n").unwrap();
    assert!(failure(&options).contains("no checkout of Covey"));
    fs::write(folder.path().join("Makefile"), CACHE).unwrap();
    assert!(Bound::new(&options).is_ok());
    assert!(failure(&Options { token: None, ..options.clone() }).contains("--ui-token"));
    let open = Options { listen: "0.0.0.0:0".into(), insecure: true, ..options.clone() };
    assert!(failure(&open).contains("unencrypted"));
    let lab = Options { lab: Some("http://10.0.0.1/".into()), ..options };
    assert!(failure(&lab).contains("make lab"));
}

#[test]
fn without_demos_a_page_learns_how_to_start_them() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { demos: None, lab: Some("http://127.0.0.1:8888/lab".into()), ..options(folder.path()) };
    let server = Bound::new(&options).unwrap().serve(Arc::new(Two)).unwrap();
    let world = World { at: server.address(), server: Some(server), folder };
    let (status, body) = world.ask("POST", "/demos/cache", TOKEN);
    assert!(status == 404 && body.contains("--demos FOLDER"), "{status} {body}");
    assert!(world.page("http://localhost").err().unwrap().contains("403"));
    let (_, mounts) = world.ask("GET", "/mounts", TOKEN);
    assert!(mounts.contains("\"demos\":false") && mounts.contains("8888/lab"), "{mounts}");
    let mut stream = TcpStream::connect(world.at).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", world.at).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("frame-src http://127.0.0.1:8888\r\n"), "{text}");
}
