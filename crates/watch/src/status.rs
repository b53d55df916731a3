//! Which programs this kernel and this process can use.

use aya::programs::{BtfTracePoint, CgroupSockAddr, Program, SchedClassifier, SockOps, Xdp};
use aya::{Btf, Ebpf};
use serde::Serialize;

use crate::object::{self, DRIVER, MOUNT, REDIRECT, STORE, WatchError, refused};

/// Where the kernel calls a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A tracepoint of this name.
    Tracepoint(&'static str),
    /// Packets that leave or enter an interface (TCX).
    Interface(&'static str),
    /// Connections of a cgroup.
    Connections,
    /// A call of a cgroup's programs: connect or getpeername.
    Call(&'static str),
    /// Packets in the driver of an interface (XDP).
    Driver,
}

impl Hook {
    /// For people.
    pub fn text(self) -> String {
        match self {
            Hook::Tracepoint(name) => format!("tracepoint {name}"),
            Hook::Interface(way) => format!("interface, {way}"),
            Hook::Connections => "cgroup, connections".to_owned(),
            Hook::Call(name) => format!("cgroup, {name}"),
            Hook::Driver => "interface, driver".to_owned(),
        }
    }
}

/// One program.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The program's name, in its object.
    pub name: &'static str,
    /// Where the kernel calls it.
    pub hook: Hook,
    /// What is known only through it.
    pub sees: &'static str,
}

const fn program(name: &'static str, hook: Hook, sees: &'static str) -> Description {
    Description { name, hook, sees }
}

const fn point(name: &'static str, tracepoint: &'static str, sees: &'static str) -> Description {
    program(name, Hook::Tracepoint(tracepoint), sees)
}

/// The programs of [`MOUNT`].
pub const OF_MOUNT: &[Description] = &[
    point("pages_read", "mm_filemap_get_pages", "reads that the page cache answers"),
    point("pages_mapped", "mm_filemap_map_pages", "pages that mappings find in the page cache"),
    point("pages_faulted", "mm_filemap_fault", "page faults of mappings"),
    point("page_filled", "mm_filemap_add_to_page_cache", "pages that enter the page cache"),
    point("page_evicted", "mm_filemap_delete_from_page_cache", "pages that leave the page cache"),
    point("request_sent", "fuse_request_send", "when a request was queued"),
    point("request_ended", "fuse_request_end", "how long requests took, the queue included"),
    point("page_dirtied", "writeback_dirty_folio", "which process wrote a file"),
    point("process_ended", "sched_process_exit", "processes that end without fsync"),
];

/// The programs of [`STORE`].
pub const OF_STORE: &[Description] = &[
    program("store_requests", Hook::Interface("sent"), "requests of S3 clients"),
    program("store_responses", Hook::Interface("received"), "responses of the store, and their latency"),
    program("store_connections", Hook::Connections, "round-trip times; it tunes connections, too"),
];

/// The programs of [`REDIRECT`].
pub const OF_REDIRECT: &[Description] = &[
    program("connect_ipv4", Hook::Call("connect4"), "IPv4 connections to redirect"),
    program("connect_ipv6", Hook::Call("connect6"), "IPv6 connections to redirect"),
    program("peer_ipv4", Hook::Call("getpeername4"), "the store's IPv4 address, as the client's peer"),
    program("peer_ipv6", Hook::Call("getpeername6"), "the store's IPv6 address, as the client's peer"),
];

/// The program of [`DRIVER`].
pub const OF_DRIVER: &[Description] = &[program(
    "asked_of_us",
    Hook::Driver,
    "requests of other machines; it answers which blobs are here, too, while the daemon is stopped",
)];

/// Every object, with its programs.
const ALL: [(&[u8], &[Description]); 4] =
    [(MOUNT, OF_MOUNT), (STORE, OF_STORE), (REDIRECT, OF_REDIRECT), (DRIVER, OF_DRIVER)];

/// Whether a program can be used.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The program's name.
    pub program: &'static str,
    /// Where the kernel would call it.
    pub hook: String,
    /// Whether the kernel accepts it and has the place where it is called. Programs of interfaces and cgroups
    /// are not attached for this.
    pub usable: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What only this program sees.
    pub sees: &'static str,
}

/// Tries every program, and leaves none.
pub fn status() -> Vec<Row> {
    ALL.iter().flat_map(|(bytes, programs)| tried(bytes, programs)).collect()
}

fn tried(bytes: &[u8], programs: &[Description]) -> Vec<Row> {
    let row = |program: &Description, why: Option<String>| Row {
        program: program.name,
        hook: program.hook.text(),
        usable: why.is_none(),
        why,
        sees: program.sees,
    };
    match object::btf().and_then(|btf| Ok((object::load(bytes, &btf, &[])?, btf))) {
        Ok((mut object, btf)) => {
            let mut why = |it: &Description| load(&mut object, &btf, it).err().map(|why| why.to_string());
            programs.iter().map(|it| row(it, why(it))).collect()
        }
        Err(error) => programs.iter().map(|it| row(it, Some(error.to_string()))).collect(),
    }
}

/// Loads a program into the kernel. It is not attached yet.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn load(object: &mut Ebpf, btf: &Btf, program: &Description) -> Result<(), WatchError> {
    let Description { name, hook, .. } = *program;
    let missing = || WatchError::NotThere(format!("the object has no program {name}"));
    let found = object.program_mut(name).ok_or_else(missing)?;
    let loaded = match (hook, found) {
        (Hook::Tracepoint(point), Program::BtfTracePoint(program)) => {
            BtfTracePoint::load(program, point, btf)
        }
        (Hook::Interface(_), Program::SchedClassifier(program)) => SchedClassifier::load(program),
        (Hook::Connections, Program::SockOps(program)) => SockOps::load(program),
        (Hook::Call(_), Program::CgroupSockAddr(program)) => CgroupSockAddr::load(program),
        (Hook::Driver, Program::Xdp(program)) => Xdp::load(program),
        _ => return Err(missing()),
    };
    loaded.map_err(|error| refused(name, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_an_object_is_described() {
        for (bytes, programs) in ALL {
            let object = aya_obj::Object::parse(bytes).unwrap();
            let mut names: Vec<&str> = object.programs.keys().map(String::as_str).collect();
            let mut described: Vec<&str> = programs.iter().map(|program| program.name).collect();
            names.sort_unstable();
            described.sort_unstable();
            assert_eq!(names, described);
        }
    }

    #[test]
    fn a_program_is_usable_or_says_why_not() {
        for row in status() {
            assert_eq!(row.usable, row.why.is_none(), "{row:?}");
            assert!(row.usable || !row.why.as_deref().unwrap_or_default().is_empty());
        }
    }
}
