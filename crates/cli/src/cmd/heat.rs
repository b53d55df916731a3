//! `covey heat`: which parts of files are read most, and why.

use std::path::{Path, PathBuf};

use api::control::Request;
use api::error::{Failure, Result};
use api::heat::{Chunk, Heat, View};
use api::text::count;
use node::control;

use crate::table::Table;
use crate::target::{Target, resolve};
use crate::term::Term;

/// Lists the parts of files that are read most, and why; for mounts with --heat
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey mount -d --heat /srv/volume /mnt/covey\n  covey heat /mnt/covey\n  \
    covey heat /mnt/covey/prices --top 50 --json\n\n\
    A part is one MiB of a file. Each access adds 1 to its score; an access counts half after a minute. With eBPF programs, reads\n\
    that the page cache answers are counted, too, and the blobs behind them stay on this node's disk longer."
)]
pub struct Args {
    /// A mount, or a file or folder on one
    path: PathBuf,
    /// How many parts to list
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    top: u32,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let Target::Mounted(place) = resolve(&args.path)? else {
        return Err(Failure::new("not-mounted", format!("{} is on no mount", args.path.display()))
            .next("covey df lists the mounts"));
    };
    let inner = place.inner();
    let path = (!inner.as_os_str().is_empty()).then(|| inner.into());
    let heat: Heat = control::ask(&place.address(), &Request::Heat { path, top: args.top }, &mut |_| ())?;
    term.result(&heat, || text(&heat, &place.mount.path));
    Ok(0)
}

fn text(heat: &Heat, mountpoint: &Path) -> String {
    let by = match heat.view {
        View::Kernel => "counted by the kernel, reads from the page cache included",
        View::Daemon => "counted by the daemon",
    };
    let mut text = format!(
        "{} of {} parts are hot; {} became hot so far; {by}\n",
        count(heat.hot),
        count(heat.known),
        count(heat.events)
    );
    heat.unseen.iter().for_each(|line| text += &format!("{line}\n"));
    if heat.lost > 0 {
        text += &format!("not seen: {} accesses or events that came too fast\n", count(heat.lost));
    }
    if heat.ahead > 0 {
        text += &format!("asked {} times for blobs ahead of a reader in order\n", count(heat.ahead));
    }
    if heat.protected > 0 {
        text += &format!("told the cache {} times that a blob is in use\n", count(heat.protected));
    }
    let mut table = Table::new(&["Score ", "MiB ", "In memory ", "File", "Why"]);
    for chunk in &heat.chunks {
        table.row(vec![
            format!("{:.1}", chunk.score),
            chunk.mib.to_string(),
            in_memory(chunk, heat.view),
            name(chunk, mountpoint),
            chunk.why.clone(),
        ]);
    }
    if !heat.chunks.is_empty() {
        text += &table.text();
    }
    for program in heat.programs.iter().filter(|program| program.runs > 0) {
        let mean = program.ns / program.runs;
        text += &format!(
            "{} ran {} times while it was measured, {mean} ns each\n",
            program.name,
            count(program.runs)
        );
    }
    text.trim_end().to_owned()
}

/// How much of the MiB the page cache has.
fn in_memory(chunk: &Chunk, view: View) -> String {
    match view {
        View::Kernel => format!("{}%", (chunk.pages * 100 / 256).min(100)),
        View::Daemon => "?".to_owned(),
    }
}

fn name(chunk: &Chunk, mountpoint: &Path) -> String {
    match &chunk.path {
        Some(path) => mountpoint.join(PathBuf::from(path.clone())).display().to_string(),
        None => format!("inode {}", chunk.inode),
    }
}
