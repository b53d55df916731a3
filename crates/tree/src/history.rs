//! Older publications of a name that are kept.
//!
//! ```text
//!   older/NAME/SEQUENCE   the record published/NAME as it was, byte for byte; SEQUENCE: 20 digits
//! ```
//!
//! The record is written before a newer one replaces it, so a kept publication is never without a record. It
//! is removed before its blobs are released. Its signature is checked as that of any published tree.

use base::Timestamp;
use blob::Records;

use crate::TreeError;
use crate::root::{self, PublicKey, Root, is_name};

/// The folder of the records.
const FOLDER: &str = "older";

/// The name of the record of a kept publication.
pub fn record_name(name: &str, sequence: u64) -> String {
    format!("{FOLDER}/{name}/{sequence:020}")
}

/// Keeps what is published under a name now, so that it can be read after it was replaced.
///
/// # Errors
/// `NotPublished`; `Damaged`: there is nothing to keep; or the origin's error.
pub fn keep(records: &dyn Records, name: &str) -> Result<(), TreeError> {
    let record = root::record(records, name)?;
    let sequence = Root::decode(name, &record)?.sequence;
    Ok(records.put_record(&record_name(name, sequence), &record)?)
}

/// The numbers of the kept publications of a name, ascending. The newest publication is not among them.
///
/// # Errors
/// The origin's error.
pub fn sequences(records: &dyn Records, name: &str) -> Result<Vec<u64>, TreeError> {
    if !is_name(name) {
        return Ok(Vec::new());
    }
    let all = records.records(&format!("{FOLDER}/{name}"))?;
    let number = |record: &String| record.rsplit_once('/')?.1.parse().ok();
    let mut numbers: Vec<u64> = all.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads one publication of a name: the newest, or one that is kept. `accept`: as in [`Root::read`].
///
/// # Errors
/// As [`Root::read`]. `NotPublished`: it was never made, or is not kept.
pub fn read(
    records: &dyn Records,
    name: &str,
    sequence: u64,
    accept: Option<&PublicKey>,
) -> Result<Root, TreeError> {
    let missing = || TreeError::NotPublished(format!("{name}#{sequence}"));
    if !is_name(name) {
        return Err(missing());
    }
    let mut record = records.record(&record_name(name, sequence))?;
    if record.is_none() {
        record = Some(root::record(records, name)?);
    }
    let root = Root::decode(name, &record.unwrap_or_default())?;
    if root.sequence != sequence {
        return Err(missing());
    }
    root.check_signer(records, accept)?;
    Ok(root)
}

/// Removes the oldest kept publications of a name until `count` are left. Returns the moment of the oldest
/// that is left. If its record cannot be read, that is the earliest moment there is.
///
/// # Errors
/// The origin's error.
pub fn prune(records: &dyn Records, name: &str, count: usize) -> Result<Option<Timestamp>, TreeError> {
    let sequences = sequences(records, name)?;
    let (gone, left) = sequences.split_at(sequences.len().saturating_sub(count));
    gone.iter().try_for_each(|sequence| records.remove_record(&record_name(name, *sequence)))?;
    let Some(oldest) = left.first() else { return Ok(None) };
    let record = records.record(&record_name(name, *oldest))?.unwrap_or_default();
    let moment = Root::decode(name, &record).map(|root| root.moment);
    Ok(Some(moment.unwrap_or(Timestamp::from_nanos(i64::MIN))))
}
