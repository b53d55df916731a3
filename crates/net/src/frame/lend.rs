//! The payloads of a request for a loan of a unit of a shared volume, and of the answer.

use std::time::Duration;

use base::size::BLOB_MAX;
use base::{Ino, PackNo};

use super::payload::Reader;
use super::{BadFrame, SMALL_MAX};

/// The longest key of a row.
const KEY_MAX: usize = 280;
/// How many keys a request has at most.
const KEYS_MAX: usize = 8;
/// The longest payload of a request.
pub(super) const ASK_MAX: u32 = 8 + 4 + 1 + 1 + (KEYS_MAX * (2 + KEY_MAX)) as u32;
/// The length of a value that is absent.
const ABSENT: u32 = u32::MAX;

/// "Lend me this": inode u64, the borrower's number u32, whether it gives the loan back by itself u8, keys u8
/// (0 to 8), each: length u16 and bytes. The keys are rows that the borrower is about to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LendAsk {
    /// The directory or file.
    pub unit: Ino,
    /// The number of the node that asks.
    pub to: u32,
    /// Whether the borrower gives the loan back by itself.
    pub returns: bool,
    /// Keys of rows.
    pub keys: Vec<Vec<u8>>,
}

impl LendAsk {
    /// As bytes. Keys after the eighth, and keys that are too long, are left out.
    pub fn encode(&self) -> Vec<u8> {
        let keys: Vec<&Vec<u8>> =
            self.keys.iter().filter(|key| key.len() <= KEY_MAX).take(KEYS_MAX).collect();
        let head = [u8::from(self.returns), keys.len() as u8];
        let mut out = [&self.unit.0.to_le_bytes()[..], &self.to.to_le_bytes(), &head].concat();
        keys.into_iter().for_each(|key| put_key(&mut out, key));
        out
    }

    /// Reads what [`LendAsk::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(bytes: &[u8]) -> Result<LendAsk, BadFrame> {
        let mut reader = Reader(bytes);
        let (unit, to) = (Ino(reader.u64()?), reader.u32()?);
        let (returns, count) = (reader.u8()?, usize::from(reader.u8()?));
        if returns > 1 {
            return Err(BadFrame::Payload("a loan is given back by itself, or is not"));
        }
        if count > KEYS_MAX {
            return Err(BadFrame::Payload("a request for a loan has at most 8 keys"));
        }
        let keys = (0..count).map(|_| key(&mut reader)).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(LendAsk { unit, to, returns: returns == 1, keys })
    }
}

/// The answer: kind u8 (0: it is not lent, and nothing follows; 1: lent; 2: lent, with all names of the
/// directory), number of the lease u64, number of the loan u64, version u64, milliseconds u32, rows u16,
/// each: length of the key u16, key, length of the value u32 (`ffffffff`: the row is absent), value. Then
/// ranges of packs u16, each: pack u64, offset u32, length u32, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoanPart {
    /// All names of the directory are among the rows.
    pub has_names: bool,
    /// The number of the holder's lease.
    pub seq: u64,
    /// The number of the loan.
    pub number: u64,
    /// How often the unit has changed.
    pub version: u64,
    /// How long it may be used, from the moment of the request.
    pub lasts: Duration,
    /// Rows.
    pub rows: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Bytes of the holder's packs.
    pub bytes: Vec<(PackNo, u32, Vec<u8>)>,
}

impl LoanPart {
    /// The answer as bytes. What does not fit into a frame is left out, and then not all names are there.
    pub fn encode(loan: Option<&LoanPart>) -> Vec<u8> {
        let Some(loan) = loan else { return vec![0] };
        let most = SMALL_MAX as usize - 2;
        let mut out = vec![1];
        [loan.seq, loan.number, loan.version].iter().for_each(|part| out.extend(part.to_le_bytes()));
        out.extend(u32::try_from(loan.lasts.as_millis()).unwrap_or(u32::MAX).to_le_bytes());
        let at = out.len();
        out.extend([0; 2]);
        let mut count = 0u16;
        for (key, value) in &loan.rows {
            let len = value.as_ref().map_or(0, Vec::len);
            if key.len() > KEY_MAX || out.len() + 6 + key.len() + len > most || count == u16::MAX {
                break;
            }
            put_key(&mut out, key);
            out.extend(value.as_ref().map_or(ABSENT, |value| value.len() as u32).to_le_bytes());
            out.extend(value.iter().flatten());
            count += 1;
        }
        out[at..at + 2].copy_from_slice(&count.to_le_bytes());
        out[0] = if loan.has_names && usize::from(count) == loan.rows.len() { 2 } else { 1 };
        let at = out.len();
        out.extend([0; 2]);
        let mut count = 0u16;
        for (pack, offset, bytes) in &loan.bytes {
            if out.len() + 16 + bytes.len() > SMALL_MAX as usize || count == u16::MAX {
                break;
            }
            out.extend(pack.0.to_le_bytes());
            out.extend(offset.to_le_bytes());
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(bytes);
            count += 1;
        }
        out[at..at + 2].copy_from_slice(&count.to_le_bytes());
        out
    }

    /// Reads what [`LoanPart::encode`] wrote. `None`: it is not lent.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(bytes: &[u8]) -> Result<Option<LoanPart>, BadFrame> {
        let mut reader = Reader(bytes);
        let has_names = match reader.u8()? {
            0 => return reader.end().map(|()| None),
            1 => false,
            2 => true,
            _ => return Err(BadFrame::Payload("a unit is lent, lent with its names, or not lent")),
        };
        let (seq, number, version) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let lasts = Duration::from_millis(u64::from(reader.u32()?));
        let count = reader.u16()?;
        let rows = (0..count).map(|_| row(&mut reader)).collect::<Result<_, _>>()?;
        let count = reader.u16()?;
        let bytes = (0..count).map(|_| range(&mut reader)).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(Some(LoanPart { has_names, seq, number, version, lasts, rows, bytes }))
    }
}

/// "I no longer use your loan": inode u64, the borrower's number u32, number of the loan u64. The answer is
/// DONE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The directory or file.
    pub unit: Ino,
    /// The number of the node that has used it.
    pub from: u32,
    /// The number of the loan.
    pub number: u64,
}

impl Returned {
    /// The length of the payload.
    pub(super) const LEN: u32 = 20;

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        [&self.unit.0.to_le_bytes()[..], &self.from.to_le_bytes(), &self.number.to_le_bytes()].concat()
    }

    /// Reads what [`Returned::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(bytes: &[u8]) -> Result<Returned, BadFrame> {
        let mut reader = Reader(bytes);
        let returned = Returned { unit: Ino(reader.u64()?), from: reader.u32()?, number: reader.u64()? };
        reader.end()?;
        Ok(returned)
    }
}

fn put_key(out: &mut Vec<u8>, key: &[u8]) {
    out.extend((key.len() as u16).to_le_bytes());
    out.extend(key);
}

fn key(reader: &mut Reader<'_>) -> Result<Vec<u8>, BadFrame> {
    let len = usize::from(reader.u16()?);
    if len > KEY_MAX {
        return Err(BadFrame::Payload("a key has at most 280 bytes"));
    }
    Ok(reader.take(len)?.to_vec())
}

fn row(reader: &mut Reader<'_>) -> Result<(Vec<u8>, Option<Vec<u8>>), BadFrame> {
    let key = key(reader)?;
    let value = match reader.u32()? {
        ABSENT => None,
        len => Some(reader.take(len as usize)?.to_vec()),
    };
    Ok((key, value))
}

fn range(reader: &mut Reader<'_>) -> Result<(PackNo, u32, Vec<u8>), BadFrame> {
    let (pack, offset, len) = (PackNo(reader.u64()?), reader.u32()?, reader.u32()?);
    if u64::from(offset) + u64::from(len) > u64::from(BLOB_MAX) {
        return Err(BadFrame::Payload("a range of a pack ends within 4 MiB"));
    }
    Ok((pack, offset, reader.take(len as usize)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loan() -> LoanPart {
        LoanPart {
            has_names: true,
            seq: 7,
            number: 8,
            version: 9,
            lasts: Duration::from_millis(250),
            rows: vec![(vec![1, 2], Some(vec![3; 9])), (vec![4], None), (vec![5], Some(Vec::new()))],
            bytes: vec![(PackNo(1 << 40), 5, vec![6; 100])],
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else() {
        let ask =
            LendAsk { unit: Ino(7 << 40), to: 3, returns: true, keys: vec![vec![1; KEY_MAX]; KEYS_MAX] };
        assert_eq!(ask.encode().len(), ASK_MAX as usize);
        for ask in [LendAsk { keys: Vec::new(), ..ask.clone() }, ask] {
            assert_eq!(LendAsk::decode(&ask.encode()), Ok(ask.clone()));
            assert!(LendAsk::decode(&[&ask.encode()[..], &[0]].concat()).is_err());
            assert!(LendAsk::decode(&ask.encode()[..ask.encode().len() - 1]).is_err());
        }
        for loan in [None, Some(loan()), Some(LoanPart { has_names: false, ..loan() })] {
            let bytes = LoanPart::encode(loan.as_ref());
            assert_eq!(LoanPart::decode(&bytes), Ok(loan));
            assert!(LoanPart::decode(&[&bytes[..], &[0]].concat()).is_err());
            assert!(LoanPart::decode(&bytes[..bytes.len() - 1]).is_err());
        }
        let returned = Returned { unit: Ino(5), from: 6, number: 7 };
        assert_eq!(Returned::decode(&returned.encode()), Ok(returned));
        assert!(Returned::decode(&returned.encode()[1..]).is_err() && Returned::decode(&[0; 21]).is_err());
        let beyond = LoanPart { bytes: vec![(PackNo(1), BLOB_MAX, vec![0])], ..loan() };
        assert!(LoanPart::decode(&LoanPart::encode(Some(&beyond))).is_err());
        assert!(LoanPart::decode(&[3]).is_err());
    }

    #[test]
    fn what_is_too_much_for_a_frame_is_left_out() {
        let rows: Vec<_> = (0..100u8).map(|n| (vec![n], Some(vec![n; 1000]))).collect();
        let much = LoanPart { rows: rows.clone(), bytes: vec![(PackNo(1), 0, vec![0; 10_000])], ..loan() };
        let bytes = LoanPart::encode(Some(&much));
        assert!(bytes.len() <= SMALL_MAX as usize);
        let seen = LoanPart::decode(&bytes).unwrap().unwrap();
        assert!(!seen.has_names && seen.bytes.is_empty());
        assert!(seen.rows.len() > 60 && seen.rows[..] == rows[..seen.rows.len()]);
    }
}
