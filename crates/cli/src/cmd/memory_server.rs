//! `covey memory-server`: restores the memory of virtual machines from a snapshot, page by page.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use base::Ino;
use clap::builder::NonEmptyStringValueParser;
use fs::Errno;
use fs::api::{FileKind, Filesystem};
use memory::clone::{Level, Log};
use memory::list::ListFile;
use memory::server::{Options, Server};
use memory::source::{Plain, Source};
use node::{limits, log, notify, signals};
use serde::Serialize;
use stream::address::Address;
use stream::socket::Listener;

use crate::args::fleet::Fleet;
use crate::reading::{Opened, Way, split};
use crate::target::is_volume;
use crate::term::Term;

/// Restores the memory of virtual machines from a snapshot, page by page; stays until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey memory-server /mnt/covey/vm/memory --on unix:/run/vm.sock\n  \
    covey memory-server s3://bucket/vms@latest:/base/memory --on unix:/run/vm.sock --record base.list\n  \
    covey memory-server s3://bucket/vms@latest:/memory --on unix:/run/vm.sock --join node1:7100 --secret-file s\n\n\
    A VMM connects as to Firecracker's handler of page faults: in PUT /snapshot/load,\n  \
    \"mem_backend\": {\"backend_type\": \"Uffd\", \"backend_path\": \"/run/vm.sock\"}\n\n\
    One server serves any number of machines from the same file. The first signal ends it\n\
    when every machine has all of its memory; the second ends it at once.\n\
    docs/SNAPSHOTS.md says what a machine sees when something breaks.")]
pub struct Args {
    /// A file, also on a mount; ORIGIN@NAME:/PATH in a published tree; VOLUME:/PATH in a volume
    source: PathBuf,
    /// Where VMMs connect: unix:PATH
    #[arg(long, value_name = "ADDRESS", required = true, value_parser = NonEmptyStringValueParser::new())]
    on: Vec<String>,
    /// Keep the list of what machines touch after their start in this file. The next ones get that before
    /// they ask for it [default: in memory, as long as the server runs]
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The most machines at a time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    clones: u32,
    /// Give a machine up when the file cannot be read for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    patience: u64,
    #[command(flatten)]
    way: Way,
    #[command(flatten)]
    fleet: Fleet,
}

#[derive(Serialize)]
struct Serving {
    source: String,
    bytes: u64,
    addresses: Vec<String>,
    listed_bytes: u64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let addresses = args.on.iter().map(|text| address(text)).collect::<Result<Vec<_>>>()?;
    args.record.as_deref().map_or(Ok(()), check_record)?;
    signals::block();
    limits::check(limits::For::Daemon)?;
    limits::leave_no_core();
    let snapshot = signals::ending(&format!("opening {}", args.source.display()), || Snapshot::open(args))?;
    let served = start(args, &snapshot, addresses).map(|server| stay(server, &snapshot, &args.on, term));
    // Also after a failure, so that no volume stays locked and no fleet waits for this node.
    let closed = snapshot.opened.map_or(Ok(()), |opened| opened.close(|_| Ok(())));
    served?;
    closed?;
    Ok(0)
}

fn address(text: &str) -> Result<Address> {
    match text.parse::<Address>() {
        Ok(address @ Address::Unix(_)) => Ok(address),
        Ok(_) => Err(Failure::usage(format!("{text} is no unix socket"))
            .why("a VMM passes a descriptor, and only a unix socket carries one")
            .next("write --on unix:PATH")),
        Err(error) => Err(Failure::usage(error.to_string()).next("write --on unix:PATH")),
    }
}

/// A list that cannot be stored is noticed now, and not when the first machine has run for a while.
fn check_record(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        return Err(
            Failure::usage(format!("{} is a folder", path.display())).next("name a file: --record FILE")
        );
    }
    if !folder.is_dir() {
        return Err(Failure::usage(format!("there is no folder {}", folder.display()))
            .next("create it, or name another file: --record FILE"));
    }
    // The list replaces the file, which may be the snapshot itself.
    if memory::list::is_another_file(path) {
        return Err(Failure::usage(format!(
            "{} is there, and is no list of a memory server",
            path.display()
        ))
        .next("name another file: --record FILE"));
    }
    Ok(())
}

/// The file that is served.
struct Snapshot {
    source: Arc<dyn Source>,
    name: String,
    /// Tells it from any other, for the list.
    identity: String,
    /// `None`: a file that the kernel reads.
    opened: Option<Opened>,
}

impl Snapshot {
    fn open(args: &Args) -> Result<Snapshot> {
        let text = &args.source;
        let is_tree = split(text).is_some();
        let fleet = args.fleet.options();
        if fleet.is_on() && !is_tree {
            return Err(Failure::usage("only a published tree is read as a node of a fleet")
                .next("write ORIGIN@NAME:/PATH, or leave --join and --listen out"));
        }
        if !is_tree && is_file(text)? {
            return Snapshot::plain(text);
        }
        let opened = Opened::joined(text, &args.way, &fleet, "serve memory")?;
        match Snapshot::within(&opened) {
            Ok(snapshot) => Ok(Snapshot { opened: Some(opened), ..snapshot }),
            Err(failure) => opened.close(|_| Err(failure)),
        }
    }

    fn plain(path: &Path) -> Result<Snapshot> {
        let failed = |error: &io::Error| Failure::io(format!("cannot read {}", path.display()), error);
        let source = Plain::open(path).map_err(|error| failed(&error))?;
        let stat = path.metadata().map_err(|error| failed(&error))?;
        let identity = format!("file {}.{:09}", stat.mtime(), stat.mtime_nsec());
        Snapshot::not_empty(Arc::new(source), path.display().to_string(), identity)
    }

    fn within(opened: &Opened) -> Result<Snapshot> {
        let (file, name) = (opened.find()?, opened.shown());
        if file.kind != FileKind::File {
            return Err(Failure::usage(format!("{name} is not a file"))
                .next("name the file with the memory: TREE:/PATH"));
        }
        let mtime = file.mtime.as_nanos();
        let identity = match opened.node.root() {
            Some(root) => format!("tree {:x?} {} {} {mtime}", root.volume, root.name, file.ino.0),
            None => format!("volume {} {mtime}", file.ino.0),
        };
        let source = InTree { fs: opened.node.filesystem(), ino: file.ino, len: file.size };
        Snapshot::not_empty(Arc::new(source), name, identity)
    }

    fn not_empty(source: Arc<dyn Source>, name: String, identity: String) -> Result<Snapshot> {
        if source.is_empty() {
            return Err(Failure::usage(format!("{name} is empty")).next("name the file with the memory"));
        }
        Ok(Snapshot { source, name, identity, opened: None })
    }
}

/// Whether a text names a file that the kernel reads.
fn is_file(text: &Path) -> Result<bool> {
    match text.metadata() {
        Ok(stat) if stat.is_dir() && !is_volume(text)? => {
            Err(Failure::usage(format!("{} is a folder", text.display()))
                .next("name the file with the memory"))
        }
        Ok(stat) => Ok(!stat.is_dir()),
        // VOLUME:/PATH is no file.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(false),
        Err(error) => Err(Failure::io(format!("cannot open {}", text.display()), &error)),
    }
}

/// A file of a tree or a volume, read without a mount.
struct InTree {
    fs: Arc<dyn Filesystem>,
    ino: Ino,
    len: u64,
}

impl Source for InTree {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            let count = match self.fs.read(self.ino, offset, buf) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                // The object behind it was replaced, and its bytes are gone for good.
                Err(Errno::ESTALE) => return Err(io::Error::new(ErrorKind::NotFound, "its bytes are gone")),
                Err(errno) => return Err(io::Error::from_raw_os_error(errno.0)),
            };
            offset += count as u64;
            buf = &mut buf[count..];
        }
        Ok(())
    }
}

fn start(args: &Args, snapshot: &Snapshot, addresses: Vec<Address>) -> Result<Server> {
    let say: Log = Arc::new(|level, line: &str| match level {
        Level::Info => log::line(line),
        Level::Warn => log::warn(line),
        Level::Error => log::error(line),
    });
    let mut options = Options::new(say);
    options.clones = args.clones as usize;
    options.patience = Duration::from_secs(args.patience);
    let list = |path: &PathBuf| ListFile {
        path: path.clone(),
        size: snapshot.source.len(),
        identity: snapshot.identity.clone(),
    };
    options.list = args.record.as_ref().map(list);
    let mut server = Server::start(Arc::clone(&snapshot.source), options)
        .map_err(|error| Failure::io("cannot start the server".to_owned(), &error))?;
    for address in addresses {
        let failed = |error: io::Error| {
            let failure = Failure::io(format!("cannot listen on {address}"), &error);
            match error.kind() {
                ErrorKind::AddrInUse => {
                    failure.next("another server listens there: end it, or choose another path")
                }
                ErrorKind::AlreadyExists => failure.next("name another path, or remove what is there"),
                _ => failure,
            }
        };
        if let Listener::Unix(listener, path) = Listener::bind(&address).map_err(failed)? {
            server.listen(listener, path).map_err(failed)?;
        }
    }
    Ok(server)
}

/// Serves until a signal arrives.
fn stay(mut server: Server, snapshot: &Snapshot, addresses: &[String], term: Term) {
    let (source, bytes) = (snapshot.name.clone(), snapshot.source.len());
    let line = format!("serves the memory {source}, {} MiB, on {}", bytes >> 20, addresses.join(", "));
    notify::ready(&line);
    if term.is_json() {
        let (addresses, listed_bytes) = (addresses.to_vec(), server.list().1);
        term.result(&Serving { source, bytes, addresses, listed_bytes }, String::new);
    } else {
        log::line(&format!("{line}; Ctrl-C ends it"));
    }
    let signal = signals::next();
    log::line(&format!("signal {signal}: ending"));
    notify::stopping();
    server.close();
    if server.clones() > 0 {
        bring_the_rest(&server);
    }
    server.end();
}

/// A machine that misses memory would wait for it for ever.
fn bring_the_rest(server: &Server) {
    let clones = server.clones();
    log::line(&format!(
        "brings the rest of their memory to {clones} machines; another signal ends it at once"
    ));
    let Ok(rest) = server.complete() else {
        return log::error("no thread can be started: the machines that run miss memory. End them");
    };
    while !rest.is_finished() {
        if signals::next_within(Some(Duration::from_millis(100))) {
            return log::warn("ends at once: a machine that touches memory it does not have waits for ever");
        }
    }
    if let Ok(lacking @ 1..) = rest.join() {
        log::error(&format!("{lacking} machines could not be given all of their memory"));
    }
}
