//! Clones in a shared volume: they have what other nodes have acknowledged, keep its bytes, and leave nothing
//! when their node is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::clone::Cloned;

fn clone(node: &Node, from: Ino, parent: Ino, name: &str) -> Result<Cloned, Errno> {
    node.clone_tree(from, parent, name.as_bytes(), &mut |_| ControlFlow::Continue(()))
}

#[test]
fn a_clone_has_what_another_node_has_just_done() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let (tree, copies) = (one.dir(Ino::ROOT, "tree"), two.dir(Ino::ROOT, "copies"));
    let deep = one.dir(tree, "deep");
    let (small, large) = (one.file(tree, "small"), one.file(deep, "large"));
    one.put(small, 0, b"a few bytes");
    one.link(small, deep, b"linked").unwrap();
    for n in 0..5u64 {
        // Not stored yet, and in no blob.
        one.put(large, n * 100_000, &noise(n, 100_000));
        let at = two.find(Ino::ROOT, "tree").unwrap().ino;
        let done = clone(&two, at, copies, &n.to_string()).unwrap();
        assert_eq!((done.dirs, done.files, done.links), (2, 2, 1));
        one.put(small, 0, &[b'0' + n as u8]);
        for node in [&one, &two] {
            let copy = node.find(copies, &n.to_string()).unwrap().ino;
            let inside = node.find(copy, "deep").unwrap().ino;
            let whole: Vec<u8> = (0..=n).flat_map(|n| noise(n, 100_000)).collect();
            assert!(node.get(node.find(inside, "large").unwrap().ino) == whole, "{n}");
            let (a, b) = (node.find(copy, "small").unwrap(), node.find(inside, "linked").unwrap());
            assert_eq!((a.ino, a.nlink), (b.ino, 2));
            assert_eq!(node.get(a.ino)[1..], b"a few bytes"[1..]);
            assert!(node.find(tree, "small").unwrap().ino != a.ino);
        }
    }
    assert_eq!(clone(&two, tree, copies, "0").unwrap_err(), Errno::EEXIST);
    // Both change their own.
    let first = two.find(two.find(two.find(copies, "0").unwrap().ino, "deep").unwrap().ino, "large").unwrap();
    two.put(first.ino, 10, b"copy");
    one.put(large, 10, b"tree");
    let [of_copy, of_tree] = [first.ino, large].map(|file| one.get(file)[10..14].to_vec());
    assert_eq!((&of_copy[..], &of_tree[..]), (&b"copy"[..], &b"tree"[..]));
    // The copies keep the bytes.
    one.upload();
    two.upload();
    one.cut(large, 0);
    for node in [&one, &two] {
        node.round();
    }
    let last = one.find(one.find(copies, "4").unwrap().ino, "deep").unwrap().ino;
    let whole: Vec<u8> = (0..5).flat_map(|n| noise(n, 100_000)).collect();
    assert!(two.get(two.find(last, "large").unwrap().ino) == whole);
    cluster.assert_whole();
    assert_eq!(cluster.count(tags::ORPHAN), 0);
    // Each copy has a lease of its own until it has its name. The folders and the linked files keep theirs.
    let kept = 4 + 5 * 2 + 6;
    eventually("no lease row is left of the copies", || cluster.count(tags::LEASE) <= kept);
    assert_eq!(*cluster.lines.lock(), [""; 0]);
}

/// A file of so many pages that it takes two steps.
#[test]
fn a_large_file_is_copied_as_of_one_moment() {
    const LAST: u64 = 1030 * (4 << 20);
    let cluster = Cluster::new(Duration::from_secs(600));
    let (one, two) = (cluster.join(), cluster.join());
    let file = one.file(Ino::ROOT, "f");
    for page in 0..1030u64 {
        one.put(file, page * (4 << 20), &[1; 600]);
    }
    let write = |version: u64| {
        one.put(file, 0, &version.to_be_bytes());
        one.put(file, LAST, &version.to_be_bytes());
    };
    write(0);
    let stop = AtomicBool::new(false);
    let (versions, clones) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut version = 0;
            while !stop.load(Ordering::Relaxed) {
                version += 1;
                write(version);
                std::thread::sleep(Duration::from_millis(50));
            }
            version
        });
        // As before each renewal of a session.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                two.note_held_orphans().unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let (mut clones, began) = (0, Instant::now());
        // Longer until there is one: on a busy machine many are given up.
        let seconds = |clones| Duration::from_secs(if clones == 0 { 120 } else { 15 });
        while began.elapsed() < seconds(clones) && !writer.is_finished() {
            let name = format!("copy{clones}");
            match clone(&two, file, Ino::ROOT, &name) {
                // The reaper takes the copy if that thread does not run for two tenths of a second.
                Err(Errno::EBUSY | Errno::ENOENT) => continue,
                Ok(_) => {}
                Err(errno) => {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{errno}: {:?}", cluster.lines.lock());
                }
            }
            clones += 1;
            let copy = two.find(Ino::ROOT, &name).unwrap().ino;
            let version = |at: u64| {
                let mut bytes = [0; 8];
                two.read(copy, at, &mut bytes).unwrap();
                u64::from_be_bytes(bytes)
            };
            let (first, last) = (version(0), version(LAST));
            stop.store(first != last && first != last + 1, Ordering::Relaxed);
            assert!(first == last || first == last + 1, "{first} and {last}");
        }
        stop.store(true, Ordering::Relaxed);
        (writer.join().unwrap(), clones)
    });
    println!("{versions} versions, {clones} clones");
    assert!(clones > 0);
    eventually("what was given up is removed", || cluster.count(tags::ORPHAN) == 0);
}

/// Neither a clone that was interrupted nor one whose node is lost leaves anything.
#[test]
fn an_unfinished_clone_leaves_nothing() {
    let cluster = Cluster::new(SOON);
    let (one, mut two) = (cluster.join(), cluster.join());
    let tree = one.dir(Ino::ROOT, "tree");
    for n in 0..200u64 {
        let dir = if n % 50 == 0 { one.dir(tree, &format!("dir{n}")) } else { tree };
        let file = one.file(dir, &format!("f{n}"));
        one.put(file, 0, &noise(n, 1000));
    }
    one.upload();
    let inodes = || cluster.count(tags::INODE);
    let before = inodes();
    let interrupted =
        two.clone_tree(tree, Ino::ROOT, b"copy", &mut |_| std::ops::ControlFlow::Break(())).unwrap_err();
    assert_eq!(interrupted, Errno::EINTR);
    eventually("the interrupted one is removed", || cluster.count(tags::ORPHAN) == 0);
    assert_eq!(inodes(), before);
    let killed = two.clone_tree(tree, Ino::ROOT, b"copy", &mut |done| {
        if done.files > 100 {
            two.parts().store.flush().unwrap();
            two.end_session();
            two.place.term.end();
        }
        ControlFlow::Continue(())
    });
    assert!(killed.is_err());
    assert!(inodes() > before + 50 && cluster.count(tags::ORPHAN) > 0, "nothing was half made");
    two.volume = None;
    eventually("the other node removes it", || cluster.count(tags::ORPHAN) == 0);
    assert_eq!((inodes(), one.find(Ino::ROOT, "copy")), (before, None));
    assert_eq!(one.names(tree).len(), 2 + 196 + 4);
    cluster.assert_whole();
}
