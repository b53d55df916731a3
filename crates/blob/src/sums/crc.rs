//! CRC32C (Castagnoli), computed for every segment, every small write in the log and every record.

use std::sync::OnceLock;

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC32C of some bytes, in one go.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC32C of bytes that are in several buffers.
#[derive(Debug)]
pub struct Crc32c(Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Crc32c::new()
    }
}

impl Crc32c {
    /// The state before any byte.
    pub fn new() -> Crc32c {
        Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds these bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC32C of all bytes so far.
    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

type Matrix = [u32; 32];

fn times(matrix: &Matrix, vector: u32) -> u32 {
    matrix.iter().enumerate().filter(|(bit, _)| vector >> bit & 1 == 1).fold(0, |sum, (_, row)| sum ^ row)
}

/// How 2^k zero bytes change a CRC, for k from 0 to 31. That is linear, so each is a matrix.
fn zeros() -> &'static [Matrix; 32] {
    static ZEROS: OnceLock<[Matrix; 32]> = OnceLock::new();
    ZEROS.get_or_init(|| {
        let mut matrix: Matrix = std::array::from_fn(|bit| {
            (0..8).fold(1u32 << bit, |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
        });
        std::array::from_fn(|_| {
            let this = matrix;
            matrix = std::array::from_fn(|bit| times(&this, this[bit]));
            this
        })
    })
}

/// Changes a CRC as one whole segment of zero bytes does, by the bytes of the CRC: four table lookups, since
/// nearly every segment is whole.
fn segment(crc: u32) -> u32 {
    static TABLE: OnceLock<[[u32; 256]; 4]> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let matrix = &zeros()[base::size::SEGMENT.trailing_zeros() as usize];
        std::array::from_fn(|byte| std::array::from_fn(|value| times(matrix, (value as u32) << (8 * byte))))
    });
    let [a, b, c, d] = crc.to_le_bytes().map(usize::from);
    table[0][a] ^ table[1][b] ^ table[2][c] ^ table[3][d]
}

/// The CRC32C of `first` followed by `len` more bytes whose own CRC32C is `next`, without reading any byte.
pub fn crc32c_join(first: u32, next: u32, len: u32) -> u32 {
    if len == base::size::SEGMENT {
        return segment(first) ^ next;
    }
    let bits = (0..32).filter(|bit| len >> bit & 1 == 1);
    bits.fold(first, |crc, bit| times(&zeros()[bit], crc)) ^ next
}
