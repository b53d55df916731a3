//! Where the bytes of a snapshot come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A snapshot file.
pub trait Source: Send + Sync {
    /// Returns the file's length in bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills a buffer with the bytes from an offset on. The range is within the length.
    ///
    /// # Errors
    /// The bytes cannot be had now. `UnexpectedEof` and `NotFound` mean that they never can.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// A file of this machine, also one on a mount.
#[derive(Debug)]
pub struct Plain {
    file: File,
    len: u64,
}

impl Plain {
    /// Opens a file. It must not change any more.
    ///
    /// # Errors
    /// The system's error, or it is no file.
    pub fn open(path: &Path) -> io::Result<Plain> {
        let file = File::open(path)?;
        let kind = file.metadata()?;
        if !kind.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        Ok(Plain { len: kind.len(), file })
    }
}

impl Source for Plain {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}
