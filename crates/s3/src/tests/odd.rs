//! A volume in memory whose calls can fail, and before which something else can happen.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::Ino;
use fs::Errno;
use fs::api::{
    Allocate, Attr, Caller, Coherence, DirEntry, Entry, Filesystem, NewNode, RenameMode, Result, Seek,
    SetAttr, StatFs, Touched, XattrMode,
};
use fs::volume::Volume;
use parking_lot::Mutex;

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Lookup(Vec<u8>),
    Mkdir(Ino, Vec<u8>),
    Rmdir(Ino, Vec<u8>),
    CopyRange,
    Getxattr(Vec<u8>),
    Removexattr(Vec<u8>),
}

/// Hears of calls. An error number stands for the call's own answer.
pub type Hook = Box<dyn FnMut(Call) -> Option<Errno> + Send>;

/// See the [module](self).
pub struct Odd {
    pub volume: Arc<Volume>,
    hook: Mutex<Option<Hook>>,
    coherence: Coherence,
}

impl Odd {
    /// One that passes all calls on.
    pub fn over(volume: Arc<Volume>, coherence: Coherence) -> Arc<Odd> {
        Arc::new(Odd { volume, hook: Mutex::default(), coherence })
    }

    /// Asks this before each call.
    pub fn ask_first(&self, hook: impl FnMut(Call) -> Option<Errno> + Send + 'static) {
        *self.hook.lock() = Some(Box::new(hook));
    }

    /// Lets this call fail from now on.
    pub fn fail(&self, call: Call, errno: Errno) {
        self.ask_first(move |asked| (asked == call).then_some(errno));
    }

    /// Passes all calls on again.
    pub fn calm(&self) {
        *self.hook.lock() = None;
    }

    fn first(&self, call: Call) -> Result<()> {
        // Taken out meanwhile: what it does itself passes.
        let Some(mut hook) = self.hook.lock().take() else { return Ok(()) };
        let errno = hook(call);
        *self.hook.lock() = Some(hook);
        errno.map_or(Ok(()), Err)
    }
}

macro_rules! passed_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.volume.$name($($argument),*)
        })*
    };
}

impl Filesystem for Odd {
    fn coherence(&self) -> Coherence {
        self.coherence
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.first(Call::Lookup(name.to_vec()))?;
        self.volume.lookup(parent, name)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, umask: u16) -> Result<Entry> {
        self.first(Call::Mkdir(parent, name.to_vec()))?;
        self.volume.mkdir(caller, parent, name, perm, umask)
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.first(Call::Rmdir(parent, name.to_vec()))?;
        self.volume.rmdir(parent, name)
    }

    fn copy_range(&self, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64> {
        self.first(Call::CopyRange)?;
        self.volume.copy_range(from, from_offset, to, to_offset, len)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.first(Call::Getxattr(name.to_vec()))?;
        self.volume.getxattr(ino, name)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.first(Call::Removexattr(name.to_vec()))?;
        self.volume.removexattr(ino, name)
    }

    passed_on! {
        forget(ino: Ino, count: u64) -> ();
        getattr(ino: Ino) -> Result<Attr>;
        setattr(caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr>;
        readlink(ino: Ino) -> Result<Vec<u8>>;
        mknod(caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Entry>;
        symlink(caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;
        tmpfile(caller: &Caller, parent: Ino, perm: u16, umask: u16) -> Result<Entry>;
        link(ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;
        unlink(parent: Ino, name: &[u8]) -> Result<Touched>;
        rename(parent: Ino, name: &[u8], to: Ino, to_name: &[u8], mode: RenameMode) -> Result<Touched>;
        read(ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
        write(
            ino: Ino,
            offset: u64,
            data: &[u8],
            unprivileged: Option<&Caller>,
            cached: bool
        ) -> Result<bool>;
        allocate(ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()>;
        seek(ino: Ino, offset: u64, what: Seek) -> Result<u64>;
        fsync(ino: Ino, data_only: bool) -> Result<()>;
        sync() -> Result<()>;
        readdir(ino: Ino, position: u64, each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()>;
        readdir_plus(
            ino: Ino,
            position: u64,
            each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>
        ) -> Result<()>;
        setxattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()>;
        listxattr(ino: Ino) -> Result<Vec<u8>>;
        statfs(ino: Ino) -> Result<StatFs>;
    }
}
