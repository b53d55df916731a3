//! Stream sockets of every family, behind one type: connect, listen, send a frame, receive frames.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::size_of;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::places::Peer;

use crate::address::{Address, HOST_CID};
use crate::frame::{self, BadFrame, HEADER, Head, Kind};

/// How much is received ahead of what is asked for.
const AHEAD: usize = 64 << 10;

/// A connected stream socket. All families are read, written and shut down by the same system calls, so one
/// type of the standard library serves them all.
#[derive(Debug)]
pub struct Socket(UnixStream);

impl Socket {
    /// Connects. Waits no longer than `time` where the family can say so.
    ///
    /// # Errors
    /// The system's error.
    pub fn connect(address: &Address, time: Duration) -> io::Result<Socket> {
        match address {
            Address::Tcp(host) => {
                let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
                for address in host.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, time) {
                        Ok(stream) => return tcp(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Address::Vsock { cid, port } => vsock_connect(cid.unwrap_or(HOST_CID), *port),
            Address::Unix(_) | Address::VsockUnix { .. } => {
                UnixStream::connect(address.unix_path().unwrap_or_default()).map(Socket)
            }
        }
    }

    /// A pair of connected sockets.
    ///
    /// # Errors
    /// The system's error.
    pub fn pair() -> io::Result<(Socket, Socket)> {
        UnixStream::pair().map(|(one, other)| (Socket(one), Socket(other)))
    }

    /// A second handle of the same connection.
    ///
    /// # Errors
    /// The system's error.
    pub fn cloned(&self) -> io::Result<Socket> {
        self.0.try_clone().map(Socket)
    }

    /// The socket as one of the standard library.
    pub fn into_stream(self) -> UnixStream {
        self.0
    }

    /// The other end, as far as strangers are told apart.
    pub fn peer(&self) -> Peer {
        // SAFETY: an address of zeros is valid, and says of no family that it is one.
        let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&address) as libc::socklen_t;
        let to = (&raw mut address).cast();
        // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to an address that has
        // them.
        if unsafe { libc::getpeername(self.0.as_raw_fd(), to, &raw mut len) } < 0 {
            return Peer::Unknown;
        }
        match i32::from(address.ss_family) {
            libc::AF_VSOCK => {
                // SAFETY: the kernel has just written an address of this family, and the storage is larger
                // and aligned for all of them.
                let vm: libc::sockaddr_vm = unsafe { std::ptr::read((&raw const address).cast()) };
                Peer::Machine(vm.svm_cid)
            }
            libc::AF_UNIX => {
                let user = rustix::net::sockopt::socket_peercred(&self.0);
                user.map_or(Peer::Unknown, |who| Peer::User(who.uid.as_raw()))
            }
            _ => {
                let ip = rustix::net::getpeername(&self.0).ok().flatten();
                let ip = ip.and_then(|ip| std::net::SocketAddr::try_from(ip).ok());
                ip.map_or(Peer::Unknown, |from| Peer::of_address(from.ip()))
            }
        }
    }

    /// Limits how long one send and one receive may stand still. `None`: no limit.
    ///
    /// # Errors
    /// The system's error.
    pub fn limit(&self, receive: Option<Duration>, send: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(receive)?;
        self.0.set_write_timeout(send)
    }

    /// Over TCP: counts the connection as dead when the other machine has answered nothing for so long, at
    /// least some seconds. Without this, a machine that loses its power or its network is never missed. The
    /// kernels of both ends do it, so a program that is slow or stopped is not taken for dead. Other families
    /// are told when their peer is gone.
    pub fn notice_silence(&self, time: Duration) {
        const PROBES: u32 = 3;
        // After this time without anything, and then as often, the kernel asks.
        let seconds = (time.as_secs() as u32 / (PROBES + 1)).max(1);
        for (level, name, value) in [
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES),
            // The same for what was sent and is not acknowledged.
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, time.as_millis() as u32),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        ] {
            let (at, len) = ((&raw const value).cast(), size_of::<u32>() as libc::socklen_t);
            // SAFETY: the descriptor is open, and the kernel reads `len` bytes of a number that lives through
            // the call. A failure is harmless: it is not TCP.
            unsafe { libc::setsockopt(self.0.as_raw_fd(), level, name, at, len) };
        }
    }

    /// How many bytes were sent and not taken: over TCP those that the other machine has not acknowledged. 0
    /// if the system does not say.
    pub fn unsent(&self) -> usize {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open, and TIOCOUTQ writes one number, which lives through the call.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if done < 0 { 0 } else { usize::try_from(bytes).unwrap_or(0) }
    }

    /// Ends the connection for both ends. Threads that send or receive return.
    pub fn cut(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    /// Sends a frame whole, with its payload in parts.
    ///
    /// # Errors
    /// The system's error. A part may have been sent, so the connection is of no more use.
    pub fn send(&self, head: &Head, parts: &[&[u8]]) -> io::Result<()> {
        let header = frame::encode(head, parts);
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(&header));
        slices.extend(parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)));
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match (&self.0).write_vectored(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut rest, count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends what goes without waiting: three parts, one after the other. Returns how many bytes that was.
    ///
    /// # Errors
    /// The system's error.
    pub fn send_now(&self, parts: [&[u8]; 3]) -> io::Result<usize> {
        let mut parts =
            parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        // SAFETY: a message header of zeros is valid, and means no address and no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the parts point to slices that live through the call, with their own lengths. The kernel
        // only reads them.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, flags) };
        match usize::try_from(sent) {
            Ok(sent) => Ok(sent),
            Err(_) => match io::Error::last_os_error() {
                error if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Sends bytes whole.
    ///
    /// # Errors
    /// The system's error.
    pub fn send_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.0).write_all(bytes)
    }
}

fn tcp(stream: TcpStream) -> io::Result<Socket> {
    // A request is one write, and the program waits for its reply.
    stream.set_nodelay(true)?;
    Ok(Socket(UnixStream::from(OwnedFd::from(stream))))
}

/// Why nothing more comes.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The other end closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What came is no frame.
    #[error("{0}")]
    Bad(#[from] BadFrame),
}

/// Receives frames, and receives ahead so that a small frame costs one system call.
#[derive(Debug)]
pub struct Receiver {
    socket: Socket,
    ahead: Vec<u8>,
    from: usize,
    to: usize,
    heard: Arc<AtomicU64>,
}

/// The monotonic clock in milliseconds.
pub fn now_ms() -> u64 {
    base::time::monotonic_ns() / 1_000_000
}

impl Receiver {
    /// Receives from this socket.
    pub fn new(socket: Socket) -> Receiver {
        Receiver { socket, ahead: vec![0; AHEAD], from: 0, to: 0, heard: Arc::new(AtomicU64::new(now_ms())) }
    }

    /// When bytes came last, also those of a frame that has not come whole: see [`now_ms`].
    pub fn heard(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.heard)
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Waits for the next frame, and writes its payload to the start of `room`, which must hold
    /// [`frame::PAYLOAD_MAX`] bytes.
    ///
    /// # Errors
    /// [`Lost`]. The connection is of no more use.
    pub fn receive(&mut self, room: &mut [u8]) -> Result<Head, Lost> {
        let mut header = [0; HEADER];
        self.fill(&mut header)?;
        let head = frame::decode(&header)?;
        let room = room.get_mut(..head.len).ok_or(BadFrame::Payload(head.kind))?;
        self.fill(room)?;
        frame::verify(&header, room)?;
        Ok(head)
    }

    /// Waits for the next frame, as [`Receiver::receive`], if its kind is known in advance. A REFUSE is
    /// accepted too.
    ///
    /// # Errors
    /// [`Lost`], also for any other kind of frame.
    pub fn receive_kind(&mut self, kind: Kind, room: &mut [u8]) -> Result<Head, Lost> {
        let head = self.receive(room)?;
        if head.kind == kind || head.kind == Kind::Refuse {
            return Ok(head);
        }
        Err(BadFrame::Payload(head.kind).into())
    }

    fn fill(&mut self, mut room: &mut [u8]) -> Result<(), Lost> {
        while !room.is_empty() {
            if self.from == self.to {
                if room.len() >= AHEAD {
                    let count = self.read_into(room)?;
                    room = &mut room[count..];
                    continue;
                }
                self.from = 0;
                let mut ahead = std::mem::take(&mut self.ahead);
                let got = self.read_into(&mut ahead);
                self.ahead = ahead;
                self.to = got?;
            }
            let count = room.len().min(self.to - self.from);
            room[..count].copy_from_slice(&self.ahead[self.from..self.from + count]);
            self.from += count;
            room = &mut room[count..];
        }
        Ok(())
    }

    fn read_into(&self, room: &mut [u8]) -> Result<usize, Lost> {
        loop {
            match (&self.socket.0).read(room) {
                Ok(0) => return Err(Lost::Closed),
                Ok(count) => {
                    self.heard.store(now_ms(), Ordering::Relaxed);
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A socket that accepts guests.
#[derive(Debug)]
pub enum Listener {
    /// A unix socket, and its path.
    Unix(UnixListener, PathBuf),
    /// TCP.
    Tcp(TcpListener),
    /// AF_VSOCK.
    Vsock(OwnedFd),
}

impl Listener {
    /// Listens. A unix socket that nothing listens on any more is replaced. A new one has mode 600.
    ///
    /// # Errors
    /// The system's error, or `AddrInUse` if something listens there.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp(host) => base::lock::bind(|| TcpListener::bind(host)).map(Listener::Tcp),
            Address::Vsock { cid: None, port } => vsock_listen(*port).map(Listener::Vsock),
            Address::Vsock { cid: Some(_), .. } => {
                Err(io::Error::new(ErrorKind::InvalidInput, "a server names no CID: write vsock:PORT"))
            }
            Address::Unix(_) | Address::VsockUnix { .. } => {
                let path = address.unix_path().unwrap_or_default();
                let listener = unix_listen(&path)?;
                Ok(Listener::Unix(listener, path))
            }
        }
    }

    /// Waits for a guest.
    ///
    /// # Errors
    /// The system's error.
    pub fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Unix(listener, _) => listener.accept().map(|(stream, _)| Socket(stream)),
            Listener::Tcp(listener) => tcp(listener.accept()?.0),
            Listener::Vsock(fd) => {
                let (none, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC);
                // SAFETY: the descriptor is open, and no place for an address is given.
                let got = unsafe { libc::accept4(fd.as_raw_fd(), none, std::ptr::null_mut(), flags) };
                own(got).map(|fd| Socket(UnixStream::from(fd)))
            }
        }
    }

    /// Where it listens. For TCP with port 0, the port that the system chose.
    pub fn address(&self, asked: &Address) -> Address {
        match self {
            Listener::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| asked.clone(), |address| Address::Tcp(address.to_string())),
            _ => asked.clone(),
        }
    }

    /// Makes a thread that waits in [`Listener::accept`] return, and removes the path of a unix socket.
    pub fn close(&self) {
        let fd = match self {
            Listener::Unix(listener, path) => {
                let _ = std::fs::remove_file(path);
                listener.as_raw_fd()
            }
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Vsock(fd) => fd.as_raw_fd(),
        };
        // SAFETY: the descriptor is open. The call takes numbers only.
        unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
    }
}

fn unix_listen(path: &std::path::Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let bind = || {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok::<UnixListener, io::Error>(listener)
    };
    match bind() {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            // A connection to any other file is refused too.
            if !path.symlink_metadata()?.file_type().is_socket() {
                return Err(io::Error::new(ErrorKind::AlreadyExists, "it is there, and is no socket"));
            }
            // A server that was killed leaves its socket behind.
            match UnixStream::connect(path) {
                Err(dead) if dead.kind() == ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                    bind()
                }
                _ => Err(error),
            }
        }
        other => other,
    }
}

fn own(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn vsock() -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    own(unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })
}

fn vsock_address(cid: u32, port: u32) -> libc::sockaddr_vm {
    // SAFETY: an address of zeros is valid. The fields that count are set below.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    address
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const VSOCK_LEN: libc::socklen_t = size_of::<libc::sockaddr_vm>() as libc::socklen_t;

fn vsock_connect(cid: u32, port: u32) -> io::Result<Socket> {
    let fd = vsock()?;
    let address = vsock_address(cid, port);
    // SAFETY: the address is a sockaddr_vm of the length that is passed, and lives through the call.
    done(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), VSOCK_LEN) })?;
    Ok(Socket(UnixStream::from(fd)))
}

fn vsock_listen(port: u32) -> io::Result<OwnedFd> {
    let fd = vsock()?;
    let address = vsock_address(libc::VMADDR_CID_ANY, port);
    // SAFETY: the address is a sockaddr_vm of the length that is passed, and lives through the call.
    done(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), VSOCK_LEN) })?;
    // SAFETY: the call takes numbers only.
    done(unsafe { libc::listen(fd.as_raw_fd(), 64) })?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PAYLOAD_MAX;

    #[test]
    fn frames_of_every_size_cross_a_socket() {
        let (one, other) = Socket::pair().unwrap();
        let sizes = [0, 1, 100, AHEAD - 1, AHEAD, AHEAD + 1, PAYLOAD_MAX];
        let sender = base::thread::spawn("test", move || {
            for (seq, size) in sizes.into_iter().enumerate() {
                let payload = vec![seq as u8; size];
                let (first, second) = payload.split_at(size / 3);
                one.send(&Head::of_slot(Kind::Request, 1, seq as u64), &[first, second]).unwrap();
            }
        });
        let mut receiver = Receiver::new(other);
        let mut room = vec![0; PAYLOAD_MAX];
        for (seq, size) in sizes.into_iter().enumerate() {
            let head = receiver.receive(&mut room).unwrap();
            assert_eq!((head.len, head.seq), (size, seq as u64));
            assert!(room[..size].iter().all(|byte| *byte == seq as u8));
        }
        sender.unwrap().join().unwrap();
        assert!(matches!(receiver.receive(&mut room), Err(Lost::Closed)));
    }

    /// A server removed a file that was named by mistake, and made its socket there.
    #[test]
    fn regression_a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "mine").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for at in [&path, &link] {
            let refused = Listener::bind(&Address::Unix(at.clone())).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(at).unwrap(), b"mine");
        }
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("s"));
        drop(Listener::bind(&address).unwrap());
        let live = Listener::bind(&address).unwrap();
        assert_eq!(Listener::bind(&address).unwrap_err().kind(), ErrorKind::AddrInUse);
        // The attempt to bind has connected.
        assert!(live.accept().is_ok());
        live.close();
        assert!(live.accept().is_err() && Listener::bind(&address).is_ok());
    }
}
