//! Every pair of operations, with the second running between each two steps of the first. The result is the
//! same as running one and then the other, in one of the two orders: row by row, and refusal by refusal.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base::{BlobId, Ino, PackNo, Timestamp};

use crate::key::{Key, KeyRange};
use crate::names::{Names, NamesError};
use crate::plan::op::{Body, Make, Move, Piece, RenameMode, SetAttrs, XattrMode};
use crate::plan::{ACCESS_ACL, Ctx, DEFAULT_ACL, Op, Refusal};
use crate::record::mode;
use crate::store::{Commit, CommitError, MetaStore, Rows, StoreError, Value};
use crate::trash::Setting;

use super::store::TestStore;
use super::world::{World, dir, file};

type All = BTreeMap<Key, Value>;

/// Runs something before its n-th call.
struct Interposed {
    below: Arc<TestStore>,
    calls: AtomicUsize,
    at: usize,
    what: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Interposed {
    fn call(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) == self.at {
            let what = self.what.lock().unwrap().take();
            what.unwrap()();
        }
    }
}

impl MetaStore for Interposed {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.call();
        self.below.get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        true
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.call();
        self.below.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.call();
        self.below.scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.call();
        self.below.commit(commit)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.below.flush()
    }
}

fn store_of(rows: &All) -> Arc<TestStore> {
    let store = TestStore::default();
    *store.rows.lock().unwrap() = rows.clone();
    Arc::new(store)
}

fn run(names: &Names, op: &Op<'_>, now: i64) -> Option<Refusal> {
    match names.run(op, &Ctx { now: Timestamp::from_nanos(now), uid: 1000, gid: 100 }) {
        Ok(_) => None,
        Err(NamesError::Refused(refusal)) => Some(refusal),
        Err(NamesError::Store(error)) => panic!("{error}"),
    }
}

const SEALED: PackNo = PackNo(1);
const UNUSED: PackNo = PackNo(2);
const OPEN: PackNo = PackNo(3);
const SPARE: PackNo = PackNo(4);

/// Inodes: 2 `d/`, 3 `d/f`, 4 `d/s` inline, 5 `e/`, 6 `e/g` and `d/g`, 7 `d/sub/`, 8 an orphan, 9 a removed
/// directory, 10 a tree being cloned with 11 in it, 12 `e/deep/`.
fn base() -> All {
    let mut world = World::new();
    world.create(1, "d", dir(2, 0o755)).unwrap();
    world.create(2, "f", file(3, 0o644)).unwrap();
    world.write_packed(3, 0, &[1; 6000]).unwrap();
    world.seal();
    world.pack(0, &[7; 100]);
    world.seal();
    world.create(2, "s", file(4, 0o644)).unwrap();
    world.write(4, 0, b"small").unwrap();
    world.create(1, "e", dir(5, 0o2775)).unwrap();
    world.create(5, "g", file(6, 0o4755)).unwrap();
    world.run(&Op::Link { ino: Ino(6), parent: Ino(2), name: b"g" }).unwrap();
    world.create(2, "sub", dir(7, 0o755)).unwrap();
    world.run(&Op::Tmpfile { parent: Ino(1), make: file(8, 0o600) }).unwrap();
    world.create(1, "gone", dir(9, 0o755)).unwrap();
    world.run(&Op::Rmdir { parent: Ino(1), name: b"gone" }).unwrap();
    world.run(&Op::CloneInode { from: Ino(7), ino: Ino(10), quota: Ino(0) }).unwrap();
    world.create(10, "in", dir(11, 0o755)).unwrap();
    world.create(5, "deep", dir(12, 0o755)).unwrap();
    world.write_packed(8, 0, &[2; 600]).unwrap();
    let op =
        Op::SetXattr { ino: Ino(3), name: b"user.x", value: b"y", mode: XattrMode::Set, kill_sgid: false };
    world.run(&op).unwrap();
    world
        .run(&Op::SetXattr {
            ino: Ino(6),
            name: ACCESS_ACL,
            value: ACL,
            mode: XattrMode::Set,
            kill_sgid: false,
        })
        .unwrap();
    world.run(&Op::OpenPack { pack: SPARE }).unwrap();
    assert_eq!(world.open, OPEN);
    world.assert_sound();
    world.store.rows.lock().unwrap().clone()
}

/// Makes the rows of `base` with trash: 50 `d/old` and 51 `old/` are in it.
fn base_with_trash() -> All {
    let mut world = World::over(base(), OPEN);
    world.names.set_trash(Setting::Keep(1)).unwrap();
    world.create(2, "old", file(50, 0o644)).unwrap();
    world.write_packed(50, 0, &[3; 6000]).unwrap();
    world.run(&Op::Unlink { parent: Ino(2), name: b"old" }).unwrap();
    world.create(1, "old", dir(51, 0o755)).unwrap();
    world.run(&Op::Rmdir { parent: Ino(1), name: b"old" }).unwrap();
    world.assert_sound();
    world.store.rows.lock().unwrap().clone()
}

/// Operations on what is in the trash.
fn trash_ops(rows: &All) -> Vec<Op<'static>> {
    let names = names_of(store_of(rows));
    let at = |ino| names.trash_row(Ino(ino)).unwrap().unwrap().at;
    let restore = |ino, parent, name| Op::Restore { ino: Ino(ino), parent: Ino(parent), name };
    vec![
        restore(50, 2, b"old"),
        restore(50, 7, b"f"),
        restore(51, 5, b"deep"),
        restore(51, 7, b"new"),
        Op::Expire { ino: Ino(50), at: at(50) },
        Op::Expire { ino: Ino(51), at: at(51) },
        Op::Link { ino: Ino(50), parent: Ino(5), name: b"new" },
        set(50, SetAttrs { size: Some(100), ..SetAttrs::default() }),
        set(51, SetAttrs { perm: Some(0o700), ..SetAttrs::default() }),
        write(50, Body::Packed(&WHOLE), true),
        Op::Reap { ino: Ino(50) },
        Op::Create { parent: Ino(51), name: b"new", make: file(52, 0o644) },
    ]
}

fn rename(from: (u64, &'static [u8]), to: (u64, &'static [u8]), mode: RenameMode) -> Op<'static> {
    Op::Rename { parent: Ino(from.0), name: from.1, to: Ino(to.0), to_name: to.1, mode }
}

fn set(ino: u64, set: SetAttrs) -> Op<'static> {
    Op::SetAttr { ino: Ino(ino), set }
}

fn write(ino: u64, body: Body<'static>, cached: bool) -> Op<'static> {
    Op::Write {
        ino: Ino(ino),
        body,
        unprivileged: Some(7),
        cached,
        intern: Some(BlobId([1; 32])),
        over: None,
    }
}

fn xattr(ino: u64, name: &'static [u8], value: &'static [u8]) -> Op<'static> {
    Op::SetXattr { ino: Ino(ino), name, value, mode: XattrMode::Set, kill_sgid: false }
}

const fn piece(at: u64, len: u32, pack: PackNo, offset: u32, fresh: Option<u32>) -> Piece {
    Piece { at, len, pack, offset, fresh }
}

/// Owner rwx, user 43 r, group r, mask r, others r.
const OTHER_ACL: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x04\0\x2b\0\0\0\
    \x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";

/// Owner rwx, user 42 rw, group rx, mask rwx, others nothing.
const ACL: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x06\0\x2a\0\0\0\
    \x04\0\x05\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

static FRESH: [Piece; 2] =
    [piece(1000, 500, OPEN, 2000, Some(1)), piece((4 << 20) - 8, 8, OPEN, 2500, Some(2))];
static REUSED: [Piece; 1] = [piece(3000, 100, UNUSED, 0, None)];
static WHOLE: [Piece; 1] = [piece(0, 700, OPEN, 3000, Some(3))];
static MOVES: [Move; 1] =
    [Move { from: SEALED, from_offset: 100, len: 4000, to: OPEN, to_offset: 4000, crc: Some(5) }];
static AWAY: [Move; 1] =
    [Move { from: SEALED, from_offset: 0, len: 6000, to: SPARE, to_offset: 0, crc: Some(6) }];

fn names_ops() -> Vec<Op<'static>> {
    use RenameMode::{Exchange, NoReplace, Replace};
    let link = Make { mode: mode::S_IFLNK, target: b"to", ..file(31, 0) };
    vec![
        Op::Create { parent: Ino(2), name: b"new", make: file(30, 0o666) },
        Op::Create { parent: Ino(7), name: b"new", make: link },
        Op::Create { parent: Ino(5), name: b"new", make: dir(32, 0o777) },
        Op::Create { parent: Ino(10), name: b"new", make: file(33, 0o666) },
        Op::Tmpfile { parent: Ino(7), make: file(34, 0o600) },
        Op::Link { ino: Ino(3), parent: Ino(5), name: b"new" },
        Op::Link { ino: Ino(8), parent: Ino(7), name: b"new" },
        Op::Unlink { parent: Ino(2), name: b"f" },
        Op::Unlink { parent: Ino(5), name: b"g" },
        Op::Rmdir { parent: Ino(2), name: b"sub" },
        Op::Rmdir { parent: Ino(1), name: b"e" },
        rename((2, b"f"), (5, b"f"), Replace),
        rename((2, b"f"), (7, b"f"), NoReplace),
        rename((2, b"s"), (2, b"f"), Replace),
        rename((2, b"f"), (5, b"g"), Exchange),
        rename((2, b"g"), (5, b"g"), Replace),
        rename((2, b"sub"), (5, b"moved"), Replace),
        rename((1, b"d"), (12, b"moved"), Replace),
        rename((1, b"e"), (7, b"moved"), Replace),
        rename((5, b"deep"), (2, b"sub"), Replace),
        rename((2, b"sub"), (5, b"deep"), Exchange),
        Op::Attach { ino: Ino(10), parent: Ino(7), name: b"new" },
        Op::CloneInode { from: Ino(2), ino: Ino(35), quota: Ino(0) },
        Op::Reap { ino: Ino(9) },
        Op::Allocate { counter: "next-ino", count: 7, from: 0 },
    ]
}

fn inode_ops() -> Vec<Op<'static>> {
    let perm = |perm| SetAttrs { perm: Some(perm), ..SetAttrs::default() };
    let size = |size| SetAttrs { size: Some(size), ..SetAttrs::default() };
    let times = SetAttrs { mtime: Some(Timestamp(5)), atime: Some(Timestamp(6)), ..SetAttrs::default() };
    vec![
        set(2, perm(0o2700)),
        set(2, times),
        set(7, SetAttrs { gid: Some(9), ..perm(0o2770) }),
        set(9, perm(0o700)),
        set(3, perm(0o600)),
        set(3, size(100)),
        set(3, size(9_000_000)),
        set(4, size(2)),
        set(4, size(2000)),
        set(8, size(0)),
        xattr(3, b"user.x", b"z"),
        xattr(3, b"security.capability", b"z"),
        xattr(3, ACCESS_ACL, ACL),
        xattr(6, ACCESS_ACL, OTHER_ACL),
        Op::RemoveXattr { ino: Ino(6), name: ACCESS_ACL },
        set(6, perm(0o751)),
        xattr(2, DEFAULT_ACL, ACL),
        xattr(7, DEFAULT_ACL, ACL),
        Op::RemoveXattr { ino: Ino(3), name: b"user.x" },
    ]
}

fn byte_ops() -> Vec<Op<'static>> {
    let blob = BlobId([3; 32]);
    let copy = |from, to, to_offset| Op::CopyRange {
        from: Ino(from),
        from_offset: 500,
        to: Ino(to),
        to_offset,
        len: 3000,
    };
    vec![
        write(3, Body::Packed(&FRESH), true),
        write(3, Body::Packed(&REUSED), false),
        write(3, Body::Inline(b"short"), false),
        write(4, Body::Inline(b"other"), true),
        write(4, Body::Packed(&WHOLE), false),
        write(6, Body::Packed(&WHOLE), true),
        write(8, Body::Packed(&WHOLE), true),
        Op::Punch { ino: Ino(3), offset: 50, len: 2000, grow_to: Some(7000) },
        copy(3, 6, 0),
        copy(3, 3, (4 << 20) - 700),
        Op::CloneInode { from: Ino(3), ino: Ino(36), quota: Ino(0) },
        Op::CloneInode { from: Ino(4), ino: Ino(37), quota: Ino(0) },
        Op::Reap { ino: Ino(8) },
        Op::Follow { ino: Ino(3), page: 0, moves: &MOVES },
        Op::Follow { ino: Ino(3), page: 0, moves: &AWAY },
        Op::CondemnPack { pack: UNUSED },
        Op::ForgetPack { pack: SPARE },
        Op::SealPack { pack: OPEN, blob, size: 9000 },
    ]
}

/// What runs in between: mostly one operation.
fn between() -> Vec<Vec<Op<'static>>> {
    let single = [names_ops(), inode_ops(), byte_ops()].concat().into_iter().map(|op| vec![op]);
    let moved_and_condemned =
        vec![Op::Follow { ino: Ino(3), page: 0, moves: &AWAY }, Op::CondemnPack { pack: SEALED }];
    let unlinked_and_collected = vec![
        Op::Unlink { parent: Ino(2), name: b"f" },
        Op::Reap { ino: Ino(3) },
        Op::CondemnPack { pack: SEALED },
    ];
    let removed_and_collected = vec![Op::Rmdir { parent: Ino(2), name: b"sub" }, Op::Reap { ino: Ino(7) }];
    let renamed_and_remade = vec![
        rename((2, b"f"), (5, b"f"), RenameMode::Replace),
        Op::Create { parent: Ino(2), name: b"f", make: dir(40, 0o755) },
    ];
    single
        .chain([moved_and_condemned, unlinked_and_collected, removed_and_collected, renamed_and_remade])
        .collect()
}

/// How operations were refused, one by one.
type Refusals = Vec<Option<Refusal>>;

/// The rows after both, and how each operation was refused.
type Outcome = (All, Refusals, Refusals);

fn run_all(names: &Names, ops: &[Op<'_>], now: i64) -> Refusals {
    ops.iter().map(|op| run(names, op, now)).collect()
}

fn in_order(rows: &All, first: (&[Op<'_>], i64), second: (&[Op<'_>], i64)) -> Outcome {
    let store = store_of(rows);
    let names = names_of(store.clone());
    let first = run_all(&names, first.0, first.1);
    let second = run_all(&names, second.0, second.1);
    (store.rows.lock().unwrap().clone(), first, second)
}

/// Runs the others before the n-th call of the first. None if it has fewer calls.
fn interposed(rows: &All, a: &Op<'static>, b: &[Op<'static>], at: usize) -> Option<Outcome> {
    let below = store_of(rows);
    let refused = Arc::new(Mutex::new(None));
    let (inner, out, ops) = (names_of(below.clone()), refused.clone(), b.to_vec());
    let what = move || *out.lock().unwrap() = Some(run_all(&inner, &ops, 6000));
    let store = Interposed {
        below: below.clone(),
        calls: AtomicUsize::new(0),
        at,
        what: Mutex::new(Some(Box::new(what))),
    };
    let refused_a = run_all(&names_of(Arc::new(store)), std::slice::from_ref(a), 5000);
    let refused_b = refused.lock().unwrap().take()?;
    let rows = below.rows.lock().unwrap().clone();
    Some((rows, refused_a, refused_b))
}

fn differences(got: &All, expected: &All) -> String {
    let keys: std::collections::BTreeSet<&Key> = got.keys().chain(expected.keys()).collect();
    let differ = keys.into_iter().filter(|key| got.get(*key) != expected.get(*key));
    differ.map(|key| format!("\n  {key:?}: {:?} not {:?}", got.get(key), expected.get(key))).collect()
}

/// Names with the setting of the trash that the rows have.
fn names_of(store: Arc<dyn MetaStore>) -> Names {
    let names = Names::new(store);
    names.read_trash().unwrap();
    names
}

/// Runs each of some operations with each of others in between. Returns how many runs that were.
fn check_pairs(rows: &All, ops: &[Op<'static>], between: &[Vec<Op<'static>>]) -> u64 {
    let mut runs = 0;
    for a in ops {
        for b in between {
            let one = std::slice::from_ref(a);
            let (ab, a1, b1) = in_order(rows, (one, 5000), (b, 6000));
            let (ba, b2, a2) = in_order(rows, (b, 6000), (one, 5000));
            for at in 0.. {
                let Some((got, refused_a, refused_b)) = interposed(rows, a, b, at) else { break };
                runs += 1;
                let is_ab = got == ab && (&refused_a, &refused_b) == (&a1, &b1);
                let is_ba = got == ba && (&refused_a, &refused_b) == (&a2, &b2);
                assert!(
                    is_ab || is_ba,
                    "{a:?}\nwith, at call {at}, {b:?}\ngave {refused_a:?} {refused_b:?}; in order {a1:?} {b1:?}, the other way {a2:?} {b2:?}\nnot as in order: {}\nnot as the other way: {}",
                    differences(&got, &ab),
                    differences(&got, &ba)
                );
            }
        }
    }
    runs
}

#[test]
fn two_concurrent_operations_are_as_if_in_order() {
    let ops: Vec<Op<'static>> = [names_ops(), inode_ops(), byte_ops()].concat();
    let runs = check_pairs(&base(), &ops, &between());
    assert!(runs > 5000, "{runs} runs");
}

#[test]
fn two_concurrent_operations_with_trash_are_as_if_in_order() {
    let rows = base_with_trash();
    let (names, trash) = (names_ops(), trash_ops(&rows));
    let alone = |ops: &[Op<'static>]| ops.iter().map(|op| vec![op.clone()]).collect::<Vec<_>>();
    let mut others = alone(&[names.clone(), trash.clone()].concat());
    others.push(vec![trash[4].clone(), Op::Reap { ino: Ino(50) }]);
    others.push(vec![trash[5].clone(), Op::Reap { ino: Ino(51) }]);
    let runs = check_pairs(&rows, &trash, &others) + check_pairs(&rows, &names, &alone(&trash));
    assert!(runs > 2000, "{runs} runs");
}

/// While creates checked only that their directory exists, a create that met a chmod of it got an earlier
/// time than the chmod had just written. So it showed in none of the directory's times.
#[test]
fn regression_a_create_beside_a_chmod_shows_in_its_directorys_times() {
    let rows = base();
    let create = Op::Create { parent: Ino(2), name: b"new", make: file(30, 0o666) };
    let chmod = set(2, SetAttrs { perm: Some(0o700), ..SetAttrs::default() });
    let before = Names::new(store_of(&rows)).attr(Ino(2)).unwrap().unwrap().mtime;
    for at in 0.. {
        let Some((got, ..)) = interposed(&rows, &create, std::slice::from_ref(&chmod), at) else { break };
        assert!(Names::new(store_of(&got)).attr(Ino(2)).unwrap().unwrap().mtime > before);
    }
}
