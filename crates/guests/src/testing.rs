//! For tests: a filesystem whose calls can be held back, and connections whose other end a test has.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::Ino;
use fs::api::{
    Allocate, Attr, Caller, Coherence, DirEntry, Entry, Filesystem, NewNode, RenameMode, Result, Seek,
    SetAttr, StatFs, Touched, XattrMode,
};
use fuse::null::Null;
use parking_lot::{Condvar, Mutex};
use stream::frame::{Head, PAYLOAD_MAX};
use stream::socket::{Lost, Receiver, Socket};

use crate::outbox::Outbox;

/// How long anything that must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A request as a kernel writes it.
pub fn message(opcode: u32, unique: u64, node: u64, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[..4].copy_from_slice(&((40 + arguments.len()) as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    bytes[16..24].copy_from_slice(&node.to_ne_bytes());
    bytes.extend(arguments);
    bytes
}

/// The first request of a kernel.
pub fn init() -> Vec<u8> {
    let mut arguments = Vec::new();
    let flags: u64 = !(1 << 41);
    for number in [7, 40, 1 << 20, flags as u32, (flags >> 32) as u32] {
        arguments.extend(number.to_ne_bytes());
    }
    arguments.resize(64, 0);
    message(26, 2, 0, &arguments)
}

/// A connection, and its other end.
pub fn connection() -> (Arc<Outbox>, Receiver) {
    let (here, there) = Socket::pair().unwrap();
    there.limit(Some(PATIENCE), Some(PATIENCE)).unwrap();
    (Arc::new(Outbox::new(here, 64 << 20)), Receiver::new(there))
}

/// The next frame.
pub fn next(receiver: &mut Receiver) -> std::result::Result<(Head, Vec<u8>), Lost> {
    let mut room = vec![0; PAYLOAD_MAX];
    let head = receiver.receive(&mut room)?;
    room.truncate(head.len);
    Ok((head, room))
}

#[derive(Default)]
struct State {
    shut: bool,
    waiting: usize,
}

/// See the [module](self): FSYNC and READ wait while it is shut.
pub struct Gated {
    null: Null,
    state: Mutex<State>,
    changed: Condvar,
}

impl Gated {
    /// An open one.
    pub fn new() -> Arc<Gated> {
        Arc::new(Gated { null: Null::new(), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Holds calls back, or lets them go.
    pub fn set(&self, shut: bool) {
        self.state.lock().shut = shut;
        self.changed.notify_all();
    }

    /// Waits until so many calls are held back.
    pub fn holds_back(&self, calls: usize) {
        let until = base::Deadline::after(PATIENCE);
        let mut state = self.state.lock();
        while state.waiting != calls {
            assert!(!until.is_over(), "{} calls wait, and not {calls}", state.waiting);
            self.changed.wait_for(&mut state, until.left());
        }
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.changed.notify_all();
        while state.shut {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
    }
}

macro_rules! passed_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.null.$name($($argument),*)
        })*
    };
}

impl Filesystem for Gated {
    fn coherence(&self) -> Coherence {
        Coherence::Exclusive
    }

    fn forget(&self, _: Ino, _: u64) {}

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.pass();
        self.null.fsync(ino, data_only)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.pass();
        self.null.read(ino, offset, buf)
    }

    passed_on! {
        lookup(parent: Ino, name: &[u8]) -> Result<Entry>;
        mknod(caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Entry>;
        mkdir(caller: &Caller, parent: Ino, name: &[u8], perm: u16, umask: u16) -> Result<Entry>;
        symlink(caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;
        link(ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;
        allocate(ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()>;
        getattr(ino: Ino) -> Result<Attr>;
        setattr(caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr>;
        readlink(ino: Ino) -> Result<Vec<u8>>;
        unlink(parent: Ino, name: &[u8]) -> Result<Touched>;
        rmdir(parent: Ino, name: &[u8]) -> Result<()>;
        rename(parent: Ino, name: &[u8], to: Ino, to_name: &[u8], mode: RenameMode) -> Result<Touched>;
        write(ino: Ino, offset: u64, data: &[u8], unprivileged: Option<&Caller>, cached: bool) -> Result<bool>;
        seek(ino: Ino, offset: u64, what: Seek) -> Result<u64>;
        copy_range(from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64>;
        sync() -> Result<()>;
        readdir(ino: Ino, position: u64, each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()>;
        readdir_plus(ino: Ino, position: u64, each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>) -> Result<()>;
        getxattr(ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        setxattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()>;
        listxattr(ino: Ino) -> Result<Vec<u8>>;
        removexattr(ino: Ino, name: &[u8]) -> Result<()>;
        statfs(ino: Ino) -> Result<StatFs>;
    }
}
