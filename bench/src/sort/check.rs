//! Checks what was sorted, as `valsort` of the sort benchmark does: the order, the number of records, and the
//! sum of their CRC-32, which must be that of the input.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crc_fast::{CrcAlgorithm, checksum};
use serde_json::{Value, json};

use super::records::{Form, KEY_MAX};
use crate::Result;

/// Bytes of one read: a whole number of records is taken of each.
const READ: usize = 4 << 20;

/// What is known of a range of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    form: Form,
    records: u64,
    checksum: u128,
    /// Records whose key is smaller than that of the record before.
    unordered: u64,
    /// Records with the key of the record before.
    duplicates: u64,
    first: [u8; KEY_MAX],
    last: [u8; KEY_MAX],
}

impl Summary {
    /// Of no record.
    pub fn new(form: Form) -> Summary {
        let none = [0; KEY_MAX];
        Summary { form, records: 0, checksum: 0, unordered: 0, duplicates: 0, first: none, last: none }
    }

    /// Of the files, one after the other.
    ///
    /// # Errors
    /// A file cannot be read, or ends within a record.
    pub fn of_files<'f>(form: Form, files: impl IntoIterator<Item = &'f Path>) -> Result<Summary> {
        let mut summary = Summary::new(form);
        let mut buf = vec![0; READ - READ % form.size()];
        for path in files {
            let mut file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
            loop {
                let len = fill(&mut file, &mut buf)?;
                let records = buf.get(..len).unwrap_or_default();
                if !len.is_multiple_of(form.size()) {
                    return Err(format!("{} ends within a record", path.display()).into());
                }
                if records.is_empty() {
                    break;
                }
                summary.add(records);
            }
        }
        Ok(summary)
    }

    /// Adds records that follow.
    pub fn add(&mut self, records: &[u8]) {
        for record in records.chunks_exact(self.form.size()) {
            let mut key = [0; KEY_MAX];
            key.iter_mut().zip(record.iter().take(self.form.key())).for_each(|(to, from)| *to = *from);
            self.checksum += u128::from(checksum(CrcAlgorithm::Crc32IsoHdlc, record));
            match (self.records, key.cmp(&self.last)) {
                (0, _) => self.first = key,
                (_, std::cmp::Ordering::Less) => self.unordered += 1,
                (_, std::cmp::Ordering::Equal) => self.duplicates += 1,
                _ => {}
            }
            self.last = key;
            self.records += 1;
        }
    }

    /// The summary of these records and of those of `next`, which follow.
    pub fn join(&mut self, next: &Summary) {
        if next.records == 0 {
            return;
        }
        if self.records == 0 {
            *self = next.clone();
            return;
        }
        self.unordered += u64::from(next.first < self.last) + next.unordered;
        self.duplicates += u64::from(next.first == self.last) + next.duplicates;
        self.records += next.records;
        self.checksum += next.checksum;
        self.last = next.last;
    }

    /// The sum of the CRC-32 of all records.
    pub fn checksum(&self) -> u128 {
        self.checksum
    }

    /// The number of records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Compares sorted records with the input.
    ///
    /// # Errors
    /// Says what differs.
    pub fn must_be_sorted_from(&self, input: &Summary) -> Result<()> {
        if self.unordered > 0 {
            return Err(format!("{} of {} records are not in order", self.unordered, self.records).into());
        }
        if (self.records, self.checksum) != (input.records, input.checksum) {
            return Err(format!(
                "{} records with the checksum {:x} came out of {} with {:x}",
                self.records, self.checksum, input.records, input.checksum
            )
            .into());
        }
        Ok(())
    }

    /// For another process.
    pub fn to_json(&self) -> Value {
        json!({
            "records": self.records, "checksum": self.checksum.to_string(),
            "unordered": self.unordered, "duplicates": self.duplicates,
            "first": self.first, "last": self.last,
        })
    }

    /// From another process.
    ///
    /// # Errors
    /// A field is missing.
    pub fn from_json(form: Form, value: &Value) -> Result<Summary> {
        let number = |name: &str| {
            value.get(name).and_then(Value::as_u64).ok_or_else(|| format!("a worker's summary lacks {name}"))
        };
        let key = |name: &str| -> Result<[u8; KEY_MAX]> {
            Ok(serde_json::from_value(value.get(name).cloned().unwrap_or_default())?)
        };
        let checksum = value.get("checksum").and_then(Value::as_str).unwrap_or_default().parse()?;
        Ok(Summary {
            form,
            records: number("records")?,
            checksum,
            unordered: number("unordered")?,
            duplicates: number("duplicates")?,
            first: key("first")?,
            last: key("last")?,
        })
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
///
/// # Errors
/// The file cannot be read.
pub fn fill(file: &mut impl Read, buf: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    while let Some(rest) = buf.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            more => len += more,
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::super::records::Maker;
    use super::*;

    fn summary(records: &[&[u8]]) -> Summary {
        let mut summary = Summary::new(Form::Plain);
        records.iter().for_each(|record| summary.add(record));
        summary
    }

    #[test]
    fn what_is_lost_changed_or_out_of_order_is_found() {
        let (mut maker, mut all) = (Maker::new(Form::Plain, 0), Vec::new());
        (0..3).for_each(|_| maker.push(&mut all));
        let mut sorted: Vec<&[u8]> = all.chunks(64).collect();
        let input = summary(&sorted);
        sorted.sort();
        summary(&sorted).must_be_sorted_from(&input).unwrap();
        assert!(summary(&sorted[1..]).must_be_sorted_from(&input).is_err());
        let swapped = [sorted[0], sorted[2], sorted[1]];
        assert!(summary(&swapped).must_be_sorted_from(&input).is_err());
        let mut changed = sorted[2].to_vec();
        changed[63] ^= 1;
        assert!(summary(&[sorted[0], sorted[1], &changed]).must_be_sorted_from(&input).is_err());
        let twice = summary(&[sorted[0], sorted[0]]);
        assert_eq!((twice.duplicates, twice.unordered), (1, 0));
    }

    #[test]
    fn joined_summaries_are_the_summary_of_all() {
        let (mut maker, mut all) = (Maker::new(Form::Plain, 5), Vec::new());
        (0..9).for_each(|_| maker.push(&mut all));
        let records: Vec<&[u8]> = all.chunks(64).collect();
        for at in 0..=9 {
            let mut joined = summary(&records[..at]);
            let next = summary(&records[at..]);
            let next = Summary::from_json(Form::Plain, &next.to_json()).unwrap();
            joined.join(&next);
            assert_eq!(joined, summary(&records), "{at}");
        }
    }
}
