//! A fleet over a bucket that was indexed.

use std::collections::BTreeMap;
use std::fs;

use covey_tests::program::covey_ok;
use covey_tests::{Need, Rng, requires};
use s3server::BUCKET;

use super::{World, soon, troubles};

/// The length of a part of an object, as it is fetched.
const PART: u64 = 1 << 20;

/// Three nodes read all objects at once. Every byte is right, and each range is fetched from the bucket once
/// for all of them.
#[test]
fn three_nodes_read_a_bucket_and_it_gives_each_range_once() {
    requires!(Need::Covey, Need::Root);
    let world = World::of(&[100]);
    let mut rng = Rng::new(21);
    let files: BTreeMap<String, Vec<u8>> = [(5 << 20) + 17, 3 << 20, 1 << 20, 700_000, 40_000, 3_000, 1]
        .iter()
        .enumerate()
        .map(|(n, size)| (format!("f{n}"), rng.bytes(*size)))
        .collect();
    let folder = world.server.folder().join("lake");
    fs::create_dir_all(&folder).unwrap();
    files.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
    let (volume, endpoint) = (world.volume.source.to_str().unwrap(), world.server.endpoint());
    covey_ok(&["index", &format!("s3://{BUCKET}/lake"), volume, "lake", "--endpoint", &endpoint]);
    let mount = |name: &str, join: Option<&str>| world.mount_tree("lake", &endpoint, name, join, &[]);
    let first = mount("a", None);
    let address = first.address();
    let nodes = [mount("b", Some(&address)), mount("c", Some(&address)), first];
    soon("all see all", || nodes.iter().all(|node| node.nodes() == 3));
    std::thread::scope(|scope| {
        for node in &nodes {
            scope.spawn(|| {
                for (name, bytes) in &files {
                    assert!(fs::read(node.at.join(name)).unwrap() == *bytes, "{name} holds other bytes");
                }
            });
        }
    });
    let late: u64 = nodes.iter().map(|node| troubles(&node.json("status")["fleet"])).sum();
    let mut more = 0;
    for (name, bytes) in &files {
        let got = world.server.got();
        let gets = got.iter().find(|(key, _)| key.ends_with(&format!("lake/{name}"))).unwrap().1.gets;
        let ranges = (bytes.len() as u64).div_ceil(PART);
        assert!(gets >= ranges, "{name}: {gets} GETs of {ranges} ranges");
        more += gets - ranges;
    }
    println!("{more} ranges were fetched again, {late} times in trouble");
    assert!(more <= late, "{more} ranges were fetched again, {late} times in trouble");
    let others = nodes.iter().map(|node| node.hits("peer") + node.hits("stream")).sum::<u64>();
    assert!(others > 0, "nothing came from a peer");
}
