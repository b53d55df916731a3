//! From numbers to bytes, and from bytes to a name: version 1 of the derivation.
//!
//! ```text
//!   bytes = BLAKE3, derive-key mode, context CONTEXT, of | seed 8 B | index 8 B | size 8 B |   (big-endian),
//!           its extendable output, the first `size` bytes
//!   name  = SHA-256 of the bytes, 64 hexadecimal digits, lower case
//! ```
//!
//! The size is part of the input, so two corpora with the same seed share no prefix. Name and bytes use
//! different hash functions, so a server that mixes up two files cannot get both right by accident. This is a
//! format: programs and recorded figures rely on it. Another derivation would get another context string,
//! beside this one.

use sha2::{Digest, Sha256};

use crate::Spec;

/// Separates this derivation, in this version, from every other use of BLAKE3.
pub const CONTEXT: &str = "Covey corpus, version 1: bytes of a file from seed, index and size";

/// Length of a name in hexadecimal digits.
pub const NAME_LEN: usize = 64;

/// Fills `buf` with the first bytes of file `index`: all of them if it is `spec.size` long.
pub fn fill(spec: &Spec, index: u64, buf: &mut [u8]) {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    for number in [spec.seed, index, spec.size] {
        hasher.update(&number.to_be_bytes());
    }
    hasher.finalize_xof().fill(buf);
}

/// The hash that is a file's name.
pub fn name(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// A name as it is written in the directory.
pub fn hex(name: &[u8; 32]) -> [u8; NAME_LEN] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; NAME_LEN];
    for (pair, byte) in text.chunks_exact_mut(2).zip(name) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

/// The hash that such a name spells. `None` for anything else, including capital digits.
pub fn unhex(text: &[u8]) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut name = [0; 32];
    if text.len() != NAME_LEN {
        return None;
    }
    for (byte, pair) in name.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(name)
}

/// The name of file `index` as text. `buf` is `spec.size` long and holds the file's bytes afterwards.
pub fn derive(spec: &Spec, index: u64, buf: &mut [u8]) -> String {
    fill(spec, index, buf);
    hex(&name(buf)).iter().map(|byte| char::from(*byte)).collect()
}
