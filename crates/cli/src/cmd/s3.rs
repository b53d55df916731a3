//! `covey s3`: volumes and published trees as buckets of an S3 endpoint, without a mount.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use clap::builder::NonEmptyStringValueParser;
use gateway::server::{Bound, Options, Server, check_name};
use node::mount::Mount;
use node::opened::Source;
use node::options::NodeOptions;
use node::read_through::ReadThrough;
use node::volume_dir::VolumeDir;
use node::{limits, log, notify, signals};
use serde::Serialize;

use crate::args::foreign::Foreign;
use crate::args::{Accept, Reach};
use crate::buckets;
use crate::term::Term;

/// Serves volumes and published trees to S3 clients, each as a bucket; stays until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey s3 --listen 127.0.0.1:9878 --keys keys.toml data=/srv/volume\n  \
    covey s3 --listen 0.0.0.0:9878 --tls-cert c.pem --tls-key k.pem --keys keys.toml data=/srv/volume nightly=s3://bucket/prefix@nightly\n  \
    covey s3 --keys keys.toml --revalidate 5s models=s3://models/v1 --endpoint http://10.0.0.5:9000\n  \
    aws --endpoint-url http://127.0.0.1:9878 s3 ls s3://data/\n\n\
    The file of keys belongs to you and has mode 600:\n  \
    [[key]]\n  access_key = \"READER\"\n  secret_key = \"at least sixteen characters\"\n  buckets = { data = \"read\" }      or \"write\"; \"*\" stands for all buckets\n\n\
    A volume is opened and locked, as by a mount. A volume that is mounted is served by its mount: covey mount --s3.")]
pub struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9878")]
    listen: String,
    /// The file of keys
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    /// Use TLS: the certificate and its chain, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key to it
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A name of this machine; requests to BUCKET.NAME are for that bucket
    #[arg(long, value_name = "NAME")]
    domain: Vec<String>,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    connections: u32,
    /// Cut a client that stands still for so long within a request
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    patience: u64,
    /// NAME=VOLUME for a volume's folder, NAME=ORIGIN@TREE for a published tree, NAME=s3://BUCKET[/PREFIX]
    /// for a bucket that Covey did not write, NAME=mem: for a volume in memory
    #[arg(value_name = "NAME=SOURCE", required = true, value_parser = NonEmptyStringValueParser::new())]
    buckets: Vec<String>,
    #[command(flatten)]
    accept: Accept,
    #[command(flatten)]
    reach: Reach,
    /// Of a tree or a bucket in an object store: where to keep what was fetched [default: covey/trees in the
    /// user's cache folder]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    foreign: Foreign,
}

#[derive(Serialize)]
struct Serving {
    address: String,
    buckets: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let sources = args.buckets.iter().map(|text| source(text, args)).collect::<Result<Vec<_>>>()?;
    check(&sources, args)?;
    signals::block();
    limits::check(limits::For::Daemon)?;
    limits::leave_no_core();
    let bound = bind(args)?;
    let mut opened = Opened::default();
    let made = signals::ending("opening the buckets", || opened.open(&sources, args));
    let served = made.and_then(|(made, foreign)| bound.serve(made, foreign, buckets::log()));
    let ended = served.map(|server| stay(server, &sources, term));
    // Also after a failure, so that no volume stays locked and unclean.
    let mut closed = Ok(());
    for mount in &opened.mounts {
        closed = closed.and(mount.close());
    }
    opened.foreign.iter().for_each(|bucket| bucket.close());
    ended?;
    closed?;
    Ok(0)
}

fn bind(args: &Args) -> Result<Bound> {
    let mut options =
        Options { listen: args.listen.clone(), domains: args.domain.clone(), ..Options::default() };
    options.tls = args.tls_cert.clone().zip(args.tls_key.clone());
    options.limits.connections = args.connections as usize;
    options.limits.patience = Duration::from_secs(args.patience);
    let bound = Bound::new(options, &args.keys)?;
    bound.warning().iter().for_each(|line| log::warn(line));
    Ok(bound)
}

/// What a bucket serves.
enum Content {
    Own(Source),
    /// A bucket that Covey did not write.
    Foreign(String),
}

/// A bucket's name and its source.
fn source(text: &str, args: &Args) -> Result<(String, Content)> {
    let (name, source) = text.split_once('=').ok_or_else(|| {
        Failure::usage(format!("{text} names no bucket"))
            .next("write NAME=VOLUME or NAME=ORIGIN@TREE, like data=/srv/volume")
    })?;
    check_name(name)?;
    if ReadThrough::claims(source) {
        return Ok((name.to_owned(), Content::Foreign(source.to_owned())));
    }
    let source = match Source::by_word(Path::new(source))? {
        Some(Source::Published(tree)) => Source::Published(
            tree.accepting(&args.accept.accept())?.reached(&args.reach.reach(), args.cache.as_deref())?,
        ),
        Some(source) => source,
        None => Source::Folder(VolumeDir::open(Path::new(source))?),
    };
    Ok((name.to_owned(), Content::Own(source)))
}

/// Checks what must hold for all sources together.
fn check(sources: &[(String, Content)], args: &Args) -> Result<()> {
    for (at, (name, _)) in sources.iter().enumerate() {
        if sources.iter().skip(at + 1).any(|(other, _)| other == name) {
            return Err(Failure::usage(format!("two buckets are called {name}")));
        }
    }
    let foreign = sources.iter().filter(|(_, from)| matches!(from, Content::Foreign(_))).count();
    args.foreign.check(foreign)
}

/// What is open, also after a failure.
#[derive(Default)]
struct Opened {
    mounts: Vec<Mount>,
    foreign: Vec<Arc<ReadThrough>>,
}

type AllMade = (Vec<gateway::bucket::Made>, Vec<gateway::foreign::Made>);

impl Opened {
    fn open(&mut self, sources: &[(String, Content)], args: &Args) -> Result<AllMade> {
        let (mut made, mut foreign) = (Vec::new(), Vec::new());
        for (name, from) in sources {
            match from {
                Content::Own(source) => {
                    let mount = Mount::open(source, &NodeOptions::writing("serve over S3"))?;
                    made.push(buckets::made(name, mount.filesystem(), None, !mount.mode().writes()));
                    self.mounts.push(mount);
                }
                Content::Foreign(text) => {
                    let options = args.foreign.options(args.reach.reach(), args.cache.clone())?;
                    let bucket = Arc::new(ReadThrough::open(text, &options)?);
                    foreign.push(gateway::foreign::Made {
                        name: name.clone(),
                        upstream: Arc::new(buckets::Foreign(bucket.clone())),
                        revalidate: args.foreign.revalidate(),
                    });
                    self.foreign.push(bucket);
                }
            }
        }
        Ok((made, foreign))
    }
}

/// Serves until a signal arrives.
fn stay(mut server: Server, sources: &[(String, Content)], term: Term) {
    let address = server.address();
    let buckets: Vec<String> = sources.iter().map(|(name, _)| name.clone()).collect();
    let line = format!("serves the buckets {} to S3 clients on {address}", buckets.join(", "));
    notify::ready(&line);
    if term.is_json() {
        term.result(&Serving { address: address.to_string(), buckets }, String::new);
    } else {
        log::line(&format!("{line}; Ctrl-C ends it"));
    }
    let signal = signals::next();
    log::line(&format!("signal {signal}: ending"));
    notify::stopping();
    server.end();
}
