//! `covey fsck`: looks for damage, and repairs it on request.

mod shared;

use std::path::PathBuf;

use api::error::{Failure, Result};
use api::text::{bytes, count, span};
use base::PackNo;
use fs::fsck::{
    Callbacks, Depth, Finding, Phase, Progress as Step, Summary, Unreferenced, check, check_and_repair,
};
use meta::journal::damage::Damage;
use meta::{Names, PackRow};
use node::claim::hold_published;
use node::opened::{self, Bare};
use node::volume_dir::VolumeDir;
use serde::Serialize;

use crate::target::{Target, names_of, resolve_volume};
use crate::term::{Progress, Term};

/// Checks a volume that is not mounted, and repairs it when asked
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey fsck /srv/volume\n  covey fsck --quick /srv/volume       names only, and whether all blobs are there\n  \
    covey fsck --repair /srv/volume\n  covey fsck --salvage /srv/volume     a damaged log: keep a copy, bring in what is in front of the damage\n  \
    covey fsck 'postgres://covey@db/covey?volume=work'     the names of a shared volume, while its nodes use it\n  \
    covey fsck --repair 'postgres://covey@db/covey?volume=work'     the same, when no node has it mounted\n\nEvery blob is read and compared with its name, so a check takes as long as reading the volume.\n\
    What is lost is never replaced by zeros: reads of it go on to fail, and the files are listed.\n\n\
    Exit status: 0 sound, or mended; 1 damage found; 2 wrong usage."
)]
pub struct Args {
    /// The volume's folder; of a shared volume: a mount of it, or its address: postgres://... or
    /// etcd://...
    volume: PathBuf,
    /// Mend what can be mended: counts, links, lost names, blobs that are nobody's
    #[arg(long)]
    repair: bool,
    /// Of a shared volume: the disk of this node is lost. Files whose bytes were only there are renamed to
    /// NAME.covey-lost; may be repeated
    #[arg(long, value_name = "NODE", requires = "repair")]
    lost_node: Vec<u32>,
    /// Bring in a damaged log up to the damage, after a copy of it was kept, and say what is lost; then as
    /// --repair
    #[arg(long)]
    salvage: bool,
    /// Do not read the blobs
    #[arg(long)]
    quick: bool,
}

/// One finding, in JSON.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    what: String,
    harmless: bool,
    repaired: bool,
    files: Vec<Range>,
}

/// A range of a file that cannot be read.
#[derive(Debug, Serialize)]
struct Range {
    inode: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    offset: u64,
    bytes: u64,
}

/// The losses of a damaged log, in JSON.
#[derive(Debug, Serialize)]
struct Salvaged {
    /// The damage of the log.
    damage: String,
    /// The path of its copy.
    copy: Option<PathBuf>,
    operations_kept: u64,
    operations_lost: u64,
    /// Records that cannot be read. Each is at most one more lost operation.
    unreadable: u64,
    /// Names that lost operations created, changed or removed, as far as they can be read.
    names: Vec<String>,
    /// Ranges of files whose bytes differ from what was written.
    files: Vec<Range>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(with = "api::raw_path")]
    volume: PathBuf,
    sound: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    salvaged: Option<Salvaged>,
    findings: Vec<Found>,
    damage_left: u64,
    names: u64,
    inodes: u64,
    bytes: u64,
    blobs: u64,
    blob_bytes: u64,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    if let Some(address) = names_of(&args.volume)? {
        return shared::run(args, &address, term);
    }
    if !args.lost_node.is_empty() {
        return Err(Failure::usage(
            "--lost-node is for shared volumes: any other volume has one machine that writes",
        )
        .next("leave it out"));
    }
    let dir = closed(&args.volume)?;
    let writes = args.repair || args.salvage;
    let copy = args.salvage.then(|| copy_of_log(&dir));
    let bare = opened::open_bare(&dir, "fsck", !writes, copy)?;
    let salvaged = bare.damage.as_ref().map(|damage| salvaged(&bare, damage, term)).transpose();
    let salvaged = salvaged.map_err(|error| node::refused::open_failure(dir.path(), error))?;
    let mut findings = database(&bare)?;
    findings.iter().for_each(|found| say(found, term));
    let mut progress = term.progress("fsck");
    let total = blob_bytes(&bare)?;
    let mut step = |step: Step| show(&mut progress, step, total);
    let summary = if findings.is_empty() {
        look(args, &bare, &mut findings, &mut step, term)
    } else {
        // If the underlying database is broken, the contents of its rows mean little.
        Ok(Summary { serious: findings.len() as u64, ..Summary::default() })
    };
    let seconds = progress.elapsed().as_secs_f64();
    progress.done();
    let failed = |error| node::refused::open_failure(dir.path(), error);
    let summary = summary.map_err(failed)?;
    bare.journal.close().map_err(|error| failed(fs::OpenError::Store(error)))?;
    let outcome = Outcome {
        volume: dir.path().to_owned(),
        sound: summary.serious == 0,
        salvaged,
        damage_left: summary.serious,
        findings,
        names: summary.names.names,
        inodes: summary.names.inodes,
        bytes: summary.names.bytes,
        blobs: summary.blobs,
        blob_bytes: summary.blob_bytes,
        seconds,
    };
    term.result(&outcome, || text(&outcome, args));
    Ok(u8::from(!outcome.sound))
}

/// The volume's folder, which must not be mounted.
fn closed(path: &std::path::Path) -> Result<VolumeDir> {
    match resolve_volume(path)? {
        Target::Closed { dir, .. } => Ok(dir),
        Target::Mounted(place) => {
            let point = place.mount.path.display();
            Err(Failure::new("in-use", format!("{} is mounted", place.mount.source))
                .why("a volume cannot be checked while it changes")
                .next(format!("unmount it first: covey umount {point}")))
        }
    }
}

/// A path that does not exist yet, for a copy of the log.
fn copy_of_log(dir: &VolumeDir) -> PathBuf {
    let moment = base::time::now();
    dir.meta().join(format!("log.damaged-{}.{:09}", moment.seconds(), moment.nanos()))
}

/// Reports what salvage kept and what is lost.
fn salvaged(bare: &Bare, damage: &Damage, term: Term) -> std::result::Result<Salvaged, fs::OpenError> {
    const SHOWN: usize = 20;
    let lost = fs::fsck::lost(&bare.parts, damage)?;
    crate::term::clear_if_terminal();
    term.say(format_args!("DAMAGE  {damage}"));
    if let Some(copy) = &damage.kept {
        term.say(format_args!("        a copy of the log is in {}", copy.display()));
    }
    for name in lost.names.iter().take(SHOWN) {
        term.say(format_args!("        lost: {name}"));
    }
    if lost.names.len() > SHOWN {
        term.say(format_args!("        and {} more; --json lists them", lost.names.len() - SHOWN));
    }
    for file in &lost.files {
        term.say(format_args!("        not what was written: {file}"));
    }
    Ok(Salvaged {
        damage: damage.to_string(),
        copy: damage.kept.clone(),
        operations_kept: damage.sound,
        operations_lost: damage.readable,
        unreadable: damage.unreadable,
        names: lost.names,
        files: lost.files.iter().map(range).collect(),
    })
}

/// Damage of the database file.
fn database(bare: &Bare) -> Result<Vec<Found>> {
    let lines = bare.journal.integrity().map_err(|error| {
        Failure::new("damaged", "the database of the volume's names cannot be read")
            .why(error.to_string())
            .next("keep a copy of the volume's folder, then bring its meta/ back from a backup")
    })?;
    let found = |line: String| Found {
        what: format!("names.db: {line}"),
        harmless: false,
        repaired: false,
        files: Vec::new(),
    };
    Ok(lines.into_iter().map(found).collect())
}

fn look(
    args: &Args,
    bare: &Bare,
    findings: &mut Vec<Found>,
    step: &mut dyn FnMut(Step),
    term: Term,
) -> std::result::Result<Summary, fs::OpenError> {
    let depth = if args.quick { Depth::Presence } else { Depth::Full };
    let mut take = |finding: &Finding, repaired: bool| {
        let found = found(finding, repaired);
        say(&found, term);
        findings.push(found);
    };
    if args.salvage {
        // Data of lost operations is unreferenced now. It is kept, because the copy of the log still names
        // it.
        return check_and_repair(&bare.parts, depth, Unreferenced::Keep, &mut take, step);
    }
    if args.repair {
        return check_and_repair(&bare.parts, depth, strays(bare, term), &mut take, step);
    }
    check(&bare.parts, depth, &mut Callbacks { found: &mut |finding| take(&finding, false), progress: step })
}

fn range(file: &fs::fsck::FileRange) -> Range {
    Range { inode: file.ino.0, path: file.path.clone(), offset: file.offset, bytes: file.len }
}

/// Unreferenced blobs are removed only under two conditions: the origin certainly belongs to this volume, and
/// the trees published there have just been read.
fn strays(bare: &Bare, term: Term) -> Unreferenced {
    let Some(writer) = &bare.writer else { return Unreferenced::Keep };
    let sure = hold_published(&*bare.parts.store, &bare.parts.origin).and_then(|()| writer.verify());
    let allowed = sure.map_err(|failure| failure.in_one_line()).and_then(|()| (writer.may_delete())());
    match allowed {
        Ok(()) => Unreferenced::Remove,
        Err(why) => {
            crate::term::clear_if_terminal();
            term.say(format_args!("blobs that are nobody's are kept: {why}"));
            Unreferenced::Keep
        }
    }
}

pub(super) fn found(finding: &Finding, repaired: bool) -> Found {
    Found {
        what: finding.to_string(),
        harmless: finding.is_harmless(),
        repaired,
        files: finding.files().iter().map(range).collect(),
    }
}

/// Prints one line per finding, and the affected files.
pub(super) fn say(found: &Found, term: Term) {
    const SHOWN: usize = 5;
    let mark = match found {
        Found { repaired: true, .. } => "mended",
        Found { harmless: true, .. } => "note  ",
        _ => "DAMAGE",
    };
    crate::term::clear_if_terminal();
    term.say(format_args!("{mark}  {}", found.what));
    for file in found.files.iter().take(SHOWN) {
        let path = file.path.clone().unwrap_or_else(|| format!("inode {}", file.inode));
        term.say(format_args!("        lost: {path}, {} at {}", bytes(file.bytes), count(file.offset)));
    }
    if found.files.len() > SHOWN {
        term.say(format_args!("        and {} more; --json lists them", found.files.len() - SHOWN));
    }
}

/// The bytes of all sealed packs. A full check reads that many.
fn blob_bytes(bare: &Bare) -> Result<u64> {
    let names = Names::new(bare.parts.store.clone());
    let (mut total, mut from) = (0, PackNo(0));
    // The check itself reports a row that cannot be read. Progress then has no total.
    while let Ok(rows) = names.packs(from, 1024) {
        let Some((last, _)) = rows.last() else { break };
        from = PackNo(last.0 + 1);
        total += rows
            .iter()
            .map(|(_, row)| if let PackRow::Sealed { size, .. } = row { u64::from(*size) } else { 0 })
            .sum::<u64>();
    }
    Ok(total)
}

fn show(progress: &mut Progress, step: Step, total: u64) {
    match step.phase {
        Phase::Names => progress.set(0, |_| format!("names: {} rows", count(step.done))),
        Phase::Blobs => {
            progress.total(total);
            progress.set(step.done, |elapsed| {
                let rate = (step.done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
                format!("blobs: {} of {}, {}/s", bytes(step.done), bytes(total), bytes(rate))
            });
        }
        Phase::OpenPacks => progress.set(total, |_| format!("open packs: {}", count(step.done))),
        Phase::Unreferenced => {
            progress.set(total, |_| format!("blobs that are nobody's: {} looked at", count(step.done)))
        }
    }
}

fn text(outcome: &Outcome, args: &Args) -> String {
    let shown = outcome.volume.display();
    let size = format!(
        "{} inodes, {} blobs of {}, in {}",
        count(outcome.inodes),
        count(outcome.blobs),
        bytes(outcome.blob_bytes),
        span(outcome.seconds)
    );
    let mended = outcome.findings.iter().filter(|found| found.repaired).count();
    let notes = outcome.findings.iter().filter(|found| found.harmless && !found.repaired).count();
    let mut text = match (outcome.sound, mended) {
        (true, 0) => format!("{shown} is sound ({size})."),
        (true, _) => format!("{shown} is sound now: {mended} mended ({size})."),
        (false, _) => format!("{shown} is damaged: {} findings are left ({size}).", outcome.damage_left),
    };
    if let Some(salvaged) = &outcome.salvaged {
        text += &format!(
            "\nIts log was damaged: {} operations were brought in, {} are lost, and up to {} more that cannot be read.",
            count(salvaged.operations_kept),
            count(salvaged.operations_lost),
            count(salvaged.unreadable)
        );
    }
    if notes > 0 {
        text += &format!("\n{notes} harmless: room that is wasted. covey fsck --repair {shown} frees it.");
    }
    if !outcome.sound && !args.repair && !args.salvage {
        text += &format!(
            "\ncovey fsck --repair {shown} mends what can be mended; it never replaces lost bytes by zeros."
        );
    } else if !outcome.sound {
        text +=
            "\nWhat is left cannot be mended: bring those files, or the volume's folder, back from a backup.";
    }
    text
}
