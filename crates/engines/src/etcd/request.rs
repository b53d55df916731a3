//! Transactions and reads in etcd's terms.
//!
//! A server takes a list of at most 128 operations (`--max-txn-ops`), and a transaction may be an operation
//! of another one. The server adds up the longest lists from the outermost transaction inwards. So a few
//! levels of short lists hold thousands of operations, which still are one transaction. Checks cannot be
//! nested like that: a nested check only chooses between operations.

use etcd_client::{
    Compare, CompareOp, Error, GetOptions, KeyValue, ResponseHeader, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use meta::store::StoreError;

use super::errors::Failure;
use super::layout::Span;
use super::link::Wires;
use super::pool::{Pool, Taken};

/// How long the lists of each level may be. Their sum is below 128: an operation may be a transaction itself,
/// with one check.
const LEVELS: [&[usize]; 3] = [&[126], &[62, 62], &[40, 40, 40]];
/// So many things are asked for in one request.
const ASKS_MAX: usize = 1_000;

/// The shortest form that takes so many checks and operations.
pub(super) fn levels(checks: usize, ops: usize) -> Option<&'static [usize]> {
    let fits = |levels: &&&[usize]| {
        levels.first().is_some_and(|first| checks <= *first) && ops <= levels.iter().product()
    };
    LEVELS.iter().find(fits).copied()
}

/// Operations in the form of these levels, in the same order.
pub(super) fn packed(ops: Vec<TxnOp>, levels: &[usize]) -> Vec<TxnOp> {
    let inner = levels.get(1..).unwrap_or_default();
    let size: usize = inner.iter().product();
    if inner.is_empty() || size == 0 {
        return ops;
    }
    let mut ops = ops.into_iter().peekable();
    let mut groups = Vec::new();
    while ops.peek().is_some() {
        let group: Vec<TxnOp> = ops.by_ref().take(size).collect();
        groups.push(TxnOp::txn(Txn::new().and_then(packed(group, inner))));
    }
    groups
}

/// The rows that a transaction read, one list for each read, in their order.
pub(super) fn found(response: &TxnResponse) -> Vec<Vec<KeyValue>> {
    let mut all = Vec::new();
    for response in response.op_responses() {
        match response {
            TxnOpResponse::Get(mut get) => all.push(get.take_kvs()),
            TxnOpResponse::Txn(inner) => all.extend(found(&inner)),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) => {}
        }
    }
    all
}

/// The revision of an answer.
pub(super) fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

/// Something to read.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// One key.
    Key(Vec<u8>),
    /// The first keys of a range, at most so many.
    Span(Span, usize),
    /// Whether a range holds a key: its first one, without a value.
    Any(Span),
}

impl Ask {
    fn parts(&self, revision: i64) -> (Vec<u8>, GetOptions) {
        let options = GetOptions::new().with_revision(revision);
        match self {
            Ask::Key(key) => (key.clone(), options),
            Ask::Span((start, end), limit) => {
                let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
                (start.clone(), options.with_range(end.clone()).with_limit(limit))
            }
            Ask::Any((start, end)) => {
                (start.clone(), options.with_range(end.clone()).with_limit(1).with_keys_only())
            }
        }
    }

    /// As a part of a transaction.
    pub(super) fn op(&self) -> TxnOp {
        let (key, options) = self.parts(0);
        TxnOp::get(key, Some(options))
    }
}

/// Reads, as of one revision: 0 is the newest one. Returns the header of the answer too.
async fn read(
    mut wires: Wires,
    asks: &[Ask],
    at: i64,
) -> Result<(Option<ResponseHeader>, Vec<Vec<KeyValue>>), Error> {
    if let [ask] = asks {
        let (key, options) = ask.parts(at);
        let mut answer = wires.kv.get(key, Some(options)).await?;
        return Ok((answer.take_header(), vec![answer.take_kvs()]));
    }
    let op = |ask: &Ask| {
        let (key, options) = ask.parts(at);
        TxnOp::get(key, Some(options))
    };
    let ops: Vec<TxnOp> = asks.iter().map(op).collect();
    let levels = levels(0, ops.len()).unwrap_or(LEVELS[2]);
    let mut answer = wires.kv.txn(Txn::new().and_then(packed(ops, levels))).await?;
    Ok((answer.take_header(), found(&answer)))
}

/// Reads with a lane in hand, all as of one moment.
pub(super) fn look_with(
    taken: &mut Taken<'_>,
    asks: &[Ask],
    at: i64,
) -> Result<(i64, Vec<Vec<KeyValue>>), Failure> {
    let (mut at, mut all) = (at, Vec::with_capacity(asks.len()));
    for part in asks.chunks(ASKS_MAX) {
        let known = taken.door().opened.known();
        let (header, rows) = taken.once(async |wires| read(wires, part, at).await)?;
        let door = taken.door();
        door.opened.meet(&door.target, known, header.as_ref())?;
        let of = revision(header.as_ref());
        if rows.len() != part.len() {
            return Err(Failure::refused("etcd answers in an unexpected form: a read is missing"));
        }
        at = if at == 0 { of } else { at };
        all.extend(rows);
    }
    Ok((at, all))
}

/// Reads as of one moment: a revision, or 0 for now. Returns the revision too.
///
/// # Errors
/// See [`StoreError`].
pub(super) fn look(pool: &Pool, asks: &[Ask], at: i64) -> Result<(i64, Vec<Vec<KeyValue>>), StoreError> {
    pool.take()?.attempts(|taken, _| look_with(taken, asks, at))
}

/// The one row of a read.
pub(super) fn single(rows: &[KeyValue]) -> Option<&KeyValue> {
    rows.first()
}

/// A check that a key has this value.
pub(super) fn is(key: Vec<u8>, value: impl Into<Vec<u8>>) -> Compare {
    Compare::value(key, CompareOp::Equal, value)
}

/// A check that there is no such key.
pub(super) fn absent(key: Vec<u8>) -> Compare {
    Compare::version(key, CompareOp::Equal, 0)
}

/// A check that there is such a key.
pub(super) fn exists(key: Vec<u8>) -> Compare {
    Compare::version(key, CompareOp::Greater, 0)
}

/// A check that a range holds no key.
pub(super) fn empty((start, end): Span) -> Compare {
    Compare::version(start, CompareOp::Equal, 0).with_range(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_take_what_they_promise() {
        assert_eq!(levels(3, 126), Some(LEVELS[0]));
        assert_eq!(levels(62, 127), Some(LEVELS[1]));
        assert_eq!(levels(63, 127), None);
        assert_eq!(levels(126, 126), Some(LEVELS[0]));
        assert_eq!(levels(127, 1), None);
        assert_eq!(levels(3, 64_000), Some(LEVELS[2]));
        assert_eq!(levels(3, 64_001), None);
        for levels in LEVELS {
            assert!(levels.iter().sum::<usize>() < 127);
        }
    }

    #[test]
    fn packing_keeps_lists_short() {
        let ops = |n: usize| (0..n).map(|n| TxnOp::get(n.to_be_bytes(), None)).collect::<Vec<_>>();
        assert_eq!(packed(ops(126), LEVELS[0]).len(), 126);
        assert_eq!(packed(ops(127), LEVELS[1]).len(), 3);
        assert_eq!(packed(ops(3844), LEVELS[1]).len(), 62);
        assert_eq!(packed(ops(64_000), LEVELS[2]).len(), 40);
    }
}
