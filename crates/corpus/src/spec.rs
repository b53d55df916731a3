//! A corpus as three numbers: `corpus:SEED,N,SIZE`.

use std::fmt;
use std::str::FromStr;

use base::size::{GIB, KIB, MIB};

/// The prefix of a corpus on a command line.
pub const PREFIX: &str = "corpus:";
/// The most files. A directory of this size can still be listed in seconds.
pub const COUNT_MAX: u64 = 10_000_000;
/// The smallest size in bytes. Two shorter files could be the same, and both would have one name.
pub const SIZE_MIN: u64 = 16;
/// The largest size in bytes.
pub const SIZE_MAX: u64 = 4 * GIB;

/// The three numbers that make up a corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// All bytes follow from it.
    pub seed: u64,
    /// The number of files, 1 to [`COUNT_MAX`].
    pub count: u64,
    /// Bytes of each file, [`SIZE_MIN`] to [`SIZE_MAX`].
    pub size: u64,
}

/// Why a text is not a corpus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The text does not have three parts after the prefix.
    #[error("a corpus is written corpus:SEED,N,SIZE, as in corpus:7,1000,64K")]
    Form,
    /// The first is not a number.
    #[error("the seed {0:?} is not a whole number from 0 to 18446744073709551615")]
    Seed(String),
    /// The second is out of bounds.
    #[error("the number of files {0:?} is not a whole number from 1 to {COUNT_MAX}")]
    Count(String),
    /// The third is out of bounds.
    #[error("the size {0:?} is not a number of bytes from {SIZE_MIN} to 4G, as 4096, 64K or 1M")]
    Size(String),
}

impl Spec {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`SpecError`] names the number that is out of bounds.
    pub fn new(seed: u64, count: u64, size: u64) -> Result<Spec, SpecError> {
        if !(1..=COUNT_MAX).contains(&count) {
            return Err(SpecError::Count(count.to_string()));
        }
        if !(SIZE_MIN..=SIZE_MAX).contains(&size) {
            return Err(SpecError::Size(size.to_string()));
        }
        Ok(Spec { seed, count, size })
    }

    /// Bytes of all files together: at most 40 PB, so it never overflows.
    pub fn bytes(&self) -> u64 {
        self.count * self.size
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    /// `SEED,N,SIZE`, with or without [`PREFIX`] before it.
    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let numbers = text.strip_prefix(PREFIX).unwrap_or(text);
        let parts: Vec<&str> = numbers.split(',').collect();
        let [seed, count, size] = parts[..] else {
            return Err(SpecError::Form);
        };
        Spec::new(
            number(seed).ok_or_else(|| SpecError::Seed(seed.to_owned()))?,
            number(count).ok_or_else(|| SpecError::Count(count.to_owned()))?,
            bytes(size).ok_or_else(|| SpecError::Size(size.to_owned()))?,
        )
        .map_err(|error| match error {
            // With the text as the user typed it.
            SpecError::Count(_) => SpecError::Count(count.to_owned()),
            SpecError::Size(_) => SpecError::Size(size.to_owned()),
            other => other,
        })
    }
}

impl fmt::Display for Spec {
    /// The shortest form that [`Spec::from_str`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = [(GIB, "G"), (MIB, "M"), (KIB, "K"), (1, "")];
        let (by, letter) = unit.into_iter().find(|(by, _)| self.size.is_multiple_of(*by)).unwrap_or((1, ""));
        write!(f, "{PREFIX}{},{},{}{letter}", self.seed, self.count, self.size / by)
    }
}

/// Digits only: no sign, no space.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A number of bytes, or of KiB, MiB or GiB if a letter says so.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], KIB),
        b'm' | b'M' => (&text[..text.len() - 1], MIB),
        b'g' | b'G' => (&text[..text.len() - 1], GIB),
        _ => (text, 1),
    };
    number(digits)?.checked_mul(unit)
}
