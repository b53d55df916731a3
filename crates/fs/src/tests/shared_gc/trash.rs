//! The trash of a shared volume: its bytes stay, any node restores, and it expires once.

use base::time;

use super::*;
use crate::trash::{Picked, Place, RestoreError};

const DAY: Option<Duration> = Some(Duration::from_secs(86_400));

fn restore(node: &Node, path: &str) -> Result<u64, RestoreError> {
    let picked = Picked::Path(path.as_bytes());
    let done = node.restore_trash(picked, Place::Back, false, &(), &mut |_| ());
    done.map(|done| done.files)
}

#[test]
fn bytes_in_the_trash_stay_until_they_expire() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    one.set_trash(DAY).unwrap();
    two.refresh_trash().unwrap();
    let (a, b) = (uploaded(&one, "a", 1, 100_000), uploaded(&one, "b", 2, 100_000));
    remove(&two, "a", a);
    remove(&one, "b", b);
    assert_eq!(cluster.count(tags::ORPHAN), 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        one.round();
        two.round();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((cluster.blobs().len(), cluster.count(tags::CONDEMNED)), (2, 0));
    eventually("both list both", || [&one, &two].iter().all(|node| node.trash().unwrap().len() == 2));
    assert_eq!(restore(&one, "/a"), Ok(1));
    // Whichever of the two the other node knows already.
    let late = restore(&two, "/a").unwrap_err();
    assert!(matches!(late, RestoreError::NotThere | RestoreError::Taken(_)), "{late:?}");
    assert!(two.get(two.find(Ino::ROOT, "a").unwrap().ino) == noise(1, 100_000));
    two.set_trash(Some(Duration::from_millis(500))).unwrap();
    one.refresh_trash().unwrap();
    eventually("it has expired, and its blob is deleted", || {
        one.round();
        two.round();
        cluster.count(tags::TRASH) == 0 && cluster.blobs() == [blob_of(&noise(1, 100_000))]
    });
    assert!(one.find(Ino::ROOT, "a").is_some());
    eventually("nothing is left of it", || cluster.count(tags::ORPHAN) == 0);
    assert_eq!(*cluster.lines.lock(), [""; 0]);
}

#[test]
fn what_a_node_left_expires_too() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    two.set_trash(Some(Duration::from_millis(300))).unwrap();
    one.refresh_trash().unwrap();
    let file = uploaded(&two, "a", 1, 100_000);
    remove(&two, "a", file);
    two.parts().store.flush().unwrap();
    two.end_session();
    drop(two);
    eventually("another node deletes it", || {
        one.round();
        cluster.count(tags::TRASH) + cluster.count(tags::ORPHAN) == 0 && cluster.blobs().is_empty()
    });
}

#[test]
fn exactly_one_of_an_expiry_and_a_restore_wins() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    one.set_trash(DAY).unwrap();
    two.refresh_trash().unwrap();
    let dir = one.dir(Ino::ROOT, "dir");
    for n in 0..40 {
        let name = n.to_string();
        let file = one.file(dir, &name);
        one.unlink(dir, name.as_bytes()).unwrap();
        one.forget(file, 1);
    }
    eventually("the other node sees all", || two.trash().unwrap().len() == 40);
    let (back, gone) = std::thread::scope(|scope| {
        let emptied = scope.spawn(|| two.empty_trash(time::now(), &mut |_| ()).unwrap().files);
        let back = (0..40).rev().filter(|n| restore(&one, &format!("/dir/{n}")).is_ok()).count() as u64;
        (back, emptied.join().unwrap())
    });
    let there = two.names(dir).len() as u64 - 2;
    assert_eq!((back, back + gone), (there, 40), "{back} came back");
    assert_eq!(cluster.count(tags::TRASH), 0);
}
