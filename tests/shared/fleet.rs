//! The nodes of a shared volume as a fleet: where bytes come from that another node has written.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, environment, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, Rng, requires, requires_server};
use s3server::Server as Store;
use servers::Server;

const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;
/// A file of so many blobs.
const BLOBS: u64 = 8;

/// Nodes of a volume whose bytes are in this store.
fn nodes(server: Server, store: &Store, nodes: usize) -> Shared {
    environment(s3server::environment());
    let hosts = format!("127.0.0.1:{}", server.port());
    let (origin, endpoint) = (format!("s3://{}/work", s3server::BUCKET), store.endpoint());
    Shared::stored(server, covey_tests::scratch(), &hosts, nodes, &[], &[&origin, "--endpoint", &endpoint])
}

/// How many nodes this one sees in its fleet, itself included.
fn seen(mountpoint: &Path) -> usize {
    let said = run_ok(covey().args(["peers", "--json"]).arg(mountpoint), LIMIT).json();
    said.as_array().expect("a list of nodes").len()
}

/// Writes a file of [`BLOBS`] blobs, and waits until the store has them.
fn stored(shared: &Shared, node: usize, name: &str) -> Vec<u8> {
    let seed = name.bytes().map(u64::from).sum();
    let bytes = Rng::new(seed).bytes(BLOBS as usize * 4 * MIB);
    fs::write(shared.path(node, name), &bytes).unwrap();
    run_ok(covey().arg("flush").arg(shared.path(node, "")), LIMIT);
    bytes
}

/// Each node read everything from the store that it had not written itself.
#[test]
fn regression_nodes_of_a_shared_volume_read_from_one_another() {
    requires!(Need::Covey);
    let (server, store) = (requires_server!(), Store::start());
    let shared = nodes(server, &store, 3);
    let end = Instant::now() + LIMIT;
    for turn in 0.. {
        assert!(Instant::now() < end, "the nodes still read from the store");
        let name = format!("file{turn}");
        let bytes = stored(&shared, 0, &name);
        let before = store.counts().get;
        for node in [1, 2] {
            assert!(fs::read(shared.path(node, &name)).unwrap() == bytes, "node {node}");
        }
        let gets = store.counts().get - before;
        assert!(gets <= 2 * BLOBS + 2, "{gets} GETs of {BLOBS} blobs by two nodes");
        // At first the nodes do not know one another, and later not yet which blobs each of them has.
        if gets <= 1 && (0..3).all(|node| seen(&shared.path(node, "")) == 3) {
            break;
        }
    }
}

/// A read that waited for the store was the only one in flight, and nothing was fetched ahead of it.
#[test]
fn regression_a_stream_of_a_shared_volume_is_prefetched() {
    requires!(Need::Covey);
    let (server, store) = (requires_server!(), Store::start());
    let mut shared = nodes(server, &store, 1);
    let bytes = stored(&shared, 0, "file");
    shared.nodes[0].unmount();
    shared.add();
    let file = shared.path(1, "file");
    let before = store.counts().get;
    // It reads the first half only. The blobs after it are fetched all the same.
    let mut half = vec![0; bytes.len() / 2];
    fs::File::open(&file).unwrap().read_exact(&mut half).unwrap();
    let end = Instant::now() + LIMIT;
    while store.counts().get - before < BLOBS / 2 + 2 {
        assert!(Instant::now() < end, "only {} GETs", store.counts().get - before);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(fs::read(&file).unwrap() == bytes);
}
