use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueT};
use vm_memory::Bytes;

use super::*;

const READS: u16 = 1;
const WRITES: u16 = 3;
const LAST: u16 = 2;

/// A chain of these descriptors (address, length, flags) in a memory of 64 KiB, of which each is followed by
/// the next one.
fn chain(descriptors: &[(u64, u32, u16)]) -> Result<Chain, BadChain> {
    let memory = Memory::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
    describe(&memory, 0x1000, descriptors);
    read(memory)
}

/// Writes a table of descriptors.
fn describe(memory: &Memory, table: u64, descriptors: &[(u64, u32, u16)]) {
    for (index, (at, len, flags)) in descriptors.iter().enumerate() {
        let descriptor = Descriptor::new(*at, *len, *flags, index as u16 + 1);
        memory.write_obj(descriptor, GuestAddress(table + 16 * index as u64)).unwrap();
    }
}

/// The chain that begins with the first descriptor of the table at 0x1000.
fn read(memory: Memory) -> Result<Chain, BadChain> {
    let memory = Arc::new(memory);
    memory.write_obj(1_u16, GuestAddress(0x2002)).unwrap();
    let mut queue = Queue::new(8).unwrap();
    queue.try_set_desc_table_address(GuestAddress(0x1000)).unwrap();
    queue.try_set_avail_ring_address(GuestAddress(0x2000)).unwrap();
    queue.set_ready(true);
    let (descriptors, more) = take(&mut queue, &memory).unwrap();
    assert!(!more);
    Chain::read(descriptors.unwrap(), memory)
}

#[test]
fn bytes_are_gathered_and_scattered() {
    let chain = chain(&[
        (0x8000, 3, READS),
        (0x9000, 0, READS),
        (0x9000, 5, READS),
        (0xa000, 2, WRITES),
        (0xb000, 20, LAST),
    ]);
    let chain = chain.unwrap();
    chain.memory.write_slice(b"abc", GuestAddress(0x8000)).unwrap();
    chain.memory.write_slice(b"defgh", GuestAddress(0x9000)).unwrap();
    assert_eq!((chain.asked(), chain.room(), chain.takes_reply()), (8, 22, true));
    let mut request = [0; 10];
    assert_eq!((chain.gather(&mut request), &request[..8]), (8, &b"abcdefgh"[..]));
    let mut small = [0; 4];
    assert_eq!((chain.gather(&mut small), &small), (4, b"abcd"));
    assert_eq!(chain.scatter([b"12345", b"6789"]), 9);
    let mut written = [0; 22];
    chain.memory.read_slice(&mut written[..2], GuestAddress(0xa000)).unwrap();
    chain.memory.read_slice(&mut written[2..], GuestAddress(0xb000)).unwrap();
    assert_eq!(&written[..10], b"123456789\0");
    assert_eq!(chain.scatter([&[1; 16], &[2; 100]]), 22, "no more than there is room");
    assert_eq!(chain.scatter([&[], &[]]), 0);
}

/// Only the bytes of requests were counted. A guest could have a thousand times as much kept of descriptors,
/// for requests that wait: its bound of 32 MiB let it take all memory of the host.
#[test]
fn regression_the_descriptors_of_a_chain_count() {
    const INDIRECT: u16 = 4;
    let memory = Memory::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
    describe(&memory, 0x1000, &[(0x4000, 2000 * 16, INDIRECT)]);
    let mut table = vec![(0xc000, 56, READS)];
    table.resize(1999, (0xd000, 1, WRITES));
    table.push((0xd000, 1, LAST));
    describe(&memory, 0x4000, &table);
    let chain = read(memory).unwrap();
    assert_eq!((chain.asked(), chain.room()), (56, 1999));
    assert!(chain.cost() >= 56 + 2000 * size_of::<Piece>(), "{}", chain.cost());
}

#[test]
fn a_chain_that_cannot_be_is_refused() {
    let endless: Vec<(u64, u32, u16)> = (0..8).map(|_| (0x8000, 1, READS)).collect();
    for (descriptors, wanted) in [
        (&endless[..], BadChain::Endless),
        (&[(0xfff9, 8, 0)], BadChain::Outside),
        (&[(0x8000, u32::MAX, 0)], BadChain::Outside),
        (&[(u64::MAX, 2, LAST)], BadChain::Outside),
        (&[(0x8000, 8, WRITES), (0x8000, 8, 0)], BadChain::Order),
    ] {
        assert_eq!(chain(descriptors).unwrap_err(), wanted, "{descriptors:?}");
    }
}
