//! `make run-fleet`: an object store, a depot and four nodes on this machine. A table shows where each byte
//! comes from while the nodes read.
//!
//! Everything runs in network namespaces, which are created at the start and removed at the end, also after
//! Ctrl-C. The reader counts what a node read. The link counts what came over it, and the store counts its
//! part of that. So the table depends on no figure that Covey reports about itself.

// An end-to-end demonstration for people.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nets::tree::Shape;
use nets::{Fleet, How, Node, Tree};

const NODES: usize = 4;
const SHAPE: Shape = Shape { large: 16, large_bytes: 8 << 20, small: 400 };
/// The store's median time to the first byte, and the bandwidth of a node's link.
const FIRST_BYTE: Duration = Duration::from_millis(30);
const LINK_BITS: u64 = 400_000_000;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupted(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// The reader of one node: it reads the whole tree once.
struct Reading {
    bytes: Arc<AtomicU64>,
    errors: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    /// Bytes read in earlier passes.
    before: u64,
}

impl Reading {
    fn new() -> Reading {
        Reading { bytes: Arc::default(), errors: Arc::default(), thread: None, before: 0 }
    }

    fn begin(&mut self, tree: &'static Tree, node: &Node) {
        let (mnt, bytes, errors) = (node.mnt(), self.bytes.clone(), self.errors.clone());
        self.thread = Some(std::thread::spawn(move || {
            const STEP: u64 = 1 << 20;
            for file in tree.files() {
                for from in (0..file.size).step_by(STEP as usize) {
                    let len = (file.size - from).min(STEP) as usize;
                    match nets::readers::read(&mnt, file, from, len) {
                        Ok(read) if read.len() == len && file.differs(from, &read).is_none() => {
                            bytes.fetch_add(len as u64, Ordering::SeqCst);
                        }
                        Ok(_) => {
                            eprintln!("WRONG BYTES in {}", file.path.display());
                            errors.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(_) => {
                            errors.fetch_add(1, Ordering::SeqCst);
                            return;
                        }
                    }
                }
            }
        }));
    }

    fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

struct Show {
    fleet: Fleet,
    depot: Node,
    readings: Vec<Reading>,
    begun: Instant,
    live: bool,
    drawn: usize,
    title: String,
}

/// Bytes that a node reports to have received from the depot; 0 for a node that is down or just starting.
fn from_depot(node: &Node) -> u64 {
    let Some(status) = node.pid().and_then(|_| node.try_status().ok()) else { return 0 };
    let bytes =
        |tier: &str| status.pointer(&format!("/fleet/{tier}/bytes")).and_then(serde_json::Value::as_u64);
    bytes("depot").unwrap_or(0) + bytes("depot_part").unwrap_or(0)
}

impl Show {
    fn rows(&self) -> Vec<String> {
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        let mut rows = vec![
            format!("{:>5.1} s  {}", self.begun.elapsed().as_secs_f64(), self.title),
            format!(
                "  {:<8}{:<10}{:>10}{:>12}{:>12}{:>12}{:>12}{:>12}",
                "MiB", "", "read", "own cache", "neighbours", "the depot", "the store", "sent on"
            ),
        ];
        let row = |node: &Node, read: Option<u64>, state: &str| {
            let traffic = node.port.traffic();
            let store = self.fleet.store.given_to(&node.port);
            // Headers are a few percent of what a link counts, and names come over it, too.
            let from_peers = (traffic.received as f64 / 1.03) as u64;
            let others = from_peers.saturating_sub(store);
            let own = read.map_or("-".to_owned(), |read| mib(read.saturating_sub(others + store)));
            let depot = from_depot(node).min(others);
            let read = read.map_or("-".to_owned(), mib);
            format!(
                "  {:<8}{state:<10}{read:>10}{own:>12}{:>12}{:>12}{:>12}{:>12}",
                node.name(),
                mib(others - depot),
                mib(depot),
                mib(store),
                mib(traffic.sent)
            )
        };
        rows.push(row(&self.depot, None, "depot"));
        for (node, reading) in self.fleet.nodes.iter().zip(&self.readings) {
            let state = match node.pid() {
                None => "down",
                Some(_) if reading.thread.is_none() => "idle",
                Some(_) if reading.is_done() => "done",
                Some(_) => "reads",
            };
            rows.push(row(node, Some(reading.bytes.load(Ordering::SeqCst)), state));
        }
        let blobs = self.fleet.store.blobs();
        let (gets, bytes) =
            blobs.values().fold((0, 0), |(gets, bytes), got| (gets + got.gets, bytes + got.bytes));
        rows.push(format!("  store: {} blobs asked for, {gets} GETs, {} MiB", blobs.len(), mib(bytes)));
        rows
    }

    fn draw(&mut self, last: bool) {
        let rows = self.rows();
        if self.live {
            let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
            println!("{up}\x1b[J{}", rows.join("\n"));
            self.drawn = if last { 0 } else { rows.len() };
        } else if last {
            println!("{}\n", rows.join("\n"));
        }
        if last && self.live {
            println!();
        }
    }

    /// One act, which ends when all readers are done. `event` happens when a tenth of the tree is read.
    fn act(&mut self, title: &str, nodes: &[usize], event: &mut dyn FnMut(&mut Show)) -> Result<(), String> {
        self.title = title.to_owned();
        if !self.live {
            println!("{:>5.1} s  {title}", self.begun.elapsed().as_secs_f64());
        }
        for &node in nodes {
            let reading = &mut self.readings[node];
            reading.before = reading.bytes.load(Ordering::SeqCst);
            reading.begin(self.fleet.tree, &self.fleet.nodes[node]);
        }
        let mut happened = false;
        loop {
            self.draw(false);
            if INTERRUPTED.load(Ordering::SeqCst) {
                return Err("ended by Ctrl-C".into());
            }
            let read = |show: &Show, node: usize| {
                show.readings[node].bytes.load(Ordering::SeqCst) - show.readings[node].before
            };
            if !happened && nodes.iter().any(|&node| read(self, node) > self.fleet.tree.bytes() / 10) {
                happened = true;
                event(self);
            }
            if nodes.iter().all(|&node| self.readings[node].is_done()) {
                self.draw(true);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// All acts.
    fn play(&mut self) -> Result<(), String> {
        self.act("n1 reads the whole tree, cold", &[0], &mut |_| {})?;
        self.act(
            "n2, n3 and n4 read it, all at once; n2 is killed on the way (kill -9)",
            &[1, 2, 3],
            &mut |show| {
                show.fleet.nodes[1].kill();
            },
        )?;
        self.fleet.nodes[1].start();
        self.act("n2 is back, with the cache that it had, and reads it", &[1], &mut |_| {})?;
        self.fleet.store.proxy.down();
        self.act("the store is unreachable: all nodes read everything", &[0, 1, 2, 3], &mut |_| {})
    }
}

fn run() -> Result<(), String> {
    if let Some(lacking) = nets::lacking() {
        return Err(format!("this machine lacks {lacking}, which network namespaces need"));
    }
    // SAFETY: the handler only stores to an atomic, which is allowed in a signal handler.
    unsafe {
        libc::signal(libc::SIGINT, interrupted as *const () as libc::sighandler_t);
        libc::signal(libc::SIGTERM, interrupted as *const () as libc::sighandler_t);
    }
    println!(
        "Making a volume of {} MiB in an S3 server, and publishing it ...",
        (SHAPE.large * SHAPE.large_bytes) >> 20
    );
    let tree: &'static Tree = Box::leak(Box::new(Tree::publish(SHAPE)));
    let mut fleet = Fleet::joined(tree, NODES, 1, &How::default());
    fleet.store.be_like_a_store(FIRST_BYTE);
    let mut depot = fleet.depot("depot", 3, "2G");
    depot.spawn();
    depot.await_mounted(Duration::from_secs(60))?;
    fleet.start();
    for node in fleet.nodes.iter().chain([&depot]) {
        node.port.shape(Some(LINK_BITS));
    }
    fleet.store.forget();
    println!(
        "Four nodes, each in a network namespace of its own, with a link of {} Mbit/s.\n",
        LINK_BITS / 1_000_000
    );
    let mut show = Show {
        fleet,
        depot,
        readings: (0..NODES).map(|_| Reading::new()).collect(),
        begun: Instant::now(),
        live: std::io::stdout().is_terminal(),
        drawn: 0,
        title: String::new(),
    };
    let played = show.play();
    println!("\nTaking everything away ...");
    show.fleet.nodes.iter_mut().for_each(Node::kill);
    for thread in show.readings.iter_mut().filter_map(|reading| reading.thread.take()) {
        thread.join().ok();
    }
    played
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("run-fleet: {why}");
            std::process::ExitCode::FAILURE
        }
    }
}
