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
    let second = connect(&server);
    ask(&server, &second, "/mounts");
    second.set_read_timeout(Some(SHORT)).unwrap();
    assert!(!is_answered(&second), "there is no place");
    drop(first);
    second.set_read_timeout(Some(LONG)).unwrap();
    assert!(is_answered(&second));
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
