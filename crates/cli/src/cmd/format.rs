//! `covey format`: creates an empty volume.

use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use node::origins::Reach;
use node::shared::making;
use node::volume_dir::{ORIGIN_INSIDE, SHARED_VERSION, VolumeDir};
use node::{opened, origins};
use serde::Serialize;

use crate::term::Term;

/// Makes an empty volume
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey format /srv/volume\n  covey format /ssd/volume --origin file:/big-disk/blobs      names and new bytes on the SSD, blobs on the big disk\n  \
    covey format /srv/volume --origin s3://bucket/prefix --region eu-central-1\n  \
    covey format /srv/volume --origin s3://bucket/prefix --endpoint http://127.0.0.1:9000\n  \
    covey format 'postgres://covey@db/covey?volume=work' --origin s3://bucket/work   many nodes write\n  \
    covey format 'etcd://db1,db2,db3/?volume=work' --origin s3://bucket/work    the same, names in etcd\n\n\
    The database's password comes from COVEY_PG_PASSWORD, PGPASSWORD or PGPASSFILE.\n\
    For etcd it comes from ETCD_PASSWORD or ETCD_PASSFILE.\n\
    Keys come from the environment (AWS_ACCESS_KEY_ID, ...) or ~/.aws/credentials, at every mount; the volume keeps none.\n\
    A volume in memory needs no format: covey mount mem: MOUNTPOINT"
)]
pub struct Args {
    /// The volume's folder: empty, or not there yet; or postgres://USER@HOST/DATABASE?volume=NAME or
    /// etcd://HOST:2379/?volume=NAME for a shared volume, whose names are in that database
    volume: PathBuf,
    #[command(flatten)]
    place: Place,
}

/// Where a new volume's blobs live for good.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Place {
    /// Where blobs live for good: file:DIR, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX [default: inside the volume]
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Where the object store is, when it is not the cloud's own: http://127.0.0.1:9000
    #[arg(long, value_name = "URL", requires = "origin")]
    endpoint: Option<String>,
    /// The bucket's region
    #[arg(long, requires = "origin")]
    region: Option<String>,
}

impl Place {
    fn reach(&self) -> Reach {
        Reach { endpoint: self.endpoint.clone(), region: self.region.clone() }
    }

    /// Whether an origin was named.
    pub fn is_named(&self) -> bool {
        self.origin.is_some()
    }
}

#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(with = "api::raw_path")]
    volume: PathBuf,
    id: String,
    format: u32,
    origin: String,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    if making::is_address(&args.volume) {
        return format_shared(args, term);
    }
    let dir = format(&args.volume, &args.place)?;
    let outcome = Outcome {
        volume: dir.path().to_owned(),
        id: dir.format().id.clone(),
        format: dir.format().format,
        origin: dir.origin(),
    };
    let shown = outcome.volume.display();
    term.result(&outcome, || format!("Made the volume {shown}. Next: covey mount {shown} MOUNTPOINT"));
    Ok(0)
}

fn format_shared(args: &Args, term: Term) -> Result<u8> {
    let made = making::format(&args.volume, args.place.origin.as_deref(), &args.place.reach())?;
    let outcome =
        SharedOutcome { volume: made.names, id: made.id, format: SHARED_VERSION, origin: made.origin };
    term.result(&outcome, || {
        let shown = &outcome.volume;
        format!("Made the shared volume {shown}. Next, on every node: covey mount '{shown}' MOUNTPOINT")
    });
    Ok(0)
}

#[derive(Debug, Serialize)]
struct SharedOutcome {
    volume: String,
    id: String,
    format: u32,
    origin: String,
}

/// Creates a volume.
pub fn format(path: &Path, place: &Place) -> Result<VolumeDir> {
    if path == Path::new("mem:") {
        return Err(Failure::usage("a volume in memory needs no format").next("covey mount mem: MOUNTPOINT"));
    }
    let home = match &place.origin {
        None => ORIGIN_INSIDE.into(),
        Some(text) => origins::home_at(path, text, &place.reach())?,
    };
    VolumeDir::create(path, home, opened::fill).map_err(|failure| match failure.code.as_ref() {
        "disk-full" => failure
            .map_next("a new volume takes 32 MiB for its log and a reserve: free some room on that disk"),
        _ => failure,
    })
}
