//! Properties of this machine that decide how fast a mount can be, and which settings suit which use.
//!
//! docs/PERFORMANCE.md has the same advice with the figures behind it. Here it is adapted to this machine. A
//! finding is a note only if following it would change something. Each note and tip ends with a command.

use std::fs;
use std::path::Path;

use api::control::{ControlAddress, Request};
use api::status::Status;
use api::status::remote_side::CacheStatus;
use api::text::bytes;
use base::size::MIB;
use fuse::mount::Mounted;
use node::control;

use super::{Check, note, ok, tip, wrong};

/// The environment variable that sets the number of threads that read requests.
const READERS: &str = "COVEY_FUSE_READERS";
/// The memory in bytes that a daemon needs to run well: its tables, the rows of the journal, and the request
/// buffers.
const AT_EASE: u64 = 256 * MIB;
/// Pages in one request: one mebibyte. Requests are never larger.
const PAGES: u64 = 256;

/// The relevant properties of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    cores: usize,
    /// Bytes of memory, and how many of them are available to programs.
    memory: Option<(u64, u64)>,
    /// Whether FUSE over io_uring is enabled. `None`: this kernel does not have it.
    pub uring: Option<bool>,
}

impl Machine {
    /// The properties of this machine.
    pub fn here() -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine { cores, memory: memory(&text), uring: fuse::uring::switched_on() }
    }
}

/// Total and available memory of /proc/meminfo, in bytes.
fn memory(text: &str) -> Option<(u64, u64)> {
    let line = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some((line("MemTotal")?, line("MemAvailable")?))
}

/// Checks cores, memory, and the largest request.
pub fn machine(of: &Machine) -> Vec<Check> {
    let readers = std::env::var(READERS).ok();
    let limit = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok();
    vec![cores(of, readers.as_deref()), in_memory(of), pages(limit.as_deref())]
}

fn cores(of: &Machine, readers: Option<&str>) -> Check {
    let cores = of.cores;
    let asked = readers.and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(0);
    if asked > cores {
        let found = format!(
            "{cores}, and {READERS} asks for {asked} readers: more than cores only take processor time"
        );
        return note("cores", found, format!("unset {READERS}"));
    }
    let served = match (of.uring, asked) {
        (Some(true), _) => "a ring for each".to_owned(),
        (_, 0) => "a reader thread for each".to_owned(),
        (_, asked) => format!("{asked} reader threads, as {READERS} says"),
    };
    ok("cores", format!("{cores}: a mount has {served}"))
}

fn in_memory(of: &Machine) -> Check {
    match of.memory {
        None => ok("memory", "its amount cannot be read"),
        Some((total, free)) if free < AT_EASE => note(
            "memory",
            format!("{} of {} are free; a mount takes up to 100 MiB", bytes(free), bytes(total)),
            "covey mount --transport classic --readers 1 -o read_ahead=128 ...   (and see memory-bound below)",
        ),
        Some((total, free)) => ok("memory", format!("{} of {} are free", bytes(free), bytes(total))),
    }
}

/// Checks the largest request. `limit` is the text of the kernel's setting. Before Linux 6.13 the setting
/// does not exist, and the limit is 256 for everybody.
fn pages(limit: Option<&str>) -> Check {
    match limit.and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(pages @ ..PAGES) => note(
            "requests",
            format!("carry at most {}: large files take more round trips", bytes(pages * 4096)),
            format!("sysctl -w fs.fuse.max_pages_limit={PAGES}   (as root; for mounts made after it)"),
        ),
        _ => ok("requests", "carry up to 1.0 MiB"),
    }
}

/// Improvements for a mount that answers, based on its daemon's status.
pub fn of_mount(mount: &Mounted, status: &Status, machine: &Machine) -> Vec<Check> {
    let transport = status
        .served
        .as_ref()
        .and_then(|served| transport_of(&mount.path, &mount.source, &served.transport, machine.uring));
    let cache = status.remote_side.as_ref().and_then(|remote_side| cache_of(&mount.path, &remote_side.cache));
    transport.into_iter().chain(cache).collect()
}

/// A finding if the cache cannot keep anything.
fn cache_of(path: &Path, cache: &CacheStatus) -> Option<Check> {
    cache.kept_out.then(|| {
        wrong(
            "cache",
            format!(
                "the cache of {} keeps nothing: its disk has less than {} free",
                path.display(),
                bytes(cache.floor_bytes)
            ),
            "free some room on that disk, or mount with a smaller -o cache_floor=SIZE",
        )
    })
}

/// Whether the mount's blobs come over a network, according to its daemon.
pub fn is_remote(mount: &Mounted) -> bool {
    let address = ControlAddress::of_source(Path::new(&mount.source));
    let status: Option<Status> = control::ask(&address, &Request::Status, &mut |_| ()).ok();
    status.is_some_and(|status| status.remote_side.is_some())
}

fn transport_of(path: &Path, source: &str, transport: &str, uring: Option<bool>) -> Option<Check> {
    let place = path.display();
    (transport != "uring" && uring == Some(true)).then(|| {
        note(
            "transport",
            format!(
                "{place} was mounted over /dev/fuse, and io_uring is on by now: quicker in nearly every way"
            ),
            format!("covey umount {place} && covey mount -d {source} {place}"),
        )
    })
}

/// Tips: which settings suit which use.
pub fn uses(of: &Machine) -> Vec<Check> {
    let how = if of.uring.is_some() { "--transport auto" } else { "--transport classic" };
    let many = of.cores > 4;
    let tight = of.memory.is_some_and(|(total, _)| total < 2048 * MIB);
    vec![
        tip(
            "read-heavy",
            "what was read once is the kernel's; only first touches cost, and a frozen mount spares what is left",
            format!(
                "covey mount {how} -o frozen,read_ahead=1024 ...   (without frozen if anything is to be written)"
            ),
        ),
        tip(
            "write-heavy",
            "appends and large files: the kernel gathers writes (50 appends are 3 requests, else 100)",
            format!("covey mount {how} -o writeback=on ...   (the default)"),
        ),
        tip(
            "many small files",
            "made, renamed and removed soon: writeback costs one more request at each close, rename and unlink",
            format!("covey mount {how} -o writeback=off ..."),
        ),
        tip(
            "memory-bound",
            match tight {
                true => "this machine: rings take up to 64 MiB of buffers, reader threads 1 MiB each",
                false => "rings take up to 64 MiB of buffers, reader threads 1 MiB each",
            },
            "covey mount --transport classic --readers 1 -o read_ahead=128 ...",
        ),
        tip(
            "many cores",
            match many {
                true => {
                    "this machine: a ring on each core, where 16 and more callers get 1.4 to 2.5 times as far"
                }
                false => {
                    "from 16 callers on, a ring on each core gets 1.4 to 2.5 times as far; one caller gains nothing"
                }
            },
            format!("covey mount {how} ...   (without io_uring as many --readers as cores, the default)"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::doctor::Level;

    const HERE: Machine = Machine { cores: 2, memory: Some((8 << 30, 4 << 30)), uring: Some(false) };

    #[test]
    fn memory_is_read_from_the_kernels_table() {
        let text = "MemTotal:        8131700 kB\nMemFree:          100 kB\nMemAvailable:    4000000 kB\n";
        assert_eq!(memory(text), Some((8_131_700 << 10, 4_000_000 << 10)));
        assert_eq!(memory("MemTotal: many kB\n"), None);
    }

    #[test]
    fn only_what_would_change_something_is_a_note() {
        let level = |check: Check| check.level;
        assert_eq!(level(cores(&HERE, None)), Level::Ok);
        assert_eq!(level(cores(&HERE, Some("2"))), Level::Ok);
        assert_eq!(level(cores(&HERE, Some("16"))), Level::Note);
        assert_eq!(level(in_memory(&HERE)), Level::Ok);
        assert_eq!(level(in_memory(&Machine { memory: Some((1 << 30, 1 << 27)), ..HERE })), Level::Note);
        assert_eq!([level(pages(None)), level(pages(Some("256\n")))], [Level::Ok, Level::Ok]);
        assert_eq!(level(pages(Some("32\n"))), Level::Note);
        let transport = |word, uring| transport_of(Path::new("/m"), "/v", word, uring).map(level);
        assert_eq!(transport("classic", Some(true)), Some(Level::Note));
        for (word, uring) in [("classic", Some(false)), ("classic", None), ("uring", Some(true))] {
            assert_eq!(transport(word, uring), None);
        }
    }

    #[test]
    fn every_note_and_tip_ends_with_a_command() {
        let without = Machine { uring: None, ..HERE };
        let all = uses(&HERE).into_iter().chain(uses(&without));
        for check in all.chain([cores(&HERE, Some("99")), pages(Some("1"))]) {
            let mend = check.mend.unwrap();
            assert!(["covey ", "unset ", "sysctl "].iter().any(|word| mend.starts_with(word)), "{mend}");
        }
        assert!(
            uses(&without).iter().all(|check| !check.mend.as_deref().unwrap().contains("--transport auto"))
        );
    }
}
