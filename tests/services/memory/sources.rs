//! Snapshots in a volume, on a mount, and in a published tree whose store goes away.

use std::fs;

use covey_tests::program::{covey_ok, environment};
use covey_tests::{Need, Volume, requires};
use s3server::{BUCKET, Proxy, Server};

use super::world::{MIB, Place, bytes, may, until};

#[test]
fn a_snapshot_on_a_mount_in_a_volume_and_in_a_tree_is_the_same() {
    requires!(Need::Root, Need::Covey);
    if !may() {
        return;
    }
    let place = Place::new();
    place.snapshot(8 * MIB);
    let origin = format!("file:{}", place.text("origin"));
    let volume = Volume::below(place.path("").as_path(), &["--origin", &origin]);
    let mounted = volume.mount();
    fs::create_dir(mounted.join("vm")).unwrap();
    fs::copy(place.path("memory"), mounted.join("vm/memory")).unwrap();
    let check = |source: &str, more: &[&str]| {
        let server = place.serve(source, more);
        for _ in 0..2 {
            place.vmm("check").must_succeed();
        }
        server.end_well();
    };
    check(mounted.join("vm/memory").to_str().unwrap(), &[]);
    mounted.umount();
    let volume = volume.source.to_str().unwrap();
    check(&format!("{volume}:/vm/memory"), &[]);
    covey_ok(&["publish", volume, "latest"]);
    check(&format!("{origin}@latest:/vm/memory"), &["--record", &place.text("list")]);
    assert!(fs::read_to_string(place.text("list")).unwrap().contains(" tree ["));
}

#[test]
fn a_store_that_goes_away_delays_a_clone_and_one_that_stays_away_ends_it() {
    requires!(Need::Root, Need::Covey);
    if !may() {
        return;
    }
    environment(s3server::environment());
    let place = Place::new();
    let store = Server::start();
    let proxy = Proxy::start(store.address(), 1);
    let (origin, endpoint) = (format!("s3://{BUCKET}/vms"), store.endpoint());
    let volume = Volume::below(place.path("").as_path(), &["--origin", &origin, "--endpoint", &endpoint]);
    // Blobs have 4 MiB, so each half of the file has blobs of its own.
    fs::write(place.path("memory"), bytes(32 * MIB)).unwrap();
    let mounted = volume.mount();
    fs::copy(place.path("memory"), mounted.join("memory")).unwrap();
    mounted.umount();
    covey_ok(&["flush", volume.source.to_str().unwrap()]);
    covey_ok(&["publish", volume.source.to_str().unwrap(), "latest"]);
    let serve = |patience: &str, cache: &str| {
        let (tree, through) = (format!("{origin}@latest:/memory"), proxy.endpoint());
        let cache = place.text(cache);
        place.serve(&tree, &["--endpoint", &through, "--cache", &cache, "--patience", patience])
    };
    let server = serve("60", "cache-a");
    let mut vmm = place.vmm("half");
    vmm.at("half");
    proxy.down();
    vmm.go();
    until("the server says that it waits for the store", || server.log().contains("has waited 3 s"));
    assert!(vmm.runs());
    proxy.up();
    vmm.must_succeed();
    server.end_well();
    // It has read nothing yet when the store goes away, so nothing here depends on how fast the store is.
    let server = serve("1", "cache-b");
    let mut vmm = place.vmm("late");
    vmm.at("loaded");
    proxy.down();
    vmm.go();
    assert_eq!(vmm.died_of(), libc::SIGBUS);
    super::world::until("the log says it", || server.log().contains("cannot go on: bytes "));
    proxy.up();
    server.end_well();
}

/// A server that is a node of a fleet gives what it has to the others, and asks them first.
#[test]
fn servers_of_a_fleet_serve_from_one_another() {
    requires!(Need::Root, Need::Covey);
    if !may() {
        return;
    }
    environment(s3server::environment());
    let one = Place::new();
    let store = Server::start();
    let (origin, endpoint) = (format!("s3://{BUCKET}/fleet"), store.endpoint());
    let volume = Volume::below(one.path("").as_path(), &["--origin", &origin, "--endpoint", &endpoint]);
    one.snapshot(16 * MIB);
    let mounted = volume.mount();
    fs::copy(one.path("memory"), mounted.join("memory")).unwrap();
    mounted.umount();
    covey_ok(&["flush", volume.source.to_str().unwrap()]);
    covey_ok(&["publish", volume.source.to_str().unwrap(), "latest"]);
    let (tree, secret) = (format!("{origin}@latest:/memory"), one.text("secret"));
    covey_ok(&["fleet", "secret", &secret]);
    let free = format!("127.0.0.1:{}", covey_tests::free_port());
    let serve = |place: &Place, fleet: [&str; 2]| {
        let cache = place.text("cache");
        let more = ["--endpoint", &endpoint, "--cache", &cache, "--secret-file", &secret];
        place.serve(&tree, &[&more[..], &fleet].concat())
    };
    let first = serve(&one, ["--listen", &free]);
    one.vmm("check").must_succeed();
    // On a busy machine the first may be too slow for another one, but not for each.
    let is_asked = (0..5).any(|_| {
        let two = Place::new();
        two.snapshot(16 * MIB);
        let before = store.counts().sent;
        let second = serve(&two, ["--join", &free]);
        two.vmm("check").must_succeed();
        let sent = store.counts().sent - before;
        covey_tests::say(format_args!("the store sent {sent} bytes for the second server's 16 MiB"));
        second.end_well();
        sent < 8 * MIB as u64
    });
    assert!(is_asked, "each had its bytes from the store");
    first.end_well();
}
