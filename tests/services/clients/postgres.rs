//! PostgreSQL with its data folder on the mount, through kill -9 of the daemon.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::need::postgres_bin;
use covey_tests::program::wait;
use covey_tests::{Need, Rng, Volume, requires, run, run_ok, say, seeds};

const LIMIT: Duration = Duration::from_secs(180);

/// A cluster: its user, its data folder on a mount, and a folder elsewhere for its socket and the clients'
/// files.
struct Cluster {
    user: (u32, u32),
    data: PathBuf,
    outside: tempfile::TempDir,
}

impl Cluster {
    fn new(data: PathBuf) -> Cluster {
        let id =
            |flag| run_ok(Command::new("id").args([flag, "postgres"]), LIMIT).stdout.trim().parse().unwrap();
        let cluster = Cluster { user: (id("-u"), id("-g")), data, outside: covey_tests::scratch() };
        std::os::unix::fs::chown(cluster.outside.path(), Some(cluster.user.0), Some(cluster.user.1)).unwrap();
        cluster
    }

    /// One of PostgreSQL's programs, run as its user.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(postgres_bin(name).unwrap());
        command.uid(self.user.0).gid(self.user.1).current_dir("/");
        command.env("PGHOST", self.outside.path()).env("PGDATABASE", "postgres").env("PGUSER", "postgres");
        command.env("LC_ALL", "C");
        command
    }

    fn create(&self) {
        std::fs::create_dir(&self.data).unwrap();
        std::os::unix::fs::chown(&self.data, Some(self.user.0), Some(self.user.1)).unwrap();
        let mut initdb = self.program("initdb");
        initdb
            .args(["--auth=trust", "--no-locale", "--encoding=UTF8", "--data-checksums", "-D"])
            .arg(&self.data);
        run_ok(&mut initdb, LIMIT);
    }

    fn start(&self) -> Child {
        let end = Instant::now() + LIMIT;
        loop {
            let mut server = self.program("postgres");
            server.arg("-D").arg(&self.data).arg("-k").arg(self.outside.path());
            server.args(["-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_wal_size=64MB"]);
            let log = std::fs::File::options().append(true).create(true).open(self.log()).unwrap();
            let mut server =
                server.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null()).spawn().unwrap();
            while server.try_wait().unwrap().is_none() {
                if run(&mut self.sql("select 1"), LIMIT).status.success() {
                    return server;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            // Remains of the last server may hold its shared memory for a moment.
            assert!(
                Instant::now() < end,
                "postgres does not start:\n{}",
                std::fs::read_to_string(self.log()).unwrap()
            );
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn log(&self) -> PathBuf {
        self.outside.path().join("server.log")
    }

    fn sql(&self, query: &str) -> Command {
        let mut psql = self.program("psql");
        psql.args(["--no-psqlrc", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1", "-c", query]);
        psql
    }

    fn ask(&self, query: &str) -> String {
        run_ok(&mut self.sql(query), LIMIT).stdout.trim().to_owned()
    }

    fn stop(&self, mut server: Child) {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&server),
            rustix::process::Signal::INT,
        )
        .unwrap();
        let ended = wait(&mut server, LIMIT);
        let said = || std::fs::read_to_string(self.log()).unwrap();
        assert!(ended.is_some_and(|status| status.success()), "postgres stopped with {ended:?}: {}", said());
    }

    /// The number of transactions that pgbench saw committed, from its logs.
    fn committed(&self) -> u64 {
        let entries = std::fs::read_dir(self.outside.path()).unwrap().map(|entry| entry.unwrap().path());
        let logs = entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("tx"));
        logs.map(|log| std::fs::read_to_string(log).unwrap().matches('\n').count() as u64).sum()
    }

    /// pgbench's invariant: each transaction moves the same amount in four tables.
    fn verify(&self) -> u64 {
        let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history) \
                    and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history) \
                    and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)";
        let rows: u64 = self.ask("select count(*) from pgbench_history").parse().unwrap();
        assert!(rows == 0 || self.ask(sums) == "t", "the tables do not add up");
        assert!(
            rows >= self.committed(),
            "{} transactions were committed, {rows} are there",
            self.committed()
        );
        rows
    }
}

fn work_and_kill(volume: &Volume, cluster: &Cluster, mounted: covey_tests::Mounted, seed: u64) {
    let mut server = cluster.start();
    let mut bench = cluster.program("pgbench");
    bench.args(["--client=3", "--time=120", "--no-vacuum", "--log", "--log-prefix"]);
    bench.arg(cluster.outside.path().join(format!("tx{seed}"))).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = bench.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1_500 + Rng::new(seed).below(3_000)));
    // On a busy machine the first transaction may take longer.
    let end = Instant::now() + LIMIT;
    while cluster.ask("select count(*) from pgbench_history") == "0" {
        assert!(Instant::now() < end, "no transaction is committed");
        std::thread::sleep(Duration::from_millis(50));
    }
    if volume.fsck().is_none() {
        // A plain folder cannot be killed, so the server is killed.
        server.kill().unwrap();
    }
    mounted.kill();
    // The server's processes find their files gone and panic. Those that remain are killed.
    wait(&mut bench, Duration::from_secs(20));
    bench.kill().ok();
    bench.wait().unwrap();
    server.kill().ok();
    server.wait().unwrap();
}

fn rounds(first: u64, rounds: u64) {
    let volume = Volume::new();
    let options: &[&str] = &["allow_other"];
    let mounted = volume.mount_with(options);
    let cluster = Cluster::new(mounted.join("cluster"));
    cluster.create();
    let server = cluster.start();
    run_ok(cluster.program("pgbench").args(["--initialize", "--quiet", "--scale=2"]), LIMIT);
    cluster.stop(server);
    let mut mounted = mounted;
    let mut rows = 0;
    for seed in seeds(first, rounds) {
        work_and_kill(&volume, &cluster, mounted, seed);
        volume.must_be_recoverable();
        mounted = volume.mount_with(options);
        let server = cluster.start();
        rows = cluster.verify();
        cluster.stop(server);
        check_sums(&cluster.data, &cluster);
    }
    assert!(rows > 0, "no transaction was ever committed");
    say(format_args!("PostgreSQL: {rounds} kills of the daemon, {rows} transactions there and adding up"));
    mounted.umount();
    volume.must_be_clean();
}

fn check_sums(data: &Path, cluster: &Cluster) {
    run_ok(cluster.program("pg_checksums").arg("--check").arg("-D").arg(data), LIMIT);
}

#[test]
fn postgresql_recovers_after_kill_9() {
    requires!(Need::Root, Need::Mount, Need::Postgres);
    rounds(1, 1);
}

#[test]
#[ignore = "minutes: make test-workloads"]
fn long_postgresql_recovers_after_kill_9() {
    requires!(Need::Root, Need::Mount, Need::Postgres);
    rounds(100, 8);
}
