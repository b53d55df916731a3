//! P7: a program of a published root starts from the mount, before the root is here.
//!
//! The clock starts when nothing runs and nothing is cached: it counts the mount, what the program needs of the root, and its first
//! output. Beside it: the same root as a tar on the same store's link (it is sent at the link's rate), unpacked to the disk, and
//! started there.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base::time::monotonic;
use nets::{Fleet, How, Tree};

use super::{Args, FIRST_BYTE, column, facts};
use crate::Result;
use crate::peer::on_path;
use crate::run::{Bench, progress};

const TAR: &str = "a tar, unpacked first";

/// Measures it.
pub fn run(args: &Args, bench: &Bench) -> Result<()> {
    let root = match &args.root {
        Some(root) => root.clone(),
        None => make_root(bench.scratch())?,
    };
    let mut sheet =
        bench.sheet("fleet-start", "A program of a published root starts before the root is here");
    facts(args, &mut sheet);
    let total = bytes_below(&root)?;
    sheet.fact("root", &format!("{} MiB", total >> 20));
    sheet.fact("program", &args.start.join(" "));
    progress("publishing the root");
    let tree: &'static Tree = Box::leak(Box::new(Tree::publish_folder(&root, bench.scratch(), Vec::new())));
    let tar = bench.scratch().join("root.tar");
    finish(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg("."))?;
    for round in 0..bench.common.rounds() {
        for nodes in [1usize, 8] {
            progress(&format!("start, round {}: {nodes} nodes", round + 1));
            let (times, fetched) = from_mounts(args, tree, nodes, round as u64)?;
            let last = times.into_iter().max().unwrap_or_default();
            let place = column(nodes);
            sheet.add("first output, of the last node", &place, &[("", "s", last.as_secs_f64())], 0.0);
            let each = fetched as f64 / nodes as f64;
            sheet.add("fetched by a node", &place, &[("", "MiB", each / f64::from(1 << 20))], 0.0);
            sheet.add("fetched of the root", &place, &[("", "%", 100.0 * each / total as f64)], 0.0);
        }
        progress(&format!("start, round {}: from a tar", round + 1));
        let spent = from_tar(args, &tar, &bench.scratch().join(format!("unpacked-{round}")))?;
        sheet.add("first output, of the last node", TAR, &[("", "s", spent.as_secs_f64())], 0.0);
    }
    bench.finish(sheet, Vec::new())
}

fn make_root(scratch: &Path) -> Result<PathBuf> {
    let missing = "no root to start from: install debootstrap, or name a root's folder with --root";
    let debootstrap = on_path("debootstrap").ok_or(missing)?;
    progress("debootstrap");
    let root = scratch.join("root");
    let release = std::fs::read_to_string("/etc/os-release")?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).ok_or(missing)?;
    finish(Command::new(debootstrap).args(["--variant=minbase", suite]).arg(&root))?;
    Ok(root)
}

/// Runs a program to its end; what it said is shown only when it fails.
fn finish(command: &mut Command) -> Result<()> {
    let done = command.stdin(Stdio::null()).output()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(format!("{command:?}: {}\n{}{said}", done.status, String::from_utf8_lossy(&done.stdout)).into())
}

/// When each node's program said something, and bytes that came over their links.
fn from_mounts(args: &Args, tree: &'static Tree, nodes: usize, seed: u64) -> Result<(Vec<Duration>, u64)> {
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
                    first_output(&node.mnt(), &args.start)?;
                    Ok(begun.elapsed())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a node panicked")?)
            .collect::<Result<Vec<_>>>()
    })?;
    let fetched = fleet.nodes.iter().map(|node| node.port.traffic().received).sum();
    Ok((times, fetched))
}

/// Unpacks at most as fast as a link would bring it, then starts the program there.
fn from_tar(args: &Args, tar: &Path, to: &Path) -> Result<Duration> {
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
    first_output(to, &args.start)?;
    let spent = begun.elapsed();
    std::fs::remove_dir_all(to)?;
    Ok(spent)
}

/// Starts a program in a root and waits for its first byte.
fn first_output(root: &Path, words: &[String]) -> Result<()> {
    let mut child =
        Command::new("chroot").arg(root).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut out = child.stdout.take().ok_or("it has no output")?;
    let read = out.read(&mut [0; 1])?;
    drop(out);
    child.wait()?;
    if read == 0 {
        return Err(format!("{} in {} said nothing", words.join(" "), root.display()).into());
    }
    Ok(())
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
