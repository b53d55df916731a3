//! An etcd cluster for tests: three members on loopback, with a folder and ports of their own.
//!
//! The program is the one that `ETCD=` names, the one that `make etcd` put into the cache, or `etcd` on PATH.
//! A shell waits for the end of the test program, however it ends, then stops the members and removes the
//! folder.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::port::free_port;
use crate::run;

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
    /// None: it is stopped at the end of the run.
    keeper: Option<Child>,
    volumes: AtomicU64,
}

/// The program of etcd, if there is one.
fn program() -> Option<PathBuf> {
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

/// The program; none, with a line that says so, if it is not installed.
fn installed() -> Option<PathBuf> {
    let program = program();
    if program.is_none() {
        println!("skipped: etcd is not installed (apt-get install etcd-server, or ETCD=path of its program)");
    }
    program
}

impl Cluster {
    /// The cluster of this run; none, with a line that says so, if etcd is not installed.
    pub fn shared() -> Option<&'static Cluster> {
        static SHARED: OnceLock<Option<Cluster>> = OnceLock::new();
        SHARED.get_or_init(|| Cluster::of_run().or_else(Cluster::start)).as_ref()
    }

    /// The cluster that all tests of the run share, if they have one.
    fn of_run() -> Option<Cluster> {
        let program = installed()?;
        let (dir, ports) = run::once("etcd", |dir| {
            let cluster = Cluster::new(program.clone(), dir.to_owned(), 3, None);
            (0..3).for_each(|at| cluster.up(at));
            cluster.leader();
            let ports: Vec<String> = cluster.members.iter().map(|member| member.client.to_string()).collect();
            // The members outlive this process.
            std::mem::forget(cluster);
            Some(ports.join(" "))
        })?;
        let mut cluster = Cluster::new(program, dir, 3, None);
        for (member, port) in cluster.members.iter_mut().zip(ports.split(' ')) {
            member.client = port.parse().unwrap();
        }
        Some(cluster)
    }

    fn new(program: PathBuf, dir: PathBuf, members: usize, keeper: Option<Child>) -> Cluster {
        let member = |_| Member { client: free_port(), peer: free_port(), process: Mutex::new(None) };
        let members = (0..members).map(member).collect();
        Cluster {
            program,
            dir,
            members,
            more: Vec::new(),
            scheme: "http",
            keeper,
            volumes: AtomicU64::new(0),
        }
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
        let program = installed()?;
        let dir = tempfile::Builder::new().prefix("covey-etcd-").tempdir_in("/tmp").unwrap().keep();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&dir).stdin(Stdio::piped());
        let keeper = keeper.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut cluster = Cluster::new(program, dir, members, Some(keeper));
        (cluster.more, cluster.scheme) = (more.iter().map(|&text| text.to_owned()).collect(), scheme);
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
        // Ctrl-C ends the test, which then ends its members.
        command.process_group(0);
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

    /// Makes space in a full cluster of one member: compacts, defragments, and clears the alarm.
    pub fn make_space(&self) {
        let status = self.call(0, "kv/range", r#"{"key":"AA=="}"#).unwrap();
        let field = |name: &str| {
            let (_, rest) = status.split_once(&format!("\"{name}\":\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let (revision, member) = (field("revision"), field("member_id"));
        self.call(0, "kv/compaction", &format!(r#"{{"revision":"{revision}","physical":true}}"#)).unwrap();
        self.call(0, "maintenance/defragment", "{}").unwrap();
        let disarm = format!(r#"{{"action":"DEACTIVATE","memberID":"{member}","alarm":"NOSPACE"}}"#);
        let answer = self.call(0, "maintenance/alarm", &disarm).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
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
        // Tests in other processes use the same cluster.
        format!("v{}-{}", std::process::id(), self.volumes.fetch_add(1, Ordering::SeqCst))
    }

    /// A path in the folder of the cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.dir).join(name)
    }
}

/// The digits behind a text.
fn number(text: &str, before: &str) -> Option<u64> {
    let (_, rest) = text.split_once(before)?;
    rest.split('"').next()?.parse().ok().filter(|number| *number > 0)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
        for member in &self.members {
            if let Some(mut child) = member.process.lock().unwrap().take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
