//! Sizes that the format fixes, in bytes.

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// The largest blob. A large file is cut into pieces of this size: 4 MiB.
pub const BLOB_MAX: u32 = 4 << 20;
/// A file of at most this many bytes may be stored with the names: 512 B.
pub const INLINE_MAX: usize = 512;
/// A CRC32C is kept for every segment of a blob: 32 KiB.
pub const SEGMENT: u32 = 32 << 10;
/// A BLAKE3 chaining value is kept for every group of a blob: 64 KiB.
pub const GROUP: u32 = 64 << 10;
/// The longest name in a directory: 255 B, as everywhere on Linux.
pub const NAME_MAX: usize = 255;
/// A file's largest size: 2^32 pieces of 4 MiB (16 PiB) less one byte.
pub const FILE_MAX: u64 = (1 << 54) - 1;
