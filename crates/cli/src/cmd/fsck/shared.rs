//! The check of a shared volume, and its repair: its names, as of one moment. A check needs no node to stop.

use std::collections::HashSet;

use api::error::{Failure, Result};
use api::text::{count, span};
use base::PackNo;
use fs::fsck::{Finding, Phase, Progress as Step};
use meta::audit::{self, Listener, Summary};
use node::shared::aside::{self, is_aside};
use node::shared::bytes::{self, Looked};
use node::shared::{checking, repairing};

use super::{Args, Found, Outcome, found, say, show};
use crate::term::{Progress, Term};

/// Checks the volume at this address, and repairs it when asked.
pub fn run(args: &Args, address: &str, term: Term) -> Result<u8> {
    if args.salvage {
        return Err(Failure::usage("a shared volume has no log that could be salvaged")
            .next("leave --salvage out; --repair mends what can be mended"));
    }
    let mut progress = term.progress("fsck");
    let mut findings: Vec<Found> = Vec::new();
    let mut take = |finding: &audit::Finding, repaired: bool| {
        let shown = found(&Finding::Names(finding.clone()), repaired);
        say(&shown, term);
        findings.push(shown);
    };
    let done = match args.repair {
        true => repair(address, &mut take, &mut progress),
        false => check(address, &mut take, &mut progress),
    };
    let mut absent = Vec::new();
    let looked = done.as_ref().ok().map(|_| bytes::look(address, &mut |finding| absent.push(finding)));
    let aside = set_aside(address, &args.lost_node, &absent);
    if looked.as_ref().is_some_and(|looked| looked.is_ok()) {
        of_no_pack(&args.lost_node, &absent).for_each(|node| {
            term.say(format_args!("note    no missing bytes are on the disk of node {node}"));
        });
    }
    let mut lost = 0;
    for finding in &absent {
        let mended = aside.as_ref().is_ok_and(|aside| aside.contains(&pack_of(finding)));
        let mut shown = found(finding, mended);
        shown.harmless = finding.files().iter().all(|file| file.path.as_deref().is_some_and(is_aside));
        lost += u64::from(!mended && !shown.harmless);
        say(&shown, term);
        findings.push(shown);
    }
    aside?;
    let seconds = progress.elapsed().as_secs_f64();
    progress.done();
    let (names, left) = done?;
    let (left, looked) = (left + lost, looked.and_then(|looked| unlooked(looked, term)));
    let outcome = Outcome {
        volume: address.into(),
        sound: left == 0,
        salvaged: None,
        findings,
        damage_left: left,
        names: names.names,
        inodes: names.inodes,
        bytes: names.bytes,
        blobs: names.packs,
        blob_bytes: looked.map_or(0, |looked| looked.bytes),
        seconds,
    };
    term.result(&outcome, || text(&outcome, args, looked));
    Ok(u8::from(!outcome.sound))
}

fn pack_of(finding: &Finding) -> Option<PackNo> {
    match finding {
        Finding::OnAbsentNode { pack, .. } => Some(*pack),
        _ => None,
    }
}

/// The nodes of these that no missing pack belongs to.
fn of_no_pack(nodes: &[u32], absent: &[Finding]) -> impl Iterator<Item = u32> {
    let has = |of: u32| {
        absent.iter().any(|finding| matches!(finding, Finding::OnAbsentNode { node, .. } if *node == of))
    };
    nodes.iter().copied().filter(move |node| !has(*node))
}

/// Renames the files whose bytes are lost with the disks of these nodes. Returns their packs.
fn set_aside(address: &str, nodes: &[u32], absent: &[Finding]) -> Result<HashSet<Option<PackNo>>> {
    let is_lost =
        |finding: &&Finding| matches!(finding, Finding::OnAbsentNode { node, .. } if nodes.contains(node));
    let packs: Vec<PackNo> = absent.iter().filter(is_lost).filter_map(pack_of).collect();
    if packs.is_empty() {
        return Ok(HashSet::new());
    }
    let aside = aside::set_aside(address, &packs)?;
    Ok(packs.into_iter().filter(|pack| !aside.left.contains(pack)).map(Some).collect())
}

/// Says why nobody looked for the bytes. The names were checked all the same.
fn unlooked(looked: Result<Looked>, term: Term) -> Option<Looked> {
    looked
        .inspect_err(|failure| {
            term.say(format_args!("note    nobody looked for the bytes: {}", failure.in_one_line()));
        })
        .ok()
}

fn text(outcome: &Outcome, args: &Args, looked: Option<Looked>) -> String {
    let shown = outcome.volume.display();
    let bytes = match looked {
        None => "it is not known whether their bytes are there".to_owned(),
        Some(Looked { on_nodes: 0, .. }) => "their blobs are in the origin, and were not read".to_owned(),
        Some(Looked { on_nodes, .. }) => format!(
            "their blobs are in the origin or, of {} packs, on nodes that have the volume mounted, and were not read",
            count(on_nodes)
        ),
    };
    let size = format!(
        "{} inodes, {} packs, in {}; {bytes}",
        count(outcome.inodes),
        count(outcome.blobs),
        span(outcome.seconds)
    );
    let mended = outcome.findings.iter().filter(|found| found.repaired).count();
    let restore =
        "restore the database from a backup, or a published tree: covey restore ORIGIN@NAME ADDRESS";
    let left = outcome.damage_left;
    let lost = outcome.findings.iter().filter(|found| !found.files.is_empty()).count() as u64;
    match (outcome.sound, mended, args.repair) {
        (true, 0, _) => format!("The names of {shown} are sound ({size})."),
        (true, ..) => format!("The names of {shown} are sound now: {mended} mended ({size})."),
        (false, ..) if lost == left => format!(
            "The names of {shown} are sound, and bytes of {left} packs are missing: the lines above name the files."
        ),
        (false, _, true) => {
            format!(
                "The names of {shown} are damaged: {left} findings are left.\nWhat is left cannot be mended: {restore}"
            )
        }
        (false, ..) => format!(
            "The names of {shown} are damaged: {left} findings.\nUnmount the volume on all nodes, then mend what can be mended: covey fsck --repair '{shown}'\nOr {restore}"
        ),
    }
}

type Take<'a> = &'a mut dyn FnMut(&audit::Finding, bool);

fn check(address: &str, take: Take<'_>, progress: &mut Progress) -> Result<(Summary, u64)> {
    let mut serious = 0;
    let mut listener = Listener {
        found: &mut |finding| {
            serious += u64::from(!finding.is_harmless());
            take(&finding, false);
        },
        progress: &mut |done| show(progress, Step { phase: Phase::Names, done }, 0),
    };
    let names = checking::check(address, &mut listener)?;
    Ok((names, serious))
}

fn repair(address: &str, take: Take<'_>, progress: &mut Progress) -> Result<(Summary, u64)> {
    let mut callbacks = repairing::Callbacks {
        found: take,
        progress: &mut |done| show(progress, Step { phase: Phase::Names, done }, 0),
    };
    let repaired = repairing::repair(address, &mut callbacks)?;
    Ok((repaired.summary, repaired.left))
}
