//! Guests of a shared volume whose names are in etcd.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run};
use covey_tests::shared::Node;
use covey_tests::shared::etcd::Volume;
use covey_tests::{Need, requires, say};

use super::locks::{Python, try_lock};
use super::world::{Guest, Place, Server};

const LIMIT: Duration = Duration::from_secs(120);

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// What a guest writes and locks, other guests and nodes read and find locked, as with PostgreSQL.
#[test]
fn guests_of_a_volume_in_etcd_see_and_lock_one_another() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    let Some(volume) = Volume::new(0) else { return };
    let node = Node::with(volume.folder.path(), &volume.address, "node", &["-o", "locks=fleet"]);
    let place = Place::new();
    let cache = place.text("node");
    let server = Server::start(&place, &volume.address, &["--cache", &cache, "--locks", "server"]);
    let guests = ["a", "b"].map(|name| Guest::attach(&place, name, &place.unix("s"), &[]));
    let places = [guests[0].path(), guests[1].path(), &node.mountpoint];

    for round in 0..3 {
        let [from, to, third] = [round, round + 1, round + 2].map(|at| places[at % 3]);
        let text = format!("round {round}");
        fs::create_dir(from.join("dir")).unwrap();
        fs::write(from.join("dir/file"), &text).unwrap();
        for seen in [to, third] {
            assert_eq!(fs::read_to_string(seen.join("dir/file")).unwrap(), text, "{round}");
        }
        // More than one page, written at two places by two of them.
        let (mine, others) = (open(&from.join("dir/file")), open(&to.join("dir/file")));
        mine.write_all_at(&[1; 9000], 0).unwrap();
        others.write_all_at(&[2; 9000], 5 << 20).unwrap();
        drop((mine, others));
        let seen = fs::read(third.join("dir/file")).unwrap();
        assert_eq!((seen.len(), seen[8999], seen[9000], seen[5 << 20]), ((5 << 20) + 9000, 1, 0, 2));
        fs::rename(to.join("dir"), to.join("moved")).unwrap();
        assert!(!from.join("dir").exists() && third.join("moved/file").exists());
        fs::remove_dir_all(third.join("moved")).unwrap();
        assert!(!from.join("moved").exists() && !to.join("moved").exists());
    }

    fs::write(places[2].join("f"), "0").unwrap();
    let [one, two, node_file] = [0, 1, 2].map(|at| places[at].join("f"));
    for style in ["posix", "ofd", "flock"] {
        let holds = Python::holder(style, &one);
        for other in [&two, &node_file] {
            assert_eq!(try_lock(&open(other), style), Err(libc::EAGAIN), "{style}");
        }
        let mut waits = Python::waiter(style, &two);
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        holds.end();
        assert_eq!(waits.line(), "locked", "{style}");
        say(format_args!("{style}: a guest got it {:?} after another one's unlock", began.elapsed()));
        assert_eq!(try_lock(&open(&node_file), style), Err(libc::EAGAIN), "{style}");
        waits.end();
    }

    guests.into_iter().for_each(Guest::end);
    server.end();
    drop(node);
    let checked = run(covey().args(["fsck", "--json", &volume.address]), LIMIT);
    assert!(checked.code() == 0 && checked.json()["sound"] == true, "{checked:?}");
}
