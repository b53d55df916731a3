//! The loop that reads the requesting end: small frames from a buffer, bytes of blobs straight into their
//! place.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blob::Sums;
use blob::sums::crc32c;

use super::Limits;
use super::call::Reply;
use super::counters::Counters;
use super::fail::Fail;
use super::lane::{Lane, READ, Sink};
use super::link::Link;
use super::window::ReceiveWindow;
use crate::frame::{self, ErrorKind, HEADER, Header, LAST, Texted, Type};
use crate::hello::Class;
use fetch::arriving::Took;

/// The low-water mark: while a body arrives, the receiver is woken only when this much is there.
const LOW_WATER: u32 = 512 << 10;
/// The low-water mark in the middle of a blob, if this amount takes only a moment. A reader may be waiting
/// for a blob's beginning.
const HIGH_WATER: u32 = 2 * LOW_WATER;
/// The high mark begins when [`LOW_WATER`] bytes take less than this on one connection. It ends at twice the
/// time.
const MOMENT: Duration = Duration::from_millis(10);
/// After this long without a byte the mark does not apply.
const STILL: Duration = Duration::from_millis(100);
/// How often the requests' deadlines are checked.
const TICK: Duration = Duration::from_millis(20);
/// After this many reads, other connections get their turn.
const TURN: usize = 16;

/// A body that is arriving.
struct Body {
    header: Header,
    done: u32,
    sink: Option<Sink>,
}

/// How fast bytes arrive on this connection.
#[derive(Default)]
struct Pace {
    since: Option<Instant>,
    bytes: u64,
    quick: bool,
}

impl Pace {
    /// Evaluated when enough has arrived to judge.
    fn is_quick(&mut self, now: Instant) -> bool {
        if self.since.is_none() || self.bytes >= u64::from(LOW_WATER) {
            if let Some(since) = self.since.replace(now) {
                let most = if self.quick { 2 * MOMENT } else { MOMENT }.as_micros();
                let took = now.duration_since(since).as_micros();
                self.quick = took * u128::from(LOW_WATER) < most * u128::from(self.bytes);
            }
            self.bytes = 0;
        }
        self.quick
    }
}

pub(super) struct Reader {
    lane: Arc<Lane>,
    stream: Arc<Link>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    body: Option<Body>,
    mark: u32,
    pace: Pace,
    /// The bound on what is in flight to this node, and the round-trip time when the connection was made.
    window: (Arc<ReceiveWindow>, Duration),
    heard: Instant,
    pinged: bool,
}

fn gone(error: io::Error) -> Fail {
    Fail::Gone(error.to_string())
}

impl Reader {
    pub(super) fn new(lane: Arc<Lane>, stream: Arc<Link>, window: (Arc<ReceiveWindow>, Duration)) -> Reader {
        // Small on bulk connections, where bodies are received elsewhere.
        let size = if lane.class == Class::Bulk { 8 << 10 } else { 2 * READ };
        Reader {
            lane,
            stream,
            buffer: vec![0; size],
            start: 0,
            end: 0,
            body: None,
            mark: 1,
            pace: Pace::default(),
            window,
            heard: base::time::monotonic(),
            pinged: false,
        }
    }

    /// Reads until the connection ends, and says why.
    pub(super) async fn run(mut self, limits: &Limits) -> Fail {
        let idle = if self.lane.class == Class::Bulk { limits.bulk_idle } else { limits.control_idle };
        loop {
            let busy = self.lane.sweep();
            let sent = match self.lane.flush() {
                Ok(sent) => sent,
                Err(error) => return gone(error),
            };
            if self.lane.is_over() || (!busy && self.lane.idle() > idle) {
                self.lane.say(
                    Type::Bye,
                    0,
                    &Texted { kind: ErrorKind::Closing, text: String::new() }.encode(),
                );
                let _ = self.lane.flush();
                return Fail::Gone("it was not used for a while".to_owned());
            }
            if let Err(fail) = self.keep_alive(limits.quiet) {
                return fail;
            }
            self.lower_mark();
            let tick = if busy { TICK } else { limits.quiet.min(idle).min(Duration::from_secs(1)) };
            tokio::select! {
                ready = self.stream.readable() => {
                    Counters::one(&self.lane.counters.wakeups);
                    if let Err(fail) = ready.map_err(gone).and_then(|()| self.pull()) {
                        return fail;
                    }
                }
                () = async { let _ = self.stream.writable().await; }, if !sent => {}
                () = self.lane.wake.notified() => {}
                () = tokio::time::sleep(tick) => {}
            }
        }
    }

    fn keep_alive(&mut self, quiet: Duration) -> Result<(), Fail> {
        let silent = self.heard.elapsed();
        if silent > 2 * quiet && self.pinged {
            return Err(Fail::Gone(format!("nothing was heard for {silent:.1?}")));
        }
        if silent > quiet && !self.pinged {
            self.pinged = true;
            self.lane.say(Type::Ping, 0, &[]);
        }
        Ok(())
    }

    /// Reads what is there.
    fn pull(&mut self) -> Result<(), Fail> {
        for _ in 0..TURN {
            let got = if self.body.is_some() { self.pull_body() } else { self.pull_frames() };
            match got {
                Ok(Ok(())) => {}
                Ok(Err(fail)) => return Err(fail),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.set_mark();
                    return Ok(());
                }
                Err(error) => return Err(gone(error)),
            }
        }
        Ok(())
    }

    /// Sets the mark to no more than what will certainly come: the rest of this one body.
    fn set_mark(&mut self) {
        let left = self.body.as_ref().map_or(1, |body| body.header.length - body.done);
        let first = self.body.as_ref().is_none_or(|body| body.header.offset == 0);
        let most = if self.pace.is_quick(self.heard) && !first { HIGH_WATER } else { LOW_WATER };
        let mark = left.clamp(1, most);
        if mark != self.mark {
            let begins = mark > self.mark;
            self.mark = mark;
            self.stream.set_low_water(mark);
            // Once for each frame, and after the mark, because the kernel may enlarge its buffer for the
            // mark.
            if begins
                && self.lane.class == Class::Bulk
                && let Some(bytes) = self.window.0.bytes(self.window.1)
            {
                self.stream.set_window(bytes);
            }
        }
    }

    /// Called when nothing has arrived for a while. The bytes below the mark may fill the kernel's buffer,
    /// and then the sender waits until they are read.
    fn lower_mark(&mut self) {
        if self.mark > 1 && self.heard.elapsed() > STILL {
            self.mark = 1;
            self.stream.set_low_water(1);
        }
    }

    fn count(&mut self, bytes: usize) {
        self.heard = base::time::monotonic();
        self.pinged = false;
        self.pace.bytes += bytes as u64;
        Counters::add(&self.lane.counters.bytes_in, bytes as u64);
    }

    fn pull_frames(&mut self) -> io::Result<Result<(), Fail>> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match self.stream.try_read(&mut self.buffer[self.end..])? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other end closed it")),
            got => {
                self.end += got;
                self.count(got);
            }
        }
        Ok(self.parse())
    }

    /// Takes the complete frames in the buffer.
    fn parse(&mut self) -> Result<(), Fail> {
        let protocol = |error: frame::BadFrame| Fail::Protocol(error.to_string());
        while let Some(head) = self.buffer[self.start..self.end].first_chunk::<HEADER>() {
            let header = Header::decode(head).map_err(protocol)?;
            let body = self.start + HEADER;
            if header.kind == Type::Data {
                let sink = self.lane.sink(header.request);
                let asked = sink.is_some() || self.lane.has_asked(header.request);
                if self.lane.class != Class::Bulk || !asked {
                    return Err(Fail::Protocol("bytes came that were not asked for".to_owned()));
                }
                self.start = body;
                self.body = Some(Body { header, done: 0, sink });
                self.begin_body();
                Counters::one(&self.lane.counters.frames_in);
                if self.body.is_some() {
                    return Ok(());
                }
                continue;
            }
            let end = body + header.length as usize;
            if end > self.buffer.len() && end - self.start > self.buffer.len() {
                return Err(Fail::Protocol("a frame is too long for this connection".to_owned()));
            }
            if end > self.end {
                return Ok(());
            }
            let payload = &self.buffer[body..end];
            header.check(payload).map_err(protocol)?;
            Counters::one(&self.lane.counters.frames_in);
            take(&self.lane, &header, payload)?;
            self.start = end;
        }
        Ok(())
    }

    /// Takes the part of a body that is already in the buffer.
    fn begin_body(&mut self) {
        if let Some(Body { header, sink: Some(Sink::Groups(gather)), .. }) = &self.body {
            let mut gather = gather.lock();
            let fits = gather.from as usize + gather.bytes.len() == header.offset as usize;
            let most = gather.len as usize + 2 * base::size::GROUP as usize;
            if !fits || gather.bytes.len() + header.length as usize > most {
                drop(gather);
                let (request, why) = (header.request, "bytes came for another place".to_owned());
                self.lane.end_one(request, Err(Fail::Protocol(why)));
                self.discard();
            } else {
                gather.bytes.reserve(header.length as usize);
            }
        }
        loop {
            let Some(body) = &self.body else { return };
            let here = (self.end - self.start).min((body.header.length - body.done) as usize);
            if here == 0 {
                self.end_of_body();
                return;
            }
            let from = self.start;
            let part = self.buffer[from..from + here].to_vec();
            let taken = self.put(|room| {
                let count = part.len().min(room.len());
                room[..count].write_copy_of_slice(&part[..count]);
                Ok(count)
            });
            let taken = taken.unwrap_or(0).min(here);
            self.received(taken as u64);
            self.start += taken;
        }
    }

    /// Counts bytes of blobs.
    fn received(&self, bytes: u64) {
        Counters::add(&self.lane.counters.blob_bytes_in, bytes);
        self.lane.flow.add_received(bytes);
    }

    fn discard(&mut self) {
        if let Some(body) = &mut self.body {
            body.sink = None;
        }
    }

    /// Lets `read` write the next bytes of the body into their place.
    fn put(&mut self, read: impl FnOnce(&mut [MaybeUninit<u8>]) -> io::Result<usize>) -> io::Result<usize> {
        let Some(body) = &mut self.body else { return Ok(0) };
        let left = (body.header.length - body.done) as usize;
        let mut scratch = [MaybeUninit::<u8>::uninit(); 32 << 10];
        let mut wrong = None;
        let got = match &body.sink {
            Some(Sink::Blob(arriving, _)) => {
                let from = body.header.offset + body.done;
                let (mut read, mut came) = (Some(read), 0);
                let call = |room: &mut [MaybeUninit<u8>]| {
                    came = read.take().map_or(Ok(0), |read| read(room))?;
                    Ok(came)
                };
                match arriving.receive(from, left, call)? {
                    Ok(Took::Bytes(got)) => got,
                    Ok(Took::Skip(here)) => {
                        let most = here.min(left).min(scratch.len());
                        read.take().map_or(Ok(0), |read| read(&mut scratch[..most]))?
                    }
                    Err(fault) => {
                        wrong = Some(Fail::from(fault));
                        came
                    }
                }
            }
            Some(Sink::Groups(gather)) => {
                let mut gather = gather.lock();
                let room = gather.bytes.spare_capacity_mut();
                let most = left.min(room.len());
                let got = read(&mut room[..most])?;
                let len = gather.bytes.len() + got;
                // SAFETY: `read` wrote `got` bytes at the front of the spare capacity.
                unsafe { gather.bytes.set_len(len) };
                got
            }
            _ => {
                let most = left.min(scratch.len());
                read(&mut scratch[..most])?
            }
        };
        if let Some(fail) = wrong {
            let request = body.header.request;
            if let (Fail::Corrupt(_), Some(Sink::Blob(arriving, _))) = (&fail, &body.sink) {
                self.lane.say(Type::Suspect, request, &arriving.id().0);
            }
            self.lane.end_one(request, Err(fail));
            body.sink = None;
        }
        if let Some(Sink::Blob(_, came)) = &body.sink {
            came.fetch_add(got as u64, Ordering::Relaxed);
        }
        body.done += got as u32;
        Ok(got)
    }

    fn pull_body(&mut self) -> io::Result<Result<(), Fail>> {
        let stream = Arc::clone(&self.stream);
        let mut asked = false;
        let got = self.put(|room| {
            asked = !room.is_empty();
            stream.receive(room)
        });
        match got {
            Ok(0) if asked => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other end closed it")),
            Ok(got) => {
                self.count(got);
                self.received(got as u64);
                if self.body.as_ref().is_some_and(|body| body.done == body.header.length) {
                    self.end_of_body();
                }
                Ok(Ok(()))
            }
            Err(error) => Err(error),
        }
    }

    fn end_of_body(&mut self) {
        let Some(body) = self.body.take_if(|body| body.done == body.header.length) else { return };
        let (header, lane) = (body.header, &self.lane);
        let last = header.flags & LAST != 0;
        match body.sink {
            Some(Sink::Blob(arriving, _)) if last => {
                let whole = arriving.is_whole();
                let cut = || Fail::Protocol("the answer ended before the blob".to_owned());
                lane.end_one(header.request, whole.then_some(Reply::Done).ok_or_else(cut));
            }
            Some(Sink::Groups(gather)) => {
                let mut gather = gather.lock();
                let from = gather.bytes.len() - (header.length as usize).min(gather.bytes.len());
                if crc32c(&gather.bytes[from..]) != header.crc {
                    lane.say(Type::Suspect, header.request, &gather.blob.0);
                    lane.end_one(
                        header.request,
                        Err(Fail::Corrupt("the CRC of a range is wrong".to_owned())),
                    );
                } else if last {
                    let done = gather.finish_groups();
                    if matches!(done, Err(Fail::Corrupt(_))) {
                        lane.say(Type::Suspect, header.request, &gather.blob.0);
                    }
                    drop(gather);
                    lane.end_one(header.request, done);
                }
            }
            _ => {}
        }
    }
}

/// Passes a small frame to its waiter.
fn take(lane: &Lane, header: &Header, payload: &[u8]) -> Result<(), Fail> {
    let protocol = |error: frame::BadFrame| Fail::Protocol(error.to_string());
    let reply = match header.kind {
        Type::Answers => frame::decode_answers(payload).map(Reply::Answers).map_err(protocol),
        Type::Listed => frame::decode_listed(payload).map(Reply::Listed).map_err(protocol),
        Type::Filled => frame::decode_filled(payload).map(Reply::Filled).map_err(protocol),
        Type::Roll => frame::decode_roll(payload).map(Reply::Roll).map_err(protocol),
        Type::PackPart => frame::PackPart::decode(payload).map(Reply::Pack).map_err(protocol),
        Type::Kept => frame::decode_kept(payload).map(Reply::Kept).map_err(protocol),
        Type::Loan => frame::LoanPart::decode(payload).map(Reply::Loan).map_err(protocol),
        Type::Done => Ok(Reply::Done),
        Type::Sums => {
            let sums = Sums::decode(payload).map_err(|error| Fail::Corrupt(error.to_string()));
            match (lane.sink(header.request), sums) {
                (_, Err(fail)) => Err(fail),
                (Some(Sink::Blob(arriving, _)), Ok(sums)) => match arriving.begin(sums) {
                    Ok(()) if arriving.is_whole() => Ok(Reply::Done),
                    Ok(()) => return Ok(()),
                    Err(fault) => Err(fault.into()),
                },
                (Some(Sink::Groups(gather)), Ok(sums)) => {
                    let mut gather = gather.lock();
                    if sums.belong_to(&gather.blob) {
                        gather.sums = Some(sums);
                        return Ok(());
                    }
                    Err(Fail::Corrupt("the sums are another blob's".to_owned()))
                }
                _ => return Ok(()),
            }
        }
        Type::Error => {
            let error = Texted::<ErrorKind>::decode(payload).map_err(protocol)?;
            Err(Fail::of(error.kind, &error.text))
        }
        Type::Ping => return lane.pong(),
        Type::Pong => return Ok(()),
        Type::Bye => return Err(Fail::Gone("the other node said goodbye".to_owned())),
        _ => return Err(Fail::Protocol(format!("{:?} is nothing that answers", header.kind))),
    };
    lane.end_one(header.request, reply);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_quick_while_enough_comes_in_a_moment() {
        let (mut pace, mut now) = (Pace::default(), base::time::monotonic());
        assert!(!pace.is_quick(now), "nothing is known");
        let mut after = |bytes: u32, time: Duration| {
            now += time;
            pace.bytes += u64::from(bytes);
            pace.is_quick(now)
        };
        assert!(!after(LOW_WATER, MOMENT));
        assert!(after(LOW_WATER, MOMENT / 2));
        assert!(after(LOW_WATER, MOMENT * 3 / 2), "not so slow that it ends");
        assert!(after(100, 3 * MOMENT), "too little to say");
        assert!(!after(LOW_WATER, Duration::ZERO), "that took three moments");
        assert!(!after(2 * LOW_WATER, 3 * MOMENT));
        assert!(after(2 * LOW_WATER, MOMENT));
    }
}
