//! The trash, when a volume becomes a shared one, and when a shared one is published and restored.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use covey_tests::program::{covey, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};

use super::publish::{LIMIT, publish};
use super::single::Single;

fn trash(words: &[&str], place: &Path, more: &[&str]) -> serde_json::Value {
    run_ok(covey().args(["--json", "trash"]).args(words).arg(place).args(more), LIMIT).json()
}

fn entries(place: &Path) -> usize {
    trash(&["ls"], place, &[])["entries"].as_array().unwrap().len()
}

fn must_be_sound(address: &str) {
    let done = run_ok(covey().args(["fsck", "--json", address]), LIMIT).json();
    assert_eq!(done["findings"].as_array().map(Vec::len), Some(0), "{done}");
}

#[test]
fn a_promotion_keeps_the_trash_and_a_publication_leaves_it_out() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let single = Single::new(&shared, "single");
    let bytes = vec![7u8; 5 << 20];
    {
        let mut node = single.mount("one");
        trash(&["set"], &node.mountpoint, &["7d"]);
        fs::create_dir(node.mountpoint.join("dir")).unwrap();
        fs::write(node.mountpoint.join("dir/large"), &bytes).unwrap();
        fs::write(node.mountpoint.join("dir/small"), "small").unwrap();
        fs::write(node.mountpoint.join("kept"), "kept").unwrap();
        File::open(node.mountpoint.join("dir/large")).unwrap().sync_all().unwrap();
        run_ok(Command::new("rm").arg("-r").arg(node.mountpoint.join("dir")), LIMIT);
        node.unmount();
    }
    run_ok(&mut single.promote(&single.address()), LIMIT);
    must_be_sound(&single.address());
    let mut nodes = [single.mount("first"), single.node("second")];
    assert_eq!(trash(&["ls"], &nodes[1].mountpoint, &[])["keep_seconds"].as_u64(), Some(7 * 86_400));
    assert_eq!(entries(&nodes[1].mountpoint), 3);
    publish(&nodes[0].mountpoint, "tree");
    trash(&["restore"], &nodes[1].mountpoint, &["/dir"]);
    assert!(fs::read(nodes[0].mountpoint.join("dir/large")).unwrap() == bytes);
    fs::remove_file(nodes[0].mountpoint.join("dir/small")).unwrap();
    assert_eq!(entries(&nodes[0].mountpoint), 1, "a promoted volume keeps what is removed");
    nodes.iter_mut().for_each(|node| node.unmount());
    must_be_sound(&single.address());

    let address = single.address().replace("volume=v-single", "volume=other");
    run_ok(covey().args(["restore", "--take-over", &single.tree("tree"), &address]), LIMIT);
    must_be_sound(&address);
    let node = shared.add_of(&address, "restored");
    assert_eq!(entries(&node.mountpoint), 0);
    assert_eq!(fs::read_to_string(node.mountpoint.join("kept")).unwrap(), "kept");
    assert!(!node.mountpoint.join("dir").exists());
}
