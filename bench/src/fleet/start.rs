//! P7: a container starts from a published root before the root is on this node.
//!
//! `runc` starts the program, with the mount as its read-only root and with namespaces of its own. The clock
//! starts when nothing runs and nothing is cached. The figure includes the mount, everything that the program
//! needs of the root, and the first byte of its output. For comparison, the same root arrives as a tar at the
//! rate of a node's link, is unpacked to this machine's disk, and the program is started there in the same
//! way.
//!
//! The bytes that a node fetched are all that came over its link, headers included: blobs from the store and
//! from other nodes, requests, gossip.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base::time::monotonic;
use nets::{Fleet, How, Tree};

use super::{Args, FIRST_BYTE, column, facts};
use crate::Result;
use crate::peer::on_path;
use crate::run::{Bench, progress};
use crate::sheet::Bound;

const TAR: &str = "a tar, unpacked first";
const FIRST: &str = "first output, of the last node";
/// Nodes that start at once.
const CROWD: usize = 8;

/// Runs the measurement.
pub fn run(args: &Args, bench: &Bench) -> Result<()> {
    let missing = "no root to start from: scripts/start-root DIR makes one, then --root DIR (make bench-fleet does both)";
    let root = args.root.as_deref().filter(|root| root.is_dir()).ok_or(missing)?;
    let runc = Runc::new(bench.scratch(), &args.start)?;
    let mut sheet = bench.sheet("fleet-start", "P7, a container starts before its root is here");
    facts(args, &mut sheet);
    let total = bytes_below(root)?;
    sheet.fact("root", &format!("{} MiB", total >> 20));
    sheet.fact("program", &args.start);
    sheet.columns([column(1), column(CROWD), TAR.to_owned()]);
    progress("publishing the root");
    let tree: &'static Tree = Box::leak(Box::new(Tree::publish_folder(root, bench.scratch(), Vec::new())));
    let tar = bench.scratch().join("root.tar");
    finish(Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&tar).arg("."))?;
    for round in 0..bench.common.rounds() {
        for nodes in [1, CROWD] {
            crate::interrupt::check()?;
            progress(&format!("start, round {}: {nodes} nodes", round + 1));
            let (times, fetched, stored) = from_mounts(args, tree, nodes, round as u64, &runc)?;
            let last = times.into_iter().max().unwrap_or_default();
            let place = column(nodes);
            let mib = |bytes: f64| bytes / f64::from(1 << 20);
            let each = fetched as f64 / nodes as f64;
            sheet.add(FIRST, &place, &[("", "s", last.as_secs_f64())], 0.0);
            sheet.add("fetched by a node", &place, &[("", "MiB", mib(each))], 0.0);
            sheet.add(
                "fetched by a node of the root",
                &place,
                &[("", "%", 100.0 * each / total as f64)],
                0.0,
            );
            sheet.add("from the store, all nodes", &place, &[("", "MiB", mib(stored as f64))], 0.0);
        }
        progress(&format!("start, round {}: from a tar", round + 1));
        let spent = from_tar(args, &tar, &bench.scratch().join(format!("unpacked-{round}")), &runc)?;
        sheet.add(FIRST, TAR, &[("", "s", spent.as_secs_f64())], 0.0);
    }
    sheet.target(FIRST.to_owned(), &column(1), TAR, Bound::Shown);
    sheet.target(FIRST.to_owned(), &column(CROWD), &column(1), Bound::Shown);
    sheet.target("from the store, all nodes".to_owned(), &column(CROWD), &column(1), Bound::Shown);
    sheet.chart_ratios(&column(1), &[TAR]);
    sheet.note("The tar is unpacked once; 8 nodes would each need as long for it, on a disk and a link of their own.");
    bench.finish(sheet, Vec::new())
}

/// Starts containers.
struct Runc {
    program: PathBuf,
    /// The bundles, and runc's own state.
    folder: PathBuf,
    line: String,
}

impl Runc {
    fn new(scratch: &Path, line: &str) -> Result<Runc> {
        let sbin =
            ["/usr/sbin/runc", "/sbin/runc"].map(PathBuf::from).into_iter().find(|file| file.is_file());
        let program = on_path("runc")
            .or(sbin)
            .ok_or("there is no runc to start containers with: apt-get install runc")?;
        let folder = scratch.join("runc");
        std::fs::create_dir_all(folder.join("state"))?;
        Ok(Runc { program, folder, line: line.to_owned() })
    }

    /// The configuration for runc: the root as it is, and what every container has in addition.
    fn config(&self, root: &Path) -> serde_json::Value {
        let tmpfs =
            |place: &str| serde_json::json!({ "destination": place, "type": "tmpfs", "source": "tmpfs" });
        let namespaces = ["pid", "mount", "ipc", "uts", "network"];
        let namespaces = namespaces.map(|kind| serde_json::json!({ "type": kind }));
        serde_json::json!({
            "ociVersion": "1.0.2",
            "process": { "terminal": false, "user": { "uid": 0, "gid": 0 }, "cwd": "/", "noNewPrivileges": true,
                "args": ["/bin/sh", "-c", self.line], "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"] },
            "root": { "path": root, "readonly": true },
            "hostname": "start",
            "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }, tmpfs("/dev"), tmpfs("/tmp")],
            "linux": { "namespaces": namespaces },
        })
    }

    /// Starts the program in a root and waits for its first byte. It must succeed. `id` names the container
    /// and must be unique among the running ones of this process. Returns the time from `begun` to the first
    /// byte.
    fn first_output(&self, root: &Path, id: &str, begun: Instant) -> Result<Duration> {
        let bundle = self.folder.join(id);
        std::fs::create_dir_all(&bundle)?;
        std::fs::write(bundle.join("config.json"), self.config(root).to_string())?;
        let log = bundle.join("err");
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(self.folder.join("state")).arg("run").arg("--bundle").arg(&bundle);
        command.arg(format!("covey-bench-{}-{id}", std::process::id()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(std::fs::File::create(&log)?);
        let mut child = command.spawn()?;
        let mut out = child.stdout.take().ok_or("it has no output")?;
        let read = out.read(&mut [0; 1])?;
        let spent = begun.elapsed();
        std::io::copy(&mut out, &mut std::io::sink())?;
        let ended = child.wait()?;
        if read == 0 || !ended.success() {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("{} in {}: {ended}: {}", self.line, root.display(), said.trim()).into());
        }
        Ok(spent)
    }
}

/// Runs a program to its end. Its output is shown only when it fails.
fn finish(command: &mut Command) -> Result<()> {
    let done = command.stdin(Stdio::null()).output()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(format!("{command:?}: {}\n{}{said}", done.status, String::from_utf8_lossy(&done.stdout)).into())
}

/// When each node's program printed its first byte, the bytes over their links, and the bytes of blobs from
/// the store.
fn from_mounts(
    args: &Args,
    tree: &'static Tree,
    nodes: usize,
    seed: u64,
    runc: &Runc,
) -> Result<(Vec<Duration>, u64, u64)> {
    let mut fleet = Fleet::joined(tree, nodes, seed, &How::default());
    fleet.store.be_like_a_store(FIRST_BYTE);
    fleet.nodes.iter().for_each(|node| node.port.shape(Some(args.mbit * 1_000_000)));
    let begun = monotonic();
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = fleet
            .nodes
            .iter_mut()
            .map(|node| {
                scope.spawn(move || -> Result<Duration> {
                    node.spawn();
                    node.await_mounted(Duration::from_secs(60))?;
                    runc.first_output(&node.mnt(), node.name(), begun)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a node panicked")?)
            .collect::<Result<Vec<_>>>()
    })?;
    let fetched = fleet.nodes.iter().map(|node| node.port.traffic().received).sum();
    let stored = fleet.store.blobs().values().map(|got| got.bytes).sum();
    Ok((times, fetched, stored))
}

/// Unpacks at most as fast as a link would deliver it, then starts the program there.
fn from_tar(args: &Args, tar: &Path, to: &Path, runc: &Runc) -> Result<Duration> {
    std::fs::create_dir(to)?;
    let begun = monotonic();
    let mut unpack =
        Command::new("tar").arg("-C").arg(to).args(["-xf", "-"]).stdin(Stdio::piped()).spawn()?;
    let mut pipe = unpack.stdin.take().ok_or("tar takes no input")?;
    let mut file = std::fs::File::open(tar)?;
    let (mut some, mut sent) = (vec![0; 256 << 10], 0u64);
    loop {
        let len = file.read(&mut some)?;
        if len == 0 {
            break;
        }
        sent += len as u64;
        let due = Duration::from_secs_f64(sent as f64 * 8.0 / (args.mbit as f64 * 1e6));
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        std::io::Write::write_all(&mut pipe, &some[..len])?;
    }
    drop(pipe);
    if !unpack.wait()?.success() {
        return Err("tar failed".into());
    }
    let spent = runc.first_output(to, "tar", begun)?;
    std::fs::remove_dir_all(to)?;
    Ok(spent)
}

fn bytes_below(folder: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.path().symlink_metadata()?;
        total += if meta.is_dir() { bytes_below(&entry.path())? } else { meta.len() };
    }
    Ok(total)
}
