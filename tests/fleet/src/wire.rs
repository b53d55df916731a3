//! A link with delay and loss for kernels without `netem` (many small ones): two TAP devices with threads
//! between them.
//!
//! ```text
//!   node's namespace          this process            the hub
//!      eth0 (tap) ── read ── wait, or lose ── write ── p-NAME (tap), a port of the bridge
//! ```
//!
//! Frames keep their order. A frame is copied twice and costs two system calls, so such a link carries about
//! a gigabit: it is for latencies, not for rates.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use covey_tests::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a link does to frames in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// The added delay; a round trip takes twice this.
    pub delay: Duration,
    /// How many frames of a million are lost.
    pub lost_of_million: u64,
}

/// The largest frame, with room for tags.
const FRAME: usize = 2048;
/// At most so many frames are in transit. More are lost, as in a switch.
const QUEUE: usize = 4096;

/// A running link. Its threads end when it is dropped.
pub struct Wire {
    ending: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Wire {
    /// Connects two TAP devices.
    pub fn new(a: File, b: File, weather: Weather, seed: u64) -> Wire {
        let (ending, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for (from, to, seed) in [(a.try_clone(), b.try_clone(), seed), (Ok(b), Ok(a), seed + 1)] {
            let (from, to) = (from.unwrap(), to.unwrap());
            let (put, get) = sync_channel(QUEUE);
            let (end, count) = (ending.clone(), lost.clone());
            threads.push(std::thread::spawn(move || take(from, &put, weather, Rng::new(seed), &end, &count)));
            threads.push(std::thread::spawn(move || give(to, &get)));
        }
        Wire { ending, lost, threads }
    }

    /// The number of lost frames so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        // The receiving thread ends at its next look at the flag, and the sending thread with it.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

type Frame = (Instant, Vec<u8>);

fn take(
    mut from: File,
    put: &SyncSender<Frame>,
    weather: Weather,
    mut rng: Rng,
    ending: &AtomicBool,
    lost: &AtomicU64,
) {
    let look = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut frame = [0; FRAME];
    while !ending.load(Ordering::SeqCst) {
        match from.read(&mut frame) {
            Ok(len) => {
                let gone = weather.lost_of_million > 0 && rng.below(1_000_000) < weather.lost_of_million;
                if gone || put.try_send((Instant::now() + weather.delay, frame[..len].to_vec())).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN)], Some(&look));
            }
            // The device was removed with its namespace.
            Err(_) => return,
        }
    }
}

fn give(mut to: File, get: &Receiver<Frame>) {
    while let Ok((due, frame)) = get.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A device that is down takes nothing: the frame is lost.
        let _ = to.write(&frame);
    }
}

/// A TAP device in a namespace. It is removed when its file is closed.
pub(crate) fn tap_in(space: &str, name: &str) -> File {
    crate::net::inside(space, || tap(name))
}

/// The same in the namespace of the calling thread.
fn tap(name: &str) -> File {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open("/dev/net/tun").unwrap();
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    assert!(name.len() < request.ifr_name.len(), "{name} is too long for a device");
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open, and TUNSETIFF reads and writes one ifreq, which lives through the call.
    let done =
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(done, 0, "TUNSETIFF {name}: {}", std::io::Error::last_os_error());
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Net;

    /// A round trip takes twice the delay. Bytes arrive as they were sent, even when frames are lost in
    /// transit.
    #[test]
    fn a_link_delays_and_loses() {
        if crate::lacking().is_some() || !std::path::Path::new("/dev/net/tun").exists() {
            crate::say(format_args!("skipped: lacks namespaces or /dev/net/tun"));
            return;
        }
        let net = Net::new();
        let near = net.port("near", 2);
        let weather = Weather { delay: Duration::from_millis(5), lost_of_million: 5_000 };
        let far = net.port_behind("far", 3, weather, 7);
        let listener = near.inside(|| std::net::TcpListener::bind((near.address(), 5000)).unwrap());
        let echo = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut got = Vec::new();
            let mut some = [0; 65536];
            while got.len() < 3_000_001 {
                let len = socket.read(&mut some).unwrap();
                got.extend_from_slice(&some[..len]);
                if got.len() == 1 {
                    socket.write_all(&[1]).unwrap();
                }
            }
            socket.write_all(&[2]).unwrap();
            got
        });
        let mut socket = far.inside(|| std::net::TcpStream::connect((near.address(), 5000)).unwrap());
        socket.set_nodelay(true).unwrap();
        let begun = Instant::now();
        socket.write_all(&[7]).unwrap();
        socket.read_exact(&mut [0]).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(10), "{:?}", begun.elapsed());
        let bytes = Rng::new(3).bytes(3_000_000);
        socket.write_all(&bytes).unwrap();
        socket.read_exact(&mut [0]).unwrap();
        assert!(echo.join().unwrap()[1..] == bytes[..]);
    }
}
