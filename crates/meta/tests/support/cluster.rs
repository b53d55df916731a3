//! An etcd cluster for tests: three members on loopback, with a folder and ports of their own.
//!
//! The program is the one that `ETCD=` names, the one that `make etcd` put into the cache, or `etcd` on PATH.
//! A shell waits for the end of the test program, however it ends, then stops the members and removes the
//! folder.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use engines::etcd::{Etcd, Options, Target};
use port::free_port;

// Some programs have both of these servers.
#[allow(clippy::duplicate_mod)]
#[path = "port.rs"]
mod port;

const KEEPER: &str = r#"trap "" INT TERM HUP
cat >/dev/null
for file in "$1"/*.pid; do
    pid=$(cat "$file" 2>/dev/null) || continue
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = etcd ] || continue
    kill -CONT "$pid" 2>/dev/null
    kill -KILL "$pid" 2>/dev/null
done
sleep 0.2
rm -rf "$1""#;
/// How long a cluster may take to elect a leader.
const PATIENCE: Duration = Duration::from_secs(60);

struct Member {
    client: u16,
    peer: u16,
    process: Mutex<Option<Child>>,
}

/// A running cluster.
pub struct Cluster {
    program: PathBuf,
    dir: PathBuf,
    members: Vec<Member>,
    more: Vec<String>,
    scheme: &'static str,
    keeper: Child,
    volumes: AtomicU64,
}

/// The program of etcd, if there is one.
pub fn program() -> Option<PathBuf> {
    if let Some(path) = env::var_os("ETCD").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home);
    let built = cache.map(|cache| cache.join("covey/peers/etcd")).filter(|path| path.is_file());
    let on_path = || {
        let path = env::var_os("PATH")?;
        env::split_paths(&path).map(|folder| folder.join("etcd")).find(|path| path.is_file())
    };
    built.or_else(on_path)
}

impl Cluster {
    /// The cluster of this test program; none, with a line that says so, if etcd is not installed.
    pub fn shared() -> Option<&'static Cluster> {
        static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
        SHARED.get_or_init(Cluster::start).as_ref()
    }

    /// A cluster whose members a test may kill.
    pub fn start() -> Option<Cluster> {
        Cluster::with(3, &[])
    }

    /// A cluster of so many members with more arguments.
    pub fn with(members: usize, more: &[&str]) -> Option<Cluster> {
        let cluster = Cluster::made(members, more, "http")?;
        cluster.leader();
        Some(cluster)
    }

    /// A cluster of one member that shows a certificate. It may not serve yet.
    pub fn with_tls(more: &[&str]) -> Option<Cluster> {
        Cluster::made(1, more, "https")
    }

    fn made(members: usize, more: &[&str], scheme: &'static str) -> Option<Cluster> {
        let Some(program) = program() else {
            println!(
                "skipped: etcd is not installed (apt-get install etcd-server, or ETCD=path of its program)"
            );
            return None;
        };
        let dir = tempfile::Builder::new().prefix("covey-etcd-").tempdir_in("/tmp").unwrap().keep();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&dir).stdin(Stdio::piped());
        let keeper = keeper.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let member = |_| Member { client: free_port(), peer: free_port(), process: Mutex::new(None) };
        let cluster = Cluster {
            program,
            dir,
            members: (0..members).map(member).collect(),
            more: more.iter().map(|&text| text.to_owned()).collect(),
            scheme,
            keeper,
            volumes: AtomicU64::new(0),
        };
        (0..members).for_each(|at| cluster.up(at));
        Some(cluster)
    }

    /// Starts a member, or starts it again.
    pub fn up(&self, at: usize) {
        let member = &self.members[at];
        let peers: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(at, member)| format!("m{at}=http://127.0.0.1:{}", member.peer))
            .collect();
        let client = format!("{}://127.0.0.1:{}", self.scheme, member.client);
        let peer = format!("http://127.0.0.1:{}", member.peer);
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join(format!("m{at}.log")));
        let log = log.unwrap();
        let mut command = Command::new(&self.program);
        command.args(["--name", &format!("m{at}"), "--data-dir"]).arg(self.dir.join(format!("m{at}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &peers.join(","), "--unsafe-no-fsync", "--log-level", "warn"]);
        command.args(&self.more).current_dir(&self.dir).stdin(Stdio::null());
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        fs::write(self.dir.join(format!("m{at}.pid")), child.id().to_string()).unwrap();
        *member.process.lock().unwrap() = Some(child);
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&self, at: usize) {
        if let Some(mut child) = self.members[at].process.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let _ = fs::remove_file(self.dir.join(format!("m{at}.pid")));
    }

    /// Stops a member, or lets it go on.
    pub fn freeze(&self, at: usize, on: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        let id = self.members[at].process.lock().unwrap().as_ref().map(Child::id).unwrap();
        let signal = if on { Signal::STOP } else { Signal::CONT };
        kill_process(Pid::from_raw(id as i32).unwrap(), signal).unwrap();
    }

    /// The member that leads. Waits for one.
    pub fn leader(&self) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            for at in 0..self.members.len() {
                let status = self.call(at, "maintenance/status", "{}").unwrap_or_default();
                let leader = number(&status, "\"leader\":\"");
                if leader.is_some() && leader == number(&status, "\"member_id\":\"") {
                    return at;
                }
            }
            assert!(Instant::now() < end, "the cluster elects no leader: {}", self.logs());
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn logs(&self) -> String {
        let log = |at| fs::read_to_string(self.dir.join(format!("m{at}.log"))).unwrap_or_default();
        (0..self.members.len()).map(log).collect()
    }

    /// Calls a member by its HTTP interface.
    pub fn call(&self, at: usize, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.members[at].client)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let head = format!(
            "POST /v3/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// The servers for an address.
    pub fn hosts(&self) -> String {
        let each: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect();
        each.join(",")
    }

    /// The port of a member.
    pub fn port(&self, at: usize) -> u16 {
        self.members[at].client
    }

    /// A name for a volume that is not in use.
    pub fn name(&self) -> String {
        format!("v{}", self.volumes.fetch_add(1, Ordering::SeqCst))
    }

    /// An address in it.
    pub fn address(&self, volume: &str) -> Target {
        Target::parse(&format!("etcd://{}/?volume={volume}", self.hosts())).unwrap()
    }

    /// A new volume's address.
    pub fn volume(&self) -> Target {
        let target = self.address(&self.name());
        Etcd::create(&target, base::random::id16(), &Options::default()).unwrap();
        target
    }

    /// A store of a new volume.
    pub fn store(&self) -> Etcd {
        Etcd::open(&self.volume(), Options::default()).unwrap()
    }

    /// A path in the folder of the cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.dir).join(name)
    }
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

/// The digits behind a text.
fn number(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    rest.split('"').next()?.parse().ok().filter(|number| *number > 0)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
        for member in &self.members {
            if let Some(mut child) = member.process.lock().unwrap().take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
