use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::Transport;
use crate::abi::header::Header;
use crate::abi::init::{Wishes, flag};
use crate::abi::opcodes::op;
use crate::channel::Device;
use crate::mount::{self, Mount, MountFlags, Unmount};
use crate::session::handshake;
use crate::uring::{Fallback, Rings, decide, switched_on};

const SOON: Duration = Duration::from_secs(120);

#[test]
fn a_request_is_overdue_if_looks_have_shown_it_for_the_limit() {
    let second = Duration::from_secs(1);
    let (mut ages, begun) = (Ages::new(2, 3 * second), base::time::monotonic());
    let mut look = |held: [Option<u64>; 2], seconds: u32| {
        [0, 1].map(|at| ages.look(at, held[at], begun + seconds * second).map(|overdue| overdue.is_new))
    };
    assert_eq!(look([Some(7), None], 0), [None, None]);
    assert_eq!(look([Some(7), Some(9)], 2), [None, None]);
    assert_eq!(look([Some(7), Some(9)], 3), [Some(true), None]);
    assert_eq!(look([Some(7), Some(9)], 4), [Some(false), None]);
    // Another request, and none at all, begin anew.
    assert_eq!(look([Some(11), Some(9)], 5), [None, Some(true)]);
    assert_eq!(look([Some(11), None], 7), [None, None]);
    assert_eq!(look([Some(11), Some(9)], 8), [Some(true), None]);
    assert_eq!(ages.look(2, Some(7), begun), None, "there is no such entry");
}

/// Loses the reply to every GETATTR, or sends it late if it has no deadline.
struct Loses {
    has_no_deadline: AtomicBool,
    lines: Mutex<Vec<String>>,
}

const LATE: Duration = Duration::from_millis(1500);

impl Host for Loses {
    fn serve(&self, _: usize, request: &[u8], _: &mut [u8], sink: &Arc<dyn Sink>) {
        let header = Header::split(request).unwrap().0;
        if header.opcode != op::GETATTR {
            let _ = sink.reply(header.unique, -libc::ENOSYS, &[]);
        } else if self.has_no_deadline.load(Ordering::SeqCst) {
            sink.has_no_deadline(header.unique);
            let sink = Arc::clone(sink);
            std::thread::spawn(move || {
                std::thread::sleep(LATE);
                sink.reply(header.unique, -libc::EPERM, &[])
            });
        }
    }

    fn begins(&self) {}

    fn ended(&self, _: io::Result<()>) {}

    fn log(&self, line: &str) {
        self.lines.lock().push(line.to_owned());
    }
}

/// A mount over io_uring without a session, and what serves it. Removed with the value.
struct Mounted {
    rings: Rings,
    mount: Mount,
}

impl Mounted {
    /// `None`, after printing a line, if this machine cannot do it.
    fn at(path: &Path, host: &Arc<Loses>, limit: Duration) -> Option<Mounted> {
        // SAFETY: geteuid takes nothing and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let can = is_root && Device::exists() && switched_on().is_some();
        if !can || !decide(Transport::Auto, &mut Vec::new()).unwrap() {
            println!("no FUSE over io_uring: skipped");
            return None;
        }
        let flags = MountFlags { source: "covey-test".into(), ..MountFlags::default() };
        let (device, mount) = mount::mount(path, &flags, libc::S_IFDIR | 0o755).unwrap();
        let fallback = Fallback::prepare(&device).unwrap();
        let agreed = handshake(&device, &Wishes { uring: true, ..Wishes::default() }).unwrap();
        assert!(agreed.has(flag::OVER_IO_URING));
        let rings = Rings::start(&Arc::new(device), host, fallback, false, limit).unwrap();
        Some(Mounted { rings, mount })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.mount.unmount(Unmount::Force);
        self.rings.stop();
    }
}

/// A reply that was lost left its program waiting until the mount was removed by force.
#[test]
fn regression_a_lost_reply_is_answered_eio() {
    let (limit, dir) = (Duration::from_millis(300), tempfile::tempdir().unwrap());
    let host = Arc::new(Loses { has_no_deadline: AtomicBool::new(false), lines: Mutex::default() });
    let Some(mounted) = Mounted::at(dir.path(), &host, limit) else { return };
    let look = || {
        let (path, begun) = (dir.path().to_owned(), base::time::monotonic());
        let (say, said) = mpsc::channel();
        std::thread::spawn(move || say.send(std::fs::metadata(path).map(drop)));
        let result = said.recv_timeout(SOON).expect("the program waits for ever");
        (result.unwrap_err().raw_os_error(), begun.elapsed())
    };
    let (error, took) = look();
    assert_eq!(error, Some(libc::EIO));
    assert!(took >= limit, "answered after {took:?}, before it was overdue");
    let begun = base::time::monotonic();
    while host.lines.lock().is_empty() || mounted.rings.replies_lost() == 0 {
        assert!(begun.elapsed() < SOON, "the lost reply is not reported");
        std::thread::sleep(STEP_MIN);
    }
    assert_eq!(mounted.rings.replies_lost(), 1);
    let lines = std::mem::take(&mut *host.lines.lock());
    assert!(lines.len() == 1 && lines[0].contains("GETATTR was lost"), "{lines:?}");
    // A request without a deadline is waited for.
    host.has_no_deadline.store(true, Ordering::SeqCst);
    let (error, took) = look();
    assert!(error == Some(libc::EPERM) && took >= LATE, "{error:?} after {took:?}");
    assert_eq!((mounted.rings.replies_lost(), host.lines.lock().len()), (1, 0));
}
