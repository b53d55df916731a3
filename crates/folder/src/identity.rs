//! A caller's identity, for the moment in which a thread creates something.
//!
//! What has no descriptor when it is created (directories, symbolic links, devices) is the caller's from the
//! beginning in this way. A later change of its owner would go by its name, under which something else may
//! be.
//!
//! The caller's kernel has checked what the caller may do. So the thread keeps all its capabilities: this
//! machine's filesystem refuses it nothing.

use fs::Errno;
use fs::api::{Caller, Result};
use rustix::process::{getegid, geteuid};

/// The user and the group of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    uid: u32,
    gid: u32,
}

/// No user or group.
const NONE: u32 = u32::MAX;

impl Identity {
    pub(crate) fn current() -> Identity {
        Identity { uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }

    /// The user and the group of a caller that this process does not have.
    pub(crate) fn others(self, caller: &Caller) -> (Option<u32>, Option<u32>) {
        let other = |id: u32, own: u32| (id != NONE && id != own).then_some(id);
        (other(caller.uid, self.uid), other(caller.gid, self.gid))
    }

    /// Runs `create` with the caller's identity. It must do nothing else.
    pub(crate) fn of_caller<T>(
        self,
        caller: &Caller,
        create: impl FnOnce() -> rustix::io::Result<T>,
    ) -> Result<T> {
        let (uid, gid) = self.others(caller);
        if (uid, gid) == (None, None) {
            return create().map_err(crate::errno);
        }
        let _taken = Taken::new(self, uid, gid)?;
        create().map_err(crate::errno)
    }
}

/// An identity that this thread has taken. Dropped, it has its own again.
struct Taken {
    own: Identity,
    capabilities: Capabilities,
}

impl Taken {
    fn new(own: Identity, uid: Option<u32>, gid: Option<u32>) -> Result<Taken> {
        let taken = Taken { own, capabilities: Capabilities::current()? };
        // The group first: the user's change drops the right to it.
        let group = gid.is_none_or(set_group);
        let user = uid.is_none_or(set_user);
        if !group || !user {
            return Err(Errno::EPERM);
        }
        taken.capabilities.set()?;
        Ok(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // The kernel always permits a process its own user and group, and what it was permitted before.
        set_user(self.own.uid);
        set_group(self.own.gid);
        let _ = self.capabilities.set();
    }
}

/// Sets this thread's user for filesystems. Returns whether it is that user now.
fn set_user(uid: u32) -> bool {
    // SAFETY: the calls take numbers only, and change nothing but this thread. The second one changes nothing
    // and returns the user, which is how the kernel says what became of the first.
    unsafe {
        libc::setfsuid(uid);
        libc::setfsuid(NONE) as u32 == uid
    }
}

/// Sets this thread's group for filesystems. Returns whether it is that group now.
fn set_group(gid: u32) -> bool {
    // SAFETY: as for the user.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsgid(NONE) as u32 == gid
    }
}

/// The capabilities of a thread. A change of its user drops those that override permissions.
struct Capabilities([u32; 6]);

/// The kernel's form of capabilities with 64 bits, `_LINUX_CAPABILITY_VERSION_3`, of the calling thread.
const HEADER: [u32; 2] = [0x2008_0522, 0];

impl Capabilities {
    fn current() -> Result<Capabilities> {
        let (mut header, mut sets) = (HEADER, [0; 6]);
        // SAFETY: the header is a cap_user_header, 8 bytes, and the kernel writes two cap_user_data, 24 bytes
        // in all.
        let done = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
        if done == 0 { Ok(Capabilities(sets)) } else { Err(Errno::EPERM) }
    }

    fn set(&self) -> Result<()> {
        let mut header = HEADER;
        // SAFETY: as above, and the kernel only reads the sets.
        let done = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), self.0.as_ptr()) };
        if done == 0 { Ok(()) } else { Err(Errno::EPERM) }
    }
}
