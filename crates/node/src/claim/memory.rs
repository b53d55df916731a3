//! `VOLUME/claim`: what the folder stores about its claims, in a file that also tells the folder from its
//! copies.
//!
//! ```text
//!   0     slot   crc32c: 8 hexadecimal digits, a space, one line of JSON, zeros up to 4,096 bytes
//!   4096  slot   the same; of the slots that verify, the one with the higher generation counts
//! ```
//!
//! The file is created once and then written in place, one slot after the other. So a full disk does not
//! prevent the opening of a volume, and the inode stays the same. A copy of the folder has another inode,
//! whatever the copy preserves. A renamed folder has the same inode.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use api::error::Failure;
use blob::sums::crc32c;
use origin::claim::memory::{Made, Memory, Remember};
use serde::{Deserialize, Serialize};
use tree::root::{from_hex, hex};

use crate::volume_dir::VolumeDir;

/// The name of the file in the folder.
pub const FILE: &str = "claim";
const SLOT: usize = 4096;
const VERSION: u32 = 1;
/// On a FUSE filesystem, the inode numbers that the kernel uses may change with each mount.
const FUSE_MAGIC: i64 = 0x6573_5546;

#[derive(Serialize, Deserialize)]
struct Version {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Slot {
    version: u32,
    generation: u64,
    folder: String,
    instance: String,
    current: Option<Named>,
    next: Vec<Named>,
    hold: bool,
}

#[derive(Serialize, Deserialize)]
struct Named {
    epoch: u64,
    token: String,
}

impl Named {
    fn of(made: &Made) -> Named {
        Named { epoch: made.epoch, token: hex(&made.token) }
    }

    fn made(&self) -> Option<Made> {
        Some(Made { epoch: self.epoch, token: from_hex(&self.token)? })
    }
}

/// See the [module](self).
pub struct ClaimFile {
    path: PathBuf,
    private: bool,
}

impl ClaimFile {
    /// The file at `path`. It is created when it is first needed. `private` means that the origin lies within
    /// the folder.
    pub fn new(path: &Path, private: bool) -> ClaimFile {
        ClaimFile { path: path.to_owned(), private }
    }

    /// The valid contents and their slot. None if the file was never written.
    fn read(&self) -> io::Result<Option<(Slot, usize)>> {
        let bytes = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let mut best: Option<(Slot, usize)> = None;
        for (number, slot) in bytes.chunks(SLOT).take(2).enumerate() {
            let Some(slot) = decode(slot)? else { continue };
            if best.as_ref().is_none_or(|(best, _)| best.generation < slot.generation) {
                best = Some((slot, number));
            }
        }
        if best.is_none() && bytes.iter().any(|byte| *byte != 0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it cannot be understood"));
        }
        Ok(best)
    }

    fn make(&self) -> io::Result<()> {
        let beside = self.path.with_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        io::Write::write_all(&mut file, &[0; 2 * SLOT])?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        self.sync_folder()
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Decodes a slot. None if it was not written, or not completely.
fn decode(slot: &[u8]) -> io::Result<Option<Slot>> {
    let end = slot.iter().position(|byte| *byte == b'\n').unwrap_or(slot.len());
    let Some((crc, json)) = slot[..end].split_first_chunk::<9>() else { return Ok(None) };
    let crc = std::str::from_utf8(&crc[..8]).ok().and_then(|crc| u32::from_str_radix(crc, 16).ok());
    if crc != Some(crc32c(json)) {
        return Ok(None);
    }
    let Ok(Version { version }) = serde_json::from_slice(json) else { return Ok(None) };
    if version > VERSION {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a newer covey wrote it"));
    }
    Ok(serde_json::from_slice(json).ok())
}

impl Remember for ClaimFile {
    fn load(&self) -> io::Result<Option<Memory>> {
        let Some((slot, _)) = self.read()? else { return Ok(None) };
        let memory = || {
            Some(Memory {
                folder: from_hex(&slot.folder)?,
                instance: slot.instance.clone(),
                current: match &slot.current {
                    Some(current) => Some(current.made()?),
                    None => None,
                },
                next: slot.next.iter().map(Named::made).collect::<Option<_>>()?,
                hold: slot.hold,
            })
        };
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it cannot be understood");
        memory().map(Some).ok_or_else(wrong)
    }

    fn save(&self, memory: &Memory) -> io::Result<()> {
        let (generation, number) = match self.read() {
            Ok(Some((slot, number))) => (slot.generation + 1, 1 - number),
            Ok(None) => (1, 0),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => (1, 0),
            Err(error) => return Err(error),
        };
        let slot = Slot {
            version: VERSION,
            generation,
            folder: hex(&memory.folder),
            instance: memory.instance.clone(),
            current: memory.current.as_ref().map(Named::of),
            next: memory.next.iter().map(Named::of).collect(),
            hold: memory.hold,
        };
        let json = serde_json::to_string(&slot)?;
        let mut bytes = format!("{:08x} {json}\n", crc32c(json.as_bytes())).into_bytes();
        if bytes.len() > SLOT {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it would not fit"));
        }
        bytes.resize(SLOT, 0);
        if !self.path.exists() {
            self.make()?;
        }
        let file = OpenOptions::new().write(true).open(&self.path)?;
        file.write_all_at(&bytes, (number * SLOT) as u64)?;
        file.sync_data()
    }

    fn instance(&self) -> io::Result<String> {
        if !self.path.exists() {
            self.make()?;
        }
        let meta = fs::metadata(&self.path)?;
        let birth = meta.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        let birth = birth.map_or_else(String::new, |birth| birth.as_nanos().to_string());
        Ok(format!("{},{birth},{}", meta.ino(), handle(&self.path).unwrap_or_default()))
    }

    fn is_private(&self) -> bool {
        self.private
    }
}

/// The kernel's handle of a file, in hexadecimal. It contains the inode number and its generation. None if
/// the filesystem has no handles, or none that survive a remount.
fn handle(path: &Path) -> Option<String> {
    const ROOM: usize = 128;
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        handle: [u8; ROOM],
    }
    let place = CString::new(path.as_os_str().as_bytes()).ok()?;
    let on = rustix::fs::statfs(path).ok()?;
    #[allow(clippy::unnecessary_cast)]
    if on.f_type as i64 == FUSE_MAGIC {
        return None;
    }
    let mut found = Handle { bytes: ROOM as u32, kind: 0, handle: [0; ROOM] };
    let mut mount: libc::c_int = 0;
    // SAFETY: `place` ends with a NUL. `found` begins with the layout of the kernel's struct file_handle, and
    // has space after it for as many bytes as it says. `mount` is an int. All outlive the call, which keeps
    // none of them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            place.as_ptr(),
            &raw mut found,
            &raw mut mount,
            0,
        )
    };
    let bytes = found.handle.get(..found.bytes as usize)?;
    (done == 0).then(|| format!("{:x}-{}", found.kind, hex(bytes)))
}

/// Whether `inner` is a folder of the same filesystem below `outer`, so that a copy of one is a copy of both.
/// False for a link that leads elsewhere, and for another disk that is mounted there.
pub fn is_within(inner: &Path, outer: &Path) -> bool {
    let full = |path: &Path| Some((fs::canonicalize(path).ok()?, fs::metadata(path).ok()?.dev()));
    match (full(inner), full(outer)) {
        (Some((inner, on)), Some((outer, also))) => inner.starts_with(&outer) && on == also,
        _ => false,
    }
}

/// The failure for a file that cannot be used.
pub fn failure(dir: &VolumeDir, error: &io::Error) -> Failure {
    let file = dir.claim();
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::Unsupported => Failure::new(
            "damaged",
            format!("{} cannot be used", file.display()),
        )
        .why(error.to_string())
        .why("it says which claim on the origin is this folder's")
        .next("the volume can be read: mount it with -o ro")
        .next(format!(
            "to go on here, if nobody else writes to the origin: covey mount --take-over {} MOUNTPOINT",
            dir.path().display()
        )),
        _ => Failure::io(format!("cannot write {}", file.display()), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(file: &ClaimFile, epoch: u64) -> Memory {
        let made = |n: u64| Made { epoch: n, token: [n as u8; 16] };
        Memory {
            folder: [3; 16],
            instance: file.instance().unwrap(),
            current: (epoch > 1).then(|| made(epoch - 1)),
            next: vec![made(epoch); 16],
            hold: true,
        }
    }

    #[test]
    fn what_was_saved_last_is_remembered_and_a_torn_slot_costs_only_that() {
        let dir = tempfile::tempdir().unwrap();
        let file = ClaimFile::new(&dir.path().join(FILE), false);
        assert_eq!(file.load().unwrap(), None);
        let instance = file.instance().unwrap();
        assert_eq!(file.load().unwrap(), None, "made, and nothing in it");
        for epoch in 1..6 {
            file.save(&memory(&file, epoch)).unwrap();
            assert_eq!(file.load().unwrap(), Some(memory(&file, epoch)));
        }
        assert_eq!(file.instance().unwrap(), instance, "it is written in place");
        let sound = fs::read(dir.path().join(FILE)).unwrap();
        for at in [0, 20, SLOT + 20] {
            let mut torn = sound.clone();
            torn[at] ^= 1;
            fs::write(dir.path().join(FILE), &torn).unwrap();
            let found = file.load().unwrap().unwrap();
            assert!(found == memory(&file, 5) || found == memory(&file, 4));
        }
        fs::write(dir.path().join(FILE), [7; 100]).unwrap();
        assert_eq!(file.load().unwrap_err().kind(), io::ErrorKind::InvalidData);
        file.save(&memory(&file, 9)).unwrap();
        assert_eq!(file.load().unwrap(), Some(memory(&file, 9)));
    }

    #[test]
    fn a_copy_is_another_instance_and_a_folder_that_was_renamed_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second, moved) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        for folder in [&first, &second] {
            fs::create_dir(folder).unwrap();
        }
        let at = |folder: &Path| ClaimFile::new(&folder.join(FILE), false).instance().unwrap();
        let was = at(&first);
        fs::copy(first.join(FILE), second.join(FILE)).unwrap();
        let copied = at(&second);
        fs::rename(&first, &moved).unwrap();
        let same = origin::claim::memory::same_instance;
        assert!(same(&was, &at(&moved)) && !same(&was, &copied), "{was} {copied}");
        assert!(same("1,2,", "1,2,x") && !same("1,2,", "1,3,x") && same("1,2,x", "4,5,x"));
        assert!(is_within(&moved, dir.path()) && !is_within(dir.path(), &moved));
        std::os::unix::fs::symlink(&second, moved.join("blobs")).unwrap();
        assert!(!is_within(&moved.join("blobs"), &moved));
    }
}
