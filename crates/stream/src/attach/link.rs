//! One connection to the server, over and over again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Shared;
use super::flight::{Entry, Sent};
use super::greet::{Greeted, Trouble, greet, refused, restore};
use super::notes::Note;
use crate::frame::{BadFrame, HEADER, Head, Kind, PAYLOAD_MAX, TRACED};
use crate::hello::{Found, Sharing};
use crate::request::{self, op};
use crate::socket::{Lost, Receiver, Socket, now_ms};
use crate::times::Times;

/// After this time without a byte, the server is asked whether it is there.
const PING_AFTER: Duration = Duration::from_secs(2);
/// After this time without a byte in either direction, the connection counts as dead. One frame may take
/// longer than that over a slow network. Devices that carry vsock do not always tell a guest that the server
/// has gone, and then every program of the guest waits this long. An error costs little: the guest connects
/// again, and nothing is executed twice.
const DEAD_AFTER: Duration = Duration::from_secs(8);
/// Pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A connection that is up.
struct Up {
    sent: Sent,
    socket: Socket,
    /// When bytes came last: milliseconds of the monotonic clock.
    heard: Arc<AtomicU64>,
    /// How many bytes the server had not taken at the last look.
    unsent: AtomicUsize,
}

/// The place of a connection.
#[derive(Default)]
pub struct Link {
    up: Mutex<Option<Up>>,
    pinged: AtomicBool,
    /// The server at its end measures traced requests.
    times: AtomicBool,
}

impl Up {
    /// How long no byte came, and the server took none.
    fn silent(&self) -> Duration {
        let now = now_ms();
        let unsent = self.socket.unsent();
        if unsent < self.unsent.swap(unsent, Ordering::Relaxed) {
            self.heard.fetch_max(now, Ordering::Relaxed);
        }
        Duration::from_millis(now.saturating_sub(self.heard.load(Ordering::Relaxed)))
    }
}

impl Link {
    /// Ends the connection. Its thread notices.
    pub fn cut(&self) {
        if let Some(up) = &*self.up.lock() {
            up.socket.cut();
        }
    }

    /// Pings a silent server, and cuts a connection that stays silent.
    pub fn tick(&self) {
        // A sender holds the lock while it sends, so a lock that is taken says nothing about the server.
        let Some(up) = self.up.try_lock() else { return };
        let Some(up) = &*up else { return };
        let silent = up.silent();
        if silent < PING_AFTER {
            self.pinged.store(false, Ordering::Relaxed);
        } else if silent >= DEAD_AFTER {
            up.socket.cut();
        } else if !self.pinged.swap(true, Ordering::Relaxed) {
            let _ = up.socket.send(&Head::plain(Kind::Ping), &[]);
        }
    }

    /// Says whether the server measures traced requests. Call it before the connection is up.
    pub fn set_times(&self, times: bool) {
        self.times.store(times, Ordering::Relaxed);
    }

    /// Whether the server at its end measures traced requests.
    pub fn has_times(&self) -> bool {
        self.times.load(Ordering::Relaxed)
    }

    /// Whether there is a connection. Another thread may be sending on it.
    pub fn is_up(&self) -> bool {
        self.up.try_lock().is_none_or(|up| up.is_some())
    }

    fn number(&self) -> Option<u64> {
        self.up.lock().as_ref().map(|up| up.sent.link)
    }
}

impl Shared {
    /// The body of a connection's thread. `first`: a connection that was made already.
    pub(super) fn run_link(&self, index: usize, first: Option<Receiver>) {
        let mut next = first.map(|receiver| (receiver, 1));
        while !self.ended.load(Ordering::Acquire) {
            let Some((mut receiver, session)) = next.take().or_else(|| self.reconnect(index)) else { return };
            if let Err(error) = self.up(index, &receiver, session) {
                (self.log)(&format!("a connection cannot be used: {error}"));
                continue;
            }
            let why = self.receive(&mut receiver);
            self.down(index, &why);
        }
    }

    /// Connects until it succeeds. `None`: the mount has ended.
    fn reconnect(&self, index: usize) -> Option<(Receiver, u64)> {
        let (mut pause, longest) = PAUSES;
        let mut said = String::new();
        while !self.ended.load(Ordering::Acquire) {
            match self.try_connect(index) {
                Ok(found) => return Some(found),
                Err(trouble) => {
                    // The first attempts fail while a server restarts. That is no news.
                    if (pause == longest || !trouble.may_pass) && said != trouble.text && index == 0 {
                        (self.log)(&format!("{}: {}", self.options.address, trouble.text));
                        said = trouble.text;
                    }
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
        None
    }

    fn try_connect(&self, index: usize) -> Result<(Receiver, u64), Trouble> {
        // One at a time: the first one of a new session makes it.
        let mut session = self.session.lock();
        let greeted = greet(&self.options.address, &self.keys, session.id, index as u16)?;
        let Greeted { mut receiver, welcome, times, locks, about, .. } = greeted;
        self.links[index].set_times(times);
        self.state.lock().about = about;
        if welcome.found == Found::Resumed {
            return Ok((receiver, session.number));
        }
        if welcome.source != session.source {
            return Err(Trouble::lasting("it serves something else now: unmount, and attach again"));
        }
        let wrote = self.wrote.load(Ordering::Acquire);
        if welcome.boot != session.boot && wrote && !welcome.read_only {
            return Err(Trouble::lasting(
                "the server's machine was restarted, so what was not synced may be lost: unmount, and \
                 attach again",
            ));
        }
        let is_same = (welcome.read_only, welcome.sharing) == (self.read_only, self.sharing);
        if !is_same || locks != self.has_locks {
            return Err(Trouble::lasting("it serves with other options now: unmount, and attach again"));
        }
        self.begin_anew(&mut receiver)?;
        self.flight.grant(welcome.slots, welcome.bytes, locks);
        session.id = welcome.session;
        session.boot = welcome.boot;
        session.number += 1;
        (self.log)(&format!("{}: a new run of the server takes over", self.options.address));
        Ok((receiver, session.number))
    }

    /// The server knows nothing of this mount: tell it.
    fn begin_anew(&self, receiver: &mut Receiver) -> Result<(), Trouble> {
        // Replies of the old session may be on their way to the kernel, with references.
        self.links.iter().for_each(Link::cut);
        while self.links.iter().any(|link| link.number().is_some()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (init, drops_names) = {
            let state = self.state.lock();
            (state.init, state.drops_names)
        };
        let Some(Ok(agreed)) = init else { return Ok(()) };
        if agreed.1 & request::WRITEBACK_CACHE != 0 {
            return Err(Trouble::lasting(
                "the server was restarted, and this kernel may hold sizes and times that the server never got: \
                 unmount, and attach again; or serve without --writeback",
            ));
        }
        if self.sharing == Sharing::One {
            if !drops_names {
                return Err(Trouble::lasting(
                    "the server was restarted, and this kernel (older than 6.16) cannot drop the names that \
                     it keeps: unmount, and attach again; or serve with --many",
                ));
            }
            let _ = self.tell_kernel(&request::drop_all_names());
        }
        self.notes.begin_anew();
        let held = self.held.lock().settle();
        restore(receiver, agreed, held)?;
        let lost = self.locks.lock().lose();
        if lost > 0 {
            (self.log)(&format!(
                "the server was restarted, and programs have lost their locks on {lost} files: lock calls fail with \
                 EIO there until the file is closed"
            ));
        }
        if self.sharing == Sharing::One {
            self.notes.push(Note::Everything);
        }
        Ok(())
    }

    /// A connection is there: send what has no reply.
    fn up(&self, index: usize, receiver: &Receiver, session: u64) -> std::io::Result<()> {
        let link = &self.links[index];
        let socket = receiver.socket().cloned()?;
        let number = self.next_link.fetch_add(1, Ordering::Relaxed);
        let heard = receiver.heard();
        heard.store(now_ms(), Ordering::Relaxed);
        link.pinged.store(false, Ordering::Relaxed);
        let (sent, unsent) = (Sent { link: number, session }, AtomicUsize::new(0));
        *link.up.lock() = Some(Up { sent, socket, heard, unsent });
        let was_down = {
            let mut state = self.state.lock();
            state.up_since.get_or_insert_with(base::time::monotonic);
            state.down_since.take()
        };
        // What ended meanwhile comes before anything new.
        self.pay();
        if self.failing.swap(false, Ordering::AcqRel) {
            self.flight.set_failing(false);
        }
        let again = self.push_orphans();
        self.advance();
        if was_down.is_some() {
            self.figures.reconnected();
            let server = &self.options.address;
            (self.log)(&format!("the server at {server} answers again; {again} requests were sent again"));
        }
        Ok(())
    }

    /// A connection is gone: send what was sent on it on another one.
    fn down(&self, index: usize, why: &Lost) {
        if let Some(up) = self.links[index].up.lock().take() {
            up.socket.cut();
        }
        if self.links.iter().any(|link| link.number().is_some()) {
            self.push_orphans();
            return;
        }
        let mut state = self.state.lock();
        if state.down_since.is_none() {
            state.down_since = Some(base::time::monotonic());
            state.up_since = None;
            drop(state);
            self.changed.notify_all();
            if !self.ended.load(Ordering::Acquire) {
                let (server, wait) = (&self.options.address, self.options.wait.as_secs());
                (self.log)(&format!("lost the server at {server} ({why}): requests wait up to {wait} s"));
            }
        }
    }

    /// Sends all requests whose connection is gone. Returns how many.
    fn push_orphans(&self) -> usize {
        let live: Vec<u64> = self.links.iter().filter_map(Link::number).collect();
        let orphans: Vec<Entry> = self.flight.all();
        let is_orphan = |entry: &&Entry| entry.sent.is_none_or(|sent| !live.contains(&sent.link));
        let orphans: Vec<&Entry> = orphans.iter().filter(is_orphan).collect();
        orphans.iter().for_each(|entry| self.push_after(entry.slot, entry.seq, entry.sent));
        orphans.len()
    }

    /// Sends a new request.
    pub(super) fn push(&self, slot: u16, seq: u64) {
        self.push_after(slot, seq, None);
    }

    /// Sends a request on any connection that is up, unless another thread has sent it since `before`.
    /// Without a connection it stays in its slot, and is sent when there is one.
    fn push_after(&self, slot: u16, seq: u64, before: Option<Sent>) {
        for at in 0..self.links.len() {
            let link = &self.links[(usize::from(slot) + at) % self.links.len()];
            let up = link.up.lock();
            if let Some(up) = &*up {
                self.push_on(up, link.times.load(Ordering::Relaxed), slot, seq, before);
                return;
            }
        }
    }

    fn push_on(&self, up: &Up, times: bool, slot: u16, seq: u64, before: Option<Sent>) {
        let mut mine = None;
        self.flight.change(slot, seq, |entry| {
            if entry.sent == before {
                entry.resent = before.is_some();
                entry.attempt = entry.attempt.wrapping_add(u8::from(entry.resent));
                entry.sent = Some(up.sent);
                mine = Some(entry.clone());
            }
        });
        let Some(entry) = mine else { return };
        let frame = |kind| Head::of_slot(kind, slot, seq).again(entry.attempt);
        let in_this_session = before.is_some_and(|before| before.session == up.sent.session);
        let in_another = before.is_some() && !in_this_session;
        let head = match entry {
            // Another server has no locks of its holder.
            _ if self.has_lost_locks(&entry) => {
                self.in_doubt(&entry);
                return;
            }
            // The server of an earlier session may have executed it, and this one cannot know.
            _ if in_another && (entry.given_up || !entry.asked.is_repeatable()) => {
                self.in_doubt(&entry);
                return;
            }
            _ if entry.given_up => frame(Kind::Cancel),
            _ => {
                let traced = times && self.tracer.sends(slot, seq);
                let frame = frame(Kind::Request);
                Head { flags: frame.flags | if traced { TRACED } else { 0 }, ..frame }
            }
        };
        if !entry.asked.is_repeatable() {
            self.wrote.store(true, Ordering::Release);
        }
        let request: &[u8] = if head.kind == Kind::Request { &entry.request } else { &[] };
        self.figures.sent(HEADER + request.len());
        if up.socket.send(&head, &[request]).is_err() {
            // The thread that receives notices, and the request is sent again.
            up.socket.cut();
        }
    }

    /// Nobody knows whether a request was executed: it fails, and the kernel forgets what it may have
    /// changed.
    fn in_doubt(&self, entry: &Entry) {
        self.give_up(entry, libc::EIO);
        self.notes.push(Note::Doubts(request::doubts(&entry.asked, &entry.request)));
        self.flight.end(entry.slot, entry.seq);
    }

    /// Sends a frame on any connection. Returns false if there is none.
    pub(super) fn send_somewhere(&self, head: &Head, payload: &[u8]) -> bool {
        self.links.iter().any(|link| {
            let up = link.up.lock();
            up.as_ref().is_some_and(|up| up.socket.send(head, &[payload]).is_ok())
        })
    }

    /// Receives until the connection is lost.
    fn receive(&self, receiver: &mut Receiver) -> Lost {
        let mut room = vec![0; PAYLOAD_MAX];
        loop {
            let head = match receiver.receive(&mut room) {
                Ok(head) => head,
                Err(lost) => return lost,
            };
            self.figures.received(HEADER + head.len);
            if let Err(bad) = self.take(&head, &room[..head.len]) {
                return bad;
            }
            // A reply gives its slot back.
            self.advance();
        }
    }

    /// One frame of the server.
    fn take(&self, head: &Head, payload: &[u8]) -> Result<(), Lost> {
        let broken = || Lost::Bad(BadFrame::Payload(head.kind));
        match head.kind {
            Kind::Reply => match self.flight.get(head.slot, head.seq) {
                Some(entry) => self.answer(&entry, payload).map_err(|()| broken()),
                None if self.flight.knows(head.slot, head.seq) => Ok(()),
                None => Err(broken()),
            },
            Kind::Times => {
                let times = Times::decode(payload).ok_or_else(broken)?;
                self.tracer.served(head.slot, head.seq, times);
                Ok(())
            }
            Kind::Notify if !request::is_notification(payload) => Err(broken()),
            // It belongs to the reply that comes next, and is not acknowledged.
            Kind::Notify if request::is_quick(payload) => {
                let _ = self.tell_kernel(payload);
                Ok(())
            }
            Kind::Notify if self.notes.push(Note::Server(head.seq, payload.to_vec())) => Ok(()),
            Kind::Ping => {
                self.send_somewhere(&Head::plain(Kind::Pong), &[]);
                Ok(())
            }
            Kind::Pong | Kind::Held => Ok(()),
            Kind::Bye => {
                let error = payload.first_chunk().map_or(libc::EIO, |four| i32::from_le_bytes(*four));
                self.state.lock().bye = Some(error);
                self.changed.notify_all();
                Ok(())
            }
            Kind::Refuse => Err(Lost::Io(std::io::Error::other(refused(payload).text))),
            _ => Err(broken()),
        }
    }

    /// A reply. Errors if it does not fit its request.
    fn answer(&self, entry: &Entry, reply: &[u8]) -> Result<(), ()> {
        let asked = &entry.asked;
        if let Some(lock) = request::lock_asked(asked, &entry.request).filter(|_| request::succeeded(reply)) {
            // Also if it was given up: its holder has it until it closes the file.
            self.locks.lock().done(asked.node, &lock);
        }
        // The entry was read before its reply came in. The clock may have given it up since.
        if self.flight.get(entry.slot, entry.seq).is_none_or(|now| now.given_up || now.own) {
            self.release(asked, &entry.request);
            self.notes.push(Note::Doubts(request::doubts(asked, &entry.request)));
            self.flight.end(entry.slot, entry.seq);
            if request::is_reply(asked.unique, reply) {
                self.give_back(&request::references(asked, reply));
            }
            return Ok(());
        }
        if !asked.wants_reply() {
            if !reply.is_empty() {
                return Err(());
            }
            self.release(asked, &entry.request);
            self.flight.end(entry.slot, entry.seq);
            return Ok(());
        }
        if !request::is_reply(asked.unique, reply) {
            return Err(());
        }
        let found = request::references(asked, reply);
        if !found.is_empty() {
            self.held.lock().take(&found);
        }
        self.figures.answered(asked, reply.len());
        let sent = self.reply(entry.device, reply);
        self.tracer.ended(entry.slot, entry.seq, asked);
        if asked.opcode == op::INIT {
            self.init_answered(reply);
        }
        self.flight.end(entry.slot, entry.seq);
        if entry.resent {
            // What the server sent beside the first reply may be lost.
            self.notes.push(Note::Doubts(request::doubts(asked, &entry.request)));
        }
        if let Err(error) = sent
            && error.raw_os_error() == Some(libc::ENOENT)
        {
            // The caller was killed, and the kernel took no reference.
            self.notes.push(Note::Doubts(request::doubts(asked, &entry.request)));
            self.held.lock().owe_each(&found);
            self.pay();
        }
        Ok(())
    }

    /// The server has counted references that the kernel will never have.
    fn give_back(&self, found: &[u64]) {
        if found.is_empty() {
            return;
        }
        {
            let mut held = self.held.lock();
            held.take(found);
            held.owe_each(found);
        }
        self.pay();
    }

    fn init_answered(&self, reply: &[u8]) {
        let error = reply.get(4..8).and_then(<[u8]>::first_chunk).map_or(0, |four| i32::from_ne_bytes(*four));
        let init = match request::agreed(reply) {
            Some(agreed) if error == 0 => Ok(agreed),
            _ if error == 0 => Err(libc::EPROTO),
            _ => Err(-error),
        };
        self.state.lock().init = Some(init);
        self.changed.notify_all();
    }

    /// Sends what the server could not be told when it happened: the ends of locks, and references.
    pub(super) fn pay(&self) {
        loop {
            let next = self.locks.lock().next_unsent();
            let Some((asked, request)) = next else { break };
            match self.flight.enter_own(asked, &request) {
                Some((slot, seq)) => self.push(slot, seq),
                None => return self.locks.lock().put_back((asked, request)),
            }
        }
        loop {
            let next = self.held.lock().pay();
            let Some(message) = next else { return };
            let Some(asked) = request::Asked::read(&message) else { return };
            let message = Arc::new(message.into());
            match self.flight.enter_own(asked, &message) {
                Some((slot, seq)) => self.push(slot, seq),
                None => return self.held.lock().unpaid(&asked, &message),
            }
        }
    }

    fn has_lost_locks(&self, entry: &Entry) -> bool {
        let lock = request::lock_asked(&entry.asked, &entry.request).filter(|_| self.has_locks);
        lock.is_some_and(|lock| self.locks.lock().is_lost(entry.asked.node, lock.holder))
    }
}
