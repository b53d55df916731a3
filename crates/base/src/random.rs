//! Access to random bytes. Tests that must be repeatable take a seed instead.

use crate::must::Must;

/// Fills `buf` with bytes from the kernel's generator.
pub fn fill(buf: &mut [u8]) {
    getrandom::fill(buf).must("getrandom(2) works on every Linux that has FUSE")
}

/// A random number.
pub fn u64() -> u64 {
    let mut bytes = [0u8; 8];
    fill(&mut bytes);
    u64::from_be_bytes(bytes)
}

/// A random identifier of 16 bytes, for volumes and sessions.
pub fn id16() -> [u8; 16] {
    let mut bytes = [0u8; 16];
    fill(&mut bytes);
    bytes
}
