//! No blob of a published tree is deleted while the tree is published. What only that tree needed is deleted
//! afterwards.

use std::collections::BTreeMap;

use base::{BlobId, Ino};
use blob::{Origin, Records};
use fs::api::Filesystem;
use hashbrown::HashSet;
use meta::Key;
use meta::key::tags;
use tree::rows::Scope;
use tree::{history, root};

use super::world::{Seen, Work, World, look};

/// Random writes, publications, withdrawals, collections and restarts.
#[test]
fn whatever_happens_a_published_tree_stays_whole() {
    for seed in 0..4 {
        println!("seed {seed}");
        let world = World::new();
        let mut volume = world.open();
        let mut work = Work::new(seed + 1000);
        let mut published: BTreeMap<String, BTreeMap<Vec<u8>, Seen>> = BTreeMap::new();
        for round in 0..30 {
            work.steps(&volume, 60);
            let name = format!("t{}", work.rng.below(3));
            match work.rng.below(6) {
                0 => {
                    root::remove(&*world.origin, &name).unwrap();
                    volume.let_go(&name).unwrap();
                    published.remove(&name);
                }
                1 => drop(volume.collect(&mut |_| ()).unwrap()),
                2 => {
                    if work.rng.one_in(2) {
                        volume.close().unwrap();
                    }
                    drop(volume);
                    volume = world.open();
                }
                _ => {
                    let seen = look(&volume, Ino::ROOT);
                    world.publish(&volume, &name, Scope::Whole).unwrap();
                    published.insert(name, seen);
                }
            }
            if round % 5 == 4 {
                volume.collect(&mut |_| ()).unwrap();
                for (name, seen) in &published {
                    assert_eq!(&look(&world.frozen(name), Ino::ROOT), seen, "{name} in round {round}");
                    for blob in world.tree(name).blobs().unwrap() {
                        world.origin.verify(&blob).unwrap();
                    }
                }
            }
        }
        for name in ["t0", "t1", "t2"] {
            root::remove(&*world.origin, name).unwrap();
            volume.let_go(name).unwrap();
        }
        volume.collect(&mut |_| ()).unwrap();
        volume.close().unwrap();
        drop(volume);
        assert_eq!(World::findings(&world.parts), [""; 0], "nothing is left of them");
        assert!(world.parts.store.scan(&Key::kind(tags::HELD), 10).unwrap().is_empty());
    }
}

#[test]
fn what_a_newer_tree_of_the_name_does_not_need_stays_for_those_who_have_the_older_one() {
    let world = World::new();
    let volume = world.open();
    let mut work = Work::new(7);
    work.steps(&volume, 150);
    let seen = look(&volume, Ino::ROOT);
    world.publish(&volume, "latest", Scope::Whole).unwrap();
    let older = world.frozen("latest");
    for _ in 0..4 {
        work.steps(&volume, 150);
        world.publish(&volume, "latest", Scope::Whole).unwrap();
        volume.collect(&mut |_| ()).unwrap();
    }
    assert_eq!(look(&older, Ino::ROOT), seen);
    volume.close().unwrap();
}

#[test]
fn a_publication_that_fails_in_the_middle_leaves_the_one_before() {
    let world = World::new();
    let volume = world.open();
    let mut work = Work::new(8);
    work.steps(&volume, 150);
    let seen = look(&volume, Ino::ROOT);
    world.publish(&volume, "latest", Scope::Whole).unwrap();
    work.steps(&volume, 100);
    {
        // Held and then abandoned, as after a kill.
        let mut publication = volume.publication(std::time::Duration::from_secs(20)).unwrap();
        let blobs: Vec<_> = publication.packs().iter().map(|pack| pack.blob).collect();
        publication.hold("latest", &mut blobs.iter().copied()).unwrap();
        let mut other = blobs.iter().copied();
        publication.hold("never", &mut other).unwrap();
    }
    volume.collect(&mut |_| ()).unwrap();
    assert_eq!(look(&world.frozen("latest"), Ino::ROOT), seen);
    assert_eq!(volume.holders().unwrap(), ["latest", "never"]);
    volume.let_go("never").unwrap();
    let now = look(&volume, Ino::ROOT);
    world.publish(&volume, "latest", Scope::Whole).unwrap();
    volume.collect(&mut |_| ()).unwrap();
    assert_eq!(look(&world.frozen("latest"), Ino::ROOT), now);
    assert_eq!(volume.holders().unwrap(), ["latest"]);
    volume.close().unwrap();
}

/// A collection took the new name for a lost one, and released what the publication had held. The tree was
/// published all the same, and its blobs were deleted.
#[test]
fn regression_a_publication_whose_blobs_were_released_fails() {
    let world = World::new();
    let volume = world.open();
    Work::new(10).steps(&volume, 100);
    let mut publication = volume.publication(std::time::Duration::from_secs(20)).unwrap();
    // So a collection leaves it alone.
    assert!(volume.if_none_is_published().is_none());
    let blobs: HashSet<BlobId> = publication.packs().iter().map(|pack| pack.blob).collect();
    publication.hold("new", &mut blobs.iter().copied()).unwrap();
    volume.hold_only("new", &blobs, None).unwrap();
    volume.let_go("new").unwrap();
    assert!(volume.hold_only("new", &blobs, None).unwrap_err().to_string().contains("publish it again"));
    drop(publication);
    assert!(volume.if_none_is_published().is_some());
    volume.close().unwrap();
}

#[test]
fn a_lost_or_damaged_blob_of_a_tree_is_found_and_written_anew() {
    let world = World::new();
    let volume = world.open();
    let mut work = Work::new(9);
    work.steps(&volume, 150);
    let done = world.publish(&volume, "latest", Scope::Whole).unwrap();
    volume.close().unwrap();
    drop(volume);
    assert_eq!(World::findings(&world.parts), [""; 0]);
    world.origin.remove(&done.root.top.blob).unwrap();
    let found = World::findings(&world.parts);
    assert!(found.len() == 1 && found[0].contains("latest") && found[0].contains("--afresh"), "{found:?}");
    let volume = world.open();
    let seen = look(&volume, Ino::ROOT);
    world.publish(&volume, "latest", Scope::Whole).unwrap();
    assert_eq!(look(&world.frozen("latest"), Ino::ROOT), seen);
    volume.close().unwrap();
}

/// The newest publications that were asked for stay whole, whatever is written, removed, collected or
/// restarted. What only older ones needed is deleted.
#[test]
fn kept_publications_stay_whole_and_others_are_freed() {
    for seed in 0..3 {
        println!("seed {seed}");
        let world = World::new();
        let mut volume = world.open();
        let mut work = Work::new(seed + 2000);
        let mut published: BTreeMap<u64, BTreeMap<Vec<u8>, Seen>> = BTreeMap::new();
        let mut keep = 4;
        for round in 0..24 {
            work.steps(&volume, 60);
            match work.rng.below(6) {
                0 => drop(volume.collect(&mut |_| ()).unwrap()),
                1 => {
                    drop(volume);
                    volume = world.open();
                }
                2 => {
                    // A publication that ends before its record is written.
                    let mut publication = volume.publication(std::time::Duration::from_secs(20)).unwrap();
                    let blobs: Vec<_> = publication.packs().iter().map(|pack| pack.blob).collect();
                    publication.hold("daily", &mut blobs.into_iter()).unwrap();
                }
                _ => {
                    keep = if work.rng.one_in(5) { 1 + work.rng.below(5) as usize } else { keep };
                    let seen = look(&volume, Ino::ROOT);
                    let done = world.publish_keeping(&volume, "daily", Scope::Whole, keep).unwrap();
                    published.insert(done.root.sequence, seen);
                    while published.len() > keep {
                        published.pop_first();
                    }
                }
            }
            if round % 4 == 3 {
                world.age_holds();
                volume.collect(&mut |_| ()).unwrap();
                for (sequence, seen) in &published {
                    let frozen = world.frozen_at("daily", *sequence).unwrap();
                    assert_eq!(&look(&frozen, Ino::ROOT), seen, "number {sequence} in round {round}");
                }
                if let Some(gone) = published.keys().next().and_then(|first| first.checked_sub(1)) {
                    assert!(world.frozen_at("daily", gone).is_err(), "number {gone} is not kept");
                }
            }
        }
        history::prune(&*world.origin, "daily", 0).unwrap();
        root::remove(&*world.origin, "daily").unwrap();
        volume.let_go("daily").unwrap();
        volume.collect(&mut |_| ()).unwrap();
        volume.close().unwrap();
        drop(volume);
        assert_eq!(World::findings(&world.parts), [""; 0], "nothing is left of them");
        assert!(world.parts.store.scan(&Key::kind(tags::HELD), 10).unwrap().is_empty());
        assert!(world.origin.records("").unwrap().iter().all(|record| record == "owner"));
    }
}

/// What older publications needed is deleted when fewer are kept.
#[test]
fn keeping_fewer_publications_frees_the_others() {
    let world = World::new();
    let volume = world.open();
    let mut work = Work::new(11);
    let mut needed = Vec::new();
    for _ in 0..5 {
        work.steps(&volume, 120);
        needed.push(world.publish_keeping(&volume, "daily", Scope::Whole, 5).unwrap().blobs);
    }
    assert_eq!(history::sequences(&*world.origin, "daily").unwrap(), [1, 2, 3, 4]);
    work.steps(&volume, 60);
    let last = world.publish_keeping(&volume, "daily", Scope::Whole, 1).unwrap().blobs;
    assert_eq!(history::sequences(&*world.origin, "daily").unwrap(), [0; 0]);
    volume.sync().unwrap();
    world.age_holds();
    volume.collect(&mut |_| ()).unwrap();
    let held = world.parts.store.scan(&Key::kind(tags::HELD), usize::MAX).unwrap();
    let held: Vec<_> = held.iter().filter_map(|(key, _)| key.as_held().map(|(blob, _)| blob)).collect();
    assert!(held.len() == last.len() && held.iter().all(|blob| last.contains(blob)));
    let gone = needed.iter().flatten().filter(|blob| world.origin.size(blob).unwrap().is_none());
    assert!(gone.count() > 0, "blobs that only older publications needed are deleted");
    volume.close().unwrap();
}
