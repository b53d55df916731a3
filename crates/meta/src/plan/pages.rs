//! Changing a file's extent pages, and the counters that follow: the packs' live bytes and users, and the
//! file's own bytes.

use std::collections::BTreeMap;

use base::{Ino, PackNo};
use blob::{Extent, ExtentPage};

use crate::key::Key;
use crate::store::Value;

use super::draft::{Draft, nothing};
use super::op::Refusal;
use super::view::{Stop, View, decode_page};

/// How much of a file a page covers, in bytes.
pub(super) const SPAN: u64 = ExtentPage::SPAN as u64;
/// A page with more extents than this is rewritten.
const CROWDED: usize = 64;
/// How many pages truncating or punching removes in one commit: 16 GiB of a file. Its rows fit into a request
/// of every engine.
pub(super) const PAGES_PER_CUT: usize = 4_096;

/// The page that contains a byte of a file.
pub(super) fn page_of(at: u64) -> u32 {
    // FILE_MAX has 2^32 pages, and every offset is checked against it.
    u32::try_from(at / SPAN).unwrap_or(u32::MAX)
}

/// What a draft's pages gained and lost.
#[derive(Default)]
pub(super) struct Ledger {
    /// By how many bytes the coverage of the file's extents grew.
    pub stored: i64,
    packs: BTreeMap<PackNo, Balance>,
}

#[derive(Default)]
struct Balance {
    live: i64,
    lost: bool,
}

impl Ledger {
    /// Counts a new extent.
    pub fn gain(&mut self, extent: &Extent) {
        self.stored += i64::from(extent.len);
        self.packs.entry(extent.pack).or_default().live += i64::from(extent.len);
    }

    fn lose(&mut self, extents: &[Extent]) {
        for extent in extents {
            self.stored -= i64::from(extent.len);
            let balance = self.packs.entry(extent.pack).or_default();
            balance.live -= i64::from(extent.len);
            balance.lost = true;
        }
    }

    /// Writes the packs' counters. The caller updates the file's own record and the volume's total.
    pub fn write_counters(self, draft: &mut Draft) {
        for (pack, balance) in self.packs {
            draft.add_once(Key::pack_live(pack), balance.live);
            if balance.lost {
                draft.change.released.push(pack);
            }
        }
    }
}

/// A page of a file that is being changed.
pub(super) struct PageWork {
    ino: Ino,
    number: u32,
    seen: Option<Value>,
    page: ExtentPage,
    before: Vec<PackNo>,
}

impl PageWork {
    /// The page as the view shows it.
    pub fn load(view: &View, ino: Ino, number: u32) -> Result<PageWork, Stop> {
        let (row, page) = view.page(ino, number)?;
        Ok(PageWork { ino, number, seen: row.cloned(), before: packs_of(&page), page })
    }

    /// The page in a row of a scan.
    pub fn from_row(key: &Key, value: &Value) -> Result<PageWork, Refusal> {
        let (ino, number) = key.as_extents().ok_or(Refusal::Damaged)?;
        let page = decode_page(Some(value))?;
        Ok(PageWork { ino, number, seen: Some(value.clone()), before: packs_of(&page), page })
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn page(&self) -> &ExtentPage {
        &self.page
    }

    pub fn insert(&mut self, ledger: &mut Ledger, extent: Extent) {
        ledger.gain(&extent);
        ledger.lose(&self.page.insert(extent));
    }

    pub fn punch(&mut self, ledger: &mut Ledger, at: u32, len: u32) {
        ledger.lose(&self.page.punch(at, len));
    }

    pub fn truncate(&mut self, ledger: &mut Ledger, len: u32) {
        ledger.lose(&self.page.truncate(len));
    }

    pub fn clear(&mut self, ledger: &mut Ledger) {
        self.punch(ledger, 0, ExtentPage::SPAN);
    }

    /// Writes the page, checked against what was seen, and the rows that say which page uses which pack.
    pub fn finish(self, draft: &mut Draft) {
        let key = Key::extents(self.ino, self.number);
        draft.check_seen(key.clone(), self.seen.as_ref());
        if self.page.is_empty() {
            if self.seen.is_some() {
                draft.del(key);
            }
        } else {
            draft.put(key, self.page.encode().into());
        }
        let after = packs_of(&self.page);
        for &pack in after.iter().filter(|pack| self.before.binary_search(pack).is_err()) {
            draft.put(Key::pack_user(pack, self.ino, self.number), nothing());
        }
        for &pack in self.before.iter().filter(|pack| after.binary_search(pack).is_err()) {
            draft.del(Key::pack_user(pack, self.ino, self.number));
        }
        if self.page.extents().len() > CROWDED {
            draft.change.crowded.push((self.ino, self.number));
        }
    }
}

/// The packs that a page refers to, in order, each once.
pub(crate) fn packs_of(page: &ExtentPage) -> Vec<PackNo> {
    let mut packs: Vec<PackNo> = page.extents().iter().map(|extent| extent.pack).collect();
    packs.sort_unstable();
    packs.dedup();
    packs
}
