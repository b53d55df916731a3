//! Positions in listings, as the kernel gets them: numbers of 31 bits.
//!
//! A program of 32 bits has a `long` of 32 bits for the position of each name. Its C library ends a
//! listing with EOVERFLOW at a larger one. FUSE does not say which program asks, so all get small
//! positions.
//!
//! A volume's positions are hashes of 63 bits, and so are those of ext4. The kernel gets this instead:
//!
//! ```text
//!   30     29                     5 4        0
//!   1      cell: 25 bits of hash    cut: 1 to 30, or 31      smaller numbers are passed on as they are
//! ```
//!
//! Cut 31 is behind all names of the cell. Mostly a cell has one name. If it has more, the cuts between them
//! are **predicates**: a second hash of each name has a bit for each cut. Behind the first of two names,
//! the cut is a number whose bit is 0 in the first name and 1 in the second. A listing that continues
//! there passes on the names of the cell with a 1. What a position means depends on it and on each single
//! name, and on nothing else. So a daemon that remembers nothing can continue, whatever came and went in
//! the cell meanwhile. The order within a cell is free, and is chosen so that all cuts exist.
//!
//! With a million names in a folder, 30,000 cells have several, and practically all of them have their cuts.
//! Where there is none, the kernel gets a larger number, with one of 4,096 predicates. It is exact too,
//! for all but programs of 32 bits:
//!
//! ```text
//!   37     36                   12 11        0
//!   1      cell                    seed of the predicate
//! ```

use std::ops::ControlFlow;

use base::Ino;
use fs::api::{self, DirEntry, Entry, FileKind, Filesystem, Positions};

/// Positions below are passed on as they are, in both directions, and so are those from [`LARGE`] on.
const SMALL: u64 = 1 << 30;
const LARGE: u64 = 1 << 31;
/// Bits of a position of 63 bits below those that say the cell.
const BELOW: u32 = 38;
const CELLS: u64 = 1 << 25;
const CUT_BITS: u32 = 5;
/// Behind the whole cell.
const END: u64 = (1 << CUT_BITS) - 1;
/// Cuts from here on are wide: the number is this, and a seed.
const WIDE: u64 = END + 1;
const SEED_BITS: u32 = 12;
/// The positions of wide cuts.
const WIDE_FIRST: u64 = 1 << 37;
/// The upper bits of [`word`] that are predicates.
const PREDICATES: u32 = !(1 | 1 << END);
/// A cell with more names than that gets no predicates, but the filesystem's own positions.
const MEMBERS_MAX: usize = 64;
/// In a cell of so many names, all orders are tried.
const TRIED_MAX: usize = 5;

/// Gets the entries of a listing, with attributes if they were asked for.
pub type Each<'a> = dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()> + 'a;

/// The second hash of a name (FNV-1a, and the last step of MurmurHash3). It must never change: positions of a
/// daemon that ends are used by the next one.
fn word(name: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    mixed(name.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// The bits of a name for the cuts 0 to 31.
fn bits(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Whether a name is behind a cut.
fn is_behind(word: u64, cut: u64) -> bool {
    match cut.checked_sub(WIDE) {
        None => bits(word) >> cut & 1 == 1,
        Some(seed) => mixed(word.wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))) >> 63 == 1,
    }
}

/// A position in a cell.
fn code(cell: u64, cut: u64) -> u64 {
    match cut.checked_sub(WIDE) {
        None => SMALL | cell << CUT_BITS | cut,
        Some(seed) => WIDE_FIRST | cell << SEED_BITS | seed,
    }
}

/// Where a listing continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct From {
    /// The position of the filesystem.
    start: u64,
    /// Of this cell, only names with this bit.
    only: Option<(u64, u64)>,
    /// The cell in the middle of which `start` is.
    partial: Option<u64>,
}

impl From {
    /// None: at the end.
    fn of(position: u64) -> Option<From> {
        let begin = |cell: u64| (cell << BELOW).max(SMALL);
        if (WIDE_FIRST..2 * WIDE_FIRST).contains(&position) {
            let (cell, seed) = ((position - WIDE_FIRST) >> SEED_BITS, position & ((1 << SEED_BITS) - 1));
            return Some(From { start: begin(cell), only: Some((cell, WIDE + seed)), partial: None });
        }
        if !(SMALL..LARGE).contains(&position) {
            let partial = (position >= LARGE).then_some(position >> BELOW);
            return Some(From { start: position, only: None, partial });
        }
        let (cell, cut) = ((position - SMALL) >> CUT_BITS, position & END);
        match cut {
            END if cell + 1 == CELLS => None,
            END => Some(From { start: begin(cell + 1), only: None, partial: None }),
            0 => Some(From { start: begin(cell), only: None, partial: None }),
            _ => Some(From { start: begin(cell), only: Some((cell, cut)), partial: None }),
        }
    }
}

/// One directory of a filesystem.
trait Directory {
    fn positions(&self) -> Positions;

    /// Passes on entries as [`Filesystem::readdir`] does.
    fn entries(&self, start: u64, each: &mut Each<'_>) -> api::Result<()>;

    /// Passes on entries as [`Directory::entries`] does, for a reply.
    fn entries_for_reply(&self, start: u64, each: &mut Each<'_>) -> api::Result<()> {
        self.entries(start, each)
    }

    /// The kernel does not learn of an entry that was counted.
    fn give_back(&self, node: Ino);
}

/// With attributes, if the last is true.
struct Of<'a>(&'a dyn Filesystem, Ino, bool);

impl Directory for Of<'_> {
    fn positions(&self) -> Positions {
        self.0.positions()
    }

    fn entries(&self, start: u64, each: &mut Each<'_>) -> api::Result<()> {
        self.0.readdir(self.1, start, &mut |line| each(line, None))
    }

    fn entries_for_reply(&self, start: u64, each: &mut Each<'_>) -> api::Result<()> {
        if self.2 { self.0.readdir_plus(self.1, start, each) } else { self.entries(start, each) }
    }

    fn give_back(&self, node: Ino) {
        self.0.forget(node, 1);
    }
}

/// As [`Filesystem::readdir_plus`], or without attributes as [`Filesystem::readdir`], with positions for the
/// kernel.
///
/// # Errors
/// Those of the filesystem.
pub fn list(
    fs: &dyn Filesystem,
    ino: Ino,
    position: u64,
    plus: bool,
    each: &mut Each<'_>,
) -> api::Result<()> {
    mapped(&Of(fs, ino, plus), position, each)
}

fn mapped(dir: &dyn Directory, position: u64, each: &mut Each<'_>) -> api::Result<()> {
    let style = dir.positions();
    if style == Positions::Plain {
        return dir.entries_for_reply(position, each);
    }
    let Some(from) = From::of(position) else { return Ok(()) };
    let mut cells = Cells::new(style, from);
    if let (Some((cell, _)), Positions::OfNext) = (from.only, style) {
        cells.beyond = first_name(dir, (cell + 1) << BELOW)?;
    }
    let ended = cells.run(dir, each);
    cells.give_back.into_iter().for_each(|node| dir.give_back(node));
    ended
}

fn first_name(dir: &dyn Directory, start: u64) -> api::Result<Option<Vec<u8>>> {
    let mut first = None;
    if start < CELLS << BELOW {
        dir.entries(start, &mut |line, _| {
            first = Some(line.name.to_vec());
            ControlFlow::Break(())
        })?;
    }
    Ok(first)
}

/// An entry that waits for the others of its cell.
struct Member {
    name: Vec<u8>,
    ino: Ino,
    kind: FileKind,
    next: u64,
    found: Option<Entry>,
}

/// Collects the entries of a cell, and passes them on.
struct Cells {
    style: Positions,
    from: From,
    /// The first name behind the cell in which the listing continues, where the first entry's own position
    /// is not known.
    beyond: Option<Vec<u8>>,
    /// The own position of the next entry, if it is known.
    own: Option<u64>,
    is_first: bool,
    /// Where the filesystem goes on.
    next: Option<u64>,
    cell: Option<u64>,
    members: Vec<Member>,
    /// Names of the cell that were passed on before.
    out: Vec<u64>,
    /// The cell has too many names for predicates.
    is_plain: bool,
    /// The first member may be alone in a lower cell. So it comes first.
    is_pinned: bool,
    has_passed: bool,
    is_full: bool,
    give_back: Vec<Ino>,
}

impl Cells {
    fn new(style: Positions, from: From) -> Cells {
        Cells {
            style,
            from,
            beyond: None,
            own: (from.start == 0).then_some(0),
            is_first: true,
            next: None,
            cell: None,
            members: Vec::new(),
            out: Vec::new(),
            is_plain: false,
            is_pinned: false,
            has_passed: false,
            is_full: false,
            give_back: Vec::new(),
        }
    }

    /// The cell of an entry, and whether it is certain. No cell: its position is small.
    fn cell_of(&mut self, line: &DirEntry<'_>) -> (Option<u64>, bool) {
        let is_first = std::mem::replace(&mut self.is_first, false);
        let own = match self.style {
            Positions::OfNext => self.own.replace(line.next),
            Positions::Hashes | Positions::Plain => Some(line.next.saturating_sub(1)),
        };
        match (own, self.from.only) {
            (None, Some((cell, _))) if is_first && self.beyond.as_deref() != Some(line.name) => {
                (Some(cell), true)
            }
            // A cut of the next entry's cell is right in any case.
            (None, _) => (Some(line.next >> BELOW).filter(|_| line.next >= SMALL), false),
            (Some(own), _) => ((own >= SMALL).then_some(own >> BELOW), true),
        }
    }

    /// Takes the filesystem's next entry.
    fn take(&mut self, line: &DirEntry<'_>, found: Option<&Entry>, each: &mut Each<'_>) -> ControlFlow<()> {
        let (cell, is_certain) = self.cell_of(line);
        if cell != self.cell || cell.is_none() {
            self.flush(true, each)?;
            (self.cell, self.is_plain, self.is_pinned) = (cell, false, !is_certain);
            self.out.clear();
        }
        self.next = Some(line.next);
        let Some(cell) = cell else {
            let next = if line.next < SMALL { line.next } else { code(line.next >> BELOW, 0) };
            return self.pass(DirEntry { next, ..*line }, found, each);
        };
        if self.from.only.is_some_and(|(only, cut)| only == cell && !is_behind(word(line.name), cut)) {
            self.out.push(word(line.name));
            self.give_back.extend(found.map(|found| found.node));
            return ControlFlow::Continue(());
        }
        self.members.push(Member {
            name: line.name.to_vec(),
            ino: line.ino,
            kind: line.kind,
            next: line.next,
            found: found.copied(),
        });
        if self.members.len() > MEMBERS_MAX || self.is_plain {
            self.is_plain = true;
            // The last one waits: it may be the end of the cell.
            let last = self.members.pop();
            let flow = self.flush(false, each);
            match flow {
                // The filesystem does not count an entry at which the listing ends.
                ControlFlow::Break(()) => return flow,
                ControlFlow::Continue(()) => self.members.extend(last),
            }
        }
        ControlFlow::Continue(())
    }

    /// Passes on what waits. `whole`: the cell has no more names.
    fn flush(&mut self, whole: bool, each: &mut Each<'_>) -> ControlFlow<()> {
        let Some(cell) = self.cell else { return ControlFlow::Continue(()) };
        let members = std::mem::take(&mut self.members);
        let has_cuts = whole && !self.is_plain && self.from.partial != Some(cell);
        // Mostly there is one name, behind which is the end of the cell.
        let cuts = (has_cuts && members.len() > 1).then(|| {
            let words: Vec<u64> = members.iter().map(|member| word(&member.name)).collect();
            order(&self.out, &words, self.is_pinned)
        });
        // Without cuts, the filesystem's own order and positions.
        let cuts = cuts.flatten().unwrap_or_else(|| (0..members.len()).map(|at| (at, None)).collect());
        let count = cuts.len();
        let mut flow = ControlFlow::Continue(());
        for (at, (index, cut)) in cuts.into_iter().enumerate() {
            let Member { name, ino, kind, next, found, .. } = &members[index];
            if flow.is_continue() {
                let next = match cut {
                    _ if whole && at + 1 == count => code(cell, END),
                    Some(cut) => code(cell, cut),
                    None => *next,
                };
                let line = DirEntry { name, ino: *ino, kind: *kind, next };
                flow = self.pass(line, found.as_ref(), each);
            }
            if flow.is_break() {
                self.give_back.extend(found.map(|found| found.node));
            }
        }
        flow
    }

    fn pass(&mut self, line: DirEntry<'_>, found: Option<&Entry>, each: &mut Each<'_>) -> ControlFlow<()> {
        let flow = each(line, found);
        self.is_full |= flow.is_break();
        self.has_passed |= flow.is_continue();
        flow
    }

    /// Lists until the reply is full, or to the end.
    fn run(&mut self, dir: &dyn Directory, each: &mut Each<'_>) -> api::Result<()> {
        let mut start = self.from.start;
        loop {
            let listed = dir.entries_for_reply(start, &mut |line, found| self.take(&line, found, each));
            if self.is_full {
                return Ok(());
            }
            // A filesystem that would have to wait ends early. Then there is more, maybe in the same cell.
            let next = self.next.filter(|next| *next != start);
            let more = match (listed, next) {
                (Err(error), _) => Err(error),
                (Ok(()), Some(next)) => first_name(dir, next).map(|more| more.map(|_| next)),
                (Ok(()), None) => Ok(None),
            };
            match more {
                Ok(None) => {
                    let _ = self.flush(true, each);
                    return Ok(());
                }
                Ok(Some(next)) if !self.has_passed => start = next,
                more => {
                    // All of the cell is asked for next.
                    let waiting = std::mem::take(&mut self.members);
                    self.give_back.extend(waiting.iter().filter_map(|member| Some(member.found?.node)));
                    return if self.has_passed { Ok(()) } else { more.map(drop) };
                }
            }
        }
    }
}

/// Names by their numbers, and the cut behind each. The last one has none: the end of the cell is behind it.
type Order = Vec<(usize, Option<u64>)>;

/// An order of names with all cuts. `out` are names that are behind already. The first name comes first if it
/// is pinned. None if there is no such order.
fn order(out: &[u64], words: &[u64], is_pinned: bool) -> Option<Order> {
    let rest: Vec<usize> = (0..words.len()).collect();
    let mut cuts = Vec::with_capacity(words.len());
    let before = out.iter().fold(0, |all, word| all | bits(*word));
    let narrow = extend(before, words, rest.clone(), is_pinned, &mut cuts);
    if narrow { Some(cuts) } else { wide(out.to_vec(), words, rest, is_pinned) }
}

/// The cuts of 31 bits between the names that are out and `next`, and the others of `rest`.
fn narrow(out: u32, words: &[u64], rest: &[usize], next: usize) -> u32 {
    let others = rest.iter().filter(|other| **other != next);
    others.fold(PREDICATES & !(out | bits(words[next])), |all, other| all & bits(words[*other]))
}

/// Finds an order with cuts of 31 bits.
fn extend(out: u32, words: &[u64], rest: Vec<usize>, is_pinned: bool, cuts: &mut Order) -> bool {
    if let [] | [_] = rest[..] {
        cuts.extend(rest.first().map(|last| (*last, None)));
        return true;
    }
    let possible = |next: &usize| narrow(out, words, &rest, *next);
    let may_be_next = if is_pinned { &rest[..1] } else { &rest[..] };
    let mut next: Vec<usize> = may_be_next.iter().copied().filter(|next| possible(next) != 0).collect();
    next.sort_by_key(|next| std::cmp::Reverse(possible(next).count_ones()));
    let tried = if rest.len() <= TRIED_MAX { next.len() } else { 1 };
    next.into_iter().take(tried).any(|next| {
        let before = cuts.len();
        cuts.push((next, Some(u64::from(possible(&next).trailing_zeros()))));
        let others = rest.iter().copied().filter(|other| *other != next).collect();
        let found = extend(out | bits(words[next]), words, others, false, cuts);
        if !found {
            cuts.truncate(before);
        }
        found
    })
}

/// Finds an order with wide cuts where there is none of 31 bits.
fn wide(mut out: Vec<u64>, words: &[u64], mut rest: Vec<usize>, is_pinned: bool) -> Option<Order> {
    let mut cuts: Order = Vec::with_capacity(words.len());
    while rest.len() > 1 {
        let before = out.iter().fold(0, |all, word| all | bits(*word));
        let possible = |at: &usize| narrow(before, words, &rest, rest[*at]);
        let only_first = is_pinned && cuts.is_empty();
        let short = (0..if only_first { 1 } else { rest.len() }).find(|at| possible(at) != 0);
        let short = short.map(|at| (at, u64::from(possible(&at).trailing_zeros())));
        let (at, cut) = short.or_else(|| {
            (WIDE..WIDE + (1 << SEED_BITS)).find_map(|cut| {
                let mut first = (0..rest.len()).filter(|at| !is_behind(words[rest[*at]], cut));
                let at = first.next().filter(|_| first.next().is_none())?;
                let is_cut = !out.iter().any(|word| is_behind(*word, cut));
                (is_cut && !(only_first && at > 0)).then_some((at, cut))
            })
        })?;
        let next = rest.remove(at);
        out.push(words[next]);
        cuts.push((next, Some(cut)));
    }
    cuts.extend(rest.first().map(|last| (*last, None)));
    Some(cuts)
}

#[cfg(test)]
mod tests;
