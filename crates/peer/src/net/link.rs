//! A connection after its handshake, in the clear or under TLS: the same few calls, none of which waits.
//!
//! In the clear they are system calls of the socket, and bodies go by sendfile. Under TLS what is written is encrypted first (a record of at
//! most 16 KiB each), and what comes is decrypted when it is read:
//!
//! ```text
//!   socket ──recv──► came ──► rustls: whole records ──► the caller's room
//! ```
//!
//! Two things follow. Bytes can be here although the socket has none, so [`Link::readable`] looks at both. And what rustls took may not
//! have left yet: [`Link::is_flushed`] says so, and nothing counts as sent before.

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

/// A file's bytes are encrypted so many at a time: what fits into a core's cache, and into the room that rustls has.
const PIECE: usize = 64 << 10;
/// The most that a record takes on the wire, rounded up.
const RECORD_MAX: u32 = 18 << 10;

pub(super) struct Link {
    stream: TcpStream,
    sealed: Option<Sealed>,
    /// Bytes of blobs that went, until they are as many as a blob has.
    went: AtomicU32,
}

/// The lock is held for one call, and nothing else is taken meanwhile.
struct Sealed {
    state: Mutex<State>,
    /// Something has come and was not handed on.
    more: AtomicBool,
}

struct State {
    tls: Connection,
    /// Records as they came; those before `start` are rustls's already.
    came: Vec<u8>,
    start: usize,
    end: usize,
    /// The socket had no room for all that was encrypted. What waits for company ([`Link::send_more`]) is not stuck.
    stuck: bool,
}

impl Link {
    /// In the clear.
    pub(super) fn plain(stream: TcpStream) -> Link {
        Link { stream, sealed: None, went: AtomicU32::new(0) }
    }

    /// Under TLS. The end that asks on a bulk connection reads much at a time, the others little.
    pub(super) fn sealed(stream: TcpStream, mut tls: Connection, asks: Option<Class>) -> Link {
        let room = if asks == Some(Class::Bulk) { 256 << 10 } else { 16 << 10 };
        // A piece, and the header before it.
        tls.set_buffer_limit(Some(PIECE + (4 << 10)));
        let state = State { tls, came: vec![0; room], start: 0, end: 0, stuck: false };
        // Something may have come with the last of the handshake.
        let sealed = Sealed { state: Mutex::new(state), more: AtomicBool::new(true) };
        Link { stream, sealed: Some(sealed), went: AtomicU32::new(0) }
    }

    /// Waits until something can be read.
    pub(super) async fn readable(&self) -> io::Result<()> {
        if self.has_more() { Ok(()) } else { self.stream.readable().await }
    }

    /// Waits until something can be written.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    /// Waits until one of both can be done.
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

    /// The same into memory that need not have been written before.
    pub(super) fn receive(&self, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        let Some(sealed) = &self.sealed else { return socket::receive(&self.stream, room) };
        sealed.read(&self.stream, room.len(), |at, bytes| {
            room[at..at + bytes.len()].write_copy_of_slice(bytes);
        })
    }

    /// Takes bytes to send: as many as there is room for. See [`Link::is_flushed`].
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.sealed {
            None => self.stream.try_write(bytes),
            Some(sealed) => sealed.state.lock().write(&self.stream, bytes, true),
        }
    }

    /// The same, where more follows at once.
    pub(super) fn send_more(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.sealed {
            None => socket::send_more(&self.stream, bytes),
            Some(sealed) => sealed.state.lock().write(&self.stream, bytes, false),
        }
    }

    /// Whether bytes can go from where they lie ([`Link::send_parts`]).
    pub(super) fn is_plain(&self) -> bool {
        self.sealed.is_none()
    }

    /// The same with bytes from several places, in the clear.
    ///
    /// # Safety
    /// As [`socket::send_parts`].
    pub(super) unsafe fn send_parts(&self, parts: &mut [libc::iovec]) -> io::Result<usize> {
        if !self.is_plain() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: the caller's word.
        unsafe { socket::send_parts(&self.stream, parts) }
    }

    /// The same with a part of a file. 0: the file ends before it.
    pub(super) fn send_file(&self, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        let Some(sealed) = &self.sealed else { return socket::send_file(&self.stream, file, offset, len) };
        // No disk is read for what could not be sent.
        sealed.state.lock().unstick(&self.stream)?;
        let mut piece = vec![0; len.min(PIECE)];
        let got = file.read_at(&mut piece, offset)?;
        if got == 0 { Ok(0) } else { sealed.state.lock().write(&self.stream, &piece[..got], true) }
    }

    /// The same by a pipe; under TLS there is nothing to splice, and it goes as it always does.
    pub(super) fn send_through(
        &self,
        pipe: &mut socket::Pipe,
        file: &File,
        offset: u64,
        len: usize,
    ) -> io::Result<usize> {
        match &self.sealed {
            None => pipe.send(&self.stream, file, offset, len),
            Some(_) => self.send_file(file, offset, len),
        }
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

    /// So many bytes may be on their way here.
    pub(super) fn set_window(&self, bytes: u32) {
        socket::set_window(&self.stream, bytes);
    }

    /// So many bytes of blobs went. When the first blob's worth of them has gone the kernel has found out how much it may have on its way.
    pub(super) fn went(&self, bytes: u32) {
        let before = self.went.load(Ordering::Relaxed);
        if before < BLOB_MAX {
            let went = before.saturating_add(bytes);
            self.went.store(went, Ordering::Relaxed);
            if went >= BLOB_MAX {
                socket::go_on(&self.stream);
            }
        }
    }

    /// The reader is to be woken only when so many bytes are there. Under TLS a part of a record may be here already.
    pub(super) fn set_low_water(&self, bytes: u32) {
        let held = if self.sealed.is_some() { RECORD_MAX } else { 0 };
        socket::set_low_water(&self.stream, bytes.saturating_sub(held).max(1));
    }
}

impl Sealed {
    fn read(&self, stream: &TcpStream, room: usize, put: impl FnMut(usize, &[u8])) -> io::Result<usize> {
        let mut state = self.state.lock();
        let got = state.read(stream, room, put);
        // Before the lock goes, so that it is never older than what is here. After an error or an end the socket says so again.
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

    /// One read of the socket at most, so that others have their turn.
    fn read(
        &mut self,
        stream: &TcpStream,
        room: usize,
        mut put: impl FnMut(usize, &[u8]),
    ) -> io::Result<usize> {
        let (mut done, mut received) = (0, false);
        while done < room {
            let mut reader = self.tls.reader();
            // An error says here that nothing is left, and whether there will be more.
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
                match stream.try_read(&mut self.came) {
                    // A frame says how long it is, so an end that nobody signed cuts nothing off unseen.
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
        let mut rest = &self.came[self.start..self.end];
        let taken = self.tls.read_tls(&mut rest)?;
        self.start += taken;
        let said = self.tls.process_new_packets().map_err(broken);
        if taken == 0 && said.is_ok() {
            // The other end took its leave; what came after that is nothing.
            self.start = self.end;
        }
        if self.tls.wants_write() {
            // An alert, or an answer to new keys. What does not go now goes with what is written next.
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

/// A socket as rustls wants it.
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
