//! The operations without containerd: its rules, layers of a folder of images, and what a kill leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::{Arc, Barrier, RwLock};
use std::time::Duration;

use oci::folder;
use oci::manifest::chain_id;

use super::*;
use crate::layers::InFolder;
use crate::proto::Commit;

/// A store in a temporary folder, and a folder of images beside it.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let world = World { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(world.images().join("layers")).unwrap();
        world
    }

    fn images(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Starts a snapshotter, as after a kill of the one before.
    fn start(&self) -> Snapshots {
        let store = Store::open(&self.root()).unwrap();
        store.point_at(&self.images()).unwrap();
        Snapshots::new(store, Box::new(InFolder(self.images())), |_| {}).unwrap()
    }

    /// Adds a lowest layer.
    fn layer(&self, text: &str) -> Digest {
        self.above(None, text)
    }

    /// Adds a layer above others. Returns its chain id.
    fn above(&self, below: Option<&Digest>, text: &str) -> Digest {
        let chain = chain_id(below, &Digest::of(text.as_bytes()));
        fs::create_dir_all(self.images().join(folder::layer(&chain))).unwrap();
        chain
    }

    /// The names in the folder with the snapshots.
    fn folders(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root().join("snapshots")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn new(key: &str, parent: &str) -> NewSnapshot {
    NewSnapshot { key: key.to_owned(), parent: parent.to_owned(), labels: BTreeMap::new() }
}

fn layer(key: &str, parent: &str, chain: &Digest) -> NewSnapshot {
    let labels = BTreeMap::from([(REFERENCE.to_owned(), chain.to_string())]);
    NewSnapshot { labels, ..new(key, parent) }
}

fn commit(name: &str, key: &str) -> Commit {
    Commit {
        name: name.to_owned(),
        key: key.to_owned(),
        labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
    }
}

fn code<T: std::fmt::Debug>(outcome: Outcome<T>) -> Code {
    outcome.unwrap_err().code
}

/// The one snapshot that containerd finds after "it exists already".
fn found(all: &Snapshots, chain: &Digest, parent: &str) -> String {
    let filter = format!("labels.{REFERENCE:?}=={chain},parent=={parent:?}");
    let infos = all.list(&[filter]).unwrap();
    assert_eq!(infos.len(), 1, "{infos:?}");
    assert_eq!(infos[0].kind, i32::from(proto::Kind::Committed));
    infos[0].name.clone()
}

fn option(mount: &Mount, key: &str) -> String {
    let value = mount.options.iter().find_map(|option| option.strip_prefix(key));
    value.unwrap_or_else(|| panic!("no {key} in {mount:?}")).to_owned()
}

/// Layers that are there are not unpacked, and a container's overlay has them below a folder of this machine.
#[test]
fn a_layer_that_is_there_exists_already() {
    let world = World::new();
    let one = world.layer("1");
    let chain = world.above(Some(&one), "2");
    let all = world.start();
    assert_eq!(code(all.prepare(&layer("x/1/extract-1", "", &one))), Code::AlreadyExists);
    let lowest = found(&all, &one, "");
    assert_eq!(code(all.prepare(&layer("x/2/extract-2", &lowest, &chain))), Code::AlreadyExists);
    let highest = found(&all, &chain, &lowest);
    // Another name space of containerd asks for the same: there is one snapshot still.
    assert_eq!(code(all.prepare(&layer("y/1/extract-1", "", &one))), Code::AlreadyExists);
    assert_eq!(all.list(&[]).unwrap().len(), 2);
    assert_eq!(all.usage(&highest).unwrap(), Used::default());
    fs::set_permissions(world.images().join(folder::layer(&chain)), PermissionsExt::from_mode(0o750))
        .unwrap();
    let mounts = all.prepare(&new("x/3/container", &highest)).unwrap();
    assert_eq!((mounts.len(), &*mounts[0].kind), (1, "overlay"));
    let lower: Vec<PathBuf> = option(&mounts[0], "lowerdir=").split(':').map(PathBuf::from).collect();
    let real: Vec<_> = lower.iter().map(|path| path.canonicalize().unwrap()).collect();
    let expected =
        [chain, one].map(|layer| world.images().canonicalize().unwrap().join(folder::layer(&layer)));
    assert_eq!(real, expected);
    let upper = PathBuf::from(option(&mounts[0], "upperdir="));
    assert_eq!(upper.metadata().unwrap().mode() & 0o7777, 0o750, "the top folder looks like the layer's");
    assert!(PathBuf::from(option(&mounts[0], "workdir=")).is_dir());
    assert_eq!(all.mounts("x/3/container").unwrap(), mounts);
    // After a restart, with the images mounted elsewhere.
    drop(all);
    fs::rename(world.images(), world.folder.path().join("moved")).unwrap();
    let all = world.start_with(&world.folder.path().join("moved"));
    assert_eq!(all.mounts("x/3/container").unwrap(), mounts);
    assert!(lower.iter().all(|path| path.is_dir()));
    assert_eq!(all.layers_in_use(), 2);
}

impl World {
    fn start_with(&self, images: &Path) -> Snapshots {
        let store = Store::open(&self.root()).unwrap();
        store.point_at(images).unwrap();
        Snapshots::new(store, Box::new(InFolder(images.to_owned())), |_| {}).unwrap()
    }
}

/// A layer that is not there is unpacked by containerd, also above one that is, and below one that is.
#[test]
fn a_layer_that_is_missing_is_unpacked() {
    let world = World::new();
    let one = world.layer("1");
    let second = chain_id(Some(&one), &Digest::of(b"2"));
    let third = world.above(Some(&second), "3");
    let all = world.start();
    assert_eq!(code(all.prepare(&layer("x/1/e", "", &one))), Code::AlreadyExists);
    let lowest = found(&all, &one, "");
    let mounts = all.prepare(&layer("x/2/e", &lowest, &second)).unwrap();
    fs::write(PathBuf::from(option(&mounts[0], "upperdir=")).join("file"), vec![b'x'; 10_000]).unwrap();
    all.commit(&commit(&format!("x/3/{second}"), "x/2/e")).unwrap();
    let used = all.usage(&format!("x/3/{second}")).unwrap();
    assert!(used.inodes == 2 && used.bytes >= 10_000, "{used:?}");
    // The third layer is there.
    assert_eq!(code(all.prepare(&layer("x/4/e", &format!("x/3/{second}"), &third))), Code::AlreadyExists);
    let highest = found(&all, &third, &format!("x/3/{second}"));
    let mounts = all.view(&new("x/5/v", &highest)).unwrap();
    assert_eq!(option(&mounts[0], "lowerdir=").split(':').count(), 3);
    assert!(!mounts[0].options.iter().any(|option| option.starts_with("upperdir")));
}

/// An image may have one layer twice, as builders do with empty layers. overlayfs refuses a folder twice.
#[test]
fn a_layer_that_is_there_twice_is_two_folders() {
    let world = World::new();
    let all = world.start();
    let (mut parent, mut chain) = (String::new(), None);
    for text in ["2", "1", "2"] {
        let next = world.above(chain.as_ref(), text);
        assert_eq!(code(all.prepare(&layer("x", &parent, &next))), Code::AlreadyExists);
        (parent, chain) = (found(&all, &next, &parent), Some(next));
    }
    let mounts = all.prepare(&new("c", &parent)).unwrap();
    let real: BTreeSet<PathBuf> = option(&mounts[0], "lowerdir=")
        .split(':')
        .map(|path| Path::new(path).canonicalize().unwrap())
        .collect();
    assert_eq!(real.len(), 3);
}

/// The errors are those that containerd understands.
#[test]
fn the_rules_are_containerds() {
    let world = World::new();
    let all = world.start();
    let mounts = all.prepare(&new("a", "")).unwrap();
    assert_eq!(
        (&*mounts[0].kind, &mounts[0].options[..]),
        ("bind", &["rw".to_owned(), "rbind".to_owned()][..])
    );
    assert_eq!(code(all.prepare(&new("a", ""))), Code::AlreadyExists);
    assert_eq!(code(all.prepare(&new("b", "none"))), Code::NotFound);
    assert_eq!(code(all.prepare(&new("b", "a"))), Code::InvalidArgument);
    assert_eq!(code(all.prepare(&new("", ""))), Code::InvalidArgument);
    assert_eq!(code(all.commit(&commit("b", "none"))), Code::NotFound);
    all.commit(&commit("b", "a")).unwrap();
    assert_eq!(code(all.stat("a")), Code::NotFound);
    let info = all.stat("b").unwrap();
    assert_eq!((&*info.name, info.labels.len()), ("b", 1));
    assert_eq!(code(all.mounts("b")), Code::FailedPrecondition);
    assert_eq!(code(all.commit(&commit("c", "b"))), Code::FailedPrecondition);
    let mounts = all.view(&new("v", "b")).unwrap();
    assert!(option(&mounts[0], "lowerdir=").ends_with("/empty"), "{mounts:?}");
    assert_eq!(code(all.commit(&commit("c", "v"))), Code::FailedPrecondition);
    all.prepare(&new("w", "b")).unwrap();
    assert_eq!(code(all.commit(&commit("b", "w"))), Code::AlreadyExists);
    assert_eq!(code(all.remove("b")), Code::FailedPrecondition);
    assert_eq!(code(all.list(&["name=~x".to_owned()])), Code::InvalidArgument);
    let mut wanted = Info { name: "b".to_owned(), ..Info::default() };
    wanted.labels.insert("x.y".to_owned(), "1".to_owned());
    assert_eq!(code(all.update(&wanted, &["parent".to_owned()])), Code::InvalidArgument);
    assert_eq!(all.update(&wanted, &["labels.x.y".to_owned()]).unwrap().labels.len(), 2);
    assert_eq!(all.update(&wanted, &[]).unwrap().labels, wanted.labels);
    assert_eq!(code(all.update(&Info::default(), &[])), Code::NotFound);
    for key in ["v", "w", "b"] {
        all.remove(key).unwrap();
    }
    assert_eq!(code(all.remove("b")), Code::NotFound);
    assert_eq!(code(all.usage("b")), Code::NotFound);
    assert_eq!(world.folders(), [""; 0]);
}

/// A layer that is gone is an error that says so. One behind a mount that does not answer is not taken for
/// missing, because containerd would fetch and unpack everything.
#[test]
fn what_is_gone_is_no_silent_fallback() {
    let world = World::new();
    let one = world.layer("1");
    let all = world.start();
    assert_eq!(code(all.prepare(&layer("x", "", &one))), Code::AlreadyExists);
    let lowest = found(&all, &one, "");
    fs::remove_dir(world.images().join(folder::layer(&one))).unwrap();
    let refused = all.prepare(&new("c", &lowest)).unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(
        refused.message.contains(&one.to_string()) && refused.message.contains("pull it again"),
        "{refused:?}"
    );
    assert_eq!(world.folders().len(), 1, "nothing was made");
    fs::remove_dir_all(world.images()).unwrap();
    assert_eq!(code(all.prepare(&layer("y", "", &Digest::of(b"2")))), Code::Unavailable);
    assert_eq!(code(all.prepare(&new("c", &lowest))), Code::Unavailable);
    // What is below the mountpoint.
    fs::create_dir(world.images()).unwrap();
    assert_eq!(code(all.prepare(&layer("y", "", &Digest::of(b"2")))), Code::Unavailable);
    assert_eq!(code(all.prepare(&new("c", &lowest))), Code::Unavailable);
    all.remove(&lowest).unwrap();
}

/// Each state that a kill can leave on the disk: what was answered is there, and nothing else.
#[test]
fn a_kill_leaves_whole_snapshots_and_no_leftovers() {
    let world = World::new();
    let all = world.start();
    all.prepare(&new("a", "")).unwrap();
    all.commit(&commit("base", "a")).unwrap();
    let mounts = all.prepare(&new("c", "base")).unwrap();
    fs::write(PathBuf::from(option(&mounts[0], "upperdir=")).join("written"), "1").unwrap();
    let before = all.list(&[]).unwrap();
    drop(all);
    let root = world.root();
    // In Prepare, before the record; in the middle of a record; in Remove, after the record.
    fs::create_dir_all(root.join("snapshots/7/fs")).unwrap();
    fs::write(root.join("records/7.json.new"), "{").unwrap();
    fs::write(root.join("records/2.new"), "{\"half\":").unwrap();
    fs::write(root.join(".new"), "").unwrap();
    // Somebody else's.
    fs::create_dir(root.join("snapshots/not-ours")).unwrap();
    let all = world.start();
    assert_eq!(all.list(&[]).unwrap(), before);
    assert_eq!(world.folders(), ["1", "2", "not-ours"]);
    assert_eq!(all.mounts("c").unwrap(), mounts);
    assert!(PathBuf::from(option(&mounts[0], "upperdir=")).join("written").exists());
    // A new snapshot takes no folder of another one.
    all.prepare(&new("d", "base")).unwrap();
    fs::create_dir_all(root.join("snapshots/9/fs")).unwrap();
    all.cleanup().unwrap();
    assert_eq!(world.folders(), ["1", "2", "3", "not-ours"]);
}

/// A record that cannot be read stops the start: its snapshot would be taken for a leftover, and removed.
#[test]
fn a_damaged_record_removes_nothing() {
    let world = World::new();
    let all = world.start();
    all.prepare(&new("a", "")).unwrap();
    drop(all);
    fs::write(world.root().join("records/1.json"), "{}").unwrap();
    let store = Store::open(&world.root()).unwrap();
    let Err(failure) = Snapshots::new(store, Box::new(InFolder(world.images())), |_| {}) else {
        panic!("it starts")
    };
    assert_eq!(failure.code, "damaged");
    assert_eq!(world.folders(), ["1"]);
}

/// Two programs do not share a folder, and a path that overlayfs would cut in two is refused.
#[test]
fn the_folder_is_one_programs() {
    let world = World::new();
    let _all = world.start();
    assert_eq!(Store::open(&world.root()).unwrap_err().code, "in-use");
    for name in ["a:b", "a,b", "a\\b"] {
        let path = world.folder.path().join(name);
        assert_eq!(Store::open(&path).unwrap_err().status, 2, "{name}");
        assert!(!path.exists());
    }
}

/// A full disk left the folder of every snapshot that could not be recorded, until the next start.
#[test]
fn regression_a_snapshot_that_cannot_be_recorded_leaves_no_folder() {
    let world = World::new();
    let one = world.layer("1");
    let all = world.start();
    // The record cannot be written where its new file would be.
    let in_the_way: Vec<PathBuf> = (1..5).map(|id| world.root().join(format!("records/{id}.new"))).collect();
    in_the_way.iter().for_each(|path| fs::create_dir(path).unwrap());
    assert_eq!(code(all.prepare(&new("x/1/container", ""))), Code::Internal);
    assert_eq!(code(all.prepare(&layer("x/2/extract", "", &one))), Code::Internal);
    assert_eq!((world.folders().len(), all.list(&[]).unwrap().len()), (0, 0));
    in_the_way.iter().for_each(|path| fs::remove_dir(path).unwrap());
    all.prepare(&new("x/1/container", "")).unwrap();
    assert_eq!(code(all.prepare(&layer("x/2/extract", "", &one))), Code::AlreadyExists);
    assert_eq!(world.folders().len(), 2);
}

/// Runs `work` with a folder whose names can be changed, but which cannot be opened, and so not be synced.
fn unsyncable(folder: &Path, work: impl FnOnce() + Send) {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    fs::set_permissions(folder, PermissionsExt::from_mode(0o300)).unwrap();
    std::thread::scope(|scope| {
        // Only this thread loses the right to open what its mode forbids.
        scope.spawn(|| {
            let mut mine = capabilities(None).unwrap();
            mine.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, mine).unwrap();
            assert!(fs::File::open(folder).is_err());
            work();
        });
    });
    fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).unwrap();
}

/// The record was gone and the snapshot was still known. It could not be removed any more, and after another
/// one had been put above it, the next start failed.
#[test]
fn regression_a_removal_that_cannot_be_synced_is_one() {
    let world = World::new();
    let all = world.start();
    all.prepare(&new("a", "")).unwrap();
    all.commit(&commit("base", "a")).unwrap();
    unsyncable(&world.root().join("records"), || all.remove("base").unwrap());
    assert_eq!(code(all.prepare(&new("c", "base"))), Code::NotFound);
    assert_eq!(world.folders(), ["1"], "after a power cut, the record could be back");
    all.prepare(&new("d", "")).unwrap();
    drop(all);
    let all = world.start();
    assert_eq!(all.list(&[]).unwrap().len(), 1);
    assert_eq!(world.folders(), ["2"]);
}

/// A record that is gone from the disk made every Remove of its snapshot fail.
#[test]
fn regression_a_snapshot_whose_record_is_gone_can_be_removed() {
    let world = World::new();
    let all = world.start();
    all.prepare(&new("a", "")).unwrap();
    fs::remove_file(world.root().join("records/1.json")).unwrap();
    all.remove("a").unwrap();
    assert_eq!((world.folders().len(), all.list(&[]).unwrap().len()), (0, 0));
}

/// A leftover that could not be removed kept the snapshotter from starting, and so every container.
#[test]
fn regression_a_leftover_that_stays_keeps_nothing_from_starting() {
    let world = World::new();
    drop(world.start());
    let folder = world.root().join("snapshots");
    // What is no folder is not removed as one, on every filesystem and for every user.
    fs::write(folder.join("2"), "").unwrap();
    fs::create_dir(folder.join("98")).unwrap();
    let snapshots = world.start();
    assert_eq!(world.folders(), ["2"]);
    assert_eq!(snapshots.cleanup().unwrap_err().code, Code::Internal);
    for key in ["a", "b", "c"] {
        snapshots.prepare(&new(key, "")).unwrap();
    }
    assert_eq!(world.folders(), ["2", "3", "4", "5"]);
    fs::remove_file(folder.join("2")).unwrap();
    snapshots.cleanup().unwrap();
}

/// A layer that was replaced by a link led to a folder of the machine that starts the container.
#[test]
fn regression_a_layer_that_became_a_link_is_refused() {
    let world = World::new();
    let snapshots = world.start();
    let one = world.layer("one");
    assert_eq!(snapshots.prepare(&layer("x", "", &one)).unwrap_err().code, Code::AlreadyExists);
    let name = snapshots.list(&[]).unwrap()[0].name.clone();
    snapshots.prepare(&new("a", &name)).unwrap();
    let at = world.images().join(folder::layer(&one));
    fs::remove_dir(&at).unwrap();
    std::os::unix::fs::symlink("/etc", &at).unwrap();
    assert_eq!(snapshots.prepare(&new("b", &name)).unwrap_err().code, Code::FailedPrecondition);
    assert_eq!(snapshots.mounts("a").unwrap_err().code, Code::FailedPrecondition);
}

/// A layer that the tree had left was said to be there, because it had been asked for before. The image was
/// pulled, and no container could start from it.
#[test]
fn regression_a_layer_that_left_the_tree_is_not_said_to_be_there() {
    let world = World::new();
    let one = world.layer("1");
    let chain = world.above(Some(&one), "2");
    let all = world.start();
    assert_eq!(code(all.prepare(&layer("x/1", "", &one))), Code::AlreadyExists);
    let lowest = found(&all, &one, "");
    assert_eq!(code(all.prepare(&layer("x/2", &lowest, &chain))), Code::AlreadyExists);
    fs::remove_dir(world.images().join(folder::layer(&one))).unwrap();
    // It is unpacked. What is above it is not there either, also for one that asks for the first time.
    assert_eq!(all.prepare(&layer("y/1", "", &one)).unwrap()[0].kind, "bind");
    assert_eq!(code(all.prepare(&layer("y/2", &lowest, &chain))), Code::FailedPrecondition);
    let other = world.above(Some(&one), "3");
    assert_eq!(code(all.prepare(&layer("y/3", &lowest, &other))), Code::FailedPrecondition);
    world.layer("1");
    assert_eq!(code(all.prepare(&layer("z/2", &lowest, &chain))), Code::AlreadyExists);
}

/// A folder of images that gives no answer while its lock is held for writing.
struct Hangs {
    folder: InFolder,
    gate: Arc<RwLock<()>>,
    /// The first question has come.
    asked: Option<Arc<Barrier>>,
}

impl Layers for Hangs {
    fn has(&self, chain: &Digest) -> io::Result<bool> {
        if let Some(asked) = &self.asked {
            asked.wait();
        }
        let _passes = self.gate.read().unwrap();
        self.folder.has(chain)
    }

    fn check(&self) -> io::Result<()> {
        let _passes = self.gate.read().unwrap();
        self.folder.check()
    }

    fn names(&self) -> io::Result<BTreeSet<Digest>> {
        let _passes = self.gate.read().unwrap();
        self.folder.names()
    }

    fn answers(&self, _: Duration) -> bool {
        true
    }
}

impl World {
    fn hanging(&self, asked: Option<Arc<Barrier>>) -> (Snapshots, Arc<RwLock<()>>) {
        let store = Store::open(&self.root()).unwrap();
        store.point_at(&self.images()).unwrap();
        let gate = Arc::default();
        let layers = Hangs { folder: InFolder(self.images()), gate: Arc::clone(&gate), asked };
        (Snapshots::new(store, Box::new(layers), |_| {}).unwrap(), gate)
    }
}

/// The pull of one image asked the store for its layer, and all other containers of the node waited with it.
#[test]
fn regression_a_question_that_hangs_holds_up_nothing_else() {
    let world = World::new();
    let one = world.layer("1");
    let asked = Arc::new(Barrier::new(2));
    let (mut all, gate) = world.hanging(Some(Arc::clone(&asked)));
    all.asking.limit = Duration::from_secs(300);
    let all = &all;
    std::thread::scope(|scope| {
        let hangs = gate.write().unwrap();
        let pull = scope.spawn(move || code(all.prepare(&layer("x", "", &one))));
        asked.wait();
        all.prepare(&new("a", "")).unwrap();
        all.commit(&commit("base", "a")).unwrap();
        all.view(&new("v", "base")).unwrap();
        all.mounts("v").unwrap();
        all.stat("v").unwrap();
        all.remove("v").unwrap();
        // Above what is removed meanwhile, nothing is made.
        assert_eq!(all.list(&[]).unwrap().len(), 1);
        assert!(!pull.is_finished());
        drop(hangs);
        assert_eq!(pull.join().unwrap(), Code::AlreadyExists);
    });
}

/// While the folder of images hangs, an image that it has waits for it, and every other one is unpacked.
#[test]
fn regression_images_of_others_do_not_wait_for_a_folder_that_hangs() {
    let world = World::new();
    let one = world.layer("1");
    let chain = world.above(Some(&one), "2");
    let (mut all, gate) = world.hanging(None);
    assert_eq!(code(all.prepare(&layer("x", "", &one))), Code::AlreadyExists);
    let lowest = found(&all, &one, "");
    all.remember().unwrap();
    all.asking.limit = Duration::from_millis(20);
    let hangs = gate.write().unwrap();
    // More often than questions may be open.
    for n in 0..20 {
        assert_eq!(code(all.prepare(&layer(&format!("y/{n}"), &lowest, &chain))), Code::Unavailable);
    }
    let other = Digest::of(b"other");
    assert_eq!(all.prepare(&layer("z", "", &other)).unwrap()[0].kind, "bind");
    all.commit(&commit(&format!("n/1/{other}"), "z")).unwrap();
    all.prepare(&new("container", &format!("n/1/{other}"))).unwrap();
    assert!(all.remember().is_err());
    drop(hangs);
    all.asking.limit = Duration::from_secs(300);
    // The questions that nobody waits for any more end one after another.
    while code(all.prepare(&layer("y", &lowest, &chain))) != Code::AlreadyExists {
        std::thread::sleep(Duration::from_millis(5));
    }
}
