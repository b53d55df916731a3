//! Files of a volume over the queues of `covey serve`.

use std::fs;

use covey_tests::loopfs::LoopFs;
use covey_tests::program::covey_ok;
use covey_tests::{Need, Rng, requires};

use super::driver::{Descriptor, INDIRECT, NEXT, Vmm, WRITE, message};
use super::world::{PATIENCE, Program, until};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const MKNOD: u32 = 8;
const UNLINK: u32 = 10;
const READ: u32 = 15;
const WRITE_OP: u32 = 16;
const FSYNC: u32 = 20;
/// The bytes of one WRITE.
const BLOCK: u64 = 64 << 10;

fn made(reply: &super::driver::Reply) -> u64 {
    assert_eq!(reply.error, 0);
    u64::from_ne_bytes(reply.body[..8].try_into().unwrap())
}

fn make_arguments(name: &[u8]) -> Vec<u8> {
    let mut arguments = vec![0; 16];
    arguments[..4].copy_from_slice(&0o100_644_u32.to_ne_bytes());
    arguments.extend(name);
    arguments
}

fn write_arguments(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut arguments = vec![0; 40];
    arguments[8..16].copy_from_slice(&offset.to_ne_bytes());
    arguments[16..20].copy_from_slice(&(data.len() as u32).to_ne_bytes());
    arguments.extend(data);
    arguments
}

fn read_arguments(offset: u64, len: u32) -> Vec<u8> {
    let mut arguments = vec![0; 40];
    arguments[8..16].copy_from_slice(&offset.to_ne_bytes());
    arguments[16..20].copy_from_slice(&len.to_ne_bytes());
    arguments
}

/// Bytes cross in pieces of every size, also through a table of descriptors beside the ring. What one VMM
/// wrote is there for the next at the same socket.
#[test]
fn a_file_crosses_the_queues_in_pieces() {
    requires!(Need::Covey);
    let dir = covey_tests::scratch();
    let (volume, socket) = (dir.path().join("volume"), dir.path().join("vm.fs"));
    covey_ok(&["format", volume.to_str().unwrap()]);
    let program = Program::start(dir.path(), &volume, &socket, &[]);
    let mut vmm = Vmm::mounted(&socket, 3);
    let ino = made(&vmm.ask(1, MKNOD, 1, &make_arguments(b"file\0"), 128));
    let data: Vec<u8> = (0..100_000_u32).map(|at| ((at * 7919) >> 5) as u8).collect();
    let request = message(WRITE_OP, 1001, ino, &write_arguments(0, &data));
    let mut pieces = vec![40, 40, 1, 4095, 0, 70_000];
    pieces.push(request.len() - pieces.iter().sum::<usize>());
    let head = vmm.send_pieces(2, &request, &pieces, &[16, 8]);
    let (used, len) = vmm.used(2, PATIENCE).unwrap();
    assert_eq!((used, len, vmm.reply(head, len).error), (head, 24, 0));
    let request = message(READ, 1003, ino, &read_arguments(0, 100_000));
    let head = vmm.send_pieces(1, &request, &[80], &[3, 13, 5, 4096, 1, 95_898]);
    let (_, len) = vmm.used(1, PATIENCE).unwrap();
    assert!(vmm.reply(head, len).body == data, "the file has other bytes");
    // The same with a table of its own.
    let request = message(READ, 1005, ino, &read_arguments(50_000, 4096));
    let [at, room] = Vmm::places(50);
    vmm.put(at, &request);
    let table: Vec<u8> = [
        Descriptor { at, len: 80, flags: NEXT, next: 1 },
        Descriptor { at: room, len: 100, flags: NEXT | WRITE, next: 2 },
        Descriptor { at: room + 100, len: 4012, flags: WRITE, next: 0 },
    ]
    .into_iter()
    .flat_map(Descriptor::bytes)
    .collect();
    vmm.put(at + 0x1000, &table);
    vmm.describe(1, 50, Descriptor { at: at + 0x1000, len: 48, flags: INDIRECT, next: 0 });
    vmm.offer(1, 50);
    vmm.kick(1);
    let (head, len) = vmm.used(1, PATIENCE).unwrap();
    assert_eq!((head, vmm.reply(head, len).body), (50, data[50_000..54_096].to_vec()));
    drop(vmm);
    until("the VMM is missed", || program.log().contains("its VMM is gone"));
    let mut vmm = Vmm::mounted(&socket, 2);
    let again = made(&vmm.ask(1, LOOKUP, 1, b"file\0", 128));
    let reply = vmm.ask(1, READ, again, &read_arguments(99_990, 4096), 4096);
    assert_eq!(reply.body, data[99_990..]);
    assert_eq!(vmm.ask(1, 38, 0, &[], 0).error, 0, "DESTROY");
    assert_eq!(vmm.ask(1, 3, again, &[0; 16], 104).error, -libc::EIO, "nothing is served after it");
    vmm.init();
    assert!(vmm.is_served(), "and it may mount again");
    program.end();
    covey_ok(&["fsck", volume.to_str().unwrap()]);
}

/// A tree that cannot change is kept for ever. What can change is kept for as long as `--keep` says.
#[test]
fn a_kernel_keeps_what_it_may() {
    requires!(Need::Root, Need::Covey);
    let dir = covey_tests::scratch();
    let (volume, folder) = (dir.path().join("volume"), dir.path().join("folder"));
    covey_ok(&["format", volume.to_str().unwrap()]);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("f"), "x").unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    covey_ok(&["import", &text(&folder), &format!("{}:/", text(&volume))]);
    covey_ok(&["publish", &text(&volume), "tree"]);
    let tree = format!("file:{}/blobs@tree", text(&volume));
    let cache = text(&dir.path().join("cache"));
    let times = |source: &str, more: &[&str]| {
        let socket = dir.path().join(format!("{}.fs", base::random::u64()));
        let program = Program::start(dir.path(), source.as_ref(), &socket, more);
        let mut vmm = Vmm::mounted(&socket, 2);
        let entry = |vmm: &mut Vmm, name: &[u8]| {
            let body = vmm.ask(1, LOOKUP, 1, name, 128).body;
            [16, 24].map(|at| u64::from_ne_bytes(body[at..at + 8].try_into().unwrap()))
        };
        let found = (entry(&mut vmm, b"f\0"), entry(&mut vmm, b"missing\0")[0]);
        drop(vmm);
        program.end();
        found
    };
    const EVER: u64 = u32::MAX as u64;
    assert_eq!(times(&tree, &["--cache", &cache]), ([EVER, EVER], EVER));
    assert_eq!(times(&text(&volume), &[]), ([1, 1], 1));
    assert_eq!(times(&text(&volume), &["--keep", "30"]), ([30, 30], 30));
    assert_eq!(times(&text(&folder), &[]), ([1, 1], 1));
    assert_eq!(times(&text(&folder), &["--keep", "0"]), ([0, 0], 0));
}

/// The guest is told that the disk is full. What it wrote before stays, and what it removes makes room.
#[test]
fn a_full_disk_is_told_to_the_guest() {
    requires!(Need::Root, Need::Covey, Need::Ext4);
    let (dir, disk) = (covey_tests::scratch(), LoopFs::new(200));
    let (volume, socket) = (disk.path().join("volume"), dir.path().join("vm.fs"));
    covey_ok(&["format", volume.to_str().unwrap()]);
    let program = Program::start(dir.path(), &volume, &socket, &[]);
    let mut vmm = Vmm::mounted(&socket, 2);
    let ino = made(&vmm.ask(1, MKNOD, 1, &make_arguments(b"large\0"), 128));
    let block = |number: u64| {
        let mut block = vec![0; BLOCK as usize];
        Rng::new(number).fill(&mut block);
        block
    };
    // Each MiB is synced.
    let write = |vmm: &mut Vmm, ino: u64, number: u64| {
        let written = vmm.ask(1, WRITE_OP, ino, &write_arguments(number * BLOCK, &block(number)), 8);
        match written.error {
            0 if number % 16 == 15 => vmm.ask(1, FSYNC, ino, &[0; 16], 0).error,
            error => error,
        }
    };
    let failed =
        (0..4000).map(|number| (number, write(&mut vmm, ino, number))).find(|(_, error)| *error != 0);
    let (count, error) = failed.expect("250 MiB are on a disk of 200");
    assert_eq!(error, -libc::ENOSPC, "after {count} writes");
    assert!(count > 16 * 40, "only {count} blocks are on it");
    for number in [0, 1, count / 2, count - 20] {
        let reply = vmm.ask(1, READ, ino, &read_arguments(number * BLOCK, BLOCK as u32), BLOCK as usize);
        assert!(reply.error == 0 && reply.body == block(number), "block {number}: {}", reply.error);
    }
    assert_eq!(vmm.ask(1, UNLINK, 1, b"large\0", 0).error, 0);
    let unique = vmm.next_unique();
    vmm.send(0, &message(FORGET, unique, ino, &1_u64.to_ne_bytes()), 0);
    vmm.used(0, PATIENCE).expect("FORGET is not used");
    let small = made(&vmm.ask(1, MKNOD, 1, &make_arguments(b"small\0"), 128));
    until("what was removed makes room", || (0..16).all(|number| write(&mut vmm, small, number) == 0));
    drop(vmm);
    program.end();
    covey_ok(&["fsck", volume.to_str().unwrap()]);
}
