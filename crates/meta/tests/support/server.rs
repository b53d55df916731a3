//! A PostgreSQL server for tests: in a folder of its own, on a port of its own, as the user `postgres` if the
//! test runs as root.
//!
//! A shell waits for the end of the test program, however it ends, then stops the server and removes the
//! folder.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fs, thread};

use engines::postgres::{Options, Postgres, Target};
use port::free_port;

// Some programs have both of these servers.
#[allow(clippy::duplicate_mod)]
#[path = "port.rs"]
mod port;

const ACCESS: &str = "local all all trust
host all locked 127.0.0.1/32 scram-sha-256
host all barred 127.0.0.1/32 reject
host all all 127.0.0.1/32 trust
host all all 10.77.0.0/24 trust
host replication all 127.0.0.1/32 trust
";
const KEEPER: &str = r#"trap "" INT TERM HUP
cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
[ -z "$pid" ] || kill -CONT "$pid" $(cat "/proc/$pid/task/$pid/children") 2>/dev/null
[ -z "$pid" ] || kill -QUIT "$pid" 2>/dev/null
for _ in $(seq 100); do [ -e "$1/data/postmaster.pid" ] && kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
rm -rf "$1""#;

/// Changes how a program of a server is started.
pub type Wrap = Box<dyn Fn(Command) -> Command + Send + Sync>;

/// A running server.
pub struct Server {
    wrap: Option<Wrap>,
    bin: PathBuf,
    dir: PathBuf,
    port: u16,
    keeper: Child,
    volumes: AtomicU64,
}

/// Debian's newest server.
fn binaries() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(Result::ok);
    let mut bins: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists() && bin.join("psql").exists())
        .collect();
    bins.sort();
    bins.pop().map(|(_, bin)| bin)
}

fn postgres_ids() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2).map(|field| field.parse().ok());
    Some((fields.next()??, fields.next()??))
}

impl Server {
    /// The server of this test program; none, with a line that says so, if PostgreSQL is not installed.
    pub fn shared() -> Option<&'static Server> {
        static SHARED: OnceLock<Option<Server>> = OnceLock::new();
        SHARED.get_or_init(Server::start).as_ref()
    }

    /// A server that a test may stop.
    pub fn start() -> Option<Server> {
        Server::start_as("127.0.0.1", None)
    }

    /// The same with its programs started like this. It listens on this address.
    pub fn start_as(listen: &str, wrap: Option<Wrap>) -> Option<Server> {
        let is_root = rustix::process::geteuid().is_root();
        let (Some(bin), true) = (binaries(), !is_root || postgres_ids().is_some()) else {
            println!("skipped: PostgreSQL's server is not installed (apt-get install postgresql)");
            return None;
        };
        let mut server = Server::unborn(bin);
        server.wrap = wrap;
        let port = server.port;
        let data = server.dir.join("data");
        server.tool(
            "initdb",
            &["-D", path(&data), "-U", "covey", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"],
        );
        fs::write(data.join("pg_hba.conf"), ACCESS).unwrap();
        let settings = format!(
            "fsync = off\nfull_page_writes = off\nmax_connections = 200\nlisten_addresses = '{listen}'\n\
             port = {port}\nunix_socket_directories = '{}'\nshared_buffers = '64MB'\n",
            server.dir.display()
        );
        let mut file = fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).unwrap();
        file.write_all(settings.as_bytes()).unwrap();
        server.up();
        let admin = |text| server.sql_in("postgres", text);
        admin(
            "create role locked login password 'right-s3cret'; create role barred login; create role poor login",
        );
        admin("create database covey; grant connect on database covey to locked");
        Some(server)
    }

    /// A server without data, and its keeper.
    fn unborn(bin: PathBuf) -> Server {
        let dir = tempfile::Builder::new().prefix("covey-pg-").tempdir_in("/tmp").unwrap().keep();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        if let (true, Some((user, group))) = (rustix::process::geteuid().is_root(), postgres_ids()) {
            chown(&dir, Some(user), Some(group)).unwrap();
        }
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&dir).stdin(Stdio::piped());
        let keeper = keeper.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let port = free_port();
        Server { wrap: None, bin, dir, port, keeper, volumes: AtomicU64::new(0) }
    }

    /// A synchronous standby of this server, which follows it.
    pub fn standby(&self) -> Server {
        let standby = Server::unborn(self.bin.clone());
        let data = standby.dir.join("data");
        let port = self.port.to_string();
        let from = ["-h", "127.0.0.1", "-p", &port, "-U", "covey", "-D", path(&data)];
        standby.tool("pg_basebackup", &[&from[..], &["-R", "-X", "stream", "-c", "fast", "-N"]].concat());
        let settings =
            format!("port = {}\nunix_socket_directories = '{}'\n", standby.port, standby.dir.display());
        let mut file = fs::OpenOptions::new().append(true).open(data.join("postgresql.conf")).unwrap();
        file.write_all(settings.as_bytes()).unwrap();
        standby.up();
        self.sql("alter system set synchronous_standby_names = '*'; select pg_reload_conf()");
        let is_synchronous = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        for _ in 0..600 {
            if self.sql(is_synchronous) == "1" {
                return standby;
            }
            thread::sleep(Duration::from_millis(100));
        }
        panic!("the standby does not follow");
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        assert_eq!(self.sql("select pg_promote(true, 60)"), "t");
    }

    /// Kills the server with SIGKILL. Its processes end by themselves when it is gone.
    pub fn kill(&self) {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::KILL).unwrap();
    }

    /// Stops all of its processes, or lets them go on.
    pub fn freeze(&self, on: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        let signal = if on { Signal::STOP } else { Signal::CONT };
        let pid = self.pid();
        // It starts no process while it is stopped.
        kill_process(pid, signal).unwrap();
        let number = pid.as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{number}/task/{number}/children")).unwrap();
        for child in children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)) {
            kill_process(child, signal).ok();
        }
    }

    fn pid(&self) -> rustix::process::Pid {
        let file = fs::read_to_string(self.dir.join("data/postmaster.pid")).unwrap();
        rustix::process::Pid::from_raw(file.lines().next().unwrap().trim().parse().unwrap()).unwrap()
    }

    fn command(&self, tool: &str) -> Command {
        let tool = self.bin.join(tool);
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(tool);
            command
        } else {
            Command::new(tool)
        };
        command.env("LC_ALL", "C");
        let mut command = match &self.wrap {
            Some(wrap) => wrap(command),
            None => command,
        };
        command.current_dir(&self.dir).stdin(Stdio::null());
        command
    }

    fn tool(&self, tool: &str, args: &[&str]) -> String {
        // The server that pg_ctl starts keeps its output open, so a file takes it.
        let out = self.dir.join("out");
        let file = fs::File::create(&out).unwrap();
        let both = file.try_clone().unwrap();
        let status = self.command(tool).args(args).stdout(file).stderr(both).status().unwrap();
        let said = fs::read_to_string(&out).unwrap();
        assert!(status.success(), "{tool} {args:?}: {said}");
        said
    }

    /// Starts it again.
    pub fn up(&self) {
        let (data, log) = (self.dir.join("data"), self.dir.join("log"));
        self.tool("pg_ctl", &["-D", path(&data), "-l", path(&log), "-w", "-t", "60", "start"]);
    }

    /// Stops it at once, as a crash does.
    pub fn down(&self) {
        self.tool("pg_ctl", &["-D", path(&self.dir.join("data")), "-w", "-m", "immediate", "stop"]);
    }

    /// Makes it a standby from its next start on.
    pub fn make_standby(&self) {
        fs::write(self.dir.join("data/standby.signal"), "").unwrap();
    }

    /// Gives it a certificate and restarts it. Returns the certificate's file.
    pub fn use_tls(&self, certificate: &str, key: &str) -> PathBuf {
        let data = self.dir.join("data");
        let ids = postgres_ids().filter(|_| rustix::process::geteuid().is_root());
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = data.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            if let Some((user, group)) = ids {
                chown(&path, Some(user), Some(group)).unwrap();
            }
        }
        let ca = self.dir.join("ca.pem");
        fs::write(&ca, certificate).unwrap();
        self.sql("alter system set ssl = on; select pg_reload_conf()");
        // A process of the server that begins now has the settings of its parent.
        for _ in 0..600 {
            if self.sql("show ssl") == "on" {
                return ca;
            }
            thread::sleep(Duration::from_millis(100));
        }
        panic!("the server does not turn TLS on");
    }

    /// Runs statements as the administrator, and returns what psql prints.
    pub fn sql(&self, text: &str) -> String {
        self.sql_in("covey", text)
    }

    /// The same in a database.
    pub fn sql_in(&self, database: &str, text: &str) -> String {
        self.psql(database, text.split("; "))
    }

    /// The same with a text that is one transaction.
    pub fn script_in(&self, database: &str, text: &str) -> String {
        self.psql(database, [text])
    }

    fn psql<'a>(&self, database: &str, statements: impl IntoIterator<Item = &'a str>) -> String {
        let mut command = self.command("psql");
        command.args(["-h", path(&self.dir), "-p", &self.port.to_string(), "-U", "covey", "-d", database]);
        command.args(["-v", "ON_ERROR_STOP=1", "-Atq"]);
        statements.into_iter().for_each(|statement| _ = command.args(["-c", statement]));
        let done = command.output().unwrap();
        assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    /// An address in it.
    pub fn address(&self, user: &str, port: u16, database: &str, volume: &str) -> Target {
        let text = format!("postgres://{user}@127.0.0.1:{port}/{database}?volume={volume}&sslmode=disable");
        Target::parse(&text).unwrap()
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A new volume's address.
    pub fn volume(&self) -> Target {
        let name = format!("v{}", self.volumes.fetch_add(1, Ordering::SeqCst));
        let target = self.address("covey", self.port, "covey", &name);
        Postgres::create(&target, base::random::id16(), &Options::default()).unwrap();
        target
    }

    /// A store of a new volume.
    pub fn store(&self) -> Postgres {
        Postgres::open(&self.volume(), Options::default()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A relay in front of a server. It can lose an answer.
pub struct Relay {
    port: u16,
    /// So many of the next answers are lost, and their connections with them.
    pub lose: Arc<AtomicU64>,
}

impl Relay {
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
