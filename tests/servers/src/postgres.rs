//! A PostgreSQL server for tests: in a folder of its own, on a port of its own, as the user `postgres` if the
//! test runs as root.
//!
//! A shell waits for the end of the test program, however it ends, then stops the server and removes the
//! folder.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, thread};

use crate::port::free_port;
use crate::run;

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
    /// None: it is stopped at the end of the run.
    keeper: Option<Child>,
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

/// The programs of the server; none, with a line that says so, if it is not installed.
fn installed() -> Option<PathBuf> {
    let bin = binaries().filter(|_| !rustix::process::geteuid().is_root() || postgres_ids().is_some());
    if bin.is_none() {
        println!("skipped: PostgreSQL's server is not installed (apt-get install postgresql)");
    }
    bin
}

/// Lets the user that the server runs as write to a folder.
fn give_to_postgres(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    if let (true, Some((user, group))) = (rustix::process::geteuid().is_root(), postgres_ids()) {
        chown(dir, Some(user), Some(group)).unwrap();
    }
}

impl Server {
    /// The server of this run; none, with a line that says so, if PostgreSQL is not installed.
    pub fn shared() -> Option<&'static Server> {
        static SHARED: OnceLock<Option<Server>> = OnceLock::new();
        SHARED.get_or_init(|| Server::of_run().or_else(Server::start)).as_ref()
    }

    /// The server that all tests of the run share, if they have one.
    fn of_run() -> Option<Server> {
        let bin = installed()?;
        let server = |dir: &Path, port| Server {
            wrap: None,
            bin: bin.clone(),
            dir: dir.to_owned(),
            port,
            keeper: None,
            volumes: AtomicU64::new(0),
        };
        let (dir, port) = run::once("postgres", |dir| {
            give_to_postgres(dir);
            let server = server(dir, free_port());
            server.make_data("127.0.0.1");
            server.up();
            Some(server.port.to_string())
        })?;
        Some(server(&dir, port.parse().unwrap()))
    }

    /// A server that a test may stop.
    pub fn start() -> Option<Server> {
        Server::start_as("127.0.0.1", None)
    }

    /// The same with its programs started like this. It listens on this address.
    pub fn start_as(listen: &str, wrap: Option<Wrap>) -> Option<Server> {
        let mut server = Server::unborn(installed()?);
        server.wrap = wrap;
        server.make_data(listen);
        server.up();
        Some(server)
    }

    /// Makes the folder of its data, which has the roles and the database that tests use.
    fn make_data(&self, listen: &str) {
        let data = self.dir.join("data");
        let template = run::once("template", |dir| {
            give_to_postgres(dir);
            let (bin, dir) = (self.bin.clone(), dir.to_owned());
            let template =
                Server { wrap: None, bin, dir, port: free_port(), keeper: None, volumes: AtomicU64::new(0) };
            template.make_new_data();
            Some("made".to_owned())
        });
        match template {
            Some((template, _)) => {
                self.tool("cp", &["-a", path(&template.join("data")), path(&data)]);
            }
            None => self.make_new_data(),
        }
        self.set(listen);
    }

    /// Makes the same from nothing: the server runs for that.
    fn make_new_data(&self) {
        let data = self.dir.join("data");
        let words = ["-D", path(&data), "-U", "covey", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"];
        self.tool("initdb", &words);
        fs::write(data.join("pg_hba.conf"), ACCESS).unwrap();
        self.set("127.0.0.1");
        self.up();
        let roles = "create role locked login password 'right-s3cret'; create role barred login; create role poor login";
        self.sql_in("postgres", roles);
        self.sql_in("postgres", "create database covey; grant connect on database covey to locked");
        self.tool("pg_ctl", &["-D", path(&data), "-w", "-m", "fast", "stop"]);
    }

    /// Appends its settings: the last ones of a name count.
    fn set(&self, listen: &str) {
        let settings = format!(
            "fsync = off\nfull_page_writes = off\nmax_connections = 200\nlisten_addresses = '{listen}'\n\
             port = {}\nunix_socket_directories = '{}'\nshared_buffers = '64MB'\n",
            self.port,
            self.dir.display()
        );
        let file = self.dir.join("data/postgresql.conf");
        let mut file = fs::OpenOptions::new().append(true).open(file).unwrap();
        file.write_all(settings.as_bytes()).unwrap();
    }

    /// A server without data, and its keeper.
    fn unborn(bin: PathBuf) -> Server {
        let dir = tempfile::Builder::new().prefix("covey-pg-").tempdir_in("/tmp").unwrap().keep();
        give_to_postgres(&dir);
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&dir).stdin(Stdio::piped());
        let keeper = keeper.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let port = free_port();
        Server { wrap: None, bin, dir, port, keeper: Some(keeper), volumes: AtomicU64::new(0) }
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
        // A statement may be cancelled by what is replayed.
        self.tool("pg_ctl", &["-D", path(&self.dir.join("data")), "-w", "-t", "60", "promote"]);
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
        // cp is the system's.
        let tool = Some(self.bin.join(tool)).filter(|path| path.exists()).unwrap_or_else(|| tool.into());
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

    /// From now on, the server writes each statement of a client to its log.
    pub fn log_statements(&self) {
        self.sql("alter system set log_statement = 'all'");
        self.sql("select pg_reload_conf()");
    }

    /// How many looks at rows and commits have come since then. Nodes renew their sessions and look at ranges
    /// of rows all the time, so these are not counted.
    pub fn statements(&self) -> usize {
        let log = fs::read_to_string(self.dir.join("log")).unwrap();
        let is_one = |line: &&str| {
            let kinds = ["k = any($2)", "k = $2", "select 0::bigint", "covey_commit_"];
            line.contains("LOG:  execute ") && kinds.iter().any(|kind| line.contains(kind))
        };
        log.lines().filter(is_one).count()
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

    /// A dump of a database, which [`Server::restore`] takes.
    pub fn dump(&self, database: &str) -> PathBuf {
        let file = self.dir.join(format!("{database}.dump"));
        let port = self.port.to_string();
        self.tool(
            "pg_dump",
            &["-h", path(&self.dir), "-p", &port, "-U", "covey", "-f", path(&file), database],
        );
        file
    }

    /// Restores a dump into an empty database of this name, which is made.
    pub fn restore(&self, database: &str, dump: &Path) {
        self.sql_in("postgres", &format!("create database {database}"));
        let port = self.port.to_string();
        let to = ["-h", path(&self.dir), "-p", &port, "-U", "covey", "-d", database];
        self.tool("psql", &[&to[..], &["-q", "-v", "ON_ERROR_STOP=1", "-f", path(dump)]].concat());
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A name for a volume that is not in use.
    pub fn name(&self) -> String {
        // Tests in other processes use the same server.
        format!("v{}-{}", std::process::id(), self.volumes.fetch_add(1, Ordering::SeqCst))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
