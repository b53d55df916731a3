//! The target of virtqueues: what a guest's driver writes into its memory, walked as a device does.
//!
//! ```text
//!   0x1000 descriptors, 16 of them | 0x1100 available ring | 0x1140 used ring | data ... 0x4000
//!   0x5000 data ... 0x6000          (between the two there is no memory)
//! ```
//!
//! The first byte of an input says whether both sides use event indexes, the next two at which position of
//! the ring the device is. The rest is the memory from 0x1000 on. Everything that the device reads and
//! writes is compared with a second reading of the same bytes, which is as plain as possible.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Must;
use virtio::chain::{self, BadChain, Chain};
use virtio::memory::Memory;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress};

/// Where there is memory.
const REGIONS: [(u64, usize); 2] = [(0x1000, 0x3000), (0x5000, 0x1000)];
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x1100;
const USED: u64 = 0x1140;
/// Descriptors of the ring.
const SIZE: u16 = 16;
/// The most bytes of a request that are read here.
const READ: usize = 8192;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// The bytes of all regions, one after the other.
type Image = Vec<u8>;

fn image(memory: &Memory) -> Image {
    let mut bytes = vec![0; REGIONS.iter().map(|(_, len)| len).sum()];
    let mut rest = &mut bytes[..];
    for (start, len) in REGIONS {
        let (now, later) = rest.split_at_mut(len);
        memory.read_slice(now, GuestAddress(start)).must("the region is there");
        rest = later;
    }
    bytes
}

/// Where a range of addresses is in an image. `None`: not, or not whole, in one region.
fn place(at: u64, len: u64) -> Option<std::ops::Range<usize>> {
    let mut before = 0;
    for (start, size) in REGIONS {
        let end = at.checked_add(len)?;
        if at >= start && end <= start + size as u64 {
            let from = before + (at - start) as usize;
            return Some(from..from + len as usize);
        }
        before += size;
    }
    None
}

/// A range of an image, of a descriptor.
type Piece = std::ops::Range<usize>;

/// What the device may read and what it may write, in this order, by the descriptors from `head` on.
fn walk(image: &Image, head: u16) -> Result<[Vec<Piece>; 2], BadChain> {
    let (mut table, mut size, mut at, mut indirect) = (DESCRIPTORS, u32::from(SIZE), u32::from(head), false);
    let (mut pieces, mut bytes, mut left) = ([Vec::new(), Vec::new()], 0_u32, size);
    loop {
        if left == 0 || at >= size {
            return Err(BadChain::Endless);
        }
        let place_of = table.checked_add(16 * u64::from(at)).and_then(|at| descriptor_at(image, at));
        let Some((address, len, flags, next)) = place_of else { return Err(BadChain::Endless) };
        if flags & INDIRECT != 0 {
            if indirect || len % 16 != 0 || len / 16 > 0xffff {
                return Err(BadChain::Endless);
            }
            (table, size, at, left, indirect) = (address, len / 16, 0, len / 16, true);
            continue;
        }
        bytes = bytes.checked_add(len).ok_or(BadChain::Endless)?;
        if len > 0 {
            let piece = place(address, len.into()).ok_or(BadChain::Outside)?;
            let writes = flags & WRITE != 0;
            if !writes && !pieces[1].is_empty() {
                return Err(BadChain::Order);
            }
            pieces[usize::from(writes)].push(piece);
        }
        if flags & NEXT == 0 {
            return Ok(pieces);
        }
        (at, left) = (u32::from(next), left - 1);
    }
}

/// Address, length, flags, next.
fn descriptor_at(image: &Image, at: u64) -> Option<(u64, u32, u16, u16)> {
    let mut parts = [0; 16];
    // A descriptor may lie across the end of a region only if the next one follows it, and none does here.
    parts.copy_from_slice(&image[place(at, 16)?]);
    let (address, rest) = parts.split_first_chunk::<8>()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (flags, next) = rest.split_first_chunk::<2>()?;
    let next = u16::from_le_bytes(next.try_into().ok()?);
    Some((u64::from_le_bytes(*address), u32::from_le_bytes(*len), u16::from_le_bytes(*flags), next))
}

/// Takes chains until the ring is empty or broken. Each gets a reply.
pub fn virtqueue(data: &[u8]) {
    let Some((&[how, low, high], bytes)) = data.split_first_chunk::<3>() else { return };
    let regions = REGIONS.map(|(start, len)| (GuestAddress(start), len));
    let memory = Arc::new(Memory::from_ranges(&regions).must("a few pages can be mapped"));
    let mut rest = bytes;
    for (start, len) in REGIONS {
        let (now, later) = rest.split_at(rest.len().min(len));
        memory.write_slice(now, GuestAddress(start)).must("the region is there");
        rest = later;
    }
    let mut queue = Queue::new(SIZE).must("it is a power of two");
    queue.try_set_desc_table_address(GuestAddress(DESCRIPTORS)).must("it is aligned");
    queue.try_set_avail_ring_address(GuestAddress(AVAILABLE)).must("it is aligned");
    queue.try_set_used_ring_address(GuestAddress(USED)).must("it is aligned");
    queue.set_event_idx(how & 1 != 0);
    queue.set_next_avail(u16::from_le_bytes([low, high]));
    queue.set_ready(true);
    assert!(queue.is_valid(&*memory));
    let used = queue.used_idx(&*memory, Ordering::Acquire).must("the ring is in the memory");
    queue.set_next_used(used.0);
    // The guest can make the ring endless by what the device writes. A device serves it as long as it wants.
    for _ in 0..64 {
        let Ok((Some(descriptors), _)) = chain::take(&mut queue, &memory) else { return };
        let (before, head) = (image(&memory), descriptors.head_index());
        let found = Chain::read(descriptors, Arc::clone(&memory));
        match walk(&before, head) {
            Ok(pieces) => serve(&memory, &before, &found.must("all of it is there"), &pieces, how),
            Err(expected) => return assert_eq!(found.err(), Some(expected)),
        }
        assert!(head < SIZE, "a chain begins in the ring");
        if queue.add_used(&*memory, head, 16).and_then(|()| queue.needs_notification(&*memory)).is_err() {
            return;
        }
    }
}

/// Reads a request and writes a reply, and looks that no other byte was read or written.
fn serve(memory: &Memory, before: &Image, chain: &Chain, [read, written]: &[Vec<Piece>; 2], how: u8) {
    let len = |pieces: &[Piece]| pieces.iter().map(ExactSizeIterator::len).sum::<usize>();
    assert_eq!((chain.asked(), chain.room()), (len(read), len(written)));
    assert!(chain.cost() >= chain.asked() + read.len() + written.len());
    let expected: Vec<u8> =
        read.iter().flat_map(|piece| &before[piece.clone()]).take(READ).copied().collect();
    let mut buffer = vec![0xee; READ];
    let count = chain.gather(&mut buffer);
    assert_eq!((count, &buffer[..count]), (expected.len(), &expected[..]));
    assert!(buffer[count..].iter().all(|byte| *byte == 0xee));
    let small = &mut buffer[..usize::from(how >> 1)];
    let count = chain.gather(small);
    assert_eq!((count, &small[..count]), (expected.len().min(small.len()), &expected[..count]));
    let body = vec![0xab; usize::from(how) * 17];
    let reply = [&[0xcd; 16][..], &body];
    let whole = reply.concat();
    let count = chain.scatter(reply);
    assert_eq!(count, whole.len().min(chain.room()));
    let mut after = before.clone();
    let places = written.iter().flat_map(Clone::clone);
    places.zip(&whole).for_each(|(at, byte)| after[at] = *byte);
    assert!(image(memory) == after, "nothing else has changed");
}

/// A driver's memory, as an input.
struct Driver {
    bytes: Vec<u8>,
    available: u16,
}

impl Driver {
    fn new() -> Driver {
        Driver { bytes: vec![0; 0x1800], available: 0 }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = (at - DESCRIPTORS) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A descriptor of the table at an address.
    fn describe(&mut self, table: u64, index: u16, (at, len, flags, next): (u64, u32, u16, u16)) {
        let parts = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        self.put(table + 16 * u64::from(index), &parts.concat());
    }

    fn offer(&mut self, head: u16) {
        self.put(AVAILABLE + 4 + 2 * u64::from(self.available), &head.to_le_bytes());
        self.available += 1;
        self.put(AVAILABLE + 2, &self.available.to_le_bytes());
    }

    fn input(self, how: u8) -> Vec<u8> {
        [&[how, 0, 0][..], &self.bytes].concat()
    }
}

/// Chains of several kinds, and some that cannot be.
pub fn virtqueue_seeds() -> Vec<Vec<u8>> {
    let seed = |how: u8, fill: &dyn Fn(&mut Driver)| {
        let mut driver = Driver::new();
        driver.put(0x1200, &[7; 200]);
        fill(&mut driver);
        driver.input(how)
    };
    let plain = |driver: &mut Driver| {
        driver.describe(DESCRIPTORS, 0, (0x1200, 40, NEXT, 1));
        driver.describe(DESCRIPTORS, 1, (0x1240, 16, NEXT, 2));
        driver.describe(DESCRIPTORS, 2, (0x1300, 16, NEXT | WRITE, 3));
        driver.describe(DESCRIPTORS, 3, (0x5000, 104, WRITE, 0));
        driver.offer(0);
        driver.offer(2);
    };
    let indirect = |driver: &mut Driver| {
        let table = 0x1400;
        driver.describe(DESCRIPTORS, 5, (table, 48, INDIRECT, 0));
        driver.describe(table, 0, (0x1200, 56, NEXT, 1));
        driver.describe(table, 1, (0x1200, 0, NEXT, 2));
        driver.describe(table, 2, (0x3ff0, 16, WRITE, 0));
        driver.offer(5);
    };
    let outside = |driver: &mut Driver| {
        driver.describe(DESCRIPTORS, 0, (0x3ff8, 16, NEXT, 1));
        driver.describe(DESCRIPTORS, 1, (u64::MAX - 3, 8, WRITE, 0));
        driver.offer(1);
        driver.offer(0);
    };
    let circle = |driver: &mut Driver| {
        driver.describe(DESCRIPTORS, 0, (0x1200, 8, NEXT, 1));
        driver.describe(DESCRIPTORS, 1, (0x1300, 8, NEXT | WRITE, 0));
        driver.offer(0);
    };
    let both = |driver: &mut Driver| {
        plain(driver);
        indirect(driver);
    };
    vec![seed(0, &plain), seed(7, &indirect), seed(0, &outside), seed(1, &circle), seed(9, &both)]
}
