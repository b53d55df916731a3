//! A VMM and a guest's driver in one: memory in a file, rings in it, and requests of the FUSE protocol.
//!
//! ```text
//!   0x1000 + queue * 0x4000     descriptors 0x400 | available ring 0x1000 | used ring 0x2000
//!   0x100000 + head * 0x40000   a request, and 0x20000 later the room for its reply
//! ```

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemory, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

/// Descriptors of a queue.
pub const SIZE: u16 = 64;
/// Bytes of the guest's memory.
pub const MEMORY: u64 = 32 << 20;
/// Bytes of a request, and of the room for its reply.
const PART: u64 = 0x20000;
/// Where the VMM has the memory: it differs from the guest's address.
const VMM_AT: u64 = 0x7f00_0000_0000;

/// Flags of a descriptor.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

const EVENT_IDX: u64 = 1 << 29;
const PROTOCOL: u64 = 1 << 30;

/// One descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub at: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// One queue, as the driver knows it.
struct Queue {
    kick: EventFd,
    call: EventFd,
    /// Chains made available so far.
    available: u16,
    /// Used chains seen so far.
    seen: u16,
    /// The next head.
    head: u16,
}

/// See the [module](self).
pub struct Vmm {
    frontend: Frontend,
    pub memory: GuestMemoryMmap<()>,
    queues: Vec<Queue>,
    unique: u64,
}

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub unique: u64,
    pub error: i32,
    pub body: Vec<u8>,
}

/// A request of the kernel's.
pub fn message(opcode: u32, unique: u64, ino: u64, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[..4].copy_from_slice(&((40 + arguments.len()) as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    bytes[16..24].copy_from_slice(&ino.to_ne_bytes());
    bytes.extend(arguments);
    bytes
}

impl Vmm {
    /// Connects, gives the memory, and starts this many queues.
    pub fn try_connect(path: &Path, queues: usize) -> io::Result<Vmm> {
        let wrong = |error: vhost::Error| io::Error::other(format!("{error:?}"));
        let file: File = tempfile::tempfile()?;
        file.set_len(MEMORY)?;
        let ranges = [(GuestAddress(0), MEMORY as usize, Some(FileOffset::new(file, 0)))];
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).unwrap();
        let mut frontend =
            Frontend::connect(path, 8).map_err(|error| io::Error::other(format!("{error:?}")))?;
        frontend.set_owner().map_err(wrong)?;
        let features = frontend.get_features().map_err(wrong)?;
        assert!(features & EVENT_IDX != 0 && features & PROTOCOL != 0);
        frontend.set_features(features).map_err(wrong)?;
        let offered = frontend.get_protocol_features().map_err(wrong)?;
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG;
        frontend.set_protocol_features(offered & wanted).map_err(wrong)?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert!(frontend.get_queue_num().map_err(wrong)? >= queues as u64);
        let mut vmm = Vmm { frontend, memory, queues: Vec::new(), unique: 1 };
        vmm.share_memory().map_err(wrong)?;
        for _ in 0..queues {
            let (kick, call) = (EventFd::new(libc::EFD_NONBLOCK)?, EventFd::new(libc::EFD_NONBLOCK)?);
            vmm.queues.push(Queue { kick, call, available: 0, seen: 0, head: 0 });
        }
        (0..queues).try_for_each(|queue| vmm.start(queue, 0)).map_err(wrong)?;
        Ok(vmm)
    }

    pub fn connect(path: &Path, queues: usize) -> Vmm {
        Vmm::try_connect(path, queues).unwrap()
    }

    /// One that has mounted.
    pub fn mounted(path: &Path, queues: usize) -> Vmm {
        let mut vmm = Vmm::connect(path, queues);
        vmm.init();
        vmm
    }

    fn share_memory(&self) -> vhost::Result<()> {
        let region = self.memory.iter().next().unwrap();
        let info = VhostUserMemoryRegionInfo::from_guest_region(region)?;
        self.frontend.set_mem_table(&[VhostUserMemoryRegionInfo { userspace_addr: VMM_AT, ..info }])
    }

    fn rings(queue: usize) -> u64 {
        0x1000 + 0x4000 * queue as u64
    }

    /// Starts a queue at a position.
    pub fn start(&mut self, queue: usize, base: u16) -> vhost::Result<()> {
        let at = VMM_AT + Vmm::rings(queue);
        self.start_at(queue, base, [at, at + 0x1000, at + 0x2000])
    }

    /// The same with other addresses: descriptors, available ring, used ring.
    pub fn start_at(
        &mut self,
        queue: usize,
        base: u16,
        [table, available, used]: [u64; 3],
    ) -> vhost::Result<()> {
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: table,
            used_ring_addr: used,
            avail_ring_addr: available,
            log_addr: None,
        };
        self.frontend.set_vring_num(queue, SIZE)?;
        self.frontend.set_vring_base(queue, base)?;
        self.frontend.set_vring_addr(queue, &config)?;
        self.frontend.set_vring_call(queue, &self.queues[queue].call)?;
        self.frontend.set_vring_kick(queue, &self.queues[queue].kick)?;
        self.frontend.set_vring_enable(queue, true)
    }

    /// Stops a queue, and returns its position.
    pub fn stop(&mut self, queue: usize) -> u32 {
        self.frontend.get_vring_base(queue).unwrap()
    }

    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    /// Where a request with this head is, and where its reply goes.
    pub fn places(head: u16) -> [u64; 2] {
        let at = 0x10_0000 + u64::from(head) * 2 * PART;
        [at, at + PART]
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    pub fn describe(&self, queue: usize, index: u16, descriptor: Descriptor) {
        self.put(Vmm::rings(queue) + 16 * u64::from(index), &descriptor.bytes());
    }

    /// Makes a chain available, without a kick.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let available = Vmm::rings(queue) + 0x1000;
        let place = u64::from(self.queues[queue].available % SIZE);
        self.put(available + 4 + 2 * place, &head.to_le_bytes());
        let next = self.queues[queue].available.wrapping_add(1);
        self.queues[queue].available = next;
        self.memory.store(next, GuestAddress(available + 2), Ordering::Release).unwrap();
    }

    /// Says that this many chains are available.
    pub fn claim(&mut self, queue: usize, available: u16) {
        let at = GuestAddress(Vmm::rings(queue) + 0x1002);
        self.memory.store(available, at, Ordering::Release).unwrap();
    }

    /// How many of the chains that were made available the server has not taken yet. It says how far it is
    /// when it asks for the next kick.
    pub fn untaken(&self, queue: usize) -> u16 {
        let event = GuestAddress(Vmm::rings(queue) + 0x2004 + 8 * u64::from(SIZE));
        let taken: u16 = self.memory.load(event, Ordering::SeqCst).unwrap();
        self.queues[queue].available.wrapping_sub(taken)
    }

    pub fn kick(&self, queue: usize) {
        self.queues[queue].kick.write(1).unwrap();
    }

    /// Offers a request in these pieces, with room for a reply in these pieces. Returns its head.
    pub fn send_pieces(&mut self, queue: usize, request: &[u8], pieces: &[usize], rooms: &[usize]) -> u16 {
        let total = pieces.len() + rooms.len();
        let head = self.queues[queue].head;
        let head = if usize::from(head) + total > SIZE.into() { 0 } else { head };
        self.queues[queue].head = head + total as u16;
        let [mut at, mut room_at] = Vmm::places(head);
        self.put(at, request);
        for (index, (len, write)) in
            pieces.iter().map(|len| (*len, false)).chain(rooms.iter().map(|len| (*len, true))).enumerate()
        {
            let place = if write { &mut room_at } else { &mut at };
            let last = index + 1 == total;
            let flags = if write { WRITE } else { 0 } | if last { 0 } else { NEXT };
            let index = head + index as u16;
            self.describe(queue, index, Descriptor { at: *place, len: len as u32, flags, next: index + 1 });
            *place += len as u64;
        }
        self.offer(queue, head);
        self.kick(queue);
        head
    }

    /// The same in one piece each.
    pub fn send(&mut self, queue: usize, request: &[u8], room: usize) -> u16 {
        let rooms: &[usize] = if room == 0 { &[] } else { &[room] };
        self.send_pieces(queue, request, &[request.len()], rooms)
    }

    /// Waits for the next used chain: its head and length.
    pub fn used(&mut self, queue: usize, patience: Duration) -> Option<(u16, u32)> {
        let (end, used) = (Instant::now() + patience, Vmm::rings(queue) + 0x2000);
        // Be notified of the next one.
        let seen = self.queues[queue].seen;
        let event = GuestAddress(Vmm::rings(queue) + 0x1004 + 2 * u64::from(SIZE));
        self.memory.store(seen, event, Ordering::SeqCst).unwrap();
        loop {
            let index: u16 = self.memory.load(GuestAddress(used + 2), Ordering::SeqCst).unwrap();
            if index != seen {
                break;
            }
            if Instant::now() > end {
                return None;
            }
            if self.queues[queue].call.read().is_err() {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        let element = self.get(used + 4 + 8 * u64::from(seen % SIZE), 8);
        self.queues[queue].seen = seen.wrapping_add(1);
        let number = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().unwrap());
        Some((number(0) as u16, number(4)))
    }

    /// The reply in the room of this head.
    pub fn reply(&self, head: u16, len: u32) -> Reply {
        let bytes = self.get(Vmm::places(head)[1], len as usize);
        let said = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
        assert_eq!(said, len, "the header says another length than the ring");
        Reply {
            unique: u64::from_ne_bytes(bytes[8..16].try_into().unwrap()),
            error: i32::from_ne_bytes(bytes[4..8].try_into().unwrap()),
            body: bytes[16..].to_vec(),
        }
    }

    pub fn next_unique(&mut self) -> u64 {
        self.unique += 2;
        self.unique
    }

    /// One request and its reply.
    pub fn ask(&mut self, queue: usize, opcode: u32, ino: u64, arguments: &[u8], room: usize) -> Reply {
        let unique = self.next_unique();
        let sent = self.send(queue, &message(opcode, unique, ino, arguments), 16 + room);
        let (head, len) = self.used(queue, super::world::PATIENCE).expect("no reply");
        assert_eq!(head, sent);
        let reply = self.reply(head, len);
        assert_eq!(reply.unique, unique);
        reply
    }

    /// Mounts.
    pub fn init(&mut self) {
        let mut arguments = Vec::new();
        let flags: u64 = !(1 << 41);
        for number in [7, 40, 1 << 20, flags as u32, (flags >> 32) as u32] {
            arguments.extend(number.to_ne_bytes());
        }
        arguments.resize(64, 0);
        let reply = self.ask(1, 26, 0, &arguments, 64);
        assert_eq!((reply.error, reply.body.len()), (0, 64));
    }

    /// Attributes of the root: whether the guest is served.
    pub fn is_served(&mut self) -> bool {
        self.ask(1, 3, 1, &[0; 16], 104).error == 0
    }
}
