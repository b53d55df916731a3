//! CRC32C (Castagnoli), as computed for every segment, every small write in the log and every record.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC32C of some bytes, in one go.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC32C of bytes that lie in several places.
#[derive(Debug)]
pub struct Crc32c(Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Crc32c::new()
    }
}

impl Crc32c {
    /// Of no bytes yet.
    pub fn new() -> Crc32c {
        Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Goes on with these bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC32C of all bytes so far.
    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}
