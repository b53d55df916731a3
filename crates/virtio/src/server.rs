//! A socket for a VMM, as `virtiofsd` has one.
//!
//! One VMM at a time uses a socket. When it goes, its guest is forgotten, and the socket waits for the next.
//! Several sockets are several guests, which share the server's places with guests over streams.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::Deadline;
use guests::server::Door;
use parking_lot::{Condvar, Mutex};
use stream::address::Address;
use stream::socket::Listener;
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::backend::Backend;
use crate::session::Session;

/// How long requests in flight may go on when the server ends.
const ENDING: Duration = Duration::from_secs(10);

/// How to serve VMMs.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a guest's kernel may keep names and attributes. It does not count for a tree that cannot
    /// change.
    pub keep: Duration,
    /// The tag, for a VMM that asks for it: at most [`crate::backend::TAG_MAX`] bytes.
    pub tag: Option<String>,
}

/// What the thread of a socket has.
#[derive(Default)]
struct Talk {
    /// The VMM that is connected.
    stream: Option<UnixStream>,
    backend: Option<Arc<std::sync::Mutex<Backend>>>,
    over: bool,
}

struct Shared {
    door: Door,
    options: Arc<Options>,
    listener: Listener,
    path: PathBuf,
    ending: Arc<AtomicBool>,
    talk: Mutex<Talk>,
    changed: Condvar,
}

/// A socket that waits for VMMs.
pub struct Socket(Arc<Shared>);

impl Socket {
    /// Listens at this path. A socket that nothing listens on any more is replaced. A new one has mode 600.
    ///
    /// # Errors
    /// The system's error, or `AddrInUse` if something else is there.
    pub fn listen(door: Door, path: &Path, options: Options) -> io::Result<Socket> {
        let listener = Listener::bind(&Address::Unix(path.to_owned()))?;
        let shared = Arc::new(Shared {
            door,
            options: Arc::new(options),
            listener,
            path: path.to_owned(),
            ending: Arc::default(),
            talk: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        base::thread::spawn("guest-vmm", move || accepting.accept())?;
        Ok(Socket(shared))
    }

    /// Ends: what is in flight is finished, the VMM is disconnected, and the path is removed.
    pub fn end(&self) {
        let shared = &self.0;
        if shared.ending.swap(true, Ordering::AcqRel) {
            return;
        }
        shared.listener.close();
        let until = Deadline::after(ENDING);
        let mut talk = shared.talk.lock();
        if let Some(backend) = talk.backend.clone() {
            // Not while a message is served: that would be one that waits for requests in flight.
            if let Ok(mut backend) = backend.try_lock() {
                backend.stop(until.left());
            }
        }
        talk.stream.iter().for_each(|stream| _ = stream.shutdown(std::net::Shutdown::Both));
        while !talk.over && !until.is_over() {
            shared.changed.wait_for(&mut talk, until.left());
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// The body of the socket's thread.
    fn accept(&self) {
        while !self.ending.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok(socket) => self.talk(socket.into_stream()),
                Err(_) if self.ending.load(Ordering::Acquire) => {}
                Err(error) => {
                    // Such as too many open files: it passes, or goes on, and must not fill the log at once.
                    self.door.log(&format!("accepting a VMM failed: {error}"));
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        }
        self.talk.lock().over = true;
        self.changed.notify_all();
    }

    /// One VMM from beginning to end.
    fn talk(&self, stream: UnixStream) {
        let (visit, copy) = match (self.door.admit(), stream.try_clone()) {
            (Ok(visit), Ok(copy)) => (visit, copy),
            (Err(why), _) => return self.door.log(&format!("a VMM was refused: {why}")),
            (_, Err(error)) => return self.door.log(&format!("a VMM was refused: {error}")),
        };
        let session = Arc::new(Session::new(self.door.clone(), visit, self.options.keep));
        session.log(&format!("its VMM connected at {}", self.path.display()));
        let backend = Backend::new(Arc::clone(&session), Arc::clone(&self.options), Arc::clone(&self.ending));
        let backend = Arc::new(std::sync::Mutex::new(backend));
        {
            let mut talk = self.talk.lock();
            (talk.stream, talk.backend) = (Some(copy), Some(Arc::clone(&backend)));
        }
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&backend));
        let ended = loop {
            if self.ending.load(Ordering::Acquire) {
                break Error::Disconnected;
            }
            if let Err(error) = handler.handle_request() {
                break error;
            }
        };
        let (taken, _) = {
            let mut talk = self.talk.lock();
            (talk.stream.take(), talk.backend.take())
        };
        drop(taken);
        // A panic while a message was served leaves queues to stop too.
        backend.lock().unwrap_or_else(std::sync::PoisonError::into_inner).leave();
        session.leave();
        match ended {
            Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_) => {
                session.log("its VMM is gone");
            }
            error => session.log(&format!("its VMM was disconnected: {error}")),
        }
    }
}
