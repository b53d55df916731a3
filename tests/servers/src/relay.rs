//! Relays in front of a server: one that loses answers or passes nothing, and one that holds requests back.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A relay in front of a server. It can lose an answer, pass nothing on, and lead to another server.
pub struct Relay {
    port: u16,
    /// So many of the next answers are lost, and their connections with them.
    pub lose: Arc<AtomicU64>,
    way: Arc<Way>,
}

/// Where a relay leads, and what passes.
struct Way {
    to: AtomicU16,
    passes: AtomicU8,
}

const ALL: u8 = 0;
/// Connections end with the next piece, and new ones at once.
const NOTHING: u8 = 1;
/// The pieces wait until all pass again.
const LATER: u8 = 2;

impl Way {
    /// Waits until it is certain what becomes of a piece. False: it is lost.
    fn is_open(&self) -> bool {
        while self.passes.load(Ordering::SeqCst) == LATER {
            thread::sleep(Duration::from_millis(10));
        }
        self.passes.load(Ordering::SeqCst) == ALL
    }
}

impl Relay {
    /// A relay to this port.
    pub fn new(to: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let lose = Arc::new(AtomicU64::new(0));
        let way = Arc::new(Way { to: AtomicU16::new(to), passes: AtomicU8::new(ALL) });
        let (counter, leads) = (lose.clone(), way.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let to = leads.to.load(Ordering::SeqCst);
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to))) else {
                    continue;
                };
                // Otherwise each small piece waits for an acknowledgement, some 40 ms.
                [&client, &server].into_iter().for_each(|stream| stream.set_nodelay(true).unwrap());
                let (client_in, server_out) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (there, back, counter) = (leads.clone(), leads.clone(), counter.clone());
                thread::spawn(move || copy(client_in, server_out, &there, None));
                thread::spawn(move || copy(server, client, &back, Some(counter)));
            }
        });
        Relay { port, lose, way }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads new connections to this port.
    pub fn lead_to(&self, to: u16) {
        self.way.to.store(to, Ordering::SeqCst);
    }

    /// Ends connections when something is sent on them.
    pub fn cut(&self) {
        self.way.passes.store(NOTHING, Ordering::SeqCst);
    }

    /// Passes nothing on, as a network does whose link is down. What is sent arrives after [`Relay::open`].
    pub fn hold(&self) {
        self.way.passes.store(LATER, Ordering::SeqCst);
    }

    /// Passes all on again.
    pub fn open(&self) {
        self.way.passes.store(ALL, Ordering::SeqCst);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, way: &Way, lose: Option<Arc<AtomicU64>>) {
    let mut buf = [0; 65_536];
    while let Ok(len @ 1..) = from.read(&mut buf) {
        let take = |left: u64| left.checked_sub(1);
        let is_lost = lose
            .as_ref()
            .is_some_and(|lose| lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok());
        if is_lost || !way.is_open() || to.write_all(&buf[..len]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
    thread::sleep(Duration::from_millis(1));
}

/// A relay in front of a member. It can hold back what a client sends, and let it arrive later.
pub struct Holding {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// So many of the next pieces pass.
    pass: AtomicU64,
    /// So many behind these are held, and their clients lose the connection.
    hold: AtomicU64,
    held: Mutex<Vec<(TcpStream, Vec<u8>)>>,
}

impl Holding {
    /// A relay to this port.
    pub fn new(to: u16) -> Holding {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let all = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to))) else {
                    continue;
                };
                let (answers, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || pass(answers, to_client));
                let shared = all.clone();
                thread::spawn(move || pass_or_hold(client, server, &shared));
            }
        });
        Holding { port, shared }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Holds back so many requests, after those that pass.
    pub fn hold(&self, pass: u64, hold: u64) {
        self.shared.pass.store(pass, Ordering::SeqCst);
        self.shared.hold.store(hold, Ordering::SeqCst);
    }

    /// Lets what was held arrive. Returns how many pieces.
    pub fn release(&self) -> usize {
        let mut held = self.shared.held.lock().unwrap();
        for (server, bytes) in held.iter_mut() {
            server.write_all(bytes).unwrap();
        }
        held.len()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buf = [0; 65_536];
    while let Ok(len @ 1..) = from.read(&mut buf) {
        if to.write_all(&buf[..len]).is_err() {
            // A held connection still reads its answers.
            continue;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn pass_or_hold(mut client: TcpStream, mut server: TcpStream, shared: &Shared) {
    let mut buf = [0; 65_536];
    while let Ok(len @ 1..) = client.read(&mut buf) {
        let take = |left: u64| left.checked_sub(1);
        // A small piece is an acknowledgement or a setting, and no request.
        let counts = |count: &AtomicU64| count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        if len < 60 || counts(&shared.pass) || !counts(&shared.hold) {
            if server.write_all(&buf[..len]).is_err() {
                break;
            }
            continue;
        }
        let mut bytes = buf[..len].to_vec();
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        while let Ok(len @ 1..) = client.read(&mut buf) {
            bytes.extend(&buf[..len]);
        }
        let _ = client.shutdown(std::net::Shutdown::Both);
        shared.held.lock().unwrap().push((server, bytes));
        return;
    }
    let _ = server.shutdown(std::net::Shutdown::Both);
}
