//! File handles, as NFS servers use them: name_to_handle_at(2), open_by_handle_at(2).
//!
//! A handle is the number of an inode, and a volume never gives a number to a second inode. So a handle leads
//! to its file or to nothing, whatever the kernel has forgotten and however often the daemon was started.

mod export;
mod handle;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::program::covey_ok;
use covey_tests::volume::detach;
use covey_tests::{Need, Volume, requires};
use handle::Handle;

/// The error of a handle that leads nowhere.
const STALE: Option<i32> = Some(libc::ESTALE);

/// The text of the file that a handle leads to.
fn text(mount: &Path, handle: &Handle) -> String {
    let mut text = String::new();
    handle.open(mount, libc::O_RDONLY).unwrap().read_to_string(&mut text).unwrap();
    text
}

fn is_stale(mount: &Path, handle: &Handle) -> bool {
    handle.open(mount, libc::O_RDONLY).is_err_and(|error| error.raw_os_error() == STALE)
}

/// The kernel reports the end of an open file after close(2) has returned. Until then the file is there.
fn becomes_stale(mount: &Path, handle: &Handle) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_stale(mount, handle) {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// The path of what a handle leads to, as the kernel finds it through the folders above.
fn path(file: &File) -> String {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    fs::read_link(link).unwrap().to_str().unwrap().to_owned()
}

/// A file handle leads to the same file after an unmount, a kill of the daemon, and a rename, and from a
/// folder's handle the path up to the root is found.
#[test]
fn handles_outlive_mounts_daemons_and_names() {
    requires!(Need::Covey, Need::Root);
    let volume = Volume::new();
    let mut mounted = volume.mount();
    let root = mounted.path().to_owned();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::write(root.join("a/b/c/file"), "by its handle").unwrap();
    std::os::unix::fs::symlink("a/b", root.join("link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("a/pipe"), 0o600.into()).unwrap();
    let of = |name: &str| Handle::of(&root.join(name)).unwrap();
    let (file, folder, link, pipe, top) = (of("a/b/c/file"), of("a/b/c"), of("link"), of("a/pipe"), of(""));
    let check = |name: &str| {
        assert_eq!(text(&root, &file), "by its handle");
        let opened = folder.open(&root, libc::O_DIRECTORY).unwrap();
        // The folders above are looked up by "..", one by one.
        assert_eq!(path(&opened), root.join(name).to_str().unwrap());
        drop(opened);
        let opened = |handle: &Handle| handle.open(&root, libc::O_PATH | libc::O_NOFOLLOW).unwrap();
        assert!(opened(&link).metadata().unwrap().is_symlink());
        assert!(opened(&pipe).metadata().unwrap().file_type().is_fifo());
        assert_eq!(opened(&top).metadata().unwrap().ino(), 1);
    };
    for round in 0..3 {
        check("a/b/c");
        mounted = match round {
            0 => {
                mounted.umount();
                volume.mount()
            }
            1 => {
                mounted.kill();
                volume.mount()
            }
            _ => mounted,
        };
    }
    fs::rename(root.join("a/b"), root.join("moved")).unwrap();
    mounted.umount();
    let mounted = volume.mount();
    check("moved/c");
    mounted.umount();
}

/// A handle of a file that was deleted gives ESTALE, and never leads to another file, however many are
/// created after it.
#[test]
fn handles_of_deleted_files_are_stale_for_ever() {
    requires!(Need::Covey, Need::Root);
    let volume = Volume::new();
    let mut mounted = volume.mount();
    let root = mounted.path().to_owned();
    let mut gone: Vec<Handle> = Vec::new();
    for round in 0..4 {
        for number in 0..50 {
            let (file, folder) = (root.join(format!("f{number}")), root.join(format!("d{number}")));
            fs::write(&file, format!("{round}")).unwrap();
            fs::create_dir(&folder).unwrap();
            let handles = [Handle::of(&file).unwrap(), Handle::of(&folder).unwrap()];
            assert!(handles.iter().all(|handle| !gone.contains(handle)), "a number was used again");
            fs::remove_file(&file).unwrap();
            fs::remove_dir(&folder).unwrap();
            gone.extend(handles);
        }
        assert!(gone.iter().all(|handle| becomes_stale(&root, handle)), "round {round}");
        if round % 2 == 0 {
            mounted.umount();
        } else {
            mounted.kill();
        }
        mounted = volume.mount();
        assert!(gone.iter().all(|handle| is_stale(&root, handle)), "round {round}, mounted again");
    }
    // A file that is open and has no name is there as long as it is open.
    fs::write(root.join("open"), "without a name").unwrap();
    let (handle, open) = (Handle::of(&root.join("open")).unwrap(), File::open(root.join("open")).unwrap());
    fs::remove_file(root.join("open")).unwrap();
    assert_eq!(text(&root, &handle), "without a name");
    drop(open);
    assert!(becomes_stale(&root, &handle));
    mounted.umount();
}

/// The handles of a published tree are those of the volume, on every node that mounts it.
#[test]
fn handles_of_a_published_tree_are_the_same_on_every_node() {
    requires!(Need::Covey, Need::Root);
    let folder = covey_tests::scratch();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let origin = format!("file:{}", at("origin"));
    let volume = Volume::below(folder.path(), &["--origin", &origin]);
    let mounted = volume.mount();
    fs::create_dir(mounted.join("folder")).unwrap();
    fs::write(mounted.join("folder/file"), "published").unwrap();
    mounted.umount();
    covey_ok(&["publish", volume.source.to_str().unwrap(), "latest"]);
    let tree = format!("{origin}@latest");
    let mut handles = Vec::new();
    for node in ["one", "two"] {
        let mount = folder.path().join(node);
        fs::create_dir(&mount).unwrap();
        covey_ok(&["mount", "-d", &tree, mount.to_str().unwrap()]);
        let done = std::panic::catch_unwind(|| {
            if let Some(handle) = handles.first() {
                // Nothing was looked up on this mount before.
                assert_eq!(text(&mount, handle), "published");
            }
            Handle::of(&mount.join("folder/file")).unwrap()
        });
        covey_ok(&["umount", mount.to_str().unwrap()]);
        detach(&mount);
        handles.push(done.unwrap());
    }
    assert!(handles[0] == handles[1]);
}
