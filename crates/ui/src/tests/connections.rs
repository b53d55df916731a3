//! Clients that say nothing, and clients that take nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use super::*;
use crate::connections::Limits;
use crate::server::Server;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

fn serve(limits: Limits, daemons: Arc<dyn Daemons>) -> Server {
    let options =
        Options { listen: "127.0.0.1:0".into(), insecure: false, token: None, demos: None, lab: None };
    Bound::new(&options).unwrap().serve_within(limits, daemons).unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn ask(server: &Server, stream: &TcpStream, path: &str) {
    try_ask(server, stream, path).unwrap();
}

fn try_ask(server: &Server, mut stream: &TcpStream, path: &str) -> std::io::Result<()> {
    let host = server.address();
    write!(stream, "GET /api/v1{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

fn is_answered(mut stream: &TcpStream) -> bool {
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).is_ok() && &begin == b"HTTP/1.1 200"
}

/// Connections that never asked stayed for good.
#[test]
fn regression_a_client_that_asks_nothing_is_cut() {
    let server = serve(Limits { connections: 2, idle: SHORT, patience: LONG }, Arc::new(Two));
    let mut silent = [connect(&server), connect(&server)];
    // On a busy machine it may be cut before it asks.
    let begin = std::time::Instant::now();
    let is_served = || {
        let third = connect(&server);
        try_ask(&server, &third, "/mounts").is_ok() && is_answered(&third)
    };
    let mut is_there = false;
    while !is_there && begin.elapsed() < LONG / 2 {
        is_there = is_served();
    }
    assert!(is_there, "it gets the place of one that is cut");
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "it is closed");
    }
}

#[test]
fn only_so_many_connections_are_served_at_a_time() {
    let server = serve(Limits { connections: 1, idle: LONG, patience: LONG }, Arc::new(Two));
    let first = connect(&server);
    ask(&server, &first, "/events");
    assert!(is_answered(&first));
    let second = connect(&server);
    ask(&server, &second, "/mounts");
    second.set_read_timeout(Some(SHORT)).unwrap();
    assert!(!is_answered(&second), "there is no place");
    drop(first);
    second.set_read_timeout(Some(LONG)).unwrap();
    assert!(is_answered(&second));
}

/// Silent connections kept browsers out for a minute.
#[test]
fn regression_connections_that_ask_nothing_give_their_places_up() {
    let server = serve(Limits { connections: 8, idle: LONG, patience: LONG }, Arc::new(Two));
    let silent: Vec<TcpStream> = (0..20).map(|_| connect(&server)).collect();
    let asking = connect(&server);
    ask(&server, &asking, "/mounts");
    assert!(is_answered(&asking));
    drop(silent);
}

/// Sends large messages, and says when nothing listens any more.
struct Loud(parking_lot::Mutex<Sender<()>>);

impl Daemons for Loud {
    fn mounts(&self) -> Vec<Shown> {
        vec![Shown { source: "/srv/a".into(), mountpoint: "/mnt/a".into() }]
    }

    fn ask(&self, _: &Shown, _: &Request) -> Result<Value> {
        Ok(Value::Null)
    }

    fn watch(&self, _: &Shown, _: &Wish, each: &mut dyn FnMut(Value) -> bool) -> Result<()> {
        while each(json!("x".repeat(1 << 20))) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.lock().send(());
        Ok(())
    }

    fn fleet(&self) -> Option<String> {
        None
    }

    fn members(&self) -> Result<Vec<PeerRow>> {
        Ok(Vec::new())
    }
}

/// A page that was stopped kept its stream's place for good.
#[test]
fn regression_a_stream_that_is_not_read_gives_its_place_back() {
    let (gone, ended) = channel();
    let limits = Limits { connections: 2, idle: LONG, patience: SHORT };
    let server = serve(limits, Arc::new(Loud(parking_lot::Mutex::new(gone))));
    let page = connect(&server);
    ask(&server, &page, "/events");
    assert!(is_answered(&page));
    ended.recv_timeout(LONG).unwrap();
    drop(page);
}

/// Questions that take until they are let go.
#[derive(Default)]
struct Slow {
    asked: parking_lot::Mutex<(usize, bool)>,
    changed: parking_lot::Condvar,
}

impl Slow {
    fn wait_for(&self, count: usize) {
        let mut asked = self.asked.lock();
        while asked.0 < count {
            assert!(!self.changed.wait_for(&mut asked, LONG).timed_out(), "{} are asked", asked.0);
        }
    }
}

impl Daemons for Slow {
    fn mounts(&self) -> Vec<Shown> {
        vec![Shown { source: "/srv/a".into(), mountpoint: "/mnt/a".into() }]
    }

    fn ask(&self, _: &Shown, _: &Request) -> Result<Value> {
        let mut asked = self.asked.lock();
        asked.0 += 1;
        self.changed.notify_all();
        while !asked.1 {
            self.changed.wait(&mut asked);
        }
        Ok(Value::Null)
    }

    fn watch(&self, _: &Shown, _: &Wish, _: &mut dyn FnMut(Value) -> bool) -> Result<()> {
        Ok(())
    }

    fn fleet(&self) -> Option<String> {
        None
    }

    fn members(&self) -> Result<Vec<PeerRow>> {
        Ok(Vec::new())
    }
}

/// A user who may read the dashboard asked its daemon until nobody else got an answer.
#[test]
fn regression_questions_without_the_token_leave_some_for_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let options = Options {
        listen: "127.0.0.1:0".into(),
        insecure: false,
        token: Some(token.clone()),
        demos: None,
        lab: None,
    };
    let slow = Arc::new(Slow::default());
    let daemons: Arc<dyn Daemons> = slow.clone();
    let server = Bound::new(&options).unwrap().serve_within(Limits::default(), daemons).unwrap();
    let many: Vec<TcpStream> = (0..60).map(|_| connect(&server)).collect();
    // Some may have lost their places to the next ones.
    many.iter().for_each(|stream| drop(try_ask(&server, stream, "/status")));
    slow.wait_for(8);
    std::thread::sleep(SHORT);
    assert_eq!(slow.asked.lock().0, 8, "the others wait");
    let mut known = connect(&server);
    let (host, token) = (server.address(), std::fs::read_to_string(&token).unwrap());
    let token = token.trim();
    let head = format!("Host: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n");
    write!(known, "GET /api/v1/status HTTP/1.1\r\n{head}").unwrap();
    slow.wait_for(9);
    slow.asked.lock().1 = true;
    slow.changed.notify_all();
    assert!(is_answered(&known) && many.iter().any(is_answered));
    let _ = known.flush();
}
