//! Mounts for measurements: in one the kernel caches nothing, in one all readers share a descriptor.

use std::fs::File;
use std::io::Read;

use fuse::Options;

use crate::memory::Memory;
use crate::{options, rig_with};

/// What an ordinary FUSE filesystem pays for every open, read and close of a file.
#[test]
fn an_uncached_mount_is_asked_for_everything() {
    let Some(rig) = rig_with(Memory::new(), Options { uncached: true, ..options() }) else { return };
    let path = rig.path("file");
    std::fs::write(&path, vec![5; 100_000]).unwrap();
    let rounds = 20;
    let requests = rig.during(|| {
        for _ in 0..rounds {
            let mut data = vec![0; 4096];
            File::open(&path).unwrap().read_exact(&mut data).unwrap();
            assert_eq!(data, vec![5; 4096]);
        }
    });
    let count = |name| requests.iter().find(|(kind, _)| *kind == name).map_or(0, |(_, count)| *count);
    // The last RELEASE may come after the close has returned.
    let wanted = ["LOOKUP", "OPEN", "READ", "FLUSH"].map(|name| (name, count(name)));
    assert!(wanted.iter().all(|(_, count)| *count == rounds), "{requests:?}");
    assert!(count("RELEASE") + 1 >= rounds, "{requests:?}");
    for _ in 0..3 {
        assert_eq!(std::fs::read_dir(rig.root()).unwrap().count(), 1);
    }
    assert!(rig.count("OPENDIR") >= 3 && rig.count("READDIRPLUS") == 0, "{:?}", rig.session.counts());
    std::fs::rename(&path, rig.path("other")).unwrap();
    std::fs::remove_file(rig.path("other")).unwrap();
}

#[test]
fn readers_can_share_a_channel() {
    let options = Options { one_channel: true, readers: 4, transport: fuse::Transport::Classic, ..options() };
    let Some(rig) = rig_with(Memory::new(), options) else { return };
    let files: Vec<_> = (0..8).map(|number| rig.path(&number.to_string())).collect();
    std::thread::scope(|scope| {
        for path in &files {
            scope.spawn(move || (0..50).for_each(|_| std::fs::write(path, vec![1; 9_000]).unwrap()));
        }
    });
    assert!(files.iter().all(|path| std::fs::read(path).unwrap() == vec![1; 9_000]));
}
