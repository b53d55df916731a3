//! Access hints, and what they change.

use base::size::{KIB, MIB};
use blob::{Access, BlobError, BlobSource};

use super::*;
use crate::access::{AccessRules, Pattern};
use crate::api::{RenameMode, XattrMode};

/// A source that remembers how it was read.
struct Heard {
    inner: Arc<dyn BlobSource>,
    how: Mutex<Vec<Access>>,
    needed: Mutex<usize>,
}

impl BlobSource for Heard {
    fn read_at(&self, id: &base::BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.read_as(id, offset, buf, Access::Normal)
    }

    fn read_as(
        &self,
        id: &base::BlobId,
        offset: u32,
        buf: &mut [u8],
        access: Access,
    ) -> Result<(), BlobError> {
        self.how.lock().push(access);
        self.inner.read_at(id, offset, buf)
    }

    fn is_local(&self, _: &base::BlobId) -> bool {
        false
    }

    fn will_need(&self, _: &base::BlobId) {
        *self.needed.lock() += 1;
    }
}

/// A volume with remote blobs and these rules. `file` is in `data.lance`.
fn volume(rules: AccessRules) -> (World, Volume, Arc<Heard>, [Ino; 2]) {
    let mut world = World::new();
    let v = world.open();
    let folder = v.dir(Ino::ROOT, "data.lance");
    let file = v.file(folder, "file");
    (0..2).for_each(|n| v.put(file, n * MIB, &noise(n, MIB as usize)));
    v.close().unwrap();
    let (how, needed) = (Mutex::default(), Mutex::default());
    let heard = Arc::new(Heard { inner: world.parts.source.clone(), how, needed });
    world.parts.source = heard.clone();
    let options = Options { local: false, access: rules, ..world.options() };
    let volume = Volume::open(world.parts.clone(), options).unwrap();
    let folder = volume.find(Ino::ROOT, "data.lance").unwrap().ino;
    let file = volume.find(folder, "file").unwrap().ino;
    (world, volume, heard, [folder, file])
}

/// The access mode with which the beginning of the file was read.
fn access(volume: &Volume, heard: &Heard, file: Ino) -> Access {
    volume.read(file, 0, &mut [0; 4096]).unwrap();
    heard.how.lock().pop().unwrap()
}

const NAME: &[u8] = b"user.covey.access";

#[test]
fn the_nearest_attribute_says_how_a_file_is_read() {
    let (_world, volume, heard, [folder, file]) = volume(AccessRules::default());
    let set = |ino, value: &[u8]| volume.setxattr(ino, NAME, value, XattrMode::Set, false);
    assert_eq!(access(&volume, &heard, file), Access::Normal);
    set(Ino::ROOT, b"stream").unwrap();
    assert_eq!(access(&volume, &heard, file), Access::Stream);
    set(folder, b"random").unwrap();
    assert_eq!(access(&volume, &heard, file), Access::Random);
    set(file, b"normal").unwrap();
    assert_eq!(access(&volume, &heard, file), Access::Normal);
    assert_eq!(set(file, b"sometimes"), Err(Errno::EINVAL));
    volume.removexattr(file, NAME).unwrap();
    assert_eq!(access(&volume, &heard, file), Access::Random);
    // The hint changes when the file is moved.
    volume.rename(folder, b"file", Ino::ROOT, b"file", RenameMode::Replace).unwrap();
    assert_eq!(access(&volume, &heard, file), Access::Stream);
    volume.close().unwrap();
}

#[test]
fn a_rule_is_of_a_name_and_of_all_below_it_and_an_attribute_is_nearer() {
    let names = vec![(Pattern::new("*.lance").unwrap(), Access::Random)];
    let (_world, volume, heard, [folder, file]) = volume(AccessRules { default: Access::Stream, names });
    assert_eq!(access(&volume, &heard, file), Access::Random);
    volume.setxattr(file, NAME, b"normal", XattrMode::Set, false).unwrap();
    assert_eq!(access(&volume, &heard, file), Access::Normal);
    volume.removexattr(file, NAME).unwrap();
    volume.rename(Ino::ROOT, b"data.lance", Ino::ROOT, b"data", RenameMode::Replace).unwrap();
    assert_eq!(access(&volume, &heard, file), Access::Stream, "{folder:?} has no such name any more");
    volume.close().unwrap();
}

#[test]
fn of_what_is_read_at_random_nothing_is_prefetched() {
    let (_world, volume, heard, [folder, file]) = volume(AccessRules::default());
    volume.setxattr(folder, NAME, b"random", XattrMode::Set, false).unwrap();
    let mut buf = vec![0; (128 * KIB) as usize];
    for n in 0..16 {
        volume.read(file, n * 128 * KIB, &mut buf).unwrap();
    }
    assert_eq!(*heard.needed.lock(), 0);
    volume.close().unwrap();
}
