//! A private ext4 in an image file: a disk that can be small, and that can lose its power.
//!
//! **Power cuts.** Data that was written but not synced is in the page cache of the mounted ext4, not in the
//! image. So a copy of the image, taken while nothing writes to it, is exactly what a machine would find on
//! its disk after a power cut. [`LoopFs::cut`] takes that copy. The image itself need not be durable, so it
//! is in memory where there is space.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::program::run_ok;

const LIMIT: Duration = Duration::from_secs(60);

/// A mounted ext4 image; unmounted and removed when dropped.
pub struct LoopFs {
    image: PathBuf,
    device: String,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl LoopFs {
    /// Creates and mounts an ext4 of this many MiB.
    pub fn new(mib: u64) -> LoopFs {
        LoopFs::made(image_folder(), mib)
    }

    /// The same, with its image on the disk with the other scratch files, as a reference for measurements.
    pub fn on_disk(mib: u64) -> LoopFs {
        LoopFs::made(crate::scratch(), mib)
    }

    fn made(folder: tempfile::TempDir, mib: u64) -> LoopFs {
        let image = folder.path().join("image");
        fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        // No lazy initialisation: a kernel thread would write in the background.
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(&image);
        mkfs.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        run_ok(&mut mkfs, LIMIT);
        LoopFs::attach(folder)
    }

    /// Unmounts and mounts again, so that nothing of it stays in memory.
    pub fn remount(&self) {
        base::trial::unmount(&self.path).unwrap();
        run_ok(
            Command::new("mount").args(["-t", "ext4", "-o", "noatime", &self.device]).arg(&self.path),
            LIMIT,
        );
    }

    /// Bytes in use, as the filesystem reports.
    pub fn used(&self) -> u64 {
        let room = rustix::fs::statvfs(&self.path).unwrap();
        (room.f_blocks - room.f_bfree) * room.f_frsize
    }

    fn attach(folder: tempfile::TempDir) -> LoopFs {
        let (image, path) = (folder.path().join("image"), folder.path().join("disk"));
        fs::create_dir_all(&path).unwrap();
        let shown = run_ok(Command::new("losetup").args(["--find", "--show"]).arg(&image), LIMIT);
        let device = shown.stdout.trim().to_owned();
        let mounted = LoopFs { image, device, path, _folder: folder };
        run_ok(
            Command::new("mount").args(["-t", "ext4", "-o", "noatime", &mounted.device]).arg(&mounted.path),
            LIMIT,
        );
        mounted
    }

    /// Its root folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk as a power cut at this moment would leave it. The caller has stopped all writing programs.
    /// The kernel may still be writing, so the copy is repeated until the device was idle throughout.
    pub fn cut(&self) -> Cut {
        let folder = image_folder();
        let copy = folder.path().join("image");
        let end = Instant::now() + LIMIT;
        loop {
            let before = self.writes();
            copy_sparse(&self.image, &copy);
            if before.is_some() && before == self.writes() {
                return Cut(folder);
            }
            assert!(Instant::now() < end, "the device never came to rest");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The number of write requests completed on the device, if none is in flight.
    fn writes(&self) -> Option<u64> {
        let name = self.device.rsplit('/').next().unwrap();
        let text = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().unwrap()).collect();
        (fields[8] == 0).then_some(fields[4])
    }
}

/// The contents of a disk after a power cut.
pub struct Cut(tempfile::TempDir);

impl Cut {
    /// Starts the machine again. Programs that were stopped for the cut must be gone by now: attaching a
    /// device waits for the kernel's writers, and those may wait for a stopped daemon.
    pub fn mount(self) -> LoopFs {
        LoopFs::attach(self.0)
    }
}

impl Drop for LoopFs {
    fn drop(&mut self) {
        if base::trial::unmount(&self.path).is_err() {
            rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH).ok();
        }
        Command::new("losetup").args(["--detach", &self.device]).status().ok();
    }
}

/// In memory if half of the free space there holds the largest image; otherwise with the other scratch files.
fn image_folder() -> tempfile::TempDir {
    let roomy = rustix::fs::statvfs("/dev/shm").is_ok_and(|room| room.f_bavail * room.f_frsize > 4 << 30);
    if roomy {
        tempfile::Builder::new().prefix("covey-test-").tempdir_in("/dev/shm").unwrap()
    } else {
        crate::scratch()
    }
}

/// Copies everything that is not a hole.
fn copy_sparse(from: &Path, to: &Path) {
    use rustix::fs::{SeekFrom, seek};
    let (from, to) = (fs::File::open(from).unwrap(), fs::File::create(to).unwrap());
    let size = from.metadata().unwrap().len();
    to.set_len(size).unwrap();
    let mut at = 0;
    let mut buf = vec![0; 1 << 20];
    while let Ok(data) = seek(&from, SeekFrom::Data(at)) {
        let hole = seek(&from, SeekFrom::Hole(data)).unwrap();
        at = data;
        while at < hole {
            let wanted = buf.len().min((hole - at) as usize);
            let got = std::os::unix::fs::FileExt::read_at(&from, &mut buf[..wanted], at).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&to, &buf[..got], at).unwrap();
            at += got as u64;
        }
    }
}
