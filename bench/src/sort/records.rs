//! The records that are sorted, and how they are made.
//!
//! | form | bytes | key | contents |
//! |---|---|---|---|
//! | `plain` | 64 | 8 | a random key, then the record's number and filler |
//! | `gensort` | 100 | 10 | printable; the same bytes as `gensort -a` of the sort benchmark makes |
//!
//! Any node makes any range of records by itself: record *n* follows from *n*. The generator of `gensort` is
//! X' = A X + C modulo 2^128 (sortbenchmark.org). Record *n* uses the number after *n* + 1 steps.

use base::dice::mix;

/// The factor of gensort's generator.
const FACTOR: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
/// The summand of gensort's generator. Its first bytes read "JimGrayRIP".
const SUMMAND: u128 = 0x4a69_6d47_7261_7952_4950_2020_2020_2001;
/// The longest key.
pub const KEY_MAX: usize = 10;

/// The form of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// 64 bytes with a key of 8.
    Plain,
    /// 100 bytes with a key of 10, as `gensort -a` makes them.
    Gensort,
}

impl Form {
    /// Bytes of a record.
    pub fn size(self) -> usize {
        match self {
            Form::Plain => 64,
            Form::Gensort => 100,
        }
    }

    /// Bytes of its key, which come first.
    pub fn key(self) -> usize {
        match self {
            Form::Plain => 8,
            Form::Gensort => KEY_MAX,
        }
    }

    /// The place of a key among all keys, from 0 to 2^64: keys are random, so equal ranges of places have
    /// about equally many records. Order of places is the order of keys.
    pub fn place(self, record: &[u8]) -> u64 {
        let key = |at: usize| u64::from(record.get(at).copied().unwrap_or(0));
        match self {
            Form::Plain => (0..8).fold(0, |place, at| place << 8 | key(at)),
            // Each byte is one of 95 printable ones; 9 of them fit into 64 bits.
            Form::Gensort => {
                let place = (0..9).fold(0_u64, |place, at| place * 95 + key(at).saturating_sub(32).min(94));
                (u128::from(place) * (1 << 64) / 95_u128.pow(9)) as u64
            }
        }
    }
}

/// Records from one on.
pub struct Maker {
    form: Form,
    number: u64,
    state: u128,
}

impl Maker {
    /// From record `first` on.
    pub fn new(form: Form, first: u64) -> Maker {
        Maker { form, number: first, state: state_after(first) }
    }

    /// Appends the next record.
    pub fn push(&mut self, out: &mut Vec<u8>) {
        match self.form {
            Form::Plain => self.push_plain(out),
            Form::Gensort => self.push_gensort(out),
        }
        self.number += 1;
    }

    fn push_plain(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&mix(self.number).to_be_bytes());
        out.extend_from_slice(&self.number.to_be_bytes());
        for word in 0..6 {
            out.extend_from_slice(&mix(!self.number ^ word << 56).to_le_bytes());
        }
    }

    fn push_gensort(&mut self, out: &mut Vec<u8>) {
        self.state = self.state.wrapping_mul(FACTOR).wrapping_add(SUMMAND);
        let (mut high, low) = ((self.state >> 64) as u64, self.state as u64);
        for _ in 0..8 {
            out.push(b' ' + (high % 95) as u8);
            high /= 95;
        }
        let mut rest = low;
        for _ in 0..2 {
            out.push(b' ' + (rest % 95) as u8);
            rest /= 95;
        }
        out.extend_from_slice(b"  ");
        for digit in (0..32).rev() {
            out.push(hexadecimal((u128::from(self.number) >> (4 * digit)) as u8));
        }
        out.extend_from_slice(b"  ");
        for group in 0..13 {
            out.extend_from_slice(&[hexadecimal((low >> (48 - 4 * group)) as u8); 4]);
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The lowest four bits as a digit.
fn hexadecimal(digit: u8) -> u8 {
    b"0123456789ABCDEF".get(usize::from(digit & 15)).copied().unwrap_or(b'0')
}

/// The generator's number after so many steps from 0, by doubling.
fn state_after(mut steps: u64) -> u128 {
    let (mut factor, mut summand) = (FACTOR, SUMMAND);
    let mut state = 0_u128;
    while steps > 0 {
        if steps & 1 == 1 {
            state = state.wrapping_mul(factor).wrapping_add(summand);
        }
        summand = summand.wrapping_mul(factor.wrapping_add(1));
        factor = factor.wrapping_mul(factor);
        steps >>= 1;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sort::check::Summary;

    fn made(form: Form, first: u64, count: u64) -> Vec<u8> {
        let (mut maker, mut out) = (Maker::new(form, first), Vec::new());
        (0..count).for_each(|_| maker.push(&mut out));
        out
    }

    /// The checksum that the benchmark's own programs print for the first 1,000 records.
    #[test]
    fn gensort_records_have_the_known_checksum() {
        let mut summary = Summary::new(Form::Gensort);
        summary.add(&made(Form::Gensort, 0, 1_000));
        assert_eq!(summary.checksum(), 0x1f5_dfb3_631a);
    }

    #[test]
    fn any_range_is_made_by_itself() {
        for form in [Form::Plain, Form::Gensort] {
            let whole = made(form, 0, 300);
            let size = form.size();
            assert_eq!(whole.len(), 300 * size);
            for (first, count) in [(0, 300), (1, 7), (255, 45)] {
                let place = first as usize * size;
                assert_eq!(made(form, first, count), whole[place..place + count as usize * size]);
            }
        }
    }

    #[test]
    fn places_are_ordered_as_keys_and_spread() {
        for form in [Form::Plain, Form::Gensort] {
            let all = made(form, 0, 10_000);
            let mut records: Vec<&[u8]> = all.chunks(form.size()).collect();
            records.sort_by_key(|record| &record[..form.key()]);
            assert!(records.windows(2).all(|pair| form.place(pair[0]) <= form.place(pair[1])));
            let low = records.iter().filter(|record| form.place(record) < 1 << 62).count();
            assert!((2_300..2_700).contains(&low), "{form:?}: {low}");
        }
    }
}
