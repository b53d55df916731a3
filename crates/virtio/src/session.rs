//! The kernel of a guest, from INIT to DESTROY.
//!
//! A guest mounts and unmounts as often as it likes, and it can start anew without a word (reboot, kexec). So
//! INIT always begins: what the kernel held before is given back. Before INIT and after DESTROY every request
//! gets EIO.
//!
//! There is no INTERRUPT on virtiofs, and no notification. A change that would need one is either not done
//! late, or its effects end by themselves ([`fuse::served::Options::keep`]).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fs::Errno;
use fs::api::Filesystem;
use fuse::abi::header::Header;
use fuse::abi::init::Agreed;
use fuse::abi::opcodes::{self, op};
use fuse::channel::Sink;
use fuse::served::{self, Served, Terms};
use guests::counted::Counted;
use guests::server::{Door, Visit};
use parking_lot::Mutex;
use stream::hello::Sharing;

/// Where a request's header has the caller's thread id.
const PID_AT: usize = 32;
/// The most lines of the log about one guest's mistakes.
const COMPLAINTS_MOST: u32 = 20;

/// A kernel that has mounted.
struct Mounted {
    fs: Arc<Counted>,
    served: Served,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.served.end();
        self.fs.release();
    }
}

/// See the [module](self).
pub struct Session {
    door: Door,
    number: u64,
    /// The guest's place among all guests, until the guest is gone.
    visit: Mutex<Option<Visit>>,
    keep: Duration,
    mounted: Mutex<Option<Arc<Mounted>>>,
    complaints: Mutex<u32>,
}

impl Session {
    /// A guest that has not mounted. `keep`: how long its kernel may keep names and attributes of what can
    /// change.
    pub fn new(door: Door, visit: Visit, keep: Duration) -> Session {
        let (number, visit) = (visit.number(), Mutex::new(Some(visit)));
        Session { door, number, visit, keep, mounted: Mutex::default(), complaints: Mutex::new(0) }
    }

    /// The guest's number, for people.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where it came in.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Writes a line about this guest to the log.
    pub fn log(&self, line: &str) {
        self.door.log(&format!("guest {}: {line}", self.number()));
    }

    /// Writes a line about a mistake of this guest to the log. The guest may repeat it for ever, so lines are
    /// bounded.
    pub fn complain(&self, line: &str) {
        let mut complaints = self.complaints.lock();
        *complaints = complaints.saturating_add(1);
        match *complaints {
            0..COMPLAINTS_MOST => self.log(line),
            COMPLAINTS_MOST => self.log(&format!("{line}; more of this is not logged")),
            _ => {}
        }
    }

    /// Serves one request. `request` may be changed. `room` is the buffer for a reply's body.
    pub fn serve(&self, lane: usize, request: &mut [u8], room: &mut [u8], sink: &Arc<dyn Sink>) {
        let is_whole =
            request.first_chunk().is_some_and(|len| u32::from_ne_bytes(*len) as usize == request.len());
        let Some((header, _)) = Header::split(request).ok().filter(|_| is_whole) else {
            self.complain("a request has another length than it says");
            let unique = Header::unique_of(request);
            return unique.into_iter().for_each(|unique| _ = sink.reply(unique, -Errno::EIO.0, &[]));
        };
        // This machine has other processes with these numbers.
        request[PID_AT..PID_AT + 4].fill(0);
        let answer = match header.opcode {
            op::INIT => match self.begin(request) {
                Ok(reply) => return self.reply(&header, Ok(&reply), sink),
                Err(error) => Err(error),
            },
            op::DESTROY => self.end(),
            // No caller can be looked at here, so none is interrupted.
            op::INTERRUPT => return,
            _ => match self.mounted() {
                Some(mounted) => return mounted.served.serve(lane, request, room, sink),
                None => Err(Errno::EIO),
            },
        };
        self.reply(&header, answer.map(|()| &[][..]), sink);
    }

    fn reply(&self, header: &Header, answer: Result<&[u8], Errno>, sink: &Arc<dyn Sink>) {
        let _ = match answer {
            _ if !opcodes::wants_reply(header.opcode) => Ok(()),
            Ok(body) => sink.reply(header.unique, 0, body),
            Err(error) => sink.reply(header.unique, -error.0, &[]),
        };
    }

    fn mounted(&self) -> Option<Arc<Mounted>> {
        self.mounted.lock().clone()
    }

    /// The guest mounts. Returns the reply's body.
    fn begin(&self, request: &[u8]) -> Result<Vec<u8>, Errno> {
        let options = self.door.options();
        let many = options.sharing == Sharing::Many;
        let writeback = options.writeback && options.sharing == Sharing::One;
        let terms = Terms { many, writeback, keeps: many && !self.keep.is_zero() };
        let fs = self.visit.lock().as_ref().map(Visit::view);
        let fs = Arc::new(fs.ok_or(Errno::EIO)?);
        let (agreed, reply) = served::init(&*fs, terms, request).inspect_err(|_| {
            self.complain("its kernel cannot mount: it is older than Linux 5.17, or its INIT makes no sense");
        })?;
        let mounted = self.start(fs, agreed).map_err(|error| {
            self.log(&format!("starting threads for it: {error}"));
            Errno(libc::EAGAIN)
        })?;
        let before = self.mounted.lock().replace(Arc::new(mounted));
        self.log(if before.is_some() { "mounted anew" } else { "mounted" });
        Ok(reply)
    }

    fn start(&self, fs: Arc<Counted>, agreed: Agreed) -> io::Result<Mounted> {
        let options = self.door.options();
        let can_change = options.sharing != Sharing::Frozen;
        let served = served::Options {
            lanes: options.lanes(),
            workers: options.workers,
            deadline: options.deadline,
            many: options.sharing == Sharing::Many,
            keep: can_change.then_some(self.keep),
            log: Arc::clone(&options.log),
        };
        let served = Served::start(Arc::clone(&fs) as _, agreed, Arc::new(Untold), &served)?;
        Ok(Mounted { fs, served })
    }

    /// The guest has unmounted. Makes everything durable.
    fn end(&self) -> Result<(), Errno> {
        let Some(mounted) = self.mounted.lock().take() else { return Ok(()) };
        // Nothing more comes from this mount, so nothing waits behind this.
        base::thread::may_wait_again();
        let synced = mounted.fs.sync();
        base::thread::must_not_wait();
        self.log("unmounted");
        synced
    }

    /// The guest's kernel holds nothing any more.
    pub fn close(&self) {
        self.mounted.lock().take();
    }

    /// The guest is gone, and its place is free. Requests that are stuck may still refer to this session.
    pub fn leave(&self) {
        self.close();
        self.visit.lock().take();
    }

    /// How many inodes its kernel holds.
    pub fn held(&self) -> usize {
        self.mounted().map_or(0, |mounted| mounted.fs.held())
    }
}

/// Takes notifications for a kernel that cannot be told anything.
struct Untold;

impl Sink for Untold {
    fn reply(&self, _: u64, _: i32, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn notify(&self, _: i32, _: &[&[u8]]) -> io::Result<()> {
        Ok(())
    }
}
