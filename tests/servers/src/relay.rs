//! Relays in front of a server: one that loses answers, and one that holds requests back.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A relay in front of a server. It can lose an answer.
pub struct Relay {
    port: u16,
    /// So many of the next answers are lost, and their connections with them.
    pub lose: Arc<AtomicU64>,
}

impl Relay {
    /// A relay to this port.
    pub fn new(to: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let lose = Arc::new(AtomicU64::new(0));
        let counter = lose.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to))) else {
                    continue;
                };
                let (client_in, server_out) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || copy(client_in, server_out, None));
                let counter = counter.clone();
                thread::spawn(move || copy(server, client, Some(counter)));
            }
        });
        Relay { port, lose }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, lose: Option<Arc<AtomicU64>>) {
    let mut buf = [0; 65_536];
    while let Ok(len @ 1..) = from.read(&mut buf) {
        let take = |left: u64| left.checked_sub(1);
        let is_lost = lose
            .as_ref()
            .is_some_and(|lose| lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok());
        if is_lost || to.write_all(&buf[..len]).is_err() {
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
