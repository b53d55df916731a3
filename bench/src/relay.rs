//! A relay on loopback in front of a store, the same for all systems that are measured. It counts requests by
//! kind and bytes. It can delay each request, to simulate a network's round trip and a real store's first
//! byte, and can limit answers to the rate of a link.
//!
//! ```text
//!   program ── requests, parsed only as far as counting needs ──► relay ── the same bytes ──► store
//!   program ◄── the same bytes, by splice(2): they never enter this process ───────────────── store
//! ```
//!
//! A delay is drawn for each request around the given median, and is over before the request's head is
//! forwarded. So it is part of the time to the first byte and does not slow the bytes after it. All
//! connections share one link: each piece of an answer occupies it for its transfer time, one after another,
//! and is forwarded only then.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::time::monotonic_ns;
use parking_lot::Mutex;
use rustix::pipe::{SpliceFlags, pipe, splice};

use crate::Result;
use crate::store::Counts;

/// The longest head of a request.
const HEAD_MAX: usize = 64 << 10;
/// Bytes forwarded at a time.
const PIECE: usize = 1 << 20;
/// The same with a link, so that connections take turns on it.
const PIECE_ON_LINK: usize = 64 << 10;
/// A sleep ends late. The idle time of the link is made up for, up to so many nanoseconds.
const LATE_NS: u64 = 2_000_000;
/// The spread of delays around their median, as a part of it. The distribution is skewed upwards.
const SCATTER: f64 = 0.35;

#[derive(Default)]
struct Shared {
    wait_us: AtomicU64,
    asked: AtomicU64,
    answered: AtomicU64,
    /// Bytes of answers per second; 0 is no limit.
    rate: AtomicU64,
    /// Until when the link is occupied, in nanoseconds of the monotonic clock.
    taken: Mutex<u64>,
    requests: Mutex<BTreeMap<&'static str, u64>>,
}

impl Shared {
    /// Waits until the link has carried so many bytes, after those of earlier callers.
    fn take_turn(&self, bytes: usize, rate: u64) {
        if rate == 0 {
            return;
        }
        let now = monotonic_ns();
        let done = {
            let mut taken = self.taken.lock();
            *taken = (*taken).max(now.saturating_sub(LATE_NS)) + bytes as u64 * 1_000_000_000 / rate;
            *taken
        };
        std::thread::sleep(Duration::from_nanos(done.saturating_sub(now)));
    }
}

/// A relay. Its threads end with their connections.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
}

impl Relay {
    /// Starts in front of the server on port `to` of loopback.
    ///
    /// # Errors
    /// No port, or no thread.
    pub fn start(to: u16) -> Result<Relay> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (port, shared) = (listener.local_addr()?.port(), Arc::new(Shared::default()));
        let all = Arc::clone(&shared);
        base::thread::spawn("relay", move || {
            for client in listener.incoming().filter_map(io::Result::ok) {
                // A connection that cannot be served is closed, and its client sees that.
                let _ = serve(client, to, &all);
            }
        })?;
        Ok(Relay { port, shared })
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the median delay of each request from now on.
    pub fn delay(&self, median: Duration) {
        self.shared.wait_us.store(median.as_micros() as u64, Ordering::Relaxed);
    }

    /// Sets the rate of the shared link in bytes per second; 0 is no limit.
    pub fn limit(&self, rate: u64) {
        self.shared.rate.store(rate, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let requests = self.shared.requests.lock();
        Counts {
            requests: requests.iter().map(|(kind, count)| ((*kind).to_owned(), *count as f64)).collect(),
            received: self.shared.asked.load(Ordering::Relaxed) as f64,
            sent: self.shared.answered.load(Ordering::Relaxed) as f64,
        }
    }
}

fn serve(client: TcpStream, to: u16, shared: &Arc<Shared>) -> Result<()> {
    let store = TcpStream::connect((Ipv4Addr::LOCALHOST, to))?;
    client.set_nodelay(true)?;
    store.set_nodelay(true)?;
    let (back_from, back_to, counted) = (store.try_clone()?, client.try_clone()?, Arc::clone(shared));
    base::thread::spawn("relay-answers", move || {
        // Both sides end when either ends: the store closes what it does not serve.
        let _ = answers(&back_from, &back_to, &counted);
        let _ = back_to.shutdown(Shutdown::Both);
        let _ = back_from.shutdown(Shutdown::Both);
    })?;
    let shared = Arc::clone(shared);
    base::thread::spawn("relay-requests", move || {
        let _ = requests(&client, &store, &shared);
        let _ = store.shutdown(Shutdown::Write);
    })?;
    Ok(())
}

fn answers(from: &TcpStream, to: &TcpStream, shared: &Shared) -> Result<()> {
    let (out, into) = pipe()?;
    // A smaller pipe only takes more steps.
    let _ = rustix::pipe::fcntl_setpipe_size(&into, PIECE);
    loop {
        let rate = shared.rate.load(Ordering::Relaxed);
        let piece = if rate == 0 { PIECE } else { PIECE_ON_LINK };
        let mut left = splice(from, None, &into, None, piece, SpliceFlags::MOVE)?;
        if left == 0 {
            return Ok(());
        }
        shared.take_turn(left, rate);
        shared.answered.fetch_add(left as u64, Ordering::Relaxed);
        while left > 0 {
            left -= splice(&out, None, to, None, left, SpliceFlags::MOVE)?;
        }
    }
}

fn requests(mut from: &TcpStream, mut to: &TcpStream, shared: &Shared) -> Result<()> {
    let (mut buffer, mut have) = (vec![0; HEAD_MAX], 0);
    loop {
        let head = loop {
            if let Some(end) = end_of_head(&buffer[..have]) {
                break end;
            }
            let got = if have < HEAD_MAX { from.read(&mut buffer[have..])? } else { 0 };
            if got == 0 {
                return Ok(());
            }
            have += got;
        };
        let request = Head::read(&buffer[..head]).ok_or("what came is no request of HTTP/1.1")?;
        *shared.requests.lock().entry(request.kind).or_default() += 1;
        wait(shared.wait_us.load(Ordering::Relaxed));
        shared.asked.fetch_add(head as u64, Ordering::Relaxed);
        to.write_all(&buffer[..head])?;
        buffer.copy_within(head..have, 0);
        have -= head;
        match request.body {
            Body::Bytes(mut left) => {
                while left > 0 {
                    if have == 0 {
                        have = from.read(&mut buffer)?;
                    }
                    if have == 0 {
                        return Ok(());
                    }
                    let part = have.min(usize::try_from(left).unwrap_or(have));
                    shared.asked.fetch_add(part as u64, Ordering::Relaxed);
                    to.write_all(&buffer[..part])?;
                    buffer.copy_within(part..have, 0);
                    have -= part;
                    left -= part as u64;
                }
            }
            // The end of the body is not parsed: the rest of the connection is forwarded, and counts as this
            // one request.
            Body::Chunks => loop {
                shared.asked.fetch_add(have as u64, Ordering::Relaxed);
                to.write_all(&buffer[..have])?;
                have = from.read(&mut buffer)?;
                if have == 0 {
                    return Ok(());
                }
            },
        }
    }
}

fn wait(median_us: u64) {
    if median_us == 0 {
        return;
    }
    // The sum of twelve uniform numbers is nearly normally distributed.
    let lots: f64 = (0..12).map(|_| base::random::u64() as f64 / u64::MAX as f64).sum::<f64>() - 6.0;
    std::thread::sleep(Duration::from_secs_f64(median_us as f64 / 1e6 * (SCATTER * lots).exp()));
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

#[derive(Debug, PartialEq)]
enum Body {
    Bytes(u64),
    Chunks,
}

#[derive(Debug, PartialEq)]
struct Head {
    kind: &'static str,
    body: Body,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Head> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let mut body = Body::Bytes(0);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                body = Body::Bytes(value.trim().parse().ok()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                body = Body::Chunks;
            }
        }
        Some(Head { kind: kind_of(method, target), body })
    }
}

/// The S3 operation, by the names that stores use.
fn kind_of(method: &str, target: &str) -> &'static str {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    // `/BUCKET/KEY`
    let has_key = path.trim_start_matches('/').split_once('/').is_some_and(|(_, key)| !key.is_empty());
    match method {
        "GET" if has_key => "getobject",
        "GET" => "listobjects",
        "HEAD" => "headobject",
        "PUT" if has_key => "putobject",
        "POST" if query.contains("upload") => "multipart",
        "DELETE" => "deleteobject",
        "POST" if query.contains("delete") => "deleteobject",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        for (method, target, kind) in [
            ("GET", "/b/k/l?x=1", "getobject"),
            ("GET", "/b/?list-type=2&prefix=k", "listobjects"),
            ("GET", "/b", "listobjects"),
            ("PUT", "/b/k?partNumber=1&uploadId=u", "putobject"),
            ("POST", "/b/k?uploads=", "multipart"),
            ("POST", "/b?delete", "deleteobject"),
            ("PUT", "/b", "other"),
        ] {
            assert_eq!(kind_of(method, target), kind, "{method} {target}");
        }
        let head = b"PUT /b/k HTTP/1.1\r\nHost: x\r\ncontent-Length: 5\r\n\r\n";
        assert_eq!(end_of_head(head), Some(head.len()));
        assert_eq!(Head::read(head), Some(Head { kind: "putobject", body: Body::Bytes(5) }));
    }

    /// Two connections request 2 MiB each at once, over a link of 20 MiB per second: together they take about
    /// as long as 4 MiB.
    #[test]
    fn connections_share_a_link() {
        let store = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relay = Relay::start(store.local_addr().unwrap().port()).unwrap();
        relay.limit(20 << 20);
        std::thread::spawn(move || {
            for socket in store.incoming().take(2) {
                let mut socket = socket.unwrap();
                std::thread::spawn(move || {
                    let _ = socket.read(&mut [0; 100]).unwrap();
                    socket.write_all(&vec![7; 2 << 20]).unwrap();
                });
            }
        });
        let begun = base::time::monotonic();
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let port = relay.port();
                std::thread::spawn(move || {
                    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
                    client.write_all(b"GET /b/k HTTP/1.1\r\n\r\n").unwrap();
                    let mut came = Vec::new();
                    client.read_to_end(&mut came).unwrap();
                    came.len()
                })
            })
            .collect();
        for client in clients {
            assert_eq!(client.join().unwrap(), 2 << 20);
        }
        // Never faster. How much slower it is depends on the machine.
        assert!(begun.elapsed() > Duration::from_millis(190), "{:?}", begun.elapsed());
    }

    /// Two requests on one connection, the first with a body. The server sends as many bytes as each request
    /// asks for.
    #[test]
    fn what_goes_through_is_the_same_and_counted() {
        let store = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relay = Relay::start(store.local_addr().unwrap().port()).unwrap();
        let served = std::thread::spawn(move || {
            let (mut socket, _) = store.accept().unwrap();
            let mut all = Vec::new();
            let mut some = [0; 1000];
            while !all.ends_with(b"GET /b/k HTTP/1.1\r\n\r\n") {
                let got = socket.read(&mut some).unwrap();
                all.extend_from_slice(&some[..got]);
            }
            socket.write_all(&vec![7; 3 << 20]).unwrap();
            all
        });
        let sent =
            [b"PUT /b/k HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".as_slice(), b"GET /b/k HTTP/1.1\r\n\r\n"]
                .concat();
        relay.delay(Duration::from_millis(20));
        let begun = base::time::monotonic();
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, relay.port())).unwrap();
        client.write_all(&sent).unwrap();
        let mut came = Vec::new();
        client.read_to_end(&mut came).unwrap();
        assert_eq!(served.join().unwrap(), sent);
        assert!(came == vec![7; 3 << 20] && begun.elapsed() > Duration::from_millis(10));
        let counts = relay.counts();
        assert!((counts.of("putobject") - 1.0).abs() < 0.1 && (counts.of("getobject") - 1.0).abs() < 0.1);
        assert!(
            (counts.received - sent.len() as f64).abs() < 0.1
                && (counts.sent - f64::from(3 << 20)).abs() < 0.1
        );
    }
}
