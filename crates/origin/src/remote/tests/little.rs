//! A small HTTP server of a test, which answers as a closure says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// A request without its body.
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path and the query.
    pub(crate) target: String,
    /// By their names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
}

/// An answer.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn of(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, headers: Vec::new(), body: body.into() }
    }
}

type Handler = Box<dyn Fn(&Request) -> Answer + Send + Sync>;

/// The server. Its threads end with the test program.
pub(crate) struct Little {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Little {
    pub(crate) fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Little {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::default());
        let (log, answer) = (Arc::clone(&asked), Arc::new(Box::new(answer) as Handler));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || while one(&socket, &log, &answer).is_some() {});
            }
        });
        Little { address, asked }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far: method and target.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

/// Answers one request of a connection. None at its end.
fn one(socket: &TcpStream, log: &Mutex<Vec<String>>, answer: &Handler) -> Option<()> {
    let mut from = BufReader::new(socket);
    let mut line = String::new();
    from.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    std::io::copy(&mut from.take(length), &mut std::io::sink()).ok()?;
    log.lock().push(format!("{method} {target}"));
    let is_head = method == "HEAD";
    let Answer { status, headers, body } = answer(&Request { method, target, headers });
    let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    let mut to = socket;
    to.write_all(head.as_bytes()).and_then(|()| to.write_all(b"\r\n")).ok()?;
    if is_head { Some(()) } else { to.write_all(&body).ok() }
}
