//! One guest: its session, which outlives its connections.
//!
//! ```text
//!   frame ─► slot: new? ─► fuse's dispatcher ─► Filesystem ─► reply ─► kept in the slot ─► the connection
//!                 └─ seen before: the kept reply                        from which the request came last
//! ```
//!
//! A reply goes to the connection on which the guest sent its request last. If that one is gone, the reply
//! stays in its slot until the guest comes back and asks again. A copy of a request that the guest had sent
//! before on another connection, and that is read only now, changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use base::Ino;
use base::places::{self, Work};
use fs::api::Filesystem;
use fuse::abi::header::{OUT_HEADER, out_header};
use fuse::abi::init::Agreed;
use fuse::channel::Sink;
use fuse::served::{self, Served, Terms};
use parking_lot::{Condvar, Mutex};
use stream::frame::{BadFrame, Head, Kind, TRACED, Take};
use stream::hello::{Id, Sharing};
use stream::request::{self, Asked, op};
use stream::slots::{Arrival, Broken, Slots, WAITS, WAITS_AT};
use stream::times::Times;

use crate::counted::Counted;
use crate::outbox::Outbox;
use crate::server::Options;

/// The most notifications that the guest has not acknowledged.
const NOTES_MOST: usize = 64;
/// Where a request's header has the caller's thread id.
const PID_AT: usize = 32;

/// Why a guest is cut off.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    /// The guest exceeds its credits or forges numbers.
    #[error("{0}")]
    Slots(#[from] Broken),
    /// A frame makes no sense.
    #[error("{0}")]
    Frame(#[from] BadFrame),
    /// A slot for requests that wait for a lock has another one.
    #[error("it used a slot of requests that wait for a lock for another request")]
    WaitSlot,
    /// A request came before INIT, or INIT came twice.
    #[error("its requests come in the wrong order")]
    Order,
    /// The system cannot start a thread.
    #[error("starting a thread: {0}")]
    Thread(#[from] io::Error),
}

/// What is known of the request in a slot.
#[derive(Clone, Default)]
struct Place {
    unique: u64,
    kept: bool,
    route: Option<Arc<Outbox>>,
    /// Of a request that is traced.
    begun: Option<Begun>,
}

/// When a traced request arrived, and when the filesystem was asked.
#[derive(Clone, Copy)]
struct Begun {
    wall: u64,
    arrived: Instant,
    asked: Instant,
}

impl Begun {
    fn times(&self) -> Times {
        let (wall, now) = (base::time::wall_ns(), base::time::monotonic());
        let since = |begin: Instant| now.saturating_duration_since(begin).as_nanos() as u64;
        Times { arrived: self.wall, left: wall, server: since(self.arrived), filesystem: since(self.asked) }
    }
}

struct Table {
    slots: Slots,
    places: Vec<Place>,
}

#[derive(Default)]
struct Notes {
    last: u64,
    unacknowledged: BTreeMap<u64, Vec<u8>>,
}

/// See the [module](self).
pub struct Guest {
    id: Id,
    /// For people: the first guest of a server is 1.
    pub number: u64,
    fs: Arc<Counted>,
    options: Arc<Options>,
    table: Mutex<Table>,
    served: OnceLock<Served>,
    notes: Mutex<Notes>,
    noted: Condvar,
    links: Mutex<Vec<Arc<Outbox>>>,
    /// When the last connection went. `None`: there is one.
    alone_since: Mutex<Option<Instant>>,
    /// The guest's place among all guests, at work while there is a connection.
    place: Mutex<Option<(Arc<places::Place>, Option<Work>)>>,
    ended: AtomicBool,
    lanes: AtomicU64,
}

impl Guest {
    /// A guest without connections.
    pub fn new(id: Id, number: u64, fs: Counted, options: Arc<Options>) -> Arc<Guest> {
        let waits = if options.locks { WAITS } else { 0 };
        let slots = Slots::with_waits(options.slots, waits, options.bytes);
        let places = vec![Place::default(); slots.len()];
        Arc::new(Guest {
            id,
            number,
            fs: Arc::new(fs),
            table: Mutex::new(Table { slots, places }),
            served: OnceLock::new(),
            notes: Mutex::default(),
            noted: Condvar::new(),
            links: Mutex::default(),
            alone_since: Mutex::new(Some(base::time::monotonic())),
            place: Mutex::default(),
            ended: AtomicBool::new(false),
            lanes: AtomicU64::new(0),
            options,
        })
    }

    /// The session's id.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Gives it its place, which it keeps until it has ended. It counts as at work until its last connection
    /// goes.
    pub fn take_place(&self, place: places::Place) {
        let place = Arc::new(place);
        let work = place.work();
        *self.place.lock() = Some((place, Some(work)));
    }

    fn at_work(&self, is: bool) {
        if let Some((place, work)) = &mut *self.place.lock() {
            *work = is.then(|| place.work());
        }
    }

    /// Whether its kernel has begun.
    pub fn has_begun(&self) -> bool {
        self.served.get().is_some()
    }

    /// Adds a connection, and sends on it what the guest has not acknowledged. Returns false if it has too
    /// many, or is gone.
    pub fn join(&self, link: &Arc<Outbox>) -> bool {
        let mut links = self.links.lock();
        if links.len() >= self.options.connections || self.ended.load(Ordering::Acquire) {
            return false;
        }
        links.push(Arc::clone(link));
        *self.alone_since.lock() = None;
        self.at_work(true);
        true
    }

    /// Sends again what the guest has not acknowledged. Call it after WELCOME.
    pub fn remind(&self, link: &Outbox) {
        for (seq, message) in &self.notes.lock().unacknowledged {
            link.send(&Head { seq: *seq, ..Head::plain(Kind::Notify) }, message);
        }
    }

    /// Removes a connection.
    pub fn leave(&self, link: &Arc<Outbox>) {
        link.cut();
        let mut links = self.links.lock();
        links.retain(|other| !Arc::ptr_eq(other, link));
        if links.is_empty() {
            *self.alone_since.lock() = Some(base::time::monotonic());
            self.at_work(false);
        }
        let mut table = self.table.lock();
        for place in &mut table.places {
            place.route.take_if(|route| Arc::ptr_eq(route, link));
        }
    }

    /// Since when it has no connection.
    pub fn alone_since(&self) -> Option<Instant> {
        *self.alone_since.lock()
    }

    /// A number for the next thread that serves it.
    pub fn next_lane(&self) -> usize {
        let lanes = self.options.lanes() as u64;
        (self.lanes.fetch_add(1, Ordering::Relaxed) % lanes) as usize
    }

    /// One frame. `payload` may be changed. `room` is the buffer for a reply's body.
    ///
    /// # Errors
    /// [`Cut`]: the guest must be cut off.
    pub fn take(
        self: &Arc<Self>,
        lane: usize,
        head: &Head,
        payload: &mut [u8],
        room: &mut [u8],
        link: &Arc<Outbox>,
    ) -> Result<(), Cut> {
        match head.kind {
            Kind::Request => self.request(lane, head, payload, room, link)?,
            Kind::Cancel => {
                let (arrival, unique) = {
                    let mut table = self.table.lock();
                    let arrival = table.slots.cancel(head.slot, head.seq, head.attempt(), &[])?;
                    let place = table.place(head.slot).filter(|_| arrival != Arrival::Stale);
                    let unique = place.map_or(0, |place| {
                        place.route = Some(Arc::clone(link));
                        place.unique
                    });
                    (arrival, unique)
                };
                // A request that waits for a lock would wait, and then hold it, for no program.
                if let (Arrival::Running, Some(served)) = (&arrival, self.served.get()) {
                    served.interrupt(unique, false);
                }
                self.resend(head, arrival, link);
            }
            Kind::Interrupt => {
                let unique = {
                    let mut table = self.table.lock();
                    let running = table.slots.is_running(head.slot, head.seq);
                    table.place(head.slot).filter(|_| running).map(|place| place.unique)
                };
                if let (Some(unique), Some(served)) = (unique, self.served.get()) {
                    served.interrupt(unique, head.flags & 1 != 0);
                }
            }
            Kind::Noted => {
                self.notes.lock().unacknowledged.remove(&head.seq);
                self.noted.notify_all();
            }
            Kind::Ping => link.send(&Head::plain(Kind::Pong), &[]),
            Kind::Pong => {}
            Kind::Agreed => {
                let mut take = Take(payload);
                let agreed = take.u32().zip(take.u64());
                let (minor, flags) = agreed.ok_or(BadFrame::Payload(head.kind))?;
                self.begin(Agreed { minor, flags })?;
                link.send(&Head::plain(Kind::Held), &[]);
            }
            Kind::Hold => {
                let mut take = Take(payload);
                while let Some((ino, count)) = take.u64().zip(take.u64()) {
                    self.fs.hold(Ino(ino), count);
                }
                link.send(&Head::plain(Kind::Held), &[]);
            }
            Kind::Bye => {
                // Nothing more comes from this guest, so nothing waits behind this.
                base::thread::may_wait_again();
                let error = self.fs.sync().err().map_or(0, |error| error.0);
                link.send(&Head::plain(Kind::Bye), &error.to_le_bytes());
                let _notes = self.notes.lock();
                self.ended.store(true, Ordering::Release);
                self.noted.notify_all();
            }
            _ => return Err(BadFrame::Payload(head.kind).into()),
        }
        Ok(())
    }

    /// Whether it said goodbye or was ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn begin(self: &Arc<Self>, agreed: Agreed) -> Result<(), Cut> {
        let sink: Arc<dyn Sink> = Arc::new(Notifying(Arc::downgrade(self)));
        let options = served::Options {
            lanes: self.options.lanes(),
            workers: self.options.workers,
            deadline: self.options.deadline,
            many: self.options.sharing == Sharing::Many,
            keep: None,
            log: Arc::clone(&self.options.log),
        };
        let served = Served::start(Arc::clone(&self.fs) as _, agreed, sink, &options)?;
        self.served.set(served).map_err(|unused| {
            unused.end();
            Cut::Order
        })
    }

    fn request(
        self: &Arc<Self>,
        lane: usize,
        head: &Head,
        message: &mut [u8],
        room: &mut [u8],
        link: &Arc<Outbox>,
    ) -> Result<(), Cut> {
        let traced = head.flags & TRACED != 0;
        let arrived = traced.then(|| (base::time::wall_ns(), base::time::monotonic()));
        let asked = Asked::read(message).filter(|asked| asked.opcode != op::INTERRUPT);
        let asked = asked.ok_or(BadFrame::Payload(head.kind))?;
        // This machine has other processes with these numbers.
        message[PID_AT..PID_AT + 4].fill(0);
        let waits = head.slot >= WAITS_AT;
        if waits && !request::waits_for_lock(&asked, message) {
            return Err(Cut::WaitSlot);
        }
        let cost = if waits { 0 } else { request::cost(&asked, message) };
        let arrival = {
            let mut table = self.table.lock();
            let arrival = table.slots.arrive(head.slot, head.seq, head.attempt(), cost)?;
            if arrival == Arrival::Stale {
                return Ok(());
            }
            let place = table.place(head.slot).ok_or(Cut::WaitSlot)?;
            place.route = Some(Arc::clone(link));
            if arrival == Arrival::Execute {
                (place.unique, place.kept) = (asked.unique, asked.is_kept());
                place.begun =
                    arrived.map(|(wall, arrived)| Begun { wall, arrived, asked: base::time::monotonic() });
            }
            arrival
        };
        if arrival != Arrival::Execute {
            self.resend(head, arrival, link);
            return Ok(());
        }
        let sink: Arc<dyn Sink> =
            Arc::new(Replying { guest: Arc::clone(self), slot: head.slot, seq: head.seq });
        if asked.opcode == op::INIT {
            return self.init(&asked, message, &*sink);
        }
        let served = self.served.get().ok_or(Cut::Order)?;
        served.serve(lane, message, room, &sink);
        if !asked.wants_reply() {
            self.reply(head.slot, head.seq, &[], &[]);
        }
        Ok(())
    }

    /// INIT may come again after its reply was lost.
    fn init(self: &Arc<Self>, asked: &Asked, message: &[u8], sink: &dyn Sink) -> Result<(), Cut> {
        let many = self.options.sharing == Sharing::Many;
        let writeback = self.options.writeback && self.options.sharing == Sharing::One;
        let terms = Terms { many, writeback, keeps: false };
        let _ = match served::init(&*self.fs, terms, message) {
            Ok((agreed, reply)) => {
                if self.served.get().is_none() {
                    self.begin(agreed)?;
                }
                sink.reply(asked.unique, 0, &reply)
            }
            Err(error) => sink.reply(asked.unique, -error.0, &[]),
        };
        Ok(())
    }

    fn resend(&self, head: &Head, arrival: Arrival, link: &Outbox) {
        if let Arrival::Resend(reply) = arrival {
            link.send(&Head::of_slot(Kind::Reply, head.slot, head.seq), &reply);
        }
    }

    fn reply(&self, slot: u16, seq: u64, header: &[u8], body: &[u8]) {
        let (route, begun) = {
            let mut table = self.table.lock();
            let Some(place) = table.place(slot).cloned() else { return };
            if !table.slots.done(slot, seq, place.kept.then(|| [header, body].concat())) {
                return;
            }
            (place.route, place.begun)
        };
        if let Some(link) = route {
            if let Some(begun) = begun {
                link.send(&Head::of_slot(Kind::Times, slot, seq), &begun.times().encode());
            }
            link.send_parts(&Head::of_slot(Kind::Reply, slot, seq), header, body);
        }
    }

    /// A notification that belongs to the reply that comes next.
    fn notify_before(&self, slot: u16, message: &[u8]) {
        let route = self.table.lock().place(slot).and_then(|place| place.route.clone());
        if let Some(link) = route {
            link.send(&Head::plain(Kind::Notify), message);
        }
    }

    /// A notification that the guest acknowledges. Waits while too many are not acknowledged.
    fn notify(&self, message: Vec<u8>) -> io::Result<()> {
        let mut notes = self.notes.lock();
        while notes.unacknowledged.len() >= NOTES_MOST && !self.has_ended() {
            self.noted.wait(&mut notes);
        }
        if self.has_ended() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        notes.last += 1;
        let seq = notes.last;
        let link = self.links.lock().first().cloned();
        if let Some(link) = link {
            link.send(&Head { seq, ..Head::plain(Kind::Notify) }, &message);
        }
        notes.unacknowledged.insert(seq, message);
        Ok(())
    }

    /// Ends it: its connections are cut, and what it holds is given back.
    pub fn end(&self) {
        self.cut();
        self.fs.release();
    }

    /// Ends it because the server ends: what it holds is left to the next run of the server.
    pub fn end_with_server(&self) {
        self.cut();
        self.fs.leave_held();
    }

    fn cut(&self) {
        drop(self.place.lock().take());
        {
            // A thread that has just seen that it has not ended waits before this lock is free.
            let _notes = self.notes.lock();
            self.ended.store(true, Ordering::Release);
            self.noted.notify_all();
        }
        self.links.lock().iter().for_each(|link| link.cut());
        if let Some(served) = self.served.get() {
            served.end();
        }
    }

    /// Tells it why the server ends.
    pub fn say(&self, head: &Head, payload: &[u8]) {
        self.links.lock().iter().for_each(|link| link.send(head, payload));
    }

    /// The number of requests that are being executed, without those that wait for a lock.
    pub fn running(&self) -> usize {
        self.table.lock().slots.running()
    }

    /// How many inodes it holds.
    pub fn held(&self) -> usize {
        self.fs.held()
    }
}

impl Table {
    fn place(&mut self, slot: u16) -> Option<&mut Place> {
        let at = self.slots.place(slot)?;
        self.places.get_mut(at)
    }
}

fn message(code: i32, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.iter().map(|part| part.len()).sum();
    let mut message = out_header(body, code, 0).to_vec();
    parts.iter().for_each(|part| message.extend_from_slice(part));
    message
}

/// Takes the reply to one request.
struct Replying {
    guest: Arc<Guest>,
    slot: u16,
    seq: u64,
}

impl Sink for Replying {
    fn reply(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        let header: [u8; OUT_HEADER] = out_header(body.len(), error, unique);
        self.guest.reply(self.slot, self.seq, &header, body);
        Ok(())
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.guest.notify_before(self.slot, &message(code, parts));
        Ok(())
    }
}

/// Takes notifications that belong to no request.
struct Notifying(std::sync::Weak<Guest>);

impl Sink for Notifying {
    fn reply(&self, _: u64, _: i32, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        let guest = self.0.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        guest.notify(message(code, parts))
    }
}

#[cfg(test)]
mod tests;
