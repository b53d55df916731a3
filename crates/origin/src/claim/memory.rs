//! What a volume's folder remembers of its claims.

use std::io;

use blob::claim::Token;

/// A claim by number and token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The claim's epoch.
    pub epoch: u64,
    /// Its token.
    pub token: Token,
}

/// What is remembered. It is durable before a claim is made (`next`) and after (`current`), so a crash at any moment between is harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The folder's own name, which its claims bear.
    pub folder: [u8; 16],
    /// What [`Remember::instance`] said when it was last written.
    pub instance: String,
    /// The last claim that is known to be made.
    pub current: Option<Made>,
    /// Claims that were asked for, and may have been made.
    pub next: Vec<Made>,
    /// What is published has to be held by the folder's rows before anything is deleted: the folder took over, or is new to claims.
    pub hold: bool,
}

/// More than this are never in doubt: the oldest goes.
pub const NEXT_MAX: usize = 16;

impl Memory {
    /// Of a folder that has made no claim yet.
    pub fn new(instance: String) -> Memory {
        Memory { folder: base::random::id16(), instance, current: None, next: Vec::new(), hold: false }
    }

    /// Whether this claim is, or may be, this folder's.
    pub fn knows(&self, made: Made) -> bool {
        self.current == Some(made) || self.next.contains(&made)
    }

    /// The claim is about to be asked for.
    pub fn asks_for(&mut self, made: Made) {
        if self.next.len() >= NEXT_MAX {
            self.next.remove(0);
        }
        self.next.push(made);
    }

    /// The claim was made.
    pub fn has_made(&mut self, made: Made) {
        self.current = Some(made);
        self.next.retain(|other| other.epoch > made.epoch);
    }
}

/// Whether two answers of [`Remember::instance`] are of the same folder. They are `INODE,BIRTH,HANDLE`, where the last two may be empty: the handle
/// says it best, and is not had on every filesystem.
pub fn same_instance(one: &str, other: &str) -> bool {
    let parts = |text: &str| {
        let mut parts = text.splitn(3, ',').map(str::to_owned);
        std::array::from_fn::<String, 3, _>(|_| parts.next().unwrap_or_default())
    };
    let ([ino, birth, handle], [other_ino, other_birth, other_handle]) = (parts(one), parts(other));
    if !handle.is_empty() && !other_handle.is_empty() {
        return handle == other_handle;
    }
    ino == other_ino && birth == other_birth
}

/// Where a folder's memory is kept.
pub trait Remember: Send + Sync {
    /// What was saved last.
    ///
    /// # Errors
    /// It cannot be read, or not be understood.
    fn load(&self) -> io::Result<Option<Memory>>;

    /// Saves it; durable when it returns.
    ///
    /// # Errors
    /// It cannot be written.
    fn save(&self, memory: &Memory) -> io::Result<()>;

    /// What tells this folder from every copy of it: the kernel's handle of a file in it, which says the inode and how often that number was used.
    ///
    /// # Errors
    /// It cannot be had.
    fn instance(&self) -> io::Result<String>;

    /// Whether the origin lies within the folder, so that a copy of the folder has an origin of its own.
    fn is_private(&self) -> bool;
}
