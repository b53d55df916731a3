//! Connections of those who have no key.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use super::*;
use crate::server::{Bound, Options as Listening, Server};

const KEYS: &str =
    "[[key]]\naccess_key = \"K\"\nsecret_key = \"0123456789abcdef\"\nbuckets = { b = \"write\" }\n";

/// A server with so many places, and the folder with its keys.
fn serve(connections: usize) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    file.write_all(KEYS.as_bytes()).unwrap();
    let mut options = Listening { listen: "127.0.0.1:0".into(), ..Listening::default() };
    options.limits.connections = connections;
    let name = "bucket".to_owned();
    let made = Made { name, fs: volume(), changes: Arc::new(NotMounted), read_only: false, owner: (0, 0) };
    let bound = Bound::new(options, &path).unwrap();
    (bound.serve(vec![made], Vec::new(), Arc::new(|_| {})).unwrap(), folder)
}

fn connect(server: &Server, begin: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
    let _ = stream.write_all(begin);
    stream
}

/// Connections that said nothing, or never ended the head of a request, took all places for a minute.
#[test]
fn regression_silent_connections_do_not_keep_clients_out() {
    for begin in [&b""[..], b"GET / HTTP/1.1\r\nx: "] {
        let (server, _keys) = serve(16);
        let silent: Vec<_> = (0..40).map(|_| connect(&server, begin)).collect();
        for _ in 0..3 {
            // Before the minute after which a silent one is cut.
            let mut asking = connect(&server, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let mut answer = [0; 12];
            asking.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 403");
        }
        drop(silent);
    }
}
