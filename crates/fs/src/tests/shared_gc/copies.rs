//! Copies of packs on a second node, and what becomes of them when the first one is gone.

use blob::Kept;
use blob::failing::Op as Call;

use super::random::{Model, bytes, work};
use super::*;

/// Nothing is taken over but what is here. The rest is read when its node is back.
#[test]
fn what_is_here_of_a_node_that_is_gone_is_taken_over() {
    let cluster = Cluster::new(Duration::from_secs(60));
    let (one, two) = (cluster.join(), cluster.join());
    one.faults.fail(Call::Store, u64::MAX);
    let [here, there] = [1, 2].map(|n| {
        let file = one.file(Ino::ROOT, &format!("f{n}"));
        one.put(file, 0, &noise(n, 30_000));
        file
    });
    one.volume.as_ref().unwrap().sync().unwrap();
    let extents = one.core.names.extents(here, 0).unwrap();
    for extent in extents.extents() {
        let at = extent.at as usize;
        two.place
            .kept
            .write(extent.pack, extent.offset, &noise(1, 30_000)[at..at + extent.len as usize])
            .unwrap();
    }
    one.end_session();
    assert!(two.get(here) == noise(1, 30_000), "it is read from the copy");
    eventually("the copy is not needed any more", || two.place.kept.list().is_empty());
    assert!(two.get(here) == noise(1, 30_000));
    let mut buf = vec![0; 30_000];
    assert!(two.read(there, 0, &mut buf).is_err(), "only its node has it");
    one.join_again();
    for node in [&one, &two] {
        assert!(node.get(here) == noise(1, 30_000) && node.get(there) == noise(2, 30_000));
    }
}

/// fsync(2) returns when another node has the bytes, and does not seal anything.
#[test]
fn what_is_synced_is_on_another_node() {
    let cluster = Cluster::new(Duration::from_secs(60));
    let (one, two) = (cluster.join_copying(), cluster.join_copying());
    one.faults.fail(Call::Store, u64::MAX);
    let file = one.file(Ino::ROOT, "file");
    for n in 0..20u64 {
        one.put(file, n * 3000, &noise(n, 3000));
        one.volume.as_ref().unwrap().sync().unwrap();
    }
    let extents = one.core.names.extents(file, 0).unwrap();
    for extent in extents.extents() {
        let mut bytes = vec![0; extent.len as usize];
        assert!(two.place.kept.read(extent.pack, extent.offset, &mut bytes).unwrap(), "{extent:?}");
    }
    one.faults.heal();
    one.upload();
    eventually("the copies are dropped", || two.place.kept.list().is_empty());
}

/// One moment without another node ended the sending for good. The fsync then waited for the origin alone.
#[test]
fn regression_an_fsync_sends_to_a_node_that_joins_while_it_waits() {
    let cluster = Cluster::new(Duration::from_secs(60));
    let one = cluster.join_copying();
    one.faults.fail(Call::Store, u64::MAX);
    let file = one.file(Ino::ROOT, "file");
    one.put(file, 0, &noise(1, 30_000));
    let volume = one.volume.clone().unwrap();
    let fsync = std::thread::spawn(move || volume.sync());
    let keeping = one.core.options.shared.as_ref().unwrap().keeping.clone().unwrap();
    eventually("there is no other node", || keeping.failures().0 > 0);
    let _two = cluster.join_copying();
    eventually("it is sent", || fsync.is_finished());
    fsync.join().unwrap().unwrap();
}

/// Three nodes write, remove and copy one another's files. What was synced survives one of them, whose bytes
/// never reached the origin, and which is never seen again.
#[test]
fn random_work_outlives_the_node_that_did_it() {
    let seconds = std::env::var("COVEY_SECONDS").ok().map_or(8, |text| text.parse().unwrap());
    let cluster = Cluster::new(SOON);
    let mut nodes = vec![cluster.join_copying(), cluster.join_copying(), cluster.join_copying()];
    let dirs: Vec<Ino> = (0..3).map(|n| nodes[n].dir(Ino::ROOT, &format!("dir{n}"))).collect();
    // The others use these numbers without having looked for the names.
    nodes.iter().for_each(|node| node.parts().store.flush().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let models: Vec<Model> = std::thread::scope(|scope| {
        let (cluster, nodes, dirs) = (&*cluster, &nodes[..], &dirs[..]);
        let workers: Vec<_> = (0..3)
            .map(|me| scope.spawn(move || work(cluster, nodes, me, dirs, 31 + me as u64, until)))
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    // From now on nothing of the first node reaches the origin.
    nodes[0].faults.fail(Call::Store, u64::MAX);
    let last = nodes[0].dir(Ino::ROOT, "last");
    let written: Vec<Ino> = (0..20u64)
        .map(|n| {
            let file = nodes[0].file(last, &format!("{n}"));
            nodes[0].put(file, 0, &noise(n, 10_000 + 5_000 * n as usize));
            file
        })
        .collect();
    let copies = nodes[1].dir(Ino::ROOT, "copies");
    for (n, file) in written.iter().enumerate() {
        let copy = nodes[1].file(copies, &format!("{n}"));
        nodes[1].copy_range(*file, 0, copy, 0, 10_000).unwrap();
    }
    for node in &nodes {
        node.volume.as_ref().unwrap().sync().unwrap();
    }
    let mut lost = nodes.remove(0);
    lost.end_session();
    lost.volume = None;
    let check = |when: &str| {
        for (reader, node) in nodes.iter().enumerate() {
            for (&(owner, number), &content) in models.iter().flatten() {
                let found = node.lookup(dirs[owner], format!("{number}").as_bytes()).unwrap();
                let expected = if content == 0 { Vec::new() } else { bytes(content) };
                assert!(node.get(found.attr.ino) == expected, "{when}: {reader}: file {number} of {owner}");
                node.forget(found.attr.ino, 1);
            }
            for n in 0..20u64 {
                let find = |dir| node.lookup(dir, format!("{n}").as_bytes()).unwrap().attr.ino;
                let whole = noise(n, 10_000 + 5_000 * n as usize);
                assert!(node.get(find(last)) == whole, "{when}: {reader}: last/{n}");
                assert!(node.get(find(copies)) == whole[..10_000], "{when}: {reader}: copies/{n}");
            }
        }
    };
    check("right after");
    eventually("all of it is taken over", || nodes.iter().all(|node| node.place.kept.list().is_empty()));
    check("taken over");
    nodes.iter().for_each(Node::upload);
    check("uploaded");
}
