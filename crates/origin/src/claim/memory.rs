//! What a volume's folder remembers of its claims.

use std::io;

use blob::claim::Token;

/// A claim by number and token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The claim's epoch.
    pub epoch: u64,
    /// The claim's token.
    pub token: Token,
}

/// What a folder remembers. It is durable before a claim is made (`next`) and after (`current`), so a crash
/// at any moment is harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The folder's random id, which its claims contain.
    pub folder: [u8; 16],
    /// The value of [`Remember::instance`] when this was last written.
    pub instance: String,
    /// The last claim that is known to exist.
    pub current: Option<Made>,
    /// Claims that were asked for, and may exist.
    pub next: Vec<Made>,
    /// The folder's rows must hold what is published before anything is deleted: the folder took over, or is
    /// new to claims.
    pub hold: bool,
}

/// The maximum number of uncertain claims. Beyond it the oldest is dropped.
pub const NEXT_MAX: usize = 16;

impl Memory {
    /// For a folder that has made no claim yet.
    pub fn new(instance: String) -> Memory {
        Memory { folder: base::random::id16(), instance, current: None, next: Vec::new(), hold: false }
    }

    /// Whether this claim is, or may be, this folder's.
    pub fn knows(&self, made: Made) -> bool {
        self.current == Some(made) || self.next.contains(&made)
    }

    /// Records that the claim is about to be asked for.
    pub fn asks_for(&mut self, made: Made) {
        if self.next.len() >= NEXT_MAX {
            self.next.remove(0);
        }
        self.next.push(made);
    }

    /// Records that the claim was made.
    pub fn has_made(&mut self, made: Made) {
        self.current = Some(made);
        self.next.retain(|other| other.epoch > made.epoch);
    }
}

/// Whether two values of [`Remember::instance`] are of the same folder. They are `INODE,BIRTH,HANDLE`, where
/// the last two may be empty. The handle is the most reliable part, but not every filesystem has it.
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
    /// The memory that was saved last.
    ///
    /// # Errors
    /// It cannot be read, or is malformed.
    fn load(&self) -> io::Result<Option<Memory>>;

    /// Saves it; durable when it returns.
    ///
    /// # Errors
    /// It cannot be written.
    fn save(&self, memory: &Memory) -> io::Result<()>;

    /// What distinguishes this folder from every copy of it: the kernel's handle of a file in it. The handle
    /// contains the inode number and how often that number was used.
    ///
    /// # Errors
    /// It is not available.
    fn instance(&self) -> io::Result<String>;

    /// Whether the origin is inside the folder, so that a copy of the folder has its own origin.
    fn is_private(&self) -> bool;
}
