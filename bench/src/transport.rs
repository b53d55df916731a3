//! P1: the cost of the fleet's transport, over a pair of virtual Ethernet devices between two
//! namespaces of this machine.
//!
//! ```text
//!   namespace a: transport-serve, iperf3 -c, nginx ── veth ──► namespace b: transport-ask, iperf3 -s, curl
//! ```
//!
//! Each end is a separate process, so that their processor times can be told apart. The kernel's work for a
//! packet is counted where it happens. Under TLS both ends read and write through rustls; the certificates
//! are created for the run. The receiver writes the data to a cache's folder, as a node does, and so does
//! curl; iperf3 discards it.

mod ends;
mod keys;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use base::time::monotonic;
use blob::Sums;
use serde_json::Value;

use crate::Result;
use crate::peer::on_path;
use crate::run::{Common, progress};
use crate::sheet::{Bound, Sheet};
use crate::work::{Fresh, run as run_command};
use crate::{interrupt, machine, process};

pub use ends::{AskArgs, ServeArgs, ask, serve};

/// P1: processor time of the fleet's transport, compared with iperf3 and nginx with curl
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// MiB of blobs sent in each measurement [default: 2048; with --quick 256]
    #[arg(long)]
    mib: Option<u64>,
}

const SERVER: &str = "10.213.7.1";
const CLIENT: &str = "10.213.7.2";
const WHOLE: &str = "blobs of 4 MiB";
/// The same on a link that is slower than both ends, as most are. It shows how often the receiver is woken.
const LINKED: &str = "blobs of 4 MiB over a link of 2 Gbit/s";
const LINK: &str = "2gbit";
const GIB: f64 = (1u64 << 30) as f64;

/// How received data is verified, encrypted and written, and the programs that do the same work.
const WITH: [&str; 8] =
    ["crc", "blake3", PAST, HASHED_PAST, "crc, TLS", "blake3, TLS", "iperf3", "nginx+curl"];
/// Received data is written past the kernel's page cache.
const PAST: &str = "crc, past the pages";
const HASHED_PAST: &str = "blake3, past the pages";
/// Each round begins so many columns later.
const STEP: usize = 3;

/// Two namespaces and the link between them, removed when this is dropped.
struct Wire {
    a: String,
    b: String,
}

impl Wire {
    fn lay() -> Result<Wire> {
        let pid = std::process::id();
        let wire = Wire { a: format!("cvb{pid}a"), b: format!("cvb{pid}b") };
        let ip = |line: String| run_command(Command::new("ip").args(line.split_whitespace()));
        ip(format!("netns add {}", wire.a))?;
        ip(format!("netns add {}", wire.b))?;
        ip(format!("link add veth0 netns {} type veth peer name veth0 netns {}", wire.a, wire.b))?;
        for (ns, address) in [(&wire.a, SERVER), (&wire.b, CLIENT)] {
            ip(format!("-n {ns} addr add {address}/24 dev veth0"))?;
            ip(format!("-n {ns} link set veth0 up"))?;
            ip(format!("-n {ns} link set lo up"))?;
        }
        Ok(wire)
    }

    /// Limits the sender's end to [`LINK`], or removes the limit.
    fn limit(&self, limited: bool) -> Result<()> {
        let mut tc = Command::new("tc");
        tc.args(["-n", &self.a, "qdisc", if limited { "replace" } else { "del" }, "dev", "veth0", "root"]);
        if limited {
            tc.args(["tbf", "rate", LINK, "burst", "1mb", "latency", "20ms"]);
        }
        run_command(&mut tc)
    }

    /// A program in one of them, with enough file descriptors for thousands of connections.
    fn command(&self, ns: &str, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns, "sh", "-c", "ulimit -n 20000; exec \"$0\" \"$@\""]).arg(program);
        command
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for ns in [&self.a, &self.b] {
            let _ = run_command(Command::new("ip").args(["netns", "del", ns]));
        }
    }
}

/// The serving end.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stdin: ChildStdin,
}

impl Server {
    fn start(wire: &Wire, folder: &Path, tls: Option<&Path>) -> Result<Server> {
        let mut command = wire.command(&wire.a, &std::env::current_exe()?);
        command.args(["transport-serve", "--listen", &format!("{SERVER}:7171")]);
        command.args(tls.map(|tls| [Path::new("--tls"), tls]).into_iter().flatten()).arg(folder);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(stdout), Some(stdin)) = (child.stdout.take(), child.stdin.take()) else {
            return Err("the serving end has no pipes".into());
        };
        let mut server = Server { child, stdout: BufReader::new(stdout), stdin };
        server.cpu()?;
        Ok(server)
    }

    /// Its processor time so far.
    fn cpu(&mut self) -> Result<f64> {
        writeln!(self.stdin)?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        line.trim().parse().map_err(|_| "the serving end has ended; what it said is above".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        process::end(&mut self.child);
    }
}

/// One measurement of the two ends: the processor time of each, and the figures that the requesting end
/// prints.
struct Both {
    sender: f64,
    receiver: f64,
    said: Value,
}

impl Both {
    fn number(&self, name: &str) -> f64 {
        self.said[name].as_f64().unwrap_or(0.0)
    }
}

struct Run<'r> {
    wire: &'r Wire,
    folder: &'r Path,
    cache: PathBuf,
    keys: PathBuf,
}

/// The second word of a column's name under TLS.
const TLS: &str = "TLS";

impl Run<'_> {
    /// A new server and a new client for each measurement, so that no connection and no memory is left from
    /// another one.
    fn ours(&self, column: &str) -> Result<Both> {
        interrupt::check()?;
        let (verify, how) = column.split_once(", ").unwrap_or((column, ""));
        let tls = (how == TLS).then_some(self.keys.as_path());
        let mut server = Server::start(self.wire, self.folder, tls)?;
        let before = server.cpu()?;
        let mut command = self.wire.command(&self.wire.b, &std::env::current_exe()?);
        command.args(["transport-ask", "--server", &format!("{SERVER}:7171"), "--verify", verify]);
        command.args(tls.map(|tls| [Path::new("--tls"), tls]).into_iter().flatten());
        command.args(matches!(column, PAST | HASHED_PAST).then_some("--past-pages"));
        command.arg(self.folder).arg(&self.cache);
        let output = command.stderr(Stdio::inherit()).output()?;
        let _ = fs::remove_dir_all(&self.cache);
        if !output.status.success() {
            return Err(format!("the asking end failed: {}", output.status).into());
        }
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let receiver = said["cpu"].as_f64().unwrap_or(0.0);
        Ok(Both { sender: server.cpu()? - before, receiver, said })
    }

    fn iperf(&self, program: &Path, bytes: u64) -> Result<Both> {
        let quiet = |command: &mut Command| command.stdout(Stdio::null()).spawn();
        let mut to = quiet(self.wire.command(&self.wire.b, program).args(["-s", "-1"]))?;
        std::thread::sleep(Duration::from_millis(300));
        let began = monotonic();
        let count = bytes.to_string();
        let mut from = quiet(self.wire.command(&self.wire.a, program).args(["-c", CLIENT, "-n", &count]))?;
        let sender = at_its_end(&mut from)?;
        let seconds = began.elapsed().as_secs_f64();
        let receiver = at_its_end(&mut to)?;
        Ok(Both { sender, receiver, said: serde_json::json!({ "seconds": seconds, "bytes": bytes }) })
    }

    fn nginx(&self, nginx: &Path, curl: &Path, files: u64, bytes: u64) -> Result<Both> {
        let conf = self.folder.with_extension("nginx");
        let text = format!(
            "daemon off; master_process off; user root; pid {0}.pid; error_log stderr crit;\nevents {{}}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n\
             server {{ listen {SERVER}:8080; root {1}; }} }}\n",
            conf.display(),
            self.folder.display()
        );
        fs::write(&conf, text)?;
        let mut server = self.wire.command(&self.wire.a, nginx).arg("-c").arg(&conf).spawn()?;
        std::thread::sleep(Duration::from_millis(500));
        ends::touch(&self.cache, bytes)?;
        let before = process::cpu_seconds(server.id());
        fs::create_dir_all(&self.cache)?;
        let began = monotonic();
        let url = format!("http://{SERVER}:8080/[0000-{:04}]", files - 1);
        let mut command = self.wire.command(&self.wire.b, curl);
        command.args(["-sf", &url, "-o"]).arg(self.cache.join("#1"));
        let done = command.spawn().map_err(Into::into).and_then(|mut curl| at_its_end(&mut curl));
        let seconds = began.elapsed().as_secs_f64();
        let sender = process::cpu_seconds(server.id()) - before;
        process::end(&mut server);
        let _ = fs::remove_dir_all(&self.cache);
        let said = serde_json::json!({ "seconds": seconds, "bytes": bytes });
        Ok(Both { sender, receiver: done?, said })
    }
}

/// Waits until a process has ended. Returns the processor time that it took, to 10 ms.
fn at_its_end(child: &mut Child) -> Result<f64> {
    let stat = format!("/proc/{}/stat", child.id());
    // A zombie still shows what it used.
    while !fs::read_to_string(&stat)?.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z') {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    let cpu = process::cpu_seconds(child.id());
    let status = child.wait()?;
    if status.success() { Ok(cpu) } else { Err(format!("a program failed: {status}").into()) }
}

fn add_whole(sheet: &mut Sheet, cell: &str, place: &str, both: &Both) {
    let gib = both.number("bytes") / GIB;
    let keeping = both.number("keeping");
    let figures = [
        ("sender", "CPU s/GiB", both.sender / gib),
        ("receiver", "CPU s/GiB", both.receiver / gib),
        ("both", "CPU s/GiB", (both.sender + both.receiver) / gib),
        ("rate", "GiB/s", gib / both.number("seconds")),
        ("wake-ups of the receiver", "/GiB", both.number("wakeups") / gib),
        ("of the receiver, writing files", "CPU s/GiB", keeping / gib),
        ("receiver, but for writing files", "CPU s/GiB", (both.receiver - keeping) / gib),
        ("both, but for writing files", "CPU s/GiB", (both.sender + both.receiver - keeping) / gib),
    ];
    // For other programs, the time spent on files is not known separately; iperf3 writes none.
    let known = if both.said["wakeups"].is_null() { 4 } else { figures.len() };
    let mut shown = figures[..known].to_vec();
    shown.extend((place == "iperf3").then_some(figures[figures.len() - 1]));
    sheet.add(cell, place, &shown, both.sender);
}

/// Runs the measurement.
///
/// # Errors
/// Not root, no namespaces, or one of the ends failed.
pub fn run(args: &Args) -> Result<()> {
    let common = &args.common;
    if !rustix::process::geteuid().is_root() {
        return Err("it makes network namespaces: run it as root".into());
    }
    interrupt::listen();
    let scratch = tempfile::tempdir_in(common.scratch.clone().unwrap_or_else(std::env::temp_dir))?;
    let blobs = (args.mib.unwrap_or(common.size(2048, 256)) / 4).clamp(1, 9999);
    let folder = scratch.path().join("blobs");
    fs::create_dir(&folder)?;
    let (mut fresh, mut bytes) = (Fresh::new(), vec![0; 4 << 20]);
    for number in 0..blobs {
        fresh.fill(&mut bytes);
        fs::write(folder.join(format!("{number:04}")), &bytes)?;
    }
    let wire = Wire::lay()?;
    let run = Run {
        wire: &wire,
        folder: &folder,
        cache: scratch.path().join("cache"),
        keys: scratch.path().join("keys"),
    };
    keys::make(&run.keys)?;
    let mut sheet =
        Sheet::new("transport", "P1, the fleet's transport", machine::facts(common, &common.covey));
    sheet.columns(WITH.map(str::to_owned));
    // A first run, to warm everything up, is not counted.
    run.ours("crc")?;
    sheet.note(
        "Blobs are in the page cache and their files open; connections are made within what is measured. The receiver's cache is full: for each blob that comes one goes.",
    );
    for round in 0..common.rounds() {
        progress(&format!("round {} of {}", round + 1, common.rounds()));
        interrupt::check()?;
        one_round(&run, common, round, blobs, &mut sheet)?;
    }
    progress("");
    targets(&mut sheet);
    sheet.chart_ratios("crc", &["iperf3", "nginx+curl"]);
    sheet.close(machine::load());
    println!("{}", sheet.markdown());
    if common.results.as_os_str() != "none" {
        println!("kept in {}\n", sheet.keep(&common.results)?.display());
    }
    Ok(())
}

/// Measures one column's blobs.
fn whole(run: &Run<'_>, cell: &str, column: &str, blobs: u64, sheet: &mut Sheet) -> Result<()> {
    let bytes = blobs << 22;
    let missing = |what: &str| format!("{what} was skipped: apt-get install iperf3 nginx-light curl");
    let both = match column {
        "iperf3" => on_path("iperf3").map(|iperf| run.iperf(&iperf, bytes)),
        "nginx+curl" => {
            on_path("nginx").zip(on_path("curl")).map(|(nginx, curl)| run.nginx(&nginx, &curl, blobs, bytes))
        }
        _ => Some(run.ours(column)),
    };
    match both.transpose()? {
        Some(both) => add_whole(sheet, cell, column, &both),
        None => sheet.note(missing(column)),
    }
    Ok(())
}

/// The cost of the BLAKE3 hash alone, of a blob in memory: a lower bound for every program that compares
/// hashes.
fn hash_alone(sheet: &mut Sheet) -> Result<()> {
    let mut bytes = vec![0; 4 << 20];
    Fresh::new().fill(&mut bytes);
    let sums = Sums::of(&bytes);
    let before = process::thread_cpu_seconds();
    (0..GIB as usize / bytes.len()).try_for_each(|_| sums.check_group(0, &bytes))?;
    let figure = ("the hash by itself", "CPU s/GiB", process::thread_cpu_seconds() - before);
    sheet.add(WHOLE, "blake3", &[figure], 0.0);
    Ok(())
}

/// Each round begins with another column, because the first one finds the machine idle.
fn one_round(run: &Run<'_>, common: &Common, round: usize, blobs: u64, sheet: &mut Sheet) -> Result<()> {
    let wanted = |cell: &str| common.only.as_ref().is_none_or(|only| cell.contains(only.as_str()));
    let mut columns: Vec<&str> = WITH.into_iter().filter(|_| wanted(WHOLE)).collect();
    let turn = round * STEP % columns.len().max(1);
    columns.rotate_left(turn);
    columns.into_iter().try_for_each(|column| whole(run, WHOLE, column, blobs, sheet))?;
    if wanted(WHOLE) {
        hash_alone(sheet)?;
    }
    if wanted(LINKED) {
        run.wire.limit(true)?;
        let done = whole(run, LINKED, WITH[0], blobs, sheet);
        run.wire.limit(false)?;
        done?;
    }
    Ok(())
}

fn targets(sheet: &mut Sheet) {
    let both = format!("{WHOLE}, both");
    sheet.target(&both, "crc", "iperf3", Bound::AtMost(1.0));
    sheet.target(&both, "crc", "nginx+curl", Bound::AtMost(0.75));
    let alone = format!("{WHOLE}, both, but for writing files");
    sheet.target(&alone, "crc", "iperf3", Bound::Shown);
    sheet.target(&alone, "blake3", "crc", Bound::Shown);
    sheet.target(&both, "crc, TLS", "crc", Bound::Shown);
    sheet.target(&both, "blake3, TLS", "blake3", Bound::Shown);
    sheet.target(&both, PAST, "iperf3", Bound::AtMost(1.0));
    sheet.target(&both, PAST, "nginx+curl", Bound::AtMost(0.75));
    sheet.target(&both, HASHED_PAST, PAST, Bound::Shown);
}
