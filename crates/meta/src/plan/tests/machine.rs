//! Random operations on the names and on the model: the same refusals, attributes, listings and contents
//! after every step, and no audit findings.

use base::{Ino, PackNo, Timestamp};
use proptest::prelude::*;

use crate::plan::op::{Body, Make, Move, Piece, RenameMode, SetAttrs, XattrMode};
use crate::plan::{Op, Refusal};
use crate::record::{PackRow, mode};

use super::model::{Model, New};
use super::world::World;

/// Random numbers for one step. Their meaning depends on what exists.
#[derive(Clone, Copy, Debug)]
struct Raw {
    what: u8,
    a: u8,
    b: u8,
    name: u8,
    to_name: u8,
    how: u8,
    at: u16,
    len: u16,
}

fn raw() -> impl Strategy<Value = Raw> {
    let bytes = (0u8..100, any::<u8>(), any::<u8>(), 0u8..5, 0u8..5, any::<u8>());
    (bytes, any::<u16>(), any::<u16>()).prop_map(|((what, a, b, name, to_name, how), at, len)| Raw {
        what,
        a,
        b,
        name,
        to_name,
        how,
        at,
        len,
    })
}

/// Offsets cluster where behaviour changes: the inline limit and the ends of pages.
fn offset(number: u16) -> u64 {
    let near = [0u64, 0, 0, 500, 512, 4096, (4 << 20) - 700, 4 << 20, (8 << 20) - 9];
    near[usize::from(number >> 8) % near.len()] + u64::from(number & 0xFF)
}

fn length(number: u16) -> usize {
    match number >> 12 {
        0..10 => usize::from(number & 0xFF) + 1,
        10..14 => usize::from(number) % 3000 + 1,
        14 => usize::from(number & 0xFFF) * 300 + 1,
        _ => (4 << 20) + usize::from(number & 0xFF),
    }
}

/// A range that is stored already, for deduplication.
struct Stored {
    pack: PackNo,
    offset: u32,
    data: Vec<u8>,
}

struct Machine {
    world: World,
    model: Model,
    next_ino: u64,
    stored: Vec<Stored>,
    log: Vec<String>,
    noise: u64,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const XATTRS: [&[u8]; 3] = [b"user.x", b"security.capability", b"trusted.y"];

impl Machine {
    fn new() -> Machine {
        let world = World::new();
        let mut model = Model::new(1010);
        model.nodes.get_mut(&1).unwrap().uid = 1000;
        Machine { world, model, next_ino: 2, stored: Vec::new(), log: Vec::new(), noise: 1 }
    }

    fn any(&self, number: u8) -> u64 {
        *self.model.nodes.keys().nth(usize::from(number) % self.model.nodes.len()).unwrap()
    }

    /// Mostly an inode of the right kind, sometimes any.
    fn pick(&self, number: u8, kind: u32) -> u64 {
        if number > 240 {
            return self.any(number);
        }
        let of_kind: Vec<u64> =
            self.model.nodes.iter().filter(|(_, node)| node.kind == kind).map(|(ino, _)| *ino).collect();
        if of_kind.is_empty() { self.any(number) } else { of_kind[usize::from(number) % of_kind.len()] }
    }

    /// Mostly a name that exists, if there is one.
    fn name_in(&self, dir: u64, raw: Raw) -> &'static str {
        let fits = |name: &&&str| {
            let ino = self.model.nodes.get(&dir).and_then(|node| node.entries.get(name.as_bytes()));
            let wants_dir = (28..33).contains(&raw.what) || raw.how & 64 != 0;
            ino.is_some_and(|ino| !wants_dir || self.model.nodes[ino].is_dir())
        };
        let any = NAMES[usize::from(raw.name)];
        if raw.how < 40 { any } else { NAMES.iter().find(fits).copied().unwrap_or(any) }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            self.noise = self.noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            out.extend_from_slice(&(self.noise >> 8).to_le_bytes());
        }
        out.truncate(len);
        out
    }

    fn now(&self) -> i128 {
        self.world.now.load(std::sync::atomic::Ordering::Relaxed).into()
    }

    fn step(&mut self, raw: Raw) {
        let dir = self.pick(raw.a, mode::S_IFDIR);
        let to = self.pick(raw.b, mode::S_IFDIR);
        let file = self.pick(raw.a, mode::S_IFREG);
        let other = self.pick(raw.b, mode::S_IFREG);
        let (name, to_name) = (NAMES[usize::from(raw.name)], NAMES[usize::from(raw.to_name)]);
        let there = self.name_in(dir, raw);
        match raw.what {
            0..16 => self.create(dir, Some(name), raw),
            16..18 => self.create(dir, None, raw),
            18..22 => self.link(file, to, name),
            22..28 => self.unlink(dir, there),
            28..33 => self.rmdir(dir, there),
            33..47 => self.rename(dir, there, to, to_name, raw),
            47..53 => self.set_attr(raw),
            53..57 => self.truncate(file, raw),
            57..71 => self.write(file, raw),
            71..74 => self.punch(file, raw),
            74..79 => self.copy(file, other, raw),
            79..84 => self.xattr(raw),
            84..87 => self.clone(raw, to, to_name),
            87..91 => self.reap(raw),
            91 => self.world.seal(),
            92..94 => self.collect(raw),
            94..96 => self.compact(raw),
            _ => self.reuse(file, raw),
        }
    }

    fn same(&mut self, what: String, got: Result<(), Refusal>, expected: Result<(), Refusal>) {
        self.log.push(format!("{what} -> {got:?}"));
        assert_eq!(got, expected, "{what}");
    }

    fn create(&mut self, dir: u64, name: Option<&str>, raw: Raw) {
        let ino = self.next_ino;
        self.next_ino += 1;
        let kinds = [
            mode::S_IFREG,
            mode::S_IFDIR,
            mode::S_IFREG,
            mode::S_IFDIR,
            mode::S_IFLNK,
            mode::S_IFIFO,
            mode::S_IFCHR,
        ];
        let kind = if name.is_some() { kinds[usize::from(raw.how) % 7] } else { mode::S_IFREG };
        let (perm, umask) = (u32::from(raw.at) & 0o7777, u32::from(raw.len) & 0o777);
        let target: &[u8] = if kind == mode::S_IFLNK { b"some/where" } else { b"" };
        let make = Make { ino: Ino(ino), mode: kind | perm, umask, rdev: 77, target };
        let got = match name {
            Some(name) => self.world.create(dir, name, make),
            None => self.world.run(&Op::Tmpfile { parent: Ino(dir), make }),
        };
        let now = self.now();
        let new = New { ino, kind, perm, umask, rdev: 77, target };
        let expected = self.model.create(dir, name.map(str::as_bytes), &new, 1000, 100, now);
        if let Ok(change) = &got {
            assert_eq!(change.inode.unwrap().1, self.world.attr(ino), "what a change says is what stat says");
        }
        self.same(format!("create {ino} {dir}/{name:?} {kind:o}"), got.map(|_| ()), expected);
    }

    fn link(&mut self, ino: u64, to: u64, name: &str) {
        let got = self.world.run(&Op::Link { ino: Ino(ino), parent: Ino(to), name: name.as_bytes() });
        let expected = self.model.link(ino, to, name.as_bytes(), self.now());
        self.same(format!("link {ino} {to}/{name}"), got.map(|_| ()), expected);
    }

    fn unlink(&mut self, dir: u64, name: &str) {
        let got = self.world.run(&Op::Unlink { parent: Ino(dir), name: name.as_bytes() });
        let expected = self.model.unlink(dir, name.as_bytes(), self.now());
        self.same(format!("unlink {dir}/{name}"), got.map(|_| ()), expected);
    }

    fn rmdir(&mut self, dir: u64, name: &str) {
        let got = self.world.run(&Op::Rmdir { parent: Ino(dir), name: name.as_bytes() });
        let expected = self.model.rmdir(dir, name.as_bytes(), self.now());
        self.same(format!("rmdir {dir}/{name}"), got.map(|_| ()), expected);
    }

    fn rename(&mut self, dir: u64, name: &str, to: u64, to_name: &str, raw: Raw) {
        let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
        let mode = modes[usize::from(raw.how) % 4];
        let op = Op::Rename {
            parent: Ino(dir),
            name: name.as_bytes(),
            to: Ino(to),
            to_name: to_name.as_bytes(),
            mode,
        };
        let got = self.world.run(&op);
        let ends = ((dir, name.as_bytes()), (to, to_name.as_bytes()));
        let expected = self.model.rename(ends.0, ends.1, mode, self.now());
        self.same(format!("rename {dir}/{name} {to}/{to_name} {mode:?}"), got.map(|_| ()), expected);
    }

    fn set_attr(&mut self, raw: Raw) {
        let ino = self.any(raw.b);
        let bit = |bit: u8| raw.how >> bit & 1 == 1;
        let set = SetAttrs {
            perm: bit(0).then_some(u32::from(raw.at) & 0o7777),
            uid: bit(1).then_some(u32::from(raw.len)),
            gid: (bit(1) && bit(2)).then_some(u32::from(raw.a)),
            atime: bit(3).then_some(Timestamp(i128::from(raw.len) - 30_000)),
            mtime: bit(4).then_some(Timestamp(i128::from(raw.at) - 30_000)),
            unprivileged: bit(5).then(|| u32::from(raw.b) % 3),
            ..SetAttrs::default()
        };
        let got = self.world.run(&Op::SetAttr { ino: Ino(ino), set });
        // An explicit mode is kept, whatever would be cleared otherwise.
        let expected = self.model.set_attr(ino, &set, self.now());
        self.same(format!("setattr {ino} {set:?}"), got.map(|_| ()), expected);
    }

    fn truncate(&mut self, ino: u64, raw: Raw) {
        let size = offset(raw.at);
        let set = SetAttrs { size: Some(size), ..SetAttrs::default() };
        let got = self.world.outlining(&[ino], &Op::SetAttr { ino: Ino(ino), set });
        let now = self.world.attr(ino).ctime.0;
        let expected = self.model.set_attr(ino, &set, now);
        self.same(format!("truncate {ino} {size}"), got.map(|_| ()), expected);
        self.check_bytes(ino);
    }

    fn write(&mut self, ino: u64, raw: Raw) {
        let (at, len) = (offset(raw.at), length(raw.len));
        let data = self.bytes(len);
        let before = self.world.packs[&self.world.open].len() as u32;
        let got = self.world.write(ino, at, &data);
        let expected = self.model.write(ino, at, &data, self.now());
        let pack = self.world.open;
        if let Some(bytes) = self.world.packs[&pack].get(before as usize..).filter(|b| *b == data) {
            self.stored.push(Stored { pack, offset: before, data: bytes.to_vec() });
        }
        self.same(format!("write {ino} {at}+{len}"), got, expected);
        self.check_bytes(ino);
    }

    /// Writes what is stored already, by reference.
    fn reuse(&mut self, ino: u64, raw: Raw) {
        if self.stored.is_empty() {
            return;
        }
        let stored = &self.stored[usize::from(raw.b) % self.stored.len()];
        let at = offset(raw.at) & !0xFFF;
        let len = stored.data.len() as u32;
        let piece = Piece { at, len, pack: stored.pack, offset: stored.offset, fresh: None };
        let fits = at % (4 << 20) + u64::from(len) <= 4 << 20;
        let is_there = self.world.pack_row(stored.pack).is_some_and(|row| row.is_usable());
        let record = self.world.attr(ino);
        let must_outline = record.has(crate::InodeRecord::INLINE)
            && record.is_file()
            && (at > 0 || u64::from(len) < record.size);
        let got = self.world.write_body(ino, &Body::Packed(&[piece])).map(|_| ());
        let data = stored.data.clone();
        let expected = match (fits, must_outline, is_there) {
            (false, ..) => Err(Refusal::Invalid),
            _ if !record.is_file() => self.model.write(ino, at, &data, 0),
            (_, true, _) => Err(Refusal::MustOutline),
            (_, _, false) => Err(Refusal::ContentGone),
            _ => self.model.write(ino, at, &data, self.now()),
        };
        self.same(format!("reuse {ino} {at}+{len} {:?}", piece.pack), got, expected);
        self.check_bytes(ino);
    }

    fn punch(&mut self, ino: u64, raw: Raw) {
        let (at, len) = (offset(raw.at), length(raw.len) as u64 - 1);
        let grow_to = raw.how.is_multiple_of(3).then_some(at + len);
        let op = Op::Punch { ino: Ino(ino), offset: at, len, grow_to };
        let got = self.world.outlining(&[ino], &op);
        let now = self.world.attr(ino).ctime.0;
        let expected = self.model.punch(ino, at, len, grow_to, now);
        self.same(format!("punch {ino} {at}+{len} {grow_to:?}"), got.map(|_| ()), expected);
        self.check_bytes(ino);
    }

    fn copy(&mut self, from: u64, to: u64, raw: Raw) {
        let (from_offset, to_offset) = (offset(raw.at), offset(raw.at.rotate_left(u32::from(raw.how))));
        let len = length(raw.len) as u64 - 1;
        let op = Op::CopyRange { from: Ino(from), from_offset, to: Ino(to), to_offset, len };
        let got = self.world.outlining(&[from, to], &op);
        let now = self.world.attr(to).ctime.0;
        let expected = self.model.copy((from, from_offset), (to, to_offset), len, now);
        self.log.push(format!("copy {from}@{from_offset} {to}@{to_offset} {len} -> {got:?}"));
        assert_eq!(got, expected);
        self.check_bytes(to);
    }

    fn xattr(&mut self, raw: Raw) {
        let ino = self.any(raw.a);
        let name = XATTRS[usize::from(raw.name) % 3];
        if raw.how < 80 {
            let got = self.world.run(&Op::RemoveXattr { ino: Ino(ino), name });
            let expected = self.model.remove_xattr(ino, name, self.now());
            return self.same(format!("removexattr {ino} {name:?}"), got.map(|_| ()), expected);
        }
        let value = self.bytes(usize::from(raw.b) % 65);
        let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][usize::from(raw.how) % 3];
        let op = Op::SetXattr { ino: Ino(ino), name, value: &value, mode, kill_sgid: false };
        let got = self.world.run(&op);
        let expected = self.model.set_xattr(ino, name, &value, mode, self.now());
        self.same(format!("setxattr {ino} {name:?} {mode:?}"), got.map(|_| ()), expected);
    }

    fn clone(&mut self, raw: Raw, to: u64, name: &str) {
        let (from, ino) = (self.any(raw.a), self.next_ino);
        self.next_ino += 1;
        let made = self.world.run(&Op::CloneInode { from: Ino(from), ino: Ino(ino), quota: Ino(0) });
        self.log.push(format!("clone {from} as {ino} -> {to}/{name}: {:?}", made.as_ref().err()));
        made.unwrap();
        let btime = self.now();
        let got = self.world.run(&Op::Attach { ino: Ino(ino), parent: Ino(to), name: name.as_bytes() });
        self.log.push(format!("attach -> {:?}", got.as_ref().err()));
        let parent = self.model.nodes.get(&to);
        let blocked = match parent {
            Some(node) if !node.is_dir() => Some(Refusal::NotDir),
            Some(node) if !node.removed => {
                node.entries.contains_key(name.as_bytes()).then_some(Refusal::Exists)
            }
            _ => Some(Refusal::NotFound),
        };
        match blocked {
            Some(refusal) => {
                assert_eq!(got.err(), Some(refusal));
                self.world.run_all(&Op::Reap { ino: Ino(ino) }).unwrap();
            }
            None => {
                got.unwrap();
                self.model.clone_as(from, ino, to, name.as_bytes(), btime, self.now()).unwrap();
                self.check_bytes(ino);
            }
        }
    }

    fn reap(&mut self, raw: Raw) {
        let orphans = self.world.names.orphans(Ino(0), usize::MAX).unwrap();
        let mut expected: Vec<u64> =
            self.model.nodes.iter().filter(|(_, node)| node.nlink == 0).map(|(ino, _)| *ino).collect();
        expected.sort_unstable();
        assert_eq!(orphans.iter().map(|ino| ino.0).collect::<Vec<_>>(), expected);
        if let Some(ino) = orphans.get(usize::from(raw.a) % (orphans.len() + 1)) {
            self.log.push(format!("reap {ino}"));
            self.world.run_all(&Op::Reap { ino: *ino }).unwrap();
            self.model.reap(ino.0);
        }
    }

    fn some_sealed(&self, raw: Raw) -> Option<PackNo> {
        let packs = self.world.names.packs(PackNo(0), usize::MAX).unwrap();
        let sealed: Vec<PackNo> = packs
            .iter()
            .filter(|(_, row)| matches!(row, PackRow::Sealed { .. }))
            .map(|(no, _)| *no)
            .collect();
        sealed.get(usize::from(raw.a) % sealed.len().max(1)).copied()
    }

    fn collect(&mut self, raw: Raw) {
        let Some(pack) = self.some_sealed(raw) else { return };
        let in_use = self.world.names.pack_live(pack).unwrap() > 0;
        let got = self.world.run(&Op::CondemnPack { pack });
        self.log.push(format!("condemn {pack}, in use: {in_use}"));
        assert_eq!(got.map(|_| ()).err(), in_use.then_some(Refusal::Busy));
        if !in_use && raw.how > 128 {
            self.world.run(&Op::ForgetPack { pack }).unwrap();
            assert_eq!(self.world.pack_row(pack), None);
        }
    }

    /// Moves two ranges of a pack into the open one, and makes all pages follow.
    fn compact(&mut self, raw: Raw) {
        let Some(from) = self.some_sealed(raw) else { return };
        let bytes = self.world.packs[&from].clone();
        let mut moves = Vec::new();
        let cuts = [0, bytes.len() / 5, bytes.len() / 3 + usize::from(raw.b), bytes.len() * 3 / 4];
        for cut in cuts.windows(2).step_by(2).filter(|cut| cut[0] < cut[1] && cut[1] <= bytes.len()) {
            for piece in self.world.pack(0, &bytes[cut[0]..cut[1]]) {
                let from_offset = cut[0] as u32 + piece.at as u32;
                let (len, to, to_offset) = (piece.len, piece.pack, piece.offset);
                moves.push(Move { from, from_offset, len, to, to_offset, crc: Some(0) });
            }
        }
        self.log.push(format!("compact {moves:?}"));
        for (ino, page) in self.world.names.pack_users(from, (Ino(0), 0), usize::MAX).unwrap() {
            self.world.run(&Op::Follow { ino, page, moves: &moves }).unwrap();
            self.check_bytes(ino.0);
        }
    }

    fn check_bytes(&self, ino: u64) {
        let Some(node) = self.model.nodes.get(&ino).filter(|node| node.kind == mode::S_IFREG) else { return };
        assert!(self.world.read(ino) == node.bytes, "contents of {ino}");
    }

    fn check(&self) {
        for (&ino, node) in &self.model.nodes {
            let record = self.world.attr(ino);
            let got = (record.mode, record.uid, record.gid, record.nlink, record.rdev);
            assert_eq!(got, (node.kind | node.perm, node.uid, node.gid, node.nlink, node.rdev), "of {ino}");
            let times = [record.atime, record.mtime, record.ctime, record.btime].map(|t| t.0);
            assert_eq!(times, [node.atime, node.mtime, node.ctime, node.btime], "times of {ino}");
            assert_eq!(record.size, node.bytes.len() as u64, "size of {ino}");
            let mut listed: Vec<(Vec<u8>, u64)> = Vec::new();
            let mut position = 0;
            while let Some(last) = {
                let some = self.world.names.readdir(Ino(ino), position, 2).unwrap();
                listed.extend(some.iter().map(|entry| (entry.name.to_vec(), entry.dentry.ino.0)));
                some.last().map(|entry| entry.position)
            } {
                position = last + 1;
            }
            listed.sort_unstable();
            assert_eq!(listed, node.entries.clone().into_iter().collect::<Vec<_>>(), "entries of {ino}");
            for name in XATTRS {
                let value = self.world.names.xattr(Ino(ino), name).unwrap();
                assert_eq!(value.as_deref(), node.xattrs.get(name).map(|v| &v[..]), "{name:?} of {ino}");
            }
        }
        assert_eq!(self.world.names.totals().unwrap().inodes, self.model.nodes.len() as u64);
        self.world.assert_sound();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_do_what_posix_says(steps in prop::collection::vec(raw(), 1..120)) {
        let mut machine = Machine::new();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for raw in &steps {
                machine.step(*raw);
                machine.check();
            }
            for ino in machine.model.nodes.keys() {
                machine.check_bytes(*ino);
            }
        }));
        if let Err(panic) = result {
            for line in &machine.log {
                println!("{line}");
            }
            std::panic::resume_unwind(panic);
        }
    }
}
