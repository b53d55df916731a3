//! A relay in front of a database that stops it after so many of its answers: for all, as if the machine had
//! lost its network, or by ending all connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What becomes of the answers after the last one that is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// They are held back until [`Gate::open`], and the connections stay.
    Hold,
    /// All connections end, and new ones too.
    Cut,
}

/// What is looked at before each answer, until it is true.
type Begins = Box<dyn Fn() -> bool + Send>;

/// See the module.
pub struct Gate {
    port: u16,
    passed: Arc<AtomicU64>,
    limit: Arc<AtomicU64>,
    is_shut: Arc<AtomicBool>,
    is_open: Arc<AtomicBool>,
    begins: Arc<Mutex<Option<(u64, Begins)>>>,
    begun: Arc<AtomicU64>,
}

impl Gate {
    /// A relay to this port of 127.0.0.1 that passes `limit` answers on.
    pub fn new(to: u16, limit: u64, then: Then) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = Gate {
            port,
            passed: Arc::default(),
            limit: Arc::new(AtomicU64::new(limit)),
            is_shut: Arc::default(),
            is_open: Arc::default(),
            begins: Arc::default(),
            begun: Arc::new(AtomicU64::new(u64::MAX)),
        };
        let all = (gate.passed.clone(), gate.limit.clone(), gate.is_shut.clone(), gate.is_open.clone());
        let beginning = (gate.begins.clone(), gate.begun.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (passed, limit, is_shut, is_open) = all.clone();
                let (begins, begun) = beginning.clone();
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to))) else {
                    continue;
                };
                if is_shut.load(Ordering::SeqCst) && then == Then::Cut && !is_open.load(Ordering::SeqCst) {
                    continue;
                }
                let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || copy(from_client, to_server, || true));
                thread::spawn(move || {
                    copy(server, client, || {
                        let mut waits = begins.lock().unwrap();
                        if let Some((more, _)) = waits.take_if(|(_, begins)| begins()) {
                            begun.store(passed.load(Ordering::SeqCst), Ordering::SeqCst);
                            let most = passed.load(Ordering::SeqCst).saturating_add(more);
                            limit.store(most, Ordering::SeqCst);
                        }
                        drop(waits);
                        let is_first = passed.fetch_add(1, Ordering::SeqCst) < limit.load(Ordering::SeqCst);
                        if is_first || is_open.load(Ordering::SeqCst) {
                            return true;
                        }
                        is_shut.store(true, Ordering::SeqCst);
                        while then == Then::Hold && !is_open.load(Ordering::SeqCst) {
                            thread::sleep(Duration::from_millis(50));
                        }
                        then == Then::Hold
                    });
                });
            }
        });
        gate
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Passes so many more answers on.
    pub fn shut_after(&self, more: u64) {
        self.limit.store(self.answers() + more, Ordering::SeqCst);
    }

    /// Passes so many more answers on from the moment on when `begins` is true. That is looked at before each
    /// answer, so it does not matter how late a test sees it.
    pub fn shut_after_begin(&self, more: u64, begins: impl Fn() -> bool + Send + 'static) {
        *self.begins.lock().unwrap() = Some((more, Box::new(begins)));
    }

    /// How many answers there were since then.
    pub fn since_begin(&self) -> u64 {
        self.answers().saturating_sub(self.begun.load(Ordering::SeqCst))
    }

    /// Serves as if nothing had been.
    pub fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// How many answers there were.
    pub fn answers(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }

    /// Waits until an answer was not passed on. False if `ended` is true before that.
    pub fn wait_shut(&self, mut ended: impl FnMut() -> bool) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.is_shut.load(Ordering::SeqCst) {
            assert!(Instant::now() < until, "the database is asked nothing more");
            if ended() {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut passes: impl FnMut() -> bool) {
    let mut buf = [0; 65_536];
    while let Ok(len @ 1..) = from.read(&mut buf) {
        if !passes() || to.write_all(&buf[..len]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
