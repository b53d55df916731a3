//! `covey detach`: makes a copy of a shared volume's database a volume of its own.
//!
//! The work is in [`node::shared::detaching`].

use std::path::PathBuf;

use api::error::{Failure, Result};
use api::text::{bytes, count};
use node::origins::Reach;
use node::shared::detaching::{self, Detached, Wanted};
use node::shared::making;
use serde::Serialize;

use super::clone::show;
use super::fsck::{Found, found, say};
use crate::term::Term;

/// Makes a copy of a shared volume's database a volume of its own, with a copy of the blobs
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey detach 'postgres://covey@test/names?volume=work' --copy-blobs s3://bucket/staging\n  \
    covey detach 'etcd://test/?volume=work' --copy-blobs s3://bucket/staging --region eu-central-1\n\n\
    A restored dump is mounted for reading only, because its blobs belong to the volume that it is a copy of. This\n\
    copies all blobs that it refers to, compares each with its name, and ends with one change of the database: from\n\
    then on the copy has an origin of its own, and is mounted for writing. The first volume and its origin stay as\n\
    they are. Published trees are not copied. No node may have the copy mounted. An interrupted command can be run\n\
    again: what is copied is not copied again.\n\
    Keys come from the environment (AWS_ACCESS_KEY_ID, ...) or ~/.aws/credentials, the same for both origins."
)]
pub struct Args {
    /// The address of the copy: postgres://USER@HOST/DATABASE?volume=NAME or etcd://HOST:2379/?volume=NAME
    address: PathBuf,
    /// Where its own blobs live from then on, a new place: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, file:DIR
    #[arg(long, value_name = "ORIGIN", required = true)]
    copy_blobs: String,
    /// Where that object store is, when it is not the cloud's own: http://127.0.0.1:9000
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// The region of that bucket
    #[arg(long)]
    region: Option<String>,
    /// Go on without bytes that are lost: reads of those files fail
    #[arg(long)]
    accept_lost: bool,
}

#[derive(Debug, Serialize)]
struct Outcome {
    /// The address of the volume, without a password.
    volume: String,
    /// The origin that it was detached from.
    from: String,
    /// The volume's own origin.
    origin: String,
    /// The blobs that it needs.
    blobs: u64,
    bytes: u64,
    /// Of these, what this run has copied.
    copied_blobs: u64,
    copied_bytes: u64,
    /// What is lost.
    lost: Vec<Found>,
    /// An earlier run was interrupted in its last step, and only that was left.
    was_finished: bool,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let shown = args.address.display();
    if !making::is_address(&args.address) {
        return Err(Failure::usage(format!("{shown} is not the address of a shared volume"))
            .next("name the database of the copy: postgres://USER@HOST/DATABASE?volume=NAME, or etcd://HOST/?volume=NAME")
            .next(format!(
                "for a copy of a volume's folder, make a volume and copy the files: covey format NEW, covey export {shown} - | covey import - NEW:/"
            )));
    }
    let started = base::time::monotonic();
    let address = args.address.to_string_lossy();
    let reach = Reach { endpoint: args.endpoint.clone(), region: args.region.clone() };
    let wanted = Wanted { address: &address, origin: &args.copy_blobs, reach, accept_lost: args.accept_lost };
    let mut progress = term.progress("detach");
    let mut lost = Vec::new();
    let mut take = |finding| {
        let shown = found(&finding, false);
        say(&shown, term);
        lost.push(shown);
    };
    let done = detaching::detach(&wanted, &mut take, &mut |tick| show(&mut progress, &tick));
    progress.done();
    let Detached { names, from, origin, blobs, bytes, copied_blobs, copied_bytes, was_finished, .. } = done?;
    let seconds = (base::time::monotonic() - started).as_secs_f64();
    let outcome = Outcome {
        volume: names,
        from,
        origin,
        blobs,
        bytes,
        copied_blobs,
        copied_bytes,
        lost,
        was_finished,
        seconds,
    };
    term.result(&outcome, || text(&outcome));
    Ok(0)
}

fn text(outcome: &Outcome) -> String {
    let Outcome { volume, origin, .. } = outcome;
    let done = match outcome.was_finished {
        true => format!("Finished what had been interrupted: {volume} has its blobs in {origin}."),
        false => format!(
            "Detached {volume} in {:.1} s: it has {} blobs ({}) in {origin}, of which {} were copied now.",
            outcome.seconds,
            count(outcome.blobs),
            bytes(outcome.bytes),
            count(outcome.copied_blobs)
        ),
    };
    let lost = match outcome.lost.len() as u64 {
        0 => String::new(),
        packs => format!(
            "\nBytes of {} packs are lost. These files, and what can be done: covey fsck '{volume}'",
            count(packs)
        ),
    };
    format!("{done}{lost}\nNext: covey mount '{volume}' MOUNTPOINT")
}
