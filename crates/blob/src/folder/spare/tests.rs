use std::io::Read;

use super::*;
use crate::source::BlobSource;
use crate::stock::Buffer;

fn blob(seed: u8) -> (BlobId, Sums, Buffer) {
    let bytes: Vec<u8> = (0..BLOB_MAX).map(|n| (n / 5) as u8 ^ (n >> 13) as u8 ^ seed).collect();
    let sums = Sums::of(&bytes);
    (sums.id(), sums, Buffer::from(&bytes[..]))
}

/// None if the filesystem has no leases or no direct writes.
fn folder() -> Option<(tempfile::TempDir, BlobFolder)> {
    let dir = tempfile::tempdir_in(".").unwrap();
    let file = File::create(dir.path().join("probe")).unwrap();
    let able = is_alone(&file) && direct::write_over(&file, &Buffer::with_len(4096)).unwrap();
    if !able {
        eprintln!("skipped: lacks a filesystem with leases and O_DIRECT here");
        return None;
    }
    let folder = BlobFolder::create(&dir.path().join("blobs")).unwrap();
    Some((dir, folder))
}

fn inode(folder: &BlobFolder, id: &BlobId) -> u64 {
    fs::metadata(folder.path(id)).unwrap().ino()
}

fn waiting(folder: &BlobFolder) -> usize {
    fs::read_dir(folder.dir.join("tmp")).map_or(0, Iterator::count)
}

fn whole(folder: &BlobFolder, id: &BlobId) -> Vec<u8> {
    let mut bytes = vec![0; BLOB_MAX as usize];
    folder.read_at(id, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_file_of_an_evicted_blob_is_reused() {
    let Some((_dir, folder)) = folder() else { return };
    let (old, old_sums, old_bytes) = blob(1);
    let (new, new_sums, new_bytes) = blob(2);
    folder.keep_for_later(&old, &old_sums, &old_bytes).unwrap();
    let file = inode(&folder, &old);
    folder.retire(&old).unwrap();
    assert!(!folder.is_local(&old) && folder.sums(&old).is_err(), "a retired blob should be gone");
    folder.keep_for_later(&new, &new_sums, &new_bytes).unwrap();
    assert_eq!(inode(&folder, &new), file);
    assert!(whole(&folder, &new) == *new_bytes && folder.sums(&new).unwrap() == new_sums);
    folder.verify(&new).unwrap();
    assert_eq!(waiting(&folder), 0);
    // The result is like any other file: the new blob can be stored again, and the old one too.
    folder.keep_for_later(&new, &new_sums, &new_bytes).unwrap();
    folder.keep(&old, &old_sums, &old_bytes).unwrap();
    assert!(whole(&folder, &old) == *old_bytes);
}

#[test]
fn a_reader_with_the_file_open_or_mapped_keeps_its_bytes() {
    let Some((_dir, folder)) = folder() else { return };
    let (old, old_sums, old_bytes) = blob(1);
    let (new, new_sums, new_bytes) = blob(2);
    for mapped in [false, true] {
        folder.keep_for_later(&old, &old_sums, &old_bytes).unwrap();
        let mut reader = File::open(folder.path(&old)).unwrap();
        let file = inode(&folder, &old);
        // SAFETY: nothing writes to the mapped file; the test checks exactly this.
        let map = mapped.then(|| unsafe { memmap2::Mmap::map(&reader) }.unwrap());
        folder.retire(&old).unwrap();
        let mut bytes = Vec::new();
        if mapped {
            drop(reader);
            folder.keep_for_later(&new, &new_sums, &new_bytes).unwrap();
            assert!(map.is_some_and(|map| map[..] == old_bytes[..]));
        } else {
            folder.keep_for_later(&new, &new_sums, &new_bytes).unwrap();
            reader.read_to_end(&mut bytes).unwrap();
            assert!(bytes == *old_bytes);
        }
        assert_ne!(inode(&folder, &new), file);
        assert!(whole(&folder, &new) == *new_bytes);
        folder.remove(&new).unwrap();
        assert_eq!(waiting(&folder), 0, "an unusable file is removed");
    }
}

/// The folder of an origin may hold the same file under another name.
#[test]
fn a_file_with_another_link_is_removed_and_not_overwritten() {
    let Some((dir, folder)) = folder() else { return };
    let (old, old_sums, old_bytes) = blob(1);
    folder.keep_for_later(&old, &old_sums, &old_bytes).unwrap();
    let other = dir.path().join("other");
    fs::hard_link(folder.path(&old), &other).unwrap();
    folder.retire(&old).unwrap();
    assert_eq!(waiting(&folder), 0);
    let (new, new_sums, new_bytes) = blob(2);
    folder.keep_for_later(&new, &new_sums, &new_bytes).unwrap();
    assert!(fs::read(other).unwrap() == *old_bytes);
}

#[test]
fn spare_files_are_bounded_and_each_write_or_removal_takes_one() {
    let Some((dir, folder)) = folder() else { return };
    let blobs: Vec<_> = (0..MOST as u8 + 4).map(blob).collect();
    for (id, sums, bytes) in &blobs {
        folder.keep_for_later(id, sums, bytes).unwrap();
    }
    blobs.iter().for_each(|(id, ..)| folder.retire(id).unwrap());
    let many = waiting(&folder);
    assert!((2 * MOST - 2..=2 * MOST).contains(&many), "{many}: two files each");
    let (small, sums) = (vec![1; 10], Sums::of(&[1; 10]));
    folder.keep(&sums.id(), &sums, &small).unwrap();
    assert_eq!(waiting(&folder), many - 2);
    folder.remove(&sums.id()).unwrap();
    assert_eq!(waiting(&folder), many - 4);
    // For a small blob there is no file of its size. A missing one is not an error.
    folder.keep_for_later(&sums.id(), &sums, &small).unwrap();
    folder.retire(&sums.id()).unwrap();
    folder.retire(&sums.id()).unwrap();
    drop(folder);
    assert_eq!(fs::read_dir(dir.path().join("blobs/tmp")).unwrap().count(), 0, "none stays behind");
}

#[test]
fn a_swept_spare_file_is_no_error() {
    let Some((_dir, folder)) = folder() else { return };
    let (old, old_sums, old_bytes) = blob(1);
    let (new, new_sums, new_bytes) = blob(2);
    folder.keep_for_later(&old, &old_sums, &old_bytes).unwrap();
    folder.retire(&old).unwrap();
    for entry in fs::read_dir(folder.dir.join("tmp")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    folder.keep_for_later(&new, &new_sums, &new_bytes).unwrap();
    assert!(whole(&folder, &new) == *new_bytes);
}

#[test]
fn bytes_that_do_not_match_their_sums_are_refused() {
    let Some((_dir, folder)) = folder() else { return };
    let (old, old_sums, old_bytes) = blob(1);
    let (new, new_sums, new_bytes) = blob(2);
    folder.keep_for_later(&old, &old_sums, &old_bytes).unwrap();
    folder.retire(&old).unwrap();
    assert!(folder.keep_for_later(&new, &old_sums, &new_bytes).is_err());
    folder.keep_for_later(&new, &new_sums, &new_bytes).unwrap();
    assert!(whole(&folder, &new) == *new_bytes);
}
