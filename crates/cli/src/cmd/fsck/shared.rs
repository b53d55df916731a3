//! The check of a shared volume, and its repair: its names, as of one moment. A check needs no node to stop.

use api::error::{Failure, Result};
use fs::fsck::{Finding, Phase, Progress as Step};
use meta::audit::{self, Listener, Summary};
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
    let seconds = progress.elapsed().as_secs_f64();
    progress.done();
    let (names, left) = done?;
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
        blob_bytes: 0,
        seconds,
    };
    term.result(&outcome, || super::text(&outcome, args));
    Ok(u8::from(!outcome.sound))
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
