//! The serving end of a connection: reads requests, answers small ones at once, and sends bodies in slices,
//! in turns.
//!
//! ```text
//!   requests ──► small: into `out`, many answers in one write
//!           │        └── lists and fills: by other threads, into `finished`
//!           └──► bodies: header with MSG_MORE, then sendfile; slices of up to 1 MiB, four requests in turns
//! ```
//!
//! One thread serves all control connections, so nothing on it waits for a disk. Bodies belong on bulk
//! connections, which have their own threads.
//!
//! Short and long replies alternate: one that a single slice ends, then one that needs more. So a part of a
//! blob that a program waits for does not queue behind whole blobs, nor a blob behind all parts.
//!
//! A body that is still arriving is sent as far as it is verified, and its bell signals new bytes. While
//! answers wait for space in the socket, no requests are taken. So a client that does not read costs one
//! buffer.

mod shared;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::BlobId;
use base::size::SEGMENT;
use fetch::Bell;
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::sync::Notify;

use super::backlog::BacklogShare;
use super::clients::ClientConnection;
use super::finished::Finished;
use super::flows::Flow;
use super::job::Job;
use super::link::Link;
use super::outbox::Outbox;
use super::service::{Content, Filled, Service, Unfilled};
use super::slice::{Slice, slice_end};
use super::{Shared, suspicions};
use crate::frame::{self, ErrorKind, Get, HEADER, Header, ListAsk, Texted, Type};
use crate::frame::{PART, WITH_SUMS};
use crate::hello::{Class, Other};
use crate::id::NodeId;
use crate::message::Ask;

/// How many bodies take turns on one connection. Later ones follow. Bodies that wait for their own bytes do
/// not count.
const TURNS: usize = 4;
/// The least amount of an arriving blob that is passed on at a time.
const PIECE: u32 = 128 << 10;
/// While this much waits to be sent, no requests are taken.
const OUT_MAX: usize = 256 << 10;
/// After this many reads, other connections get their turn.
const TURN: usize = 4;
/// While helper threads work on this many lists and fills of one node, no requests are taken.
const SLOW_MAX: usize = 32;

pub(super) struct Serving {
    pub(super) shared: Arc<Shared>,
    pub(super) stream: Link,
    pub(super) other: Other,
    connection: ClientConnection,
    /// Of the node that asks.
    flow: Arc<Flow>,
    input: Vec<u8>,
    filled: usize,
    /// Whether `input` holds requests for whose answers there was no space.
    stopped: bool,
    out: Outbox,
    jobs: VecDeque<Job>,
    /// The last turn was that of an answer of several slices.
    long_went: bool,
    bell: Arc<Doorbell>,
    finished: Arc<Mutex<Finished>>,
    heard: Instant,
}

/// Wakes the loop of a connection: there is something to send.
#[derive(Default)]
struct Doorbell(Notify);

impl Bell for Doorbell {
    fn ring(&self) {
        self.0.notify_one();
    }
}

/// The progress of sending.
#[derive(PartialEq, Eq)]
enum Sent {
    More,
    Blocked,
    Nothing,
}

fn bad(error: frame::BadFrame) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl Serving {
    pub(super) fn new(shared: Arc<Shared>, stream: Link, other: Other) -> Serving {
        let connection = shared.clients.enter(other.node, shared.limits.connections_each);
        let flow = shared.flows.of(Some(other.node));
        Serving {
            shared,
            stream,
            other,
            connection,
            flow,
            input: vec![0; 18 << 10],
            filled: 0,
            stopped: false,
            out: Outbox::default(),
            jobs: VecDeque::new(),
            long_went: false,
            bell: Arc::default(),
            finished: Arc::default(),
            heard: base::time::monotonic(),
        }
    }

    /// Serves until the connection ends.
    pub(super) async fn run(mut self) -> io::Result<()> {
        let limits = self.shared.limits;
        let idle = limits.control_idle.max(limits.bulk_idle) + 2 * limits.quiet;
        loop {
            let finished = self.finished.lock().take();
            self.out.end().extend_from_slice(&finished.frames);
            drop(finished);
            let more = self.has_room() && self.pull()?;
            let sent = self.push()?;
            if sent == Sent::More || (more || self.stopped) && self.has_room() {
                tokio::task::yield_now().await;
                continue;
            }
            let reads = self.has_room().then_some(Interest::READABLE);
            let interest = match (reads, sent == Sent::Blocked) {
                (Some(reads), true) => Some(reads | Interest::WRITABLE),
                (None, true) => Some(Interest::WRITABLE),
                (reads, false) => reads,
            };
            tokio::select! {
                ready = self.stream.ready(interest.unwrap_or(Interest::READABLE)), if interest.is_some() => { ready?; }
                () = self.bell.0.notified() => {}
                () = self.connection.leave.notified() => return Ok(()),
                () = tokio::time::sleep(Duration::from_secs(1)) => {
                    if self.heard.elapsed() > idle && self.jobs.is_empty() {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        // The work of helpers counts for all connections of the node, because all nodes share the helpers.
        self.out.len() < OUT_MAX && self.connection.client.slow() < SLOW_MAX
    }

    /// Takes requests as long as there are some, there is space for their answers, and it is not another
    /// connection's turn. True: there may be more.
    fn pull(&mut self) -> io::Result<bool> {
        for _ in 0..TURN {
            // Moved out while its requests are answered.
            let mut input = std::mem::take(&mut self.input);
            let taken = self.take_all(&input[..self.filled], input.len());
            if let Ok(start) = taken {
                input.copy_within(start..self.filled, 0);
                self.filled -= start;
            }
            self.input = input;
            taken?;
            if !self.has_room() {
                return Ok(false);
            }
            match self.stream.try_read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => self.filled += got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            self.heard = base::time::monotonic();
        }
        Ok(true)
    }

    /// Takes the complete requests for whose answers there is space. Returns how many bytes they take. `room`
    /// is the limit for a request with its payload.
    fn take_all(&mut self, input: &[u8], room: usize) -> io::Result<usize> {
        let mut start = 0;
        self.stopped = false;
        while let Some(head) = input[start..].first_chunk::<HEADER>() {
            let header = Header::decode(head).map_err(bad)?;
            let end = start + HEADER + header.length as usize;
            if header.length as usize > room - HEADER {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a request is too long"));
            }
            let Some(payload) = input.get(start + HEADER..end) else { break };
            // One buffer of requests can cause a thousand times as many bytes of answers.
            if !self.has_room() {
                self.stopped = true;
                break;
            }
            header.check(payload).map_err(bad)?;
            self.take(&header, payload)?;
            start = end;
        }
        Ok(start)
    }

    fn answer(&mut self, kind: Type, request: u32, payload: &[u8]) {
        let backlog = self.shared.backlog();
        let out = self.out.end();
        out.extend_from_slice(&Header { backlog, ..Header::with(kind, request, payload) }.encode());
        out.extend_from_slice(payload);
    }

    fn error(&mut self, request: u32, kind: ErrorKind, text: &str) {
        self.answer(Type::Error, request, &Texted { kind, text: text.to_owned() }.encode());
    }

    fn take(&mut self, header: &Header, payload: &[u8]) -> io::Result<()> {
        let (request, from) = (header.request, self.other.node);
        let is_for_looking =
            matches!(header.kind, Type::Members | Type::Cancel | Type::Ping | Type::Pong | Type::Bye);
        if self.other.class == Class::Look && !is_for_looking {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "this connection may only ask for the members",
            ));
        }
        super::Counters::one(&self.shared.counters.served);
        match header.kind {
            Type::Ask => {
                let part = header.flags & PART != 0;
                let ask = frame::decode_ask(payload).map_err(bad)?;
                let answers = self.shared.service.ask(from, Ask { part, ..ask });
                self.answer(Type::Answers, request, &frame::encode_answers(&answers));
            }
            Type::Notes => {
                self.shared.service.notes(from, frame::decode_notes(payload).map_err(bad)?);
                self.answer(Type::Done, request, &[]);
            }
            Type::List => {
                let ask = ListAsk::decode(payload).map_err(bad)?;
                self.list(request, ask);
            }
            Type::Pack | Type::Recall | Type::Lend | Type::Returned | Type::Keep => {
                self.take_shared(header, payload)?;
            }
            Type::Fill => self.fill(request, payload)?,
            Type::Members => {
                let after = <[u8; 16]>::try_from(payload)
                    .map_err(|_| bad(frame::BadFrame::Payload("a node's name has 16 bytes")))?;
                let roll = self.shared.service.members(NodeId(after), frame::ROLL_MAX);
                self.answer(Type::Roll, request, &frame::encode_roll(&roll));
            }
            Type::Get => self.get(header, Get::decode(payload).map_err(bad)?),
            Type::Cancel => self.cancel(request),
            Type::Suspect => {
                let mut id = BlobId([0; 32]);
                if payload.len() == 32 {
                    id.0.copy_from_slice(payload);
                    let client = &self.connection.client;
                    if client.is_wrong_too_often() {
                        let why = "it suspects blobs that are sound, again and again";
                        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                    }
                    suspicions::suspect(&self.shared, id, Some(client));
                }
            }
            Type::Ping => self.answer(Type::Pong, request, &[]),
            Type::Pong => {}
            Type::Bye => return Err(io::ErrorKind::ConnectionAborted.into()),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "that is no request")),
        }
        Ok(())
    }

    /// Ends a request: at once, or after the slice that is being sent.
    fn cancel(&mut self, request: u32) {
        self.jobs.retain_mut(|job| {
            if let Some(slice) = job.slice.as_ref().filter(|_| job.request == request) {
                job.get.len = slice.end - job.get.offset;
            }
            job.request != request || job.slice.is_some()
        });
    }

    /// Lists blobs here. A helper thread does it, because it may take long.
    fn list(&mut self, request: u32, ask: ListAsk) {
        let (finished, bell) = (Arc::clone(&self.finished), Arc::clone(&self.bell));
        let service = Arc::clone(&self.shared.service);
        let work = self.connection.slow_work();
        tokio::task::spawn_blocking(move || {
            let most = usize::from(ask.most).min(frame::LIST_MAX);
            let listed = frame::encode_listed(&service.list(ask.prefix, most));
            finished.lock().end(work, |frames| frame::put(frames, Type::Listed, request, &listed));
            bell.ring();
        });
    }

    /// Answers a request on a helper thread, because the answer may take long.
    fn answer_slowly(
        &mut self,
        request: u32,
        kind: Type,
        work: impl FnOnce(&dyn Service) -> Result<Vec<u8>, String> + Send + 'static,
    ) {
        let (finished, bell) = (Arc::clone(&self.finished), Arc::clone(&self.bell));
        let service = Arc::clone(&self.shared.service);
        let counted = self.connection.slow_work();
        tokio::task::spawn_blocking(move || {
            let done = work(&*service);
            finished.lock().end(counted, |frames| match done {
                Ok(payload) => frame::put(frames, kind, request, &payload),
                Err(text) => {
                    let payload = Texted { kind: ErrorKind::Failed, text }.encode();
                    frame::put(frames, Type::Error, request, &payload);
                }
            });
            bell.ring();
        });
    }

    /// Fetches a blob. The answer is sent when that has ended.
    fn fill(&mut self, request: u32, payload: &[u8]) -> io::Result<()> {
        let id = <[u8; 32]>::try_from(payload)
            .map_err(|_| bad(frame::BadFrame::Payload("a blob's name has 32 bytes")))?;
        let (finished, bell) = (Arc::clone(&self.finished), Arc::clone(&self.bell));
        // Even if it is refused at once: refusals that are not read take memory as well.
        let work = self.connection.slow_work();
        let then = move |end: Result<Filled, Unfilled>| {
            finished.lock().end(work, |frames| match end {
                Ok(filled) => frame::put(frames, Type::Filled, request, &[filled as u8]),
                Err(why) => {
                    let kind = match why {
                        Unfilled::Busy => ErrorKind::Busy,
                        Unfilled::NoDepot | Unfilled::Failed(_) => ErrorKind::Failed,
                    };
                    let payload = Texted { kind, text: why.to_string() }.encode();
                    frame::put(frames, Type::Error, request, &payload);
                }
            });
            bell.ring();
        };
        self.shared.service.fill(&BlobId(id), Box::new(then));
        Ok(())
    }

    fn get(&mut self, header: &Header, get: Get) {
        let (request, sums) = (header.request, header.flags & WITH_SUMS != 0);
        if self.other.class == Class::Control {
            return self.error(request, ErrorKind::Bad, "bytes of blobs belong on a bulk connection");
        }
        if self.jobs.len() >= self.shared.limits.requests {
            return self.error(request, ErrorKind::Busy, "too many requests on this connection");
        }
        let limits = &self.shared.limits;
        let promised = self.shared.clients.body(&self.connection.client, limits.bodies, limits.bodies_each);
        let Some(promised) = promised else {
            return self.error(request, ErrorKind::Busy, "too many bodies are to be sent");
        };
        let Some(content) = self.shared.service.content(&get.blob) else {
            return self.error(request, ErrorKind::Missing, "the blob is not here");
        };
        if let Content::Arriving(arriving) = &content {
            arriving.ring(&self.bell);
        }
        let share = BacklogShare::new(&self.shared.backlog);
        let mut job = Job {
            request,
            blob: get.blob,
            content,
            at: get.offset,
            get,
            sums,
            slice: None,
            share,
            _promised: promised,
        };
        job.update_share();
        self.jobs.push_back(job);
    }

    /// The bytes here are damaged.
    fn damaged(&self, blob: &BlobId) {
        suspicions::suspect(&self.shared, *blob, None);
    }

    /// Sends what can be sent now: small frames, then one slice.
    fn push(&mut self) -> io::Result<Sent> {
        let middle = self.jobs.front().is_some_and(|job| job.slice.is_some());
        if !middle && !self.push_small()? {
            return Ok(Sent::Blocked);
        }
        // Bodies whose bytes have not arrived keep their place and get no turn. Otherwise four waiting ones
        // would block what is here, and nodes that pass blobs on to one another would wait in a circle.
        let all = 0..self.jobs.len();
        let mut others: Vec<usize> = Vec::new();
        if !middle {
            others.extend(all.clone().filter(|at| self.jobs[*at].is_short() == self.long_went));
        }
        for at in others.into_iter().chain(all) {
            let Some(mut job) = self.jobs.remove(at) else { break };
            let step = self.advance(&mut job);
            if matches!(step, Ok(Step::Sliced | Step::Ended)) {
                self.long_went = !job.is_short();
            }
            match step {
                Ok(Step::Sliced) => {
                    // The next one's turn. Those past the first four stay behind.
                    let behind = self.jobs.len().min(at + TURNS - 1);
                    self.jobs.insert(behind, job);
                    return Ok(Sent::More);
                }
                Ok(Step::Ended) => return Ok(Sent::More),
                Ok(Step::Waits) => self.jobs.insert(at, job),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // To the front, where an unfinished slice is looked for.
                    self.jobs.push_front(job);
                    return Ok(Sent::Blocked);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(if self.push_small()? { Sent::Nothing } else { Sent::Blocked })
    }

    /// Sends small frames. True: none is left.
    fn push_small(&mut self) -> io::Result<bool> {
        while !self.out.is_empty() {
            match self.out.send(&self.stream) {
                Ok(sent) => {
                    super::Counters::one(&self.shared.counters.writes);
                    super::Counters::add(&self.shared.counters.bytes_out, sent as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.stream.is_flushed()
    }

    /// Continues a body: finishes its slice, or begins a new one.
    fn advance(&mut self, job: &mut Job) -> io::Result<Step> {
        if job.slice.is_none() {
            let (sums, ready) = match &job.content {
                Content::Held(held) => (Some(&held.sums), held.sums.size()),
                Content::Arriving(arriving) => (arriving.sums(), arriving.verified()),
            };
            let (failed, doubtful) = match &job.content {
                Content::Held(_) => (false, false),
                Content::Arriving(arriving) => (arriving.failed().is_some(), arriving.is_doubtful()),
            };
            if doubtful {
                return Ok(self.wait_or_end(job, true));
            }
            let Some(sums) = sums.cloned() else {
                return Ok(self.wait_or_end(job, failed));
            };
            let Some(end) = job.end() else {
                self.error(job.request, ErrorKind::Range, "the range is not in the blob");
                return Ok(Step::Ended);
            };
            job.update_share();
            if std::mem::take(&mut job.sums) {
                job.get.len = end - job.get.offset;
                // The sums alone already help the other end.
                frame::put(self.out.end(), Type::Sums, job.request, &sums.encode());
                return Ok(Step::Sliced);
            }
            let stop = slice_end(job.at, end);
            // What is passed on goes in small pieces. Each node on its way waits for one, and a slice of a
            // blob that shares a link with a dozen others takes seconds.
            let some = ready - ready % SEGMENT;
            let stop = if ready < stop && some >= job.at.saturating_add(PIECE) { some } else { stop };
            if ready < stop {
                return Ok(self.wait_or_end(job, failed));
            }
            // Small frames must be complete first: a slice must not begin in the middle of one.
            if !self.push_small()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let slice =
                Slice::begin(&self.shared, job.request, &job.content, &sums, job.at..stop, stop == end);
            match slice {
                Ok(slice) => job.slice = Some(slice),
                Err(_) => {
                    self.damaged(&job.blob);
                    self.error(job.request, ErrorKind::Damaged, "its bytes are not what they were");
                    return Ok(Step::Ended);
                }
            }
        }
        self.send_slice(job)
    }

    fn wait_or_end(&mut self, job: &Job, failed: bool) -> Step {
        if failed {
            self.error(job.request, ErrorKind::Missing, "it did not arrive here either");
            return Step::Ended;
        }
        Step::Waits
    }

    fn send_slice(&mut self, job: &mut Job) -> io::Result<Step> {
        let Some(slice) = &mut job.slice else { return Ok(Step::Sliced) };
        while slice.sent < slice.head.len() {
            let rest = &slice.head[slice.sent..];
            let last = slice.from == slice.end;
            slice.sent += if last { self.stream.try_write(rest)? } else { self.stream.send_more(rest)? };
        }
        while slice.from < slice.end {
            let left = (slice.end - slice.from) as usize;
            let sent = match &job.content {
                Content::Held(held) => {
                    let at = held.offset + u64::from(slice.from);
                    self.stream.send_file(&held.file, at, left)?
                }
                Content::Arriving(arriving) => {
                    self.stream.try_write(arriving.bytes(slice.from..slice.end).unwrap_or(&[]))?
                }
            };
            if sent == 0 {
                self.damaged(&job.blob);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a blob's file is cut short"));
            }
            slice.from += sent as u32;
        }
        let counters = &self.shared.counters;
        super::Counters::add(&counters.blob_bytes_out, u64::from(slice.end - job.at));
        self.flow.add_sent(u64::from(slice.end - job.at));
        super::Counters::add(&counters.bytes_out, u64::from(slice.end - job.at) + HEADER as u64);
        self.stream.count_sent(slice.end - job.at);
        job.at = slice.end;
        job.slice = None;
        job.update_share();
        Ok(if job.end().is_none_or(|end| job.at >= end) { Step::Ended } else { Step::Sliced })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let finished = self.finished.lock().close();
        drop(finished);
    }
}

enum Step {
    /// A slice was sent, and more follow.
    Sliced,
    /// The bytes of the answer have not arrived here yet.
    Waits,
    Ended,
}
