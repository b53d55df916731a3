//! The check of a shared volume: its names, as of one moment, while its nodes work.

use api::error::{Failure, Result};
use fs::fsck::{Finding, Phase, Progress as Step};
use meta::audit::Listener;
use node::shared::checking;

use super::{Args, Found, Outcome, found, say, show};
use crate::term::Term;

/// Checks the volume at this address.
pub fn run(args: &Args, address: &str, term: Term) -> Result<u8> {
    if args.repair || args.salvage {
        return Err(Failure::usage("a shared volume is checked and not repaired")
            .why("its nodes change it while it is checked")
            .next("leave --repair and --salvage out")
            .next("to go back to a sound state, restore the database from a backup, or covey restore ORIGIN@NAME ADDRESS"));
    }
    let mut progress = term.progress("fsck");
    let mut findings: Vec<Found> = Vec::new();
    let mut serious = 0;
    let done = checking::check(
        address,
        &mut Listener {
            found: &mut |finding| {
                let finding = Finding::Names(finding);
                serious += u64::from(!finding.is_harmless());
                let shown = found(&finding, false);
                say(&shown, term);
                findings.push(shown);
            },
            progress: &mut |done| show(&mut progress, Step { phase: Phase::Names, done }, 0),
        },
    );
    let seconds = progress.elapsed().as_secs_f64();
    progress.done();
    let names = done?;
    let outcome = Outcome {
        volume: address.into(),
        sound: serious == 0,
        salvaged: None,
        findings,
        damage_left: serious,
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
