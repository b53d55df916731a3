//! Reads of what the caches of other processes have on the same disk.

use super::*;
use crate::Beside;

#[test]
fn what_another_cache_has_is_not_fetched_again() {
    let other = Home::new();
    let bytes = noise(1 << 20, 3);
    let id = other.far.take(&bytes);
    other.cache().warm(&id).unwrap();
    other.rest();
    let mut home = Home::new();
    assert_eq!(home.far.take(&bytes), id);
    let own = Arc::new(home.cache.take().unwrap());
    let absent = home.dir.path().join("absent");
    let beside = Beside::new(own.clone(), &[absent, other.dir.path().join("blobs")]);
    let mut read = vec![0; 5000];
    beside.read_at(&id, 7, &mut read).unwrap();
    assert_eq!(read, bytes[7..5007]);
    assert_eq!((home.far.requests(), beside.read_bytes()), ((0, 0), 5000));
    assert!(beside.is_local(&id) && !own.is_local(&id));
    let (file, sums) = beside.file_of(&id).unwrap();
    assert_eq!((file.metadata().unwrap().len(), sums.id()), (1 << 20, id));
    // An evicted copy is fetched. A file that is open stays readable.
    other.cache().evict(Evict::All);
    let mut read = vec![0; 1 << 20];
    beside.read_at(&id, 0, &mut read).unwrap();
    assert!(read == bytes);
    // A damaged copy is not an error either.
    let damaged = noise(1 << 20, 4);
    let id = other.far.take(&damaged);
    home.far.take(&damaged);
    other.cache().warm(&id).unwrap();
    other.rest();
    fs::write(other.disk.file(&id), vec![0; 1 << 20]).unwrap();
    let mut read = vec![0; 1 << 20];
    beside.read_at(&id, 0, &mut read).unwrap();
    assert!(read == damaged);
}
