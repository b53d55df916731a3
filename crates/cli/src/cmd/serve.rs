//! `covey serve`: a volume, a published tree or a folder for guests, over unix, TCP and vsock sockets, and
//! for virtual machines over vhost-user.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use base::secret::Secret;
use clap::builder::NonEmptyStringValueParser;
use folder::Folder;
use fs::api::{Coherence, Filesystem, Locks};
use guests::server::{LINGER, Options, Server};
use node::fleet::options::FleetOptions;
use node::mount::Mount;
use node::opened::Source;
use node::options::NodeOptions;
use node::shared::making;
use node::volume_dir::VolumeDir;
use node::{limits, log, notify, signals};
use serde::Serialize;
use stream::address::Address;
use stream::hello::Sharing;
use virtio::server::Socket;

use crate::args::{Accept, Reach};
use crate::term::Term;

/// Serves a volume, a published tree or a folder to guests that attach to it; stays until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey serve /srv/volume --on unix:/run/covey.sock\n  \
    covey serve s3://bucket/models@latest --on vsock:5001      for all virtual machines of this host\n  \
    covey serve /srv/volume --on vsock:/run/vm1.sock:5001      for a machine of Firecracker\n  \
    covey serve /srv/folder --many --on tcp:10.0.0.1:7200 --secret-file secret\n  \
    covey serve /srv/volume --on vhost-user:/run/vm1.fs        for one machine of QEMU, over virtiofs\n\n\
    In the guest: covey attach vsock:5001 /mnt, or the small program covey-attach with the same words.\n\
    Over virtiofs the guest needs nothing of Covey: mount -t virtiofs TAG /mnt, with the tag= of QEMU.\n\
    A volume is opened and locked, as by a mount. One that is mounted is served by its mountpoint, as a folder.\n\
    docs/GUESTS.md says what a guest may rely on.")]
pub struct Args {
    /// A volume's folder, ORIGIN@NAME for a published tree, any other folder, or mem: for a volume in memory;
    /// postgres://USER@HOST/DATABASE?volume=NAME or etcd://HOST:2379/?volume=NAME for a shared volume
    source: PathBuf,
    /// Where to listen: unix:PATH, tcp:HOST:PORT, vsock:PORT, vsock:PATH:PORT for a unix socket PATH_PORT, or
    /// vhost-user:PATH for a VMM
    #[arg(long, value_name = "ADDRESS", required = true, value_parser = NonEmptyStringValueParser::new())]
    on: Vec<String>,
    /// The secret that guests must know; needed with tcp. covey fleet secret FILE makes one
    #[arg(long, value_name = "FILE", env = "COVEY_SECRET_FILE", hide_env = true)]
    secret_file: Option<PathBuf>,
    /// For any number of guests at a time, whose kernels then keep neither names nor attributes [default: for
    /// a folder and a tree]
    #[arg(long)]
    many: bool,
    /// Of a folder: for one guest at a time, and nothing else changes the folder
    #[arg(long, conflicts_with = "many")]
    one: bool,
    /// Refuse changes
    #[arg(long)]
    read_only: bool,
    /// For one guest at a time: its kernel may hold written bytes back until close or fsync
    #[arg(long, conflicts_with_all = ["many", "read_only"])]
    writeback: bool,
    /// Whom locks exclude, with many guests: the programs of one guest (local); or of all guests, of other
    /// nodes of a shared volume, and of the host if it is a folder (server). Then each close(2) is a request
    #[arg(long, value_enum, default_value = "local")]
    locks: Locked,
    /// The most guests at a time, where there may be several [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    guests: Option<u32>,
    /// Threads for each connection [default: one per core, 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Option<u32>,
    /// Requests that each guest over a stream may have in flight [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    requests: Option<u16>,
    /// How long a guest whose connection broke is remembered [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    linger: Option<u64>,
    /// virtiofs: how long a guest's kernel keeps names and attributes [default: 1; a tree: for ever]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    keep: Option<u64>,
    /// virtiofs: the tag, for a VMM that asks for it, such as crosvm; QEMU has its own tag=
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    tag: Option<String>,
    #[command(flatten)]
    accept: Accept,
    #[command(flatten)]
    reach: Reach,
    /// Of a tree in an object store: where to keep what was fetched [default: covey/trees in the user's cache
    /// folder]. Of a shared volume: this node's folder [default: covey/shared/ID in the user's state folder]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// Where locks are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Locked {
    /// In each guest's kernel
    Local,
    /// By the server
    Server,
}

/// How long a guest's kernel may keep names and attributes over virtiofs, in seconds, if nothing else is
/// said: as with virtiofsd.
const KEEP_S: u64 = 1;
/// The longest path of a unix socket, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// What runs.
struct Serving {
    server: Server,
    sockets: Vec<Socket>,
    /// Where.
    bound: Vec<String>,
}

#[derive(Serialize)]
struct Served {
    source: String,
    addresses: Vec<String>,
    guests: &'static str,
    read_only: bool,
    locks: &'static str,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let addresses = addresses(args)?;
    let secret = args.secret_file.as_deref().map(Secret::from_file).transpose();
    let secret = secret.map_err(|error| Failure::usage(error.to_string()))?;
    let on_tcp = addresses.iter().any(|address| matches!(address, On::Stream(Address::Tcp(_))));
    if on_tcp && secret.is_none() {
        return Err(Failure::usage("a server on tcp needs a secret")
            .why("whatever reaches the port could read and change everything")
            .next("make one with: covey fleet secret FILE, give it to both ends, and name it: --secret-file FILE"));
    }
    check_virtiofs(args, &addresses)?;
    signals::block();
    limits::check(limits::For::Daemon)?;
    limits::leave_no_core();
    let opened = signals::ending(&format!("opening {}", args.source.display()), || Opened::open(args))?;
    let served = start(args, &opened, secret, &addresses);
    let ended = served.map(|serving| stay(serving, &opened, term));
    // Also after a failure, so that no volume stays locked and unclean.
    let closed = opened.close();
    ended?;
    closed?;
    Ok(0)
}

/// Where to listen.
#[derive(Clone, Debug)]
enum On {
    /// For guests over a stream.
    Stream(Address),
    /// For a VMM.
    VhostUser(PathBuf),
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            On::Stream(address) => address.fmt(f),
            On::VhostUser(path) => write!(f, "vhost-user:{}", path.display()),
        }
    }
}

impl On {
    /// The path of the unix socket, if it is one.
    fn unix_path(&self) -> Option<PathBuf> {
        match self {
            On::Stream(address) => address.unix_path(),
            On::VhostUser(path) => Some(path.clone()),
        }
    }
}

fn addresses(args: &Args) -> Result<Vec<On>> {
    let parse = |text: &String| {
        if let Some(path) = text.strip_prefix("vhost-user:").filter(|path| !path.is_empty()) {
            return Ok(On::VhostUser(PathBuf::from(path)));
        }
        let address: Address =
            text.parse().map_err(|error| Failure::usage(format!("{error}, or vhost-user:PATH")))?;
        match address {
            Address::Vsock { cid: Some(_), port } => Err(Failure::usage(format!("{text} names a guest"))
                .why("a server listens for every guest of its host")
                .next(format!("write --on vsock:{port}"))),
            address => Ok(On::Stream(address)),
        }
    };
    args.on.iter().map(parse).collect()
}

/// Options that would do nothing are refused.
fn check_virtiofs(args: &Args, addresses: &[On]) -> Result<()> {
    let any = |wanted: bool| addresses.iter().any(|on| matches!(on, On::VhostUser(_)) == wanted);
    if !any(true) && (args.keep.is_some() || args.tag.is_some()) {
        let option = if args.keep.is_some() { "--keep" } else { "--tag" };
        return Err(Failure::usage(format!("{option} is for virtiofs"))
            .next(format!("leave {option} out, or serve a VMM too: --on vhost-user:PATH")));
    }
    if !any(false) && args.secret_file.is_some() {
        return Err(Failure::usage("a VMM cannot be asked for a secret")
            .why("vhost-user has no greeting; the mode of the socket says which users may connect")
            .next("leave --secret-file out"));
    }
    let of_streams = [("--requests", args.requests.is_some()), ("--linger", args.linger.is_some())];
    if let Some((option, _)) = of_streams.iter().find(|(_, given)| *given && !any(false)) {
        return Err(Failure::usage(format!("{option} is for guests over a stream"))
            .why("a VMM has queues of its own, and no connection that could break")
            .next(format!("leave {option} out, or serve guests too: --on unix:PATH")));
    }
    if any(true) && args.locks == Locked::Server {
        return Err(Failure::usage("--locks server is for guests over a stream")
            .why("the locks of a guest over virtiofs stay in its kernel")
            .next("leave --locks out, or serve with --on vsock:PORT and covey-attach in the guests"));
    }
    let tag = args.tag.as_deref().unwrap_or_default();
    if tag.len() > virtio::backend::TAG_MAX {
        let (len, most) = (tag.len(), virtio::backend::TAG_MAX);
        return Err(Failure::usage(format!("the tag has {len} bytes")).next(format!("take at most {most}")));
    }
    Ok(())
}

/// What is served.
struct Opened {
    fs: Arc<dyn Filesystem>,
    /// `None`: a folder.
    mount: Option<Mount>,
    name: String,
    /// Tells it from anything else.
    identity: String,
}

impl Opened {
    fn open(args: &Args) -> Result<Opened> {
        let source = match Source::by_word(&args.source)? {
            Some(Source::Published(tree)) => Source::Published(
                tree.accepting(&args.accept.accept())?.reached(&args.reach.reach(), args.cache.as_deref())?,
            ),
            Some(source) => source,
            None if making::is_address(&args.source) => {
                let dir = making::node_folder(&args.source, args.cache.as_deref())?;
                Source::in_folder(dir, FleetOptions::default())
            }
            None => match VolumeDir::open(&args.source) {
                Ok(dir) => Source::in_folder(dir, FleetOptions::default()),
                Err(failure) => return Opened::folder(&args.source, failure),
            },
        };
        // With locks=local, the kernels of guests decide, whatever the volume has.
        let locks = (args.locks == Locked::Server).then_some(Locks::Fleet);
        // Guests over a stream outlive this program. A virtual machine with virtiofs does not find it again.
        let streams = args.on.iter().any(|on| !on.starts_with("vhost-user:"));
        let orphans_stay = if streams { linger(args) } else { Duration::ZERO };
        let options = NodeOptions {
            locks,
            many_kernels: args.many,
            orphans_stay,
            ..NodeOptions::writing("serve to guests")
        };
        let mount = Mount::open(&source, &options)?;
        let name = mount.name();
        let identity = match (source.dir(), mount.as_node().and_then(|node| node.root())) {
            (Some(dir), _) => format!("volume {}", dir.format().id),
            (None, Some(root)) => format!("tree {:x?} {} {}", root.volume, root.name, root.sequence),
            (None, None) => name.clone(),
        };
        Ok(Opened { fs: mount.filesystem(), mount: Some(mount), name, identity })
    }

    /// A folder that is no volume. `failure`: why it is none.
    fn folder(path: &Path, failure: Failure) -> Result<Opened> {
        if !path.is_dir() || path.join("covey.json").exists() {
            return Err(failure);
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::usage(format!("only root can serve the folder {}", path.display()))
                .why("what guests create is given to their users, and their kernels check permissions"));
        }
        let full = path
            .canonicalize()
            .map_err(|error| Failure::io(format!("cannot open {}", path.display()), &error))?;
        let folder = Folder::open(&full)
            .map_err(|error| Failure::io(format!("cannot open {}", full.display()), &error))?;
        if let Some(most) = folder.descriptors() {
            log::line(&format!(
                "{}: each file that guests know takes one of {most} descriptors, which they share: its filesystem gives \
                 no handles, or CAP_DAC_READ_SEARCH is missing",
                full.display()
            ));
        }
        let identity = format!("folder {}", folder.identity());
        Ok(Opened { fs: Arc::new(folder), mount: None, name: full.display().to_string(), identity })
    }

    fn close(self) -> Result<()> {
        drop(self.fs);
        self.mount.map_or(Ok(()), |mount| mount.close())
    }
}

fn linger(args: &Args) -> Duration {
    args.linger.map_or(LINGER, Duration::from_secs)
}

fn start(args: &Args, opened: &Opened, secret: Option<Secret>, addresses: &[On]) -> Result<Serving> {
    let mut options =
        Options::new(&opened.name, opened.identity.as_bytes(), Arc::new(|line: &str| log::line(line)));
    let many = args.many || (opened.mount.is_none() && !args.one);
    options.sharing = if many { Sharing::Many } else { Sharing::One };
    options.secret = secret;
    options.read_only = args.read_only;
    options.writeback = args.writeback;
    options.locks = args.locks == Locked::Server;
    options.about = concat!("covey ", env!("CARGO_PKG_VERSION")).to_owned();
    options.slots = args.requests.unwrap_or(options.slots);
    options.guests = args.guests.map_or(options.guests, |guests| guests as usize);
    options.linger = linger(args);
    options.threads = args.threads.map_or(options.threads, |threads| threads as usize);
    check_one(args, opened, many)?;
    if args.writeback && (many || opened.fs.coherence() != Coherence::Exclusive) {
        return Err(Failure::usage("--writeback is for one guest that alone changes what is served")
            .why(format!("{} is served to any number of guests", opened.name))
            .next("leave --writeback out, or add --one if it is a folder that nothing else changes"));
    }
    if options.locks {
        check_locks(opened, many)?;
    }
    let failed = |error: std::io::Error| Failure::io(format!("cannot serve {}", opened.name), &error);
    let mut server = Server::start(Arc::clone(&opened.fs), options).map_err(failed)?;
    let (mut sockets, mut bound) = (Vec::new(), Vec::new());
    for on in addresses {
        let failed = |error: std::io::Error| not_listening(on, &error);
        match on {
            On::Stream(address) => bound.push(server.listen(address).map_err(failed)?.to_string()),
            On::VhostUser(path) => {
                let keep = Duration::from_secs(args.keep.unwrap_or(KEEP_S));
                let options = virtio::server::Options { keep, tag: args.tag.clone() };
                sockets.push(Socket::listen(server.door(), path, options).map_err(failed)?);
                bound.push(on.to_string());
            }
        }
    }
    Ok(Serving { server, sockets, bound })
}

/// Whether what is served can be for one guest, or for several, as the options say.
fn check_one(args: &Args, opened: &Opened, many: bool) -> Result<()> {
    match opened.fs.coherence() {
        Coherence::Shared if args.one && opened.mount.is_some() => {
            Err(Failure::usage("other nodes change a shared volume too").next("leave --one out"))
        }
        Coherence::Frozen if args.one => Err(Failure::usage("--one is for what can change")
            .why(format!("{} cannot, so it is served to any number of guests", opened.name))
            .next("leave --one out")),
        Coherence::Exclusive if !many && args.guests.is_some() => {
            Err(Failure::usage("--guests is for any number of guests")
                .why(format!("{} is served to one guest at a time", opened.name))
                .next("add --many, or leave --guests out"))
        }
        _ => Ok(()),
    }
}

/// Whether there is anything to lock against.
fn check_locks(opened: &Opened, many: bool) -> Result<()> {
    match opened.fs.coherence() {
        Coherence::Frozen => Err(Failure::usage("--locks server is for what can change")
            .why(format!("{} cannot, so its guests have nothing to lock against one another", opened.name))
            .next("leave --locks out")),
        Coherence::Exclusive if !many => Err(Failure::usage("--locks server is for many guests")
            .why("the kernel of a single guest decides the locks of all its programs")
            .next("add --many, or leave --locks out")),
        Coherence::Exclusive | Coherence::Shared => Ok(()),
    }
}

fn not_listening(on: &On, error: &std::io::Error) -> Failure {
    let failure = Failure::io(format!("cannot listen on {on}"), error);
    if let Some(path) = on.unix_path() {
        let len = path.as_os_str().len();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder {
            _ if len > SOCKET_PATH_MAX => {
                let most = SOCKET_PATH_MAX;
                return failure.next(format!("the path has {len} bytes, and a socket's may have {most}"));
            }
            Some(folder) if !folder.is_dir() => {
                return failure.next(format!("there is no folder {}: make it", folder.display()));
            }
            _ if path.is_dir() || path.is_file() => {
                return failure
                    .next("something else than a socket is there: remove it, or choose another path");
            }
            _ => {}
        }
    }
    match (on, error.raw_os_error()) {
        (_, Some(libc::EADDRINUSE)) => {
            failure.next("another server listens there: end it, or choose another")
        }
        (_, None) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            failure.next("name another path, or remove what is there")
        }
        (On::Stream(Address::Vsock { .. }), Some(libc::EAFNOSUPPORT | libc::ENODEV)) => failure.next(
            "this kernel has no vsock: load it with modprobe vhost_vsock, or use a unix socket: \
             --on vsock:PATH:PORT",
        ),
        _ => failure,
    }
}

/// Serves until a signal arrives.
fn stay(serving: Serving, opened: &Opened, term: Term) {
    let Serving { mut server, sockets, bound: addresses } = serving;
    let guests = match server.sharing() {
        Sharing::Frozen => "any number, and nothing changes",
        Sharing::One => "one at a time",
        Sharing::Many => "any number",
    };
    let (locks, shown) = match server.has_locks() {
        true => ("server", ", locks exclude all"),
        false => ("local", ""),
    };
    let line = format!("serves {} to guests ({guests}{shown}) on {}", opened.name, addresses.join(", "));
    notify::ready(&line);
    if term.is_json() {
        let source = opened.name.clone();
        let served = Served { source, addresses, guests, read_only: server.read_only(), locks };
        term.result(&served, String::new);
    } else {
        log::line(&format!("{line}; Ctrl-C ends it"));
    }
    let signal = signals::next();
    log::line(&format!("signal {signal}: ending"));
    notify::stopping();
    sockets.iter().for_each(Socket::end);
    server.end();
}
