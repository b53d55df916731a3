//! A connection after its handshake, plain or under TLS. Both offer the same few calls, and none of them
//! waits.
//!
//! Plain, the calls are system calls of the socket, and bodies are sent with sendfile. Under TLS, outgoing
//! bytes are encrypted first (in records of at most 16 KiB), and incoming bytes are decrypted when they are
//! read:
//!
//! ```text
//!   socket ──recv──► received ──► rustls: whole records ──► the caller's buffer
//! ```
//!
//! Two things follow. Bytes can be here although the socket has none, so [`Link::readable`] checks both. And
//! bytes that rustls accepted may not have left yet. [`Link::is_flushed`] says whether they have, and nothing
//! counts as sent before.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use base::size::BLOB_MAX;
use parking_lot::Mutex;
use rustls::Connection;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::socket;
use crate::hello::Class;

/// A file's bytes are encrypted in pieces of this size, which fits into a core's cache and into rustls's
/// buffer.
const PIECE: usize = 64 << 10;
/// The largest size of a record on the network, rounded up.
const RECORD_MAX: u32 = 18 << 10;

pub(super) struct Link {
    stream: TcpStream,
    sealed: Option<Sealed>,
    /// Bytes of blobs that were sent. Counting stops at the size of one blob.
    sent: AtomicU32,
}

/// The lock is held for one call, and no other lock is taken meanwhile.
struct Sealed {
    state: Mutex<State>,
    /// Bytes have arrived that were not handed on.
    more: AtomicBool,
}

struct State {
    tls: Connection,
    /// Records as they arrived. Those before `start` were already given to rustls.
    received: Vec<u8>,
    start: usize,
    end: usize,
    /// The socket could not take everything that was encrypted. Bytes held back to be merged
    /// ([`Link::send_more`]) do not count as stuck.
    stuck: bool,
}

impl Link {
    /// A plain connection.
    pub(super) fn plain(stream: TcpStream) -> Link {
        Link { stream, sealed: None, sent: AtomicU32::new(0) }
    }

    /// A connection under TLS. The end that asks on a bulk connection reads large pieces, the others small
    /// ones.
    pub(super) fn sealed(stream: TcpStream, mut tls: Connection, asks: Option<Class>) -> Link {
        let room = if asks == Some(Class::Bulk) { 256 << 10 } else { 16 << 10 };
        // One piece, and the header before it.
        tls.set_buffer_limit(Some(PIECE + (4 << 10)));
        let state = State { tls, received: vec![0; room], start: 0, end: 0, stuck: false };
        // Bytes may have arrived with the last message of the handshake.
        let sealed = Sealed { state: Mutex::new(state), more: AtomicBool::new(true) };
        Link { stream, sealed: Some(sealed), sent: AtomicU32::new(0) }
    }

    /// Waits until something can be read.
    pub(super) async fn readable(&self) -> io::Result<()> {
        if self.has_more() { Ok(()) } else { self.stream.readable().await }
    }

    /// Waits until something can be written.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    /// Waits until at least one of the two can be done.
    pub(super) async fn ready(&self, interest: Interest) -> io::Result<()> {
        if interest.is_readable() && self.has_more() {
            return Ok(());
        }
        self.stream.ready(interest).await.map(drop)
    }

    fn has_more(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.more.load(Ordering::Acquire))
    }

    /// Reads what is there. 0: the other end has closed.
    pub(super) fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        let Some(sealed) = &self.sealed else { return self.stream.try_read(room) };
        sealed.read(&self.stream, room.len(), |at, bytes| room[at..at + bytes.len()].copy_from_slice(bytes))
    }

    /// Reads what is there into memory that need not be initialized.
    pub(super) fn receive(&self, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        let Some(sealed) = &self.sealed else { return socket::receive(&self.stream, room) };
        sealed.read(&self.stream, room.len(), |at, bytes| {
            room[at..at + bytes.len()].write_copy_of_slice(bytes);
        })
    }

    /// Takes bytes to send, as many as fit. See [`Link::is_flushed`].
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.sealed {
            None => self.stream.try_write(bytes),
            Some(sealed) => sealed.state.lock().write(&self.stream, bytes, true),
        }
    }

    /// Takes bytes to send as [`Link::try_write`] does, if more bytes follow at once.
    pub(super) fn send_more(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.sealed {
            None => socket::send_more(&self.stream, bytes),
            Some(sealed) => sealed.state.lock().write(&self.stream, bytes, false),
        }
    }

    /// Takes bytes of a file to send, as many as fit. 0: the file ends before `offset`.
    pub(super) fn send_file(&self, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        let Some(sealed) = &self.sealed else { return socket::send_file(&self.stream, file, offset, len) };
        // First, so that the disk is not read for bytes that could not be sent.
        sealed.state.lock().unstick(&self.stream)?;
        let mut piece = vec![0; len.min(PIECE)];
        let got = file.read_at(&mut piece, offset)?;
        if got == 0 { Ok(0) } else { sealed.state.lock().write(&self.stream, &piece[..got], true) }
    }

    /// Sends what was taken and has not left. False: some of it is still here.
    pub(super) fn is_flushed(&self) -> io::Result<bool> {
        match self.sealed.as_ref().map(|sealed| sealed.state.lock().flush(&self.stream)) {
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Some(Err(error)) => Err(error),
            _ => Ok(true),
        }
    }

    /// The socket, for tests.
    #[cfg(test)]
    pub(super) fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// Bounds the bytes that may be in flight to this node.
    pub(super) fn set_window(&self, bytes: u32) {
        socket::set_window(&self.stream, bytes);
    }

    /// Counts sent bytes of blobs. After the first blob's worth of bytes, the kernel knows how much it may
    /// have in flight.
    pub(super) fn count_sent(&self, bytes: u32) {
        let before = self.sent.load(Ordering::Relaxed);
        if before < BLOB_MAX {
            let sent = before.saturating_add(bytes);
            self.sent.store(sent, Ordering::Relaxed);
            if sent >= BLOB_MAX {
                socket::go_on(&self.stream);
            }
        }
    }

    /// The reader should wake only when this many bytes are there. Under TLS a part of a record may already
    /// be here.
    pub(super) fn set_low_water(&self, bytes: u32) {
        let held = if self.sealed.is_some() { RECORD_MAX } else { 0 };
        socket::set_low_water(&self.stream, bytes.saturating_sub(held).max(1));
    }
}

impl Sealed {
    fn read(&self, stream: &TcpStream, room: usize, put: impl FnMut(usize, &[u8])) -> io::Result<usize> {
        let mut state = self.state.lock();
        let got = state.read(stream, room, put);
        // Before the lock is released, so that the flag is never older than the data. After an error or an
        // end, the socket reports it again.
        self.more.store(got.is_ok() && state.has_more(), Ordering::Release);
        got
    }
}

fn broken(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl State {
    fn has_more(&mut self) -> bool {
        self.start < self.end || self.tls.reader().fill_buf().is_ok_and(|bytes| !bytes.is_empty())
    }

    /// Reads the socket at most once, so that other connections get their turn.
    fn read(
        &mut self,
        stream: &TcpStream,
        room: usize,
        mut put: impl FnMut(usize, &[u8]),
    ) -> io::Result<usize> {
        let (mut done, mut received) = (0, false);
        while done < room {
            let mut reader = self.tls.reader();
            // An error here says that nothing is left, and whether more will come.
            if let Ok(bytes) = reader.fill_buf()
                && !bytes.is_empty()
            {
                let count = bytes.len().min(room - done);
                put(done, &bytes[..count]);
                reader.consume(count);
                done += count;
            } else if self.start < self.end {
                self.decrypt(stream)?;
            } else if done > 0 && received {
                break;
            } else {
                received = true;
                (self.start, self.end) = (0, 0);
                match stream.try_read(&mut self.received) {
                    // Every frame carries its length, so an unauthenticated end of the stream cannot truncate
                    // anything unnoticed.
                    Ok(0) => break,
                    Ok(got) => self.end = got,
                    Err(_) if done > 0 => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(done)
    }

    fn decrypt(&mut self, stream: &TcpStream) -> io::Result<()> {
        let mut rest = &self.received[self.start..self.end];
        let taken = self.tls.read_tls(&mut rest)?;
        self.start += taken;
        let said = self.tls.process_new_packets().map_err(broken);
        if taken == 0 && said.is_ok() {
            // The other end closed the TLS session. Anything after that is ignored.
            self.start = self.end;
        }
        if self.tls.wants_write() {
            // An alert, or the answer to a key update. What cannot be sent now is sent with the next write.
            let _ = self.flush(stream);
        }
        said.map(drop)
    }

    fn write(&mut self, stream: &TcpStream, bytes: &[u8], at_once: bool) -> io::Result<usize> {
        self.unstick(stream)?;
        let mut taken = self.tls.writer().write(bytes)?;
        if taken == 0 {
            self.flush(stream)?;
            taken = self.tls.writer().write(bytes)?;
        }
        if at_once {
            match self.flush(stream) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(taken)
    }

    fn unstick(&mut self, stream: &TcpStream) -> io::Result<()> {
        if self.stuck { self.flush(stream) } else { Ok(()) }
    }

    fn flush(&mut self, stream: &TcpStream) -> io::Result<()> {
        self.stuck = true;
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Socket(stream))?;
        }
        self.stuck = false;
        Ok(())
    }
}

/// A socket in the form that rustls needs.
struct Socket<'s>(&'s TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
