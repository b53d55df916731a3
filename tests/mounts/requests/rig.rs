//! A volume on a disk and a mount of it in this process, so that its requests can be counted by kind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blob::{BlobError, BlobSource, Origin, PackStore};
use fs::volume::{FormatRequest, Options, Parts, Volume};
use fuse::{Session, Transport, Unmount};
use meta::Journal;

/// An origin used as the source of its own blobs.
struct OriginSource(Arc<dyn Origin>);

impl BlobSource for OriginSource {
    fn read_at(&self, id: &base::BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.0.read_at(id, offset, buf)
    }

    fn is_local(&self, id: &base::BlobId) -> bool {
        self.0.is_local(id)
    }
}

/// An open volume in a scratch folder.
pub struct Rig {
    volume: Arc<Volume>,
    journal: Arc<Journal>,
    folder: tempfile::TempDir,
}

impl Rig {
    pub fn new() -> Rig {
        let folder = covey_tests::scratch();
        let below = |name: &str| folder.path().join(name);
        std::fs::create_dir(below("meta")).unwrap();
        std::fs::create_dir(below("mnt")).unwrap();
        origin::Folder::format(&below("blobs"), "of-a-test").unwrap();
        let origin = origin::Folder::open(&below("blobs"), origin::Access::ReadWrite).unwrap();
        let origin: Arc<dyn Origin> = Arc::new(origin);
        let packs = cache::DiskPacks::open(&below("open"), origin.clone()).unwrap();
        let packs: Arc<dyn PackStore> = Arc::new(packs);
        let options = meta::journal::Options::default();
        let (journal, _) = Journal::open(&below("meta"), packs.clone(), options).unwrap();
        let journal = Arc::new(journal);
        let source = Arc::new(OriginSource(origin.clone()));
        let parts = Parts { store: journal.clone(), packs, source, origin };
        Volume::format(&parts, &FormatRequest::default()).unwrap();
        let volume = Arc::new(Volume::open(parts, Options::default()).unwrap());
        Rig { volume, journal, folder }
    }

    pub fn mount(&self, transport: Transport, writeback: bool) -> Mount {
        let options = fuse::Options {
            writeback: Some(writeback),
            transport,
            readers: 2,
            log: Arc::new(|_| {}),
            ..fuse::Options::default()
        };
        let fs = Arc::clone(&self.volume) as Arc<dyn fs::api::Filesystem>;
        let session = Session::mount(fs, &self.folder.path().join("mnt"), options).unwrap();
        assert_eq!(session.transport(), transport);
        Mount(session)
    }

    pub fn end(self) {
        self.volume.close().unwrap();
        self.journal.close().unwrap();
    }
}

/// A mount; unmounted when it is dropped.
pub struct Mount(Session);

impl Mount {
    /// The folder in which a line of the table works.
    pub fn folder(&self, place: usize) -> PathBuf {
        self.0.mountpoint().join(format!("line-{place}"))
    }

    /// Sends each kind of request that the kernel sends only once after ENOSYS: OPEN, OPENDIR, CREATE, FLUSH
    /// and the like.
    pub fn greet(&self) {
        let path = self.0.mountpoint().join("greeting");
        std::fs::write(&path, [1; 10_000]).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        std::fs::read(&path).unwrap();
        std::fs::read_dir(self.0.mountpoint()).unwrap().count();
        std::fs::remove_file(&path).unwrap();
    }

    /// The requests that arrived during `work`.
    pub fn during(&self, work: impl FnOnce()) -> BTreeMap<&'static str, u64> {
        let before = self.0.counts();
        work();
        let mut came: BTreeMap<&str, u64> = self.0.counts().into_iter().collect();
        for (kind, count) in before {
            came.entry(kind).and_modify(|now| *now -= count);
        }
        came.retain(|kind, count| *count > 0 && !kind.ends_with("FORGET"));
        came
    }

    /// Unmounts. Retries for a moment, because another process may be reading all mounts (as df does).
    pub fn end(self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.0.unmount(Unmount::Polite).is_err() {
            assert!(Instant::now() < end, "the mount stays busy");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.0.wait_for(Duration::from_secs(60)).expect("the session ends");
    }
}

/// The kernel's switch for FUSE over io_uring: turned on, and restored when this is dropped.
pub struct Switch(String);

impl Switch {
    pub fn on() -> Option<Switch> {
        let switch = Path::new(fuse::uring::SWITCH);
        let Ok(was) = std::fs::read_to_string(switch) else {
            covey_tests::say(format_args!("skipped: lacks FUSE over io_uring in this kernel"));
            return None;
        };
        std::fs::write(switch, "Y").unwrap();
        Some(Switch(was.trim().to_owned()))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = std::fs::write(fuse::uring::SWITCH, &self.0);
    }
}
