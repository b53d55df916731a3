//! What a power cut leaves of open packs and their sums.

use super::*;

/// A sync saves the sums while it makes the packs durable. A power cut between the two kept the sum of a
/// segment whose second half was lost. It had been joined from two writes, so the first half could not be
/// read any more, although an fsync had promised it and recovery had restored it from the log.
#[test]
fn regression_a_power_cut_during_a_sync_costs_no_bytes_that_were_durable() {
    let no = PackNo(1);
    let (first, second) = (noise(10_000, 1), noise(20_000, 2));
    for restored in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let origin: Arc<dyn Origin> = Arc::new(InMemory::default());
        {
            let packs = disk(home.path(), origin.clone());
            packs.create(no).unwrap();
            packs.write(no, 0, &first).unwrap();
            packs.write(no, 10_000, &second).unwrap();
            packs.sync(&[no]).unwrap();
        }
        let path = home.path().join("open/1");
        let mut bytes = fs::read(&path).unwrap();
        bytes[if restored { 0 } else { 10_000 }..].fill(0);
        fs::write(&path, bytes).unwrap();
        let packs = disk(home.path(), origin);
        if restored {
            packs.write(no, 0, &first).unwrap();
        } else {
            assert!(packs.prove(no, 0, 10_000, blob::sums::crc32c(&first)).unwrap());
        }
        assert!(!packs.prove(no, 10_000, 20_000, blob::sums::crc32c(&second)).unwrap());
        let mut buf = vec![0; 10_000];
        packs.read(no, 0, &mut buf).unwrap();
        assert!(buf == first);
    }
}

/// The file of an older version holds sums of several writes in one record.
#[test]
fn regression_a_joined_sum_of_lost_bytes_is_dropped_for_what_recovery_proves() {
    let no = PackNo(1);
    let (first, second) = (noise(10_000, 1), noise(20_000, 2));
    let home = tempfile::tempdir().unwrap();
    let origin: Arc<dyn Origin> = Arc::new(InMemory::default());
    {
        let packs = disk(home.path(), origin.clone());
        packs.create(no).unwrap();
        packs.write(no, 0, &[&first[..], &second[..]].concat()).unwrap();
        packs.sync(&[no]).unwrap();
    }
    let path = home.path().join("open/1");
    let mut bytes = fs::read(&path).unwrap();
    bytes[10_000..].fill(0);
    fs::write(&path, bytes).unwrap();
    let packs = disk(home.path(), origin);
    let mut buf = vec![0; 10_000];
    assert!(packs.read(no, 0, &mut buf).is_err());
    assert!(packs.prove(no, 0, 10_000, blob::sums::crc32c(&first)).unwrap());
    packs.read(no, 0, &mut buf).unwrap();
    assert!(buf == first);
    let mut rotten = fs::read(&path).unwrap();
    rotten[5_000] ^= 1;
    fs::write(&path, rotten).unwrap();
    assert!(is_io(packs.read(no, 0, &mut buf), io::ErrorKind::InvalidData), "it is checked from now on");
}
