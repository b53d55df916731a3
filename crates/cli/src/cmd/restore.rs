//! `covey restore`: turns a published tree into a writable volume with the same origin.
//!
//! The old volume must stop writing. Two volumes that store to one origin would delete each other's blobs. So
//! the new volume claims the origin, and the old one notices that within seconds. If the old volume was not
//! seen to end, the command waits ([`SETTLE`]). If it is not certain that the old volume is gone, the user
//! must confirm it.
//!
//! The new volume is a folder, or a shared volume with its names in a database ([`restoring`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::control::Tick;
use api::error::{Failure, Result};
use api::text::{bytes, count};
use blob::{BlobSource, Origin};
use meta::Sqlite;
use node::claim::Writer;
use node::frozen::Named;
use node::opened;
use node::origins;
use node::publisher;
use node::publisher::{Publisher, host};
use node::shared::{making, restoring};
use node::volume_dir::VolumeDir;
use origin::Access;
use origin::claim::{Kind, SETTLE};
use serde::Serialize;
use tree::root::{Root, hex};
use tree::{Owner, Tree, TreeError};

use crate::args::{Accept, Reach};
use crate::term::Term;

/// Makes a writable volume of a published tree, after the old one is gone
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey restore file:/backup/blobs@latest /srv/volume\n  covey restore --take-over file:/backup/blobs@nightly /srv/volume\n  \
    covey restore s3://bucket/work@nightly 'postgres://covey@db/covey?volume=work'      a shared volume, after its database was lost\n\n\
    The new volume uses the same origin and no byte is copied. It becomes the origin's owner: the old volume, should it still be\n\
    there, can only be read from then on."
)]
pub struct Args {
    /// What was published: ORIGIN@NAME
    #[arg(value_name = "ORIGIN@NAME")]
    tree: String,
    /// The new volume's folder: empty, or not there yet; or postgres://USER@HOST/DATABASE?volume=NAME or
    /// etcd://HOST:2379/?volume=NAME for a shared volume
    volume: PathBuf,
    /// The old volume is not in use any more, though that cannot be seen from here
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    accept: Accept,
}

#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(with = "api::raw_path")]
    volume: PathBuf,
    id: String,
    origin: String,
    name: String,
    sequence: u64,
    files: u64,
    bytes: u64,
    /// Number of rows of names.
    rows: u64,
    /// Number of owners that the origin has had.
    generation: u64,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let started = base::time::monotonic();
    let named = Named::parse(&args.tree)?.ok_or_else(|| {
        Failure::usage(format!("{} names no published tree", args.tree))
            .next("write ORIGIN@NAME, for example file:/srv/volume/blobs@latest")
    })?;
    let named = named.accepting(&args.accept.accept())?.reached(&args.reach.reach(), None)?;
    let (root, origin) = named.root(Access::ReadWrite)?;
    if let Some(source) = &root.source {
        let what = format!("{named} cannot be restored as a volume");
        return Err(node::foreign::not_in_origin(&what, source));
    }
    let owner = Owner::read(&*origin).map_err(|error| named.failure(error))?.ok_or_else(|| {
        let what = "its record `owner` is missing".to_owned();
        named.failure(TreeError::Damaged(what))
    })?;
    let gone = is_gone(&owner, &origin)?;
    if !gone && !args.take_over {
        return Err(may_live(&owner));
    }
    let mut progress = term.progress("restore");
    let mut tick = |tick: Tick| crate::cmd::clone::show(&mut progress, &tick);
    let mut done = (0, 0);
    let id = hex(&root.volume);
    let volume = if making::is_address(&args.volume) {
        let (named, root, origin) = (&named, &root, &origin);
        let restore = restoring::Restore { named, root, origin, owner, wait: !gone };
        let restored = restore.make(&args.volume, &mut tick)?;
        done = (restored.rows, restored.generation);
        PathBuf::from(restored.made.names)
    } else {
        let restore = Restore { named: &named, root: &root, origin: &origin, owner, wait: !gone };
        let home = origins::sized(&args.volume, named.home.clone())?;
        let dir = VolumeDir::create_as(&args.volume, &id, home, |dir| {
            done = restore.fill(dir, &mut tick)?;
            Ok(())
        })?;
        dir.path().to_owned()
    };
    progress.done();
    let outcome = Outcome {
        volume,
        id,
        origin: named.home.origin.clone(),
        name: root.name.clone(),
        sequence: root.sequence,
        files: root.inodes,
        bytes: root.bytes,
        rows: done.0,
        generation: done.1,
        seconds: (base::time::monotonic() - started).as_secs_f64(),
    };
    term.result(&outcome, || {
        let shown = outcome.volume.display();
        format!(
            "Restored {} ({}): {} files and folders, {}, in {:.1} s. Next: covey mount {shown} MOUNTPOINT",
            outcome.name,
            outcome.sequence,
            count(outcome.files),
            bytes(outcome.bytes),
            outcome.seconds
        )
    });
    Ok(0)
}

/// Whether the old volume is certainly gone: its folder was on this machine and no longer exists, or its
/// database answers and does not have it. If the volume is in use, this is an error.
fn is_gone(owner: &Owner, origin: &Arc<dyn Origin>) -> Result<bool> {
    if let Some(gone) = restoring::is_gone(owner)? {
        return Ok(gone);
    }
    let Some((machine, folder)) = owner.note.split_once(':') else { return Ok(false) };
    if machine != host() {
        return Ok(false);
    }
    let Ok(dir) = VolumeDir::open(Path::new(folder)) else { return Ok(true) };
    // Another volume may now be at this path.
    let same = Publisher::of(&dir)?.and_then(|publisher| publisher.owner()) == Some(owner.owner);
    match dir.holder()? {
        Some(holder) if same => {
            Err(dir.in_use(Some(holder)).why(format!("it publishes to {}", origin.describe())))
        }
        _ => Ok(!same),
    }
}

fn may_live(owner: &Owner) -> Failure {
    Failure::new("may-be-alive", format!("the origin is the volume's at {}", owner.note))
        .why("if that volume is still written to, the two would delete each other's blobs")
        .next("make sure that it is not mounted any more, then add --take-over: from then on it can only be read")
        .next("to look at what was published, nothing has to be taken over: covey mount ORIGIN@NAME MOUNTPOINT")
}

struct Restore<'a> {
    named: &'a Named,
    root: &'a Root,
    origin: &'a Arc<dyn Origin>,
    owner: Owner,
    /// The old owner may still be running.
    wait: bool,
}

impl Restore<'_> {
    /// Returns the number of rows, and the generation.
    fn fill(&self, dir: &VolumeDir, tick: &mut dyn FnMut(Tick)) -> Result<(u64, u64)> {
        let failed = |error: TreeError| self.named.failure(error);
        let store =
            Sqlite::open(&dir.meta().join("names.db")).map_err(|error| failed(TreeError::Store(error)))?;
        let source: Arc<dyn BlobSource> = self.origin.clone();
        let of = self.root.top.rows;
        let rows = tree::restore::restore(&Tree::new(source, self.root), &store, &mut |done| {
            tick(Tick { done, of, what: format!("{} rows of names", count(done)) });
            true
        });
        let rows = rows.map_err(failed)?;
        let writer = Writer::restored(dir, self.origin.clone());
        let before = writer.restore()?;
        let me = Publisher::make(dir)?;
        let (note, key) = (publisher::place_of(dir), me.signer()?.key());
        let owner = self.owner.clone();
        let owner = owner.hand_over(&**self.origin, me.owner().unwrap_or_default(), note, key);
        let owner = owner.map_err(failed)?;
        // Without a claim it is unknown whether the old volume was closed. It was created by an earlier
        // program, or it was never opened.
        if before.as_ref().is_some_and(|before| before.kind != Kind::Closed)
            || (before.is_none() && self.wait)
        {
            tick(Tick { done: of, of, what: "waiting until the old volume has noticed".to_owned() });
            std::thread::sleep(SETTLE);
        }
        // Until it noticed, the old volume could have published again, or deleted blobs that the new one
        // needs.
        self.named.is_still(self.root, &**self.origin)?;
        writer.hold_published(&store)?;
        drop(store);
        opened::make_journal(dir, self.origin.clone())?;
        // Nobody writes until it is mounted.
        writer.close();
        Ok((rows, owner.generation))
    }
}
