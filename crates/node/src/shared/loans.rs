//! Loans between nodes ([`meta::lease`]): as messages, and with the bytes of files that have just changed. So
//! a node that reads a small file which another one has written asks that node once.

use std::collections::VecDeque;
use std::time::Duration;

use ::fs::shared::FromOwner;
use ::fs::volume::Volume;
use base::{BlobId, PackNo};
use blob::ExtentPage;

use meta::lease::Loan;
use meta::{Key, Value};
use net::frame::LoanPart;
use parking_lot::Mutex;

/// How many bytes of packs are sent with a loan.
const BYTES_MAX: usize = 24 << 10;
/// How many ranges of packs are kept that other nodes have sent.
const SENT_MAX: usize = 64;

/// Ranges of packs that other nodes have sent with loans, the last one first. No range is written twice, so
/// they do not become old.
#[derive(Default)]
pub(super) struct Sent(Mutex<VecDeque<(PackNo, u32, Vec<u8>)>>);

impl Sent {
    /// Fills `buf`, if its range was sent.
    pub(super) fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> bool {
        let sent = self.0.lock();
        let found = sent.iter().filter(|(of, _, _)| *of == pack).find_map(|(_, from, bytes)| {
            let at = offset.checked_sub(*from)? as usize;
            bytes.get(at..at.checked_add(buf.len())?)
        });
        found.inspect(|bytes| buf.copy_from_slice(bytes)).is_some()
    }

    /// A loan as it was received.
    pub(super) fn receive(&self, part: LoanPart) -> Loan {
        let mut sent = self.0.lock();
        for range in part.bytes {
            sent.retain(|(pack, offset, _)| (*pack, *offset) != (range.0, range.1));
            sent.push_front(range);
        }
        sent.truncate(SENT_MAX);
        let row = |(key, value): (Vec<u8>, Option<Vec<u8>>)| (Key::from_bytes(&key), value.map(Into::into));
        let rows = part.rows.into_iter().map(row).collect();
        let LoanPart { has_names, seq, number, version, lasts, .. } = part;
        Loan { seq, number, version, lasts, has_names, rows, fresh: Vec::new() }
    }
}

/// A loan as it is sent, with bytes of this node's packs.
pub(super) fn part(loan: Loan, volume: Option<&Volume>, is_pending: impl Fn(&BlobId) -> bool) -> LoanPart {
    let mut bytes = Vec::new();
    if let Some(volume) = volume {
        let value =
            |key: &Key| loan.rows.iter().find(|(other, _)| other == key).and_then(|(_, row)| row.clone());
        let pages = loan.fresh.iter().filter_map(|key| ExtentPage::decode(&value(key)?).ok());
        let mut left = BYTES_MAX;
        for extent in pages.flat_map(|page| page.extents().to_vec()) {
            let len = extent.len as usize;
            if len > left {
                continue;
            }
            let mut buf = vec![0; len];
            // What cannot be read here is asked for when it is needed.
            let read = volume.read_own_pack(extent.pack, extent.offset, &mut buf, &is_pending);
            if let Ok(FromOwner::Bytes) = read {
                left -= len;
                bytes.push((extent.pack, extent.offset, buf));
            }
        }
    }
    let row = |(key, value): (Key, Option<Value>)| (key.as_bytes().to_vec(), value.map(|row| row.to_vec()));
    let rows = loan.rows.into_iter().map(row).collect();
    // In whole milliseconds, and not longer than it lasts.
    let lasts = Duration::from_millis(loan.lasts.as_millis().try_into().unwrap_or(0));
    let Loan { has_names, seq, number, version, .. } = loan;
    LoanPart { has_names, seq, number, version, lasts, rows, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_was_sent_is_read_whole_or_not_at_all() {
        let sent = Sent::default();
        let range = |pack, offset, bytes: &[u8]| (PackNo(pack), offset, bytes.to_vec());
        let loan = |bytes| LoanPart {
            has_names: false,
            seq: 1,
            number: 1,
            version: 1,
            lasts: Duration::ZERO,
            rows: Vec::new(),
            bytes,
        };
        sent.receive(loan(vec![range(1, 10, b"abcd"), range(2, 0, b"xy")]));
        let read = |pack, offset, len| {
            let mut buf = vec![0; len];
            sent.read(PackNo(pack), offset, &mut buf).then_some(buf)
        };
        assert_eq!(read(1, 10, 4).as_deref(), Some(&b"abcd"[..]));
        assert_eq!(read(1, 11, 2).as_deref(), Some(&b"bc"[..]));
        assert_eq!(read(2, 0, 1).as_deref(), Some(&b"x"[..]));
        for (pack, offset, len) in [(1, 9, 2), (1, 12, 3), (3, 0, 1), (1, u32::MAX, 4)] {
            assert_eq!(read(pack, offset, len), None, "{pack} {offset} {len}");
        }
        for pack in 10..10 + SENT_MAX as u64 {
            sent.receive(loan(vec![range(pack, 0, b"z")]));
        }
        assert_eq!((read(1, 10, 4), sent.0.lock().len()), (None, SENT_MAX));
    }
}
