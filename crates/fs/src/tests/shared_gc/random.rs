//! Random work on several nodes, with few different contents, so that equal blobs come and go.

use std::collections::HashMap;

use base::dice::Dice;

use super::*;

const FILES: u64 = 6;
const CONTENTS: u64 = 4;

/// What a file holds: the content of each of its parts. 0 is none.
pub(super) type Model = HashMap<(usize, u64), u64>;

pub(super) fn bytes(content: u64) -> Vec<u8> {
    noise(content, 20_000 + content as usize)
}

/// Writes bytes of a file again, which are stored at another place: what is left of the old pack is moved.
fn write_again(node: &Node, file: Ino, content: u64, dice: &mut Dice) {
    if content > 0 {
        let (from, len) = (dice.below(2_000), 2_000 + dice.below(16_000));
        node.put(file, from as u64, &bytes(content)[from..from + len]);
    }
}

/// Each node writes and removes its own files, copies the others' files, and reads all the time.
pub(super) fn work(
    cluster: &Cluster,
    nodes: &[Node],
    me: usize,
    dirs: &[Ino],
    seed: u64,
    until: Instant,
) -> Model {
    let (mut dice, mut model) = (Dice::new(seed), Model::new());
    let (node, mut made) = (&nodes[me], HashMap::new());
    while Instant::now() < until {
        let number = dice.below(FILES as usize) as u64;
        let name = format!("{number}");
        match dice.below(9) {
            0 | 1 => {
                let content = 1 + dice.below(CONTENTS as usize) as u64;
                let file = *made.entry(number).or_insert_with(|| node.file(dirs[me], &name));
                node.cut(file, 0);
                node.put(file, 0, &bytes(content));
                model.insert((me, number), content);
            }
            2 => {
                if let Some(file) = made.remove(&number) {
                    node.unlink(dirs[me], name.as_bytes()).unwrap();
                    node.forget(file, 1);
                    model.remove(&(me, number));
                }
            }
            3 => {
                // A file of another node, as it is now.
                let other = dice.below(nodes.len());
                let Ok(from) = node.lookup(dirs[other], name.as_bytes()) else { continue };
                let to = *made.entry(number).or_insert_with(|| node.file(dirs[me], &name));
                if to != from.attr.ino {
                    node.cut(to, 0);
                    model.insert((me, number), 0);
                    let size = node.getattr(from.attr.ino).map_or(0, |attr| attr.size);
                    let _ = node.copy_range(from.attr.ino, 0, to, 0, size);
                    let found = node.get(to);
                    let content = (1..=CONTENTS).find(|content| found == bytes(*content));
                    match content {
                        Some(content) => _ = model.insert((me, number), content),
                        // The other node was cutting or removing the file.
                        None => drop(node.cut(to, 0)),
                    }
                }
                node.forget(from.attr.ino, 1);
            }
            4 => drop(node.seal_now(Duration::from_millis(300))),
            8 => {
                let content = model.get(&(me, number)).copied().unwrap_or(0);
                made.get(&number).iter().for_each(|file| write_again(node, **file, content, &mut dice));
            }
            5 => node.round(),
            _ => {
                let file = made.get(&number).copied();
                let found = file.map_or_else(Vec::new, |file| node.get(file));
                let content = model.get(&(me, number)).copied().unwrap_or(0);
                let expected = if content == 0 { Vec::new() } else { bytes(content) };
                assert!(
                    found == expected,
                    "seed {seed}: node {me}, file {number}: {:?}",
                    cluster.lines.lock()
                );
            }
        }
    }
    model
}

#[test]
fn random_work_on_three_nodes_loses_nothing() {
    let seconds = std::env::var("COVEY_SECONDS").ok().map_or(20, |text| text.parse().unwrap());
    let cluster = Cluster::new(SOON);
    let nodes = [cluster.join(), cluster.join(), cluster.join()];
    let dirs: Vec<Ino> = (0..3).map(|n| nodes[n].dir(Ino::ROOT, &format!("dir{n}"))).collect();
    // The others use these numbers without having looked for the names.
    nodes.iter().for_each(|node| node.parts().store.flush().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let models: Vec<Model> = std::thread::scope(|scope| {
        let (cluster, nodes, dirs) = (&*cluster, &nodes[..], &dirs[..]);
        let workers: Vec<_> = (0..3)
            .map(|me| scope.spawn(move || work(cluster, nodes, me, dirs, 1 + me as u64, until)))
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    nodes.iter().for_each(Node::upload);
    cluster.assert_whole();
    for (reader, node) in nodes.iter().enumerate() {
        for (&(owner, number), &content) in models.iter().flatten() {
            let found = node.lookup(dirs[owner], format!("{number}").as_bytes()).unwrap();
            let expected = if content == 0 { Vec::new() } else { bytes(content) };
            assert!(node.get(found.attr.ino) == expected, "node {reader}: file {number} of {owner}");
            node.forget(found.attr.ino, 1);
        }
    }
    let lost: Vec<String> =
        cluster.lines.lock().iter().filter(|line| line.contains("lost")).cloned().collect();
    assert_eq!(lost, [""; 0], "acknowledged changes were refused");
    let deleted: u64 = nodes.iter().map(|node| node.stats().unwrap().freed_bytes).sum();
    let moved: u64 = nodes.iter().map(|node| node.stats().unwrap().moved_bytes).sum();
    assert!(deleted > 0 && moved > 0, "{deleted} bytes were deleted, and {moved} moved");
    println!("{deleted} bytes were deleted, and {moved} moved");
}
