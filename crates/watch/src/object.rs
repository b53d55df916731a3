//! The compiled objects. They are kept in the repository, so that no build needs a compiler for eBPF; `make
//! bpf` compiles them anew. They fit every kernel that describes its types (BTF), because the loader puts the
//! offsets of the running kernel in (CO-RE).
//!
//! The sources in `bpf` have a licence of their own, BSD or GPL: the kernel offers some functions only to
//! programs under the GPL.

use std::io;
use std::os::fd::OwnedFd;

use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use serde::Serialize;

/// The programs of one mount.
pub const MOUNT: &[u8] = aya::include_bytes_aligned!("../objects/mount.bpf.o");
/// The programs of one object store.
pub const STORE: &[u8] = aya::include_bytes_aligned!("../objects/store.bpf.o");
/// The programs that redirect connections.
pub const REDIRECT: &[u8] = aya::include_bytes_aligned!("../objects/redirect.bpf.o");

/// The program of one interface's driver.
pub const DRIVER: &[u8] = aya::include_bytes_aligned!("../objects/driver.bpf.o");

/// Why something is not watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The kernel does not describe its types.
    #[error("the kernel has no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf,
    /// The process lacks a capability.
    #[error("the kernel refuses eBPF programs: run as root, or with {0}")]
    NotPermitted(&'static str),
    /// The verifier or the kernel refuses this program.
    #[error("the kernel refuses the program {program}: {why}")]
    Refused {
        /// The program's name.
        program: String,
        /// The kernel's reason.
        why: String,
    },
    /// A thing that was named does not exist.
    #[error("{0}")]
    NotThere(String),
    /// Reading what the programs counted failed.
    #[error("reading a map of the kernel: {0}")]
    Map(#[from] aya::maps::MapError),
    /// Any other error of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The capabilities that a process without root needs.
pub const CAPABILITIES: &str = "CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN";

/// What a program has cost since it was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// The program's name.
    pub program: String,
    /// How often it ran, while the kernel measured.
    pub runs: u64,
    /// The program's time in these runs, in nanoseconds.
    pub ns: u64,
}

/// The types of the running kernel.
///
/// # Errors
/// `NoBtf`.
pub fn btf() -> Result<Btf, WatchError> {
    Btf::from_sys_fs().map_err(|_| WatchError::NoBtf)
}

/// Creates an object's maps, with the given settings of its programs. The programs are not loaded yet.
///
/// # Errors
/// `NotPermitted`, or what the kernel refuses.
pub fn load(bytes: &[u8], btf: &Btf, settings: &[(&'static str, Setting)]) -> Result<Ebpf, WatchError> {
    let mut loader = EbpfLoader::new();
    loader.btf(Some(btf));
    for (name, value) in settings {
        match value {
            Setting::U8(value) => loader.override_global(name, value, true),
            Setting::U16(value) => loader.override_global(name, value, true),
            Setting::U32(value) => loader.override_global(name, value, true),
            Setting::U64(value) => loader.override_global(name, value, true),
            Setting::Address(value) => loader.override_global(name, value, true),
        };
    }
    loader.load(bytes).map_err(|error| refused("its maps", &error))
}

/// A value that a program is loaded with.
#[derive(Clone, Copy, Debug)]
pub enum Setting {
    /// Of eight bits.
    U8(u8),
    /// Of 16 bits.
    U16(u16),
    /// Of 32 bits.
    U32(u32),
    /// Of 64 bits.
    U64(u64),
    /// Of four words of 32 bits: an IPv6 address in network byte order.
    Address([u32; 4]),
}

/// Translates a failure of the loader. A missing capability is a kind of its own, because a user can mend it.
pub fn refused(program: &str, error: &(dyn std::error::Error + 'static)) -> WatchError {
    let mut cause = Some(error);
    let mut why = error.to_string();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            if matches!(error.raw_os_error(), Some(libc_eperm) if libc_eperm == rustix::io::Errno::PERM.raw_os_error())
            {
                return WatchError::NotPermitted(CAPABILITIES);
            }
            why = error.to_string();
        }
        if let Some(ProgramError::LoadError { io_error, verifier_log }) = error.downcast_ref::<ProgramError>()
        {
            if io_error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()) {
                return WatchError::NotPermitted(CAPABILITIES);
            }
            let log = verifier_log.to_string();
            why =
                log.lines().last().map_or_else(|| io_error.to_string(), |line| format!("{io_error}: {line}"));
        }
        cause = error.source();
    }
    WatchError::Refused { program: program.to_owned(), why }
}

/// What each loaded program of an object has cost. The kernel counts only while [`measure`] is on.
pub fn costs(object: &Ebpf) -> Vec<Cost> {
    let cost = |(name, program): (&str, &Program)| {
        let info = program.info().ok()?;
        let ns = u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX);
        Some(Cost { program: name.to_owned(), runs: info.run_count(), ns })
    };
    let mut all: Vec<Cost> = object.programs().filter_map(cost).collect();
    all.sort_by(|a, b| a.program.cmp(&b.program));
    all
}

/// The kernel measures the cost of all its eBPF programs as long as this lives. That itself costs some
/// nanoseconds for each run.
pub struct Measured(#[allow(dead_code, reason = "the descriptor keeps the measurement on")] OwnedFd);

/// Makes the kernel measure the cost of its eBPF programs.
///
/// # Errors
/// The kernel refuses.
pub fn measure() -> Result<Measured, WatchError> {
    let fd = aya::sys::enable_stats(aya::sys::Stats::RunTime);
    fd.map(Measured).map_err(|error| refused("its statistics", &error))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// `make bpf` recorded the sums of all sources and objects.
    #[test]
    fn objects_are_those_of_their_sources() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let record = fs::read_to_string(folder.join("objects/SUMS")).unwrap();
        for line in record.lines() {
            let (sum, path) = line.split_once("  ").unwrap();
            let bytes = fs::read(folder.join(path)).unwrap();
            let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
            let found: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(sum, found, "{path} changed: run `make bpf`");
        }
        let sources = fs::read_dir(folder.join("bpf")).unwrap().count();
        let objects = fs::read_dir(folder.join("objects")).unwrap().count() - 1;
        assert_eq!(record.lines().count(), sources + objects);
    }
}
