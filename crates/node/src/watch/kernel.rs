//! When the kernel sent each request, and when it was done with the answer. The source is the kernel's
//! tracepoints `fuse_request_send` and `fuse_request_end`. They identify a request by the number that the
//! daemon sees, too.
//!
//! The events are read from a private instance of the kernel's tracing, so other tracing is not disturbed. A
//! filter in the kernel limits the events to this mount. The clock is the one that the daemon uses. tracefs
//! is mounted without a mountpoint and goes away with its descriptor. The instance is removed at the end. The
//! next daemon removes an instance that a killed daemon left.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::param::page_size;

use super::pages::{self, number, word};

/// The buffer of each CPU, in KiB. It holds about 20,000 events.
const BUFFER_KIB: u32 = 1024;
/// The largest number of requests to remember.
const REMEMBERED: usize = 128 << 10;
const EVENTS: [&str; 2] = ["fuse_request_send", "fuse_request_end"];
const PREFIX: &str = "covey-";
/// When there are too many events, the kernel reports only requests whose number has none of these bits.
/// Numbers go up by two, so these are 512 consecutive requests of every 4,096. They are consecutive because
/// programs repeat themselves: every eighth request might always be of one kind.
const LEFT_OUT: u64 = 0x1c00;
/// There are this many times as many requests as the kernel reports.
pub const SHARE: u64 = 8;

/// The offsets of the numbers in an event.
struct Layout {
    id: u16,
    connection: usize,
    unique: usize,
}

/// The kernel's events about one mount's requests. Dropping it ends the tracing.
pub struct Kernel {
    instance: PathBuf,
    cpus: Vec<File>,
    send: Layout,
    end: Layout,
    connection: u32,
    sent: HashMap<u64, u64>,
    ended: HashMap<u64, u64>,
    page: Vec<u8>,
    /// The mount of tracefs.
    _place: OwnedFd,
}

/// The kernel's times of one request, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// When the request entered the queue.
    pub sent: Option<u64>,
    /// When the kernel had the answer and woke the waiting program.
    pub ended: Option<u64>,
}

impl Kernel {
    /// Starts listening to the mount with this device number.
    ///
    /// # Errors
    /// The reason why the kernel's trace cannot be used, in words.
    pub fn start(dev: u64) -> Result<Kernel, String> {
        if api::caller::euid() != 0 {
            return Err("only a daemon that runs as root may read the kernel's trace".into());
        }
        let place = tracefs().map_err(|error| format!("tracefs cannot be mounted ({error})"))?;
        let root = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
        if !root.join("events/fuse/fuse_request_send").exists() {
            return Err("this kernel has no tracepoints for FUSE (Linux 6.11 or newer has them)".into());
        }
        remove_stale(&root);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let instance = root.join(format!("instances/{PREFIX}{}-{number}", std::process::id()));
        let failed = |error: io::Error| format!("the kernel's trace cannot be set up ({error})");
        fs::create_dir(&instance).map_err(failed)?;
        // The kernel packs a device number in its own way.
        let connection = libc::major(dev) << 20 | libc::minor(dev);
        let listening = listen(&instance, connection).and_then(|cpus| {
            let layout = |name| layout(&instance.join("events/fuse").join(name).join("format"));
            Ok((cpus, layout("fuse_request_send")?, layout("fuse_request_end")?))
        });
        match listening {
            Ok((cpus, send, end)) => Ok(Kernel {
                instance,
                cpus,
                send,
                end,
                connection,
                sent: HashMap::new(),
                ended: HashMap::new(),
                page: vec![0; page_size()],
                _place: place,
            }),
            Err(error) => {
                let _ = fs::remove_dir(&instance);
                Err(failed(error))
            }
        }
    }

    /// Makes the kernel report all requests, or only [a share](is_in_share) of them. Each event costs the
    /// program that waits for the request almost a microsecond.
    ///
    /// # Errors
    /// The error of the system call. The setting then stays as it was.
    pub fn speak_of_all(&self, all: bool) -> io::Result<()> {
        choose(&self.instance, self.connection, all)
    }

    /// Reads the events that the kernel has written since the last call.
    pub fn listen(&mut self) {
        let Kernel { cpus, send, end, connection, sent, ended, page, .. } = self;
        for cpu in cpus {
            // More pages may follow a full one. EAGAIN marks the end.
            while let Ok(len @ 1..) = cpu.read(page) {
                pages::events(&page[..len], &mut |time, data| {
                    let id = word(data, 0).map(|word| word as u16);
                    let (layout, times) = match id {
                        Some(id) if id == send.id => (&*send, &mut *sent),
                        Some(id) if id == end.id => (&*end, &mut *ended),
                        _ => return,
                    };
                    let ours = word(data, layout.connection) == Some(*connection);
                    // Older kernels assign the number only after this event. Then the event holds 0.
                    if let Some(unique @ 1..) = number(data, layout.unique).filter(|_| ours) {
                        times.insert(unique, time);
                    }
                });
            }
        }
        for times in [sent, ended] {
            if times.len() > REMEMBERED {
                forget_older_half(times);
            }
        }
    }

    /// The times that are known of a request. Forgets them if both are known or if `last` is set.
    pub fn seen(&mut self, unique: u64, last: bool) -> Seen {
        let seen = Seen { sent: self.sent.get(&unique).copied(), ended: self.ended.get(&unique).copied() };
        if last || (seen.sent.is_some() && seen.ended.is_some()) {
            self.sent.remove(&unique);
            self.ended.remove(&unique);
        }
        seen
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = fs::write(self.instance.join("events/fuse/enable"), "0");
        // An instance in use cannot be removed.
        self.cpus.clear();
        let _ = fs::remove_dir(&self.instance);
    }
}

fn forget_older_half(times: &mut HashMap<u64, u64>) {
    let mut all: Vec<u64> = times.values().copied().collect();
    let middle = all.len() / 2;
    let (_, &mut middle, _) = all.select_nth_unstable(middle);
    times.retain(|_, time| *time > middle);
}

/// Mounts tracefs without a mountpoint.
fn tracefs() -> io::Result<OwnedFd> {
    let new = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&new)?;
    Ok(fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Whether the kernel reports the request with this number when it does not report all.
pub fn is_in_share(unique: u64) -> bool {
    unique & LEFT_OUT == 0
}

/// Sets which requests the kernel reports.
fn choose(instance: &Path, connection: u32, all: bool) -> io::Result<()> {
    let share = if all { String::new() } else { format!(" && !(unique & {LEFT_OUT})") };
    EVENTS.iter().try_for_each(|name| {
        let filter = instance.join(format!("events/fuse/{name}/filter"));
        fs::write(filter, format!("connection == {connection}{share}"))
    })
}

fn listen(instance: &Path, connection: u32) -> io::Result<Vec<File>> {
    let set = |name: &str, value: &str| fs::write(instance.join(name), value);
    set("trace_clock", "mono")?;
    set("buffer_size_kb", &BUFFER_KIB.to_string())?;
    let mut cpus = Vec::new();
    for entry in fs::read_dir(instance.join("per_cpu"))? {
        let raw = entry?.path().join("trace_pipe_raw");
        cpus.push(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(raw)?);
    }
    choose(instance, connection, true)?;
    for name in EVENTS {
        set(&format!("events/fuse/{name}/enable"), "1")?;
    }
    Ok(cpus)
}

/// Reads an event's number and the offsets of its fields.
fn layout(format: &Path) -> io::Result<Layout> {
    parse_layout(&fs::read_to_string(format)?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its events have another form"))
}

fn parse_layout(text: &str) -> Option<Layout> {
    let id = text.lines().find_map(|line| line.strip_prefix("ID: "))?.trim().parse().ok()?;
    let place = |name: &str| {
        let field = text.lines().find(|line| line.contains(&format!(" {name};")))?;
        field.split("offset:").nth(1)?.split(';').next()?.trim().parse().ok()
    };
    Some(Layout { id, connection: place("connection")?, unique: place("unique")? })
}

/// Removes the instances of daemons that were killed.
fn remove_stale(root: &Path) {
    let entries = fs::read_dir(root.join("instances")).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_events_form_is_read_from_its_description() {
        let text = "name: fuse_request_send\nID: 1293\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:dev_t connection;\toffset:8;\tsize:4;\tsigned:0;\n\tfield:uint64_t unique;\toffset:16;\tsize:8;\tsigned:0;\n";
        let layout = parse_layout(text).unwrap();
        assert_eq!((layout.id, layout.connection, layout.unique), (1293, 8, 16));
        assert!(parse_layout("ID: 7\n").is_none());
        assert!(parse_layout("").is_none());
    }

    #[test]
    fn the_share_is_what_it_is_said_to_be() {
        let numbers = (0..2 * 4096 * 8).step_by(2);
        assert_eq!(numbers.clone().filter(|unique| is_in_share(*unique)).count() as u64 * SHARE, 4096 * 8);
        assert!((0..1024).all(is_in_share), "in a row");
    }

    #[test]
    fn the_older_half_is_forgotten() {
        let mut times: HashMap<u64, u64> = (0..100).map(|unique| (unique, 1_000 + unique)).collect();
        forget_older_half(&mut times);
        assert!(times.len() < 60 && times.contains_key(&99) && !times.contains_key(&0));
    }

    #[test]
    fn listening_leaves_nothing_behind() {
        let mut kernel = match Kernel::start(libc::makedev(0, 1)) {
            Ok(kernel) => kernel,
            Err(why) => {
                println!("{why}: skipped");
                return;
            }
        };
        kernel.speak_of_all(false).unwrap();
        kernel.speak_of_all(true).unwrap();
        kernel.listen();
        assert_eq!(kernel.seen(1, true), Seen::default());
        let instance = kernel.instance.clone();
        let place = kernel._place.try_clone().unwrap();
        let root = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
        let again = root.join("instances").join(instance.file_name().unwrap());
        assert!(again.exists());
        drop(kernel);
        assert!(!again.exists());
    }
}
