//! A mount that moves from tree to tree, before a kernel that keeps every name for ever unless it is told to forget it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::Ino;
use covey_tests::Rng;
use fs::Errno;
use fs::api::{FileKind, Filesystem};
use fs::follow::{Changed, Following};
use tree::diff;
use tree::rows::Scope;

use crate::world::{Seen, Work, World, look};

/// What the kernel keeps: for each name in a folder the node, or that there is none; and for each node how often it was told of it.
#[derive(Default)]
struct Kernel {
    names: BTreeMap<(Ino, Vec<u8>), Option<(Ino, FileKind)>>,
    counts: BTreeMap<Ino, u64>,
}

impl Kernel {
    /// As a path is walked: what is kept is not asked for.
    fn lookup(&mut self, fs: &dyn Filesystem, dir: Ino, name: &[u8]) -> Option<(Ino, FileKind)> {
        if let Some(kept) = self.names.get(&(dir, name.to_vec())) {
            return *kept;
        }
        let (found, fleeting) = match fs.lookup(dir, name) {
            Ok(entry) => {
                *self.counts.entry(entry.node).or_default() += 1;
                (Some((entry.node, entry.attr.kind)), entry.fleeting)
            }
            Err(Errno::ENOENT) => (None, fs.fleeting()),
            Err(error) => panic!("{error:?}"),
        };
        if !fleeting {
            self.names.insert((dir, name.to_vec()), found);
        }
        found
    }

    /// Everything below a folder, by the kernel's own memory where it has one: path, node, and what the node shows.
    fn walk(&mut self, fs: &dyn Filesystem) -> BTreeMap<Vec<u8>, (Ino, Vec<u8>)> {
        let mut all = BTreeMap::new();
        let mut todo = vec![(Ino::ROOT, Vec::new())];
        while let Some((dir, path)) = todo.pop() {
            let mut names = Vec::new();
            fs.readdir(dir, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
            for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
                let path = [&path[..], b"/", &name].concat();
                let (node, kind) = self.lookup(fs, dir, &name).unwrap();
                if kind == FileKind::Dir {
                    todo.push((node, path.clone()));
                }
                all.insert(path, (node, shown(fs, node)));
            }
        }
        all
    }

    fn forget(&mut self, fs: &dyn Filesystem, node: Ino) {
        self.names.retain(|_, kept| kept.is_none_or(|(kept, _)| kept != node));
        let count = self.counts.remove(&node).unwrap();
        fs.forget(node, count);
    }
}

/// What a node shows of a file or link: its content, hashed.
fn shown(fs: &dyn Filesystem, node: Ino) -> Vec<u8> {
    let attr = fs.getattr(node).unwrap();
    match attr.kind {
        FileKind::File => {
            let mut bytes = vec![0; attr.size as usize];
            let mut done = 0;
            while done < bytes.len() {
                done += fs.read(node, done as u64, &mut bytes[done..]).unwrap();
            }
            [blake3::hash(&bytes).as_bytes(), format!("{:o}", attr.perm).as_bytes()].concat()
        }
        FileKind::Symlink => fs.readlink(node).unwrap(),
        _ => Vec::new(),
    }
}

fn contents(all: &BTreeMap<Vec<u8>, Seen>) -> Vec<&Vec<u8>> {
    all.keys().filter(|path| !path.is_empty()).collect()
}

/// Names that are kept are those of one tree at every moment; a node that is held shows what it showed when it was looked up, whatever
/// is published since; nodes of files that did not change stay; and nothing is held in the end.
#[test]
fn a_followed_name_shows_one_tree_at_a_time_and_open_files_stay() {
    for seed in 0..4 {
        println!("seed {seed}");
        let world = World::new();
        let volume = world.open();
        let (mut work, mut rng) = (Work::new(seed), Rng::new(seed + 1000));
        work.steps(&volume, 150);
        world.publish(&volume, "n", Scope::Whole).unwrap();
        let mut tree = Arc::new(world.tree("n"));
        let following = Following::new(Arc::new(world.frozen("n")));
        let mut kernel = Kernel::default();
        let mut before = kernel.walk(&following);
        // Nodes that programs hold open, and what they showed.
        let mut open: BTreeMap<Ino, Vec<u8>> = BTreeMap::new();
        for round in 0..12 {
            let some: Vec<_> = before.values().filter(|_| rng.one_in(4)).cloned().collect();
            open.extend(some.into_iter().filter(|(node, _)| node.0 >= 1 << 63));
            // Names that are not there are kept as well, and may come to be.
            let dirs = work.dirs().to_vec();
            for _ in 0..30 {
                let name = format!("n{}", rng.below(400)).into_bytes();
                let dir = *rng.pick(&dirs);
                if following.getattr(dir).is_ok() {
                    kernel.lookup(&following, dir, &name);
                }
            }
            work.steps(&volume, 25);
            world.publish(&volume, "n", Scope::Whole).unwrap();
            let next = Arc::new(world.tree("n"));
            let changes = diff::changes(&tree, &next).unwrap();
            let changed = changes.inodes.iter().map(|(ino, gone)| Changed { ino: *ino, gone: *gone });
            let moving = following.begin(changed.collect());
            // Half-way everything is still the old tree, and nothing that is asked for now is kept.
            kernel.walk(&following).into_iter().for_each(|(path, old)| assert_eq!(before[&path].1, old.1));
            for name in changes.names.iter().chain(&diff::names_of(&tree, moving.held()).unwrap()) {
                kernel.names.remove(name);
            }
            let kept = kernel.names.len();
            kernel.walk(&following);
            assert_eq!(kernel.names.len(), kept, "nothing is kept while it moves");
            let frozen = Arc::new(world.frozen("n"));
            moving.finish(frozen.clone());
            tree = next;

            let after = kernel.walk(&following);
            assert_eq!(
                after.keys().collect::<Vec<_>>(),
                contents(&look(&*frozen, Ino::ROOT)),
                "round {round}"
            );
            let mut fresh = Kernel::default();
            let anew = Following::new(frozen);
            for (path, (_, content)) in fresh.walk(&anew) {
                assert_eq!(after[&path].1, content, "round {round}: {}", String::from_utf8_lossy(&path));
            }
            for (node, content) in &open {
                assert_eq!(&shown(&following, *node), content, "round {round}: {node:?} was open");
            }
            for (path, (node, content)) in &after {
                // A node stands for one content for ever.
                let same = before.values().find(|(other, _)| other == node);
                assert!(same.is_none_or(|(_, was)| was == content), "{}", String::from_utf8_lossy(path));
            }
            // Some files are closed, and what no name leads to any more is forgotten.
            let closed: Vec<Ino> = open.keys().copied().filter(|_| rng.one_in(3)).collect();
            for node in closed {
                open.remove(&node);
                if !after.values().any(|(named, _)| *named == node) {
                    kernel.forget(&following, node);
                    assert!(following.getattr(node).is_err(), "a forgotten node is nothing");
                }
            }
            before = after;
        }
        let nodes: Vec<Ino> = kernel.counts.keys().copied().collect();
        nodes.into_iter().for_each(|node| kernel.forget(&following, node));
        assert_eq!(following.held(), (0, 0));
        volume.close().unwrap();
    }
}

/// A move that could not be carried out leaves everything as it was.
#[test]
fn a_move_that_is_given_up_changes_nothing() {
    let world = World::new();
    let volume = world.open();
    Work::new(7).steps(&volume, 60);
    world.publish(&volume, "n", Scope::Whole).unwrap();
    let following = Following::new(Arc::new(world.frozen("n")));
    let mut kernel = Kernel::default();
    let before = kernel.walk(&following);
    let all = before.values().map(|(node, _)| *node);
    let inos = all.map(|node| Changed { ino: following.getattr(node).unwrap().ino, gone: false });
    drop(following.begin(inos.collect()));
    assert!(!following.fleeting() && following.moves() == 0);
    assert_eq!(kernel.walk(&following), before);
    volume.close().unwrap();
}
