//! A mount that moves from tree to tree, tested with a model of a kernel that keeps every name until it is
//! made to forget it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::Ino;
use covey_tests::Rng;
use fs::Errno;
use fs::api::{FileKind, Filesystem, ReadPlan};
use fs::follow::{Changed, Following};
use tree::diff;
use tree::rows::Scope;

use super::world::{Seen, Work, World, look};

/// A node and its kind.
type Child = (Ino, FileKind);

/// The kernel's cache: for each name in a folder the node, or that there is none; and for each node the
/// number of references.
#[derive(Default)]
struct Kernel {
    names: BTreeMap<(Ino, Vec<u8>), Option<Child>>,
    counts: BTreeMap<Ino, u64>,
}

impl Kernel {
    /// A lookup as in a path walk: cached names are not looked up again.
    fn lookup(&mut self, fs: &dyn Filesystem, dir: Ino, name: &[u8]) -> Option<Child> {
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

    /// Everything below a folder, from the kernel's cache where possible: path, node, and what the node
    /// shows.
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

    /// Missing names are cached as well, and may be created later.
    fn look_for_what_is_not_there(&mut self, fs: &dyn Filesystem, dirs: &[Ino], rng: &mut Rng) {
        for _ in 0..30 {
            let name = format!("n{}", rng.below(400)).into_bytes();
            let dir = *rng.pick(dirs);
            if fs.getattr(dir).is_ok() {
                self.lookup(fs, dir, &name);
            }
        }
    }

    fn forget(&mut self, fs: &dyn Filesystem, node: Ino) {
        self.names.retain(|_, kept| kept.is_none_or(|(kept, _)| kept != node));
        let count = self.counts.remove(&node).unwrap();
        fs.forget(node, count);
    }
}

/// What a file's or link's node shows: its content, hashed.
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

/// A read that is planned before a move and made after it.
struct Planned {
    plan: ReadPlan,
    /// What the same read gave before the move.
    old: Result<Vec<u8>, Errno>,
}

impl Planned {
    fn new(fs: &Following, node: Ino) -> Planned {
        let mut buf = vec![0; 4096];
        let old = fs.read(node, 0, &mut buf).map(|len| buf[..len].to_vec());
        Planned { plan: fs.plan_read(node, 0, 4096), old }
    }

    fn check(&self, fs: &Following) {
        let mut buf = vec![0; 4096];
        let read = fs.read_planned(&self.plan, &mut buf).map(|len| buf[..len].to_vec());
        assert!(read == self.old, "a read that was planned before the move shows the old tree");
    }
}

type Walked = BTreeMap<Vec<u8>, (Ino, Vec<u8>)>;

fn a_node_is_one_content_for_ever(before: &Walked, after: &Walked) {
    for (path, (node, content)) in after {
        let same = before.values().find(|(other, _)| other == node);
        assert!(same.is_none_or(|(_, was)| was == content), "{}", String::from_utf8_lossy(path));
    }
}

fn contents(all: &BTreeMap<Vec<u8>, Seen>) -> Vec<&Vec<u8>> {
    all.keys().filter(|path| !path.is_empty()).collect()
}

/// At every moment the cached names are those of one tree. A held node shows what it showed at its lookup,
/// whatever is published later. Nodes of unchanged files stay. At the end nothing is held.
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
            kernel.look_for_what_is_not_there(&following, work.dirs(), &mut rng);
            work.steps(&volume, 25);
            world.publish(&volume, "n", Scope::Whole).unwrap();
            let next = Arc::new(world.tree("n"));
            let changes = diff::changes(&tree, &next).unwrap();
            let changed = changes.inodes.iter().map(|(ino, gone)| Changed { ino: *ino, gone: *gone });
            let moving = following.begin(changed.collect());
            // During the move everything still shows the old tree, and no new answer is cached.
            kernel.walk(&following).into_iter().for_each(|(path, old)| assert_eq!(before[&path].1, old.1));
            for name in changes.names.iter().chain(&diff::names_of(&tree, moving.held()).unwrap()) {
                kernel.names.remove(name);
            }
            let kept = kernel.names.len();
            kernel.walk(&following);
            assert_eq!(kernel.names.len(), kept, "nothing is cached during the move");
            let frozen = Arc::new(world.frozen("n"));
            let planned: Vec<_> = open.keys().map(|node| Planned::new(&following, *node)).collect();
            moving.finish(frozen.clone());
            tree = next;
            planned.iter().for_each(|read| read.check(&following));

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
            a_node_is_one_content_for_ever(&before, &after);
            // Some files are closed, and nodes that no name leads to are forgotten.
            let closed: Vec<Ino> = open.keys().copied().filter(|_| rng.one_in(3)).collect();
            for node in closed {
                open.remove(&node);
                if !after.values().any(|(named, _)| *named == node) {
                    kernel.forget(&following, node);
                    assert!(following.getattr(node).is_err(), "a forgotten node does not exist");
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

/// A move that is cancelled leaves everything as it was.
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
