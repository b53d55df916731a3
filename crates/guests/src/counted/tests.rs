use folder::Folder;

use super::*;

fn view(folder: &Arc<Folder>) -> Counted {
    Counted::new(Arc::clone(folder) as _, Sharing::Many, false, Arc::default())
}

/// A guest has a file open, and the server of the folder is restarted. Another guest looks up the file that
/// has its inode number now. The first guest's open file was that file from then on.
#[test]
fn regression_an_open_file_from_before_a_restart_is_never_another_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "secret").unwrap();
    let open = || Arc::new(Folder::open(dir.path()).unwrap());
    let stale = Errno(rustix::io::Errno::STALE.raw_os_error());
    let old = view(&open()).lookup(Ino::ROOT, b"f").unwrap().node;
    let folder = open();
    let (one, two) = (view(&folder), view(&folder));
    assert!(!one.hold(old, 1), "it cannot be found by number");
    let new = two.lookup(Ino::ROOT, b"f").unwrap().node;
    for guest in [&one, &two] {
        assert_eq!(guest.getattr(old), Err(stale));
        assert_eq!(guest.read(old, 0, &mut [0; 6]), Err(stale));
        assert_eq!(guest.write(old, 0, b"x", None, false), Err(stale));
        assert!(!guest.hold(old, 1));
    }
    assert_eq!(two.read(new, 0, &mut [0; 6]), Ok(6));
    // Its kernel forgets the old number, which takes nothing from the new one.
    one.forget(old, 1);
    two.forget(old, 1);
    assert!(two.getattr(new).is_ok());
    // A second guest that holds it keeps it for the first one, and no longer.
    assert_eq!(one.lookup(Ino::ROOT, b"f").unwrap().node, new);
    one.release();
    assert!(two.getattr(new).is_ok());
    two.release();
    assert_eq!(folder.getattr(new), Err(stale));
}

/// Each guest has a kernel of its own: a listing says which folders this one holds, not what others hold.
#[test]
fn regression_a_listing_says_which_folders_this_guest_holds() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    let folder = Arc::new(Folder::open(dir.path()).unwrap());
    let (one, two) = (view(&folder), view(&folder));
    let held = |guest: &Counted| {
        let mut held = Vec::new();
        guest
            .readdir_plus(Ino::ROOT, 0, &mut |_, found| {
                held.extend(found.map(|found| found.held));
                ControlFlow::Continue(())
            })
            .unwrap();
        held
    };
    assert_eq!([held(&one), held(&one)], [[false], [true]]);
    assert_eq!([held(&two), held(&two)], [[false], [true]]);
    let node = two.lookup(Ino::ROOT, b"d").unwrap().node;
    two.forget(node, 3);
    assert_eq!(held(&two), [false]);
}
