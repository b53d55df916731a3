//! Guests of a shared volume: they and the other nodes see and lock one another.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server, say};

use super::locks::{Python, try_lock};
use super::world::{Guest, Place, Server, until};

/// A shared volume with one node that mounts it, and one that serves it to two guests.
struct World {
    guests: [Guest; 2],
    server: Server,
    shared: Shared,
    place: Place,
}

impl World {
    fn new(shared: Shared) -> World {
        let place = Place::new();
        let node = place.text("node");
        let options = ["--cache", &node, "--locks", "server"];
        let server = Server::start(&place, &shared.address, &options);
        let guests = ["a", "b"].map(|name| Guest::attach(&place, name, &place.unix("s"), &[]));
        World { guests, server, shared, place }
    }

    fn end(self) {
        self.guests.into_iter().for_each(Guest::end);
        self.server.end();
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// What one guest or node has written is what all others read next: names, attributes, data of open files.
#[test]
fn guests_and_nodes_of_a_shared_volume_see_one_another() {
    requires!(Need::Root, Need::Covey);
    let world = World::new(Shared::new(requires_server!(), 1));
    let node = world.shared.path(0, "");
    let places = [world.guests[0].path(), world.guests[1].path(), &node];
    for round in 0..9 {
        let [from, to, third] = [round, round + 1, round + 2].map(|at| places[at % 3]);
        let text = format!("round {round}");
        fs::write(from.join("file"), &text).unwrap();
        for seen in [to, third] {
            assert_eq!(fs::read_to_string(seen.join("file")).unwrap(), text);
            assert_eq!(fs::metadata(seen.join("file")).unwrap().len(), text.len() as u64);
        }
        // A file that is open shows what others write, although its size stays.
        let mut open = open(&to.join("file"));
        fs::write(third.join("file"), text.to_uppercase()).unwrap();
        let mut seen = String::new();
        open.seek(SeekFrom::Start(0)).unwrap();
        open.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, text.to_uppercase());
        fs::create_dir(from.join("dir")).unwrap();
        fs::write(to.join("dir/x"), "x").unwrap();
        fs::rename(from.join("dir"), from.join("moved")).unwrap();
        assert!(!to.join("dir").exists() && third.join("moved/x").exists());
        fs::remove_dir_all(third.join("moved")).unwrap();
        assert!(!from.join("moved").exists() && !to.join("moved").exists());
    }
    world.end();
}

/// A guest's locks are those of the fleet, for other nodes and for other guests.
#[test]
fn a_guests_locks_are_those_of_the_fleet() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    let world = World::new(Shared::with(requires_server!(), 1, &["-o", "locks=fleet"]));
    let node = world.shared.path(0, "f");
    fs::write(&node, "0").unwrap();
    let [one, two] = [0, 1].map(|guest| world.guests[guest].join("f"));
    for style in ["posix", "ofd", "flock"] {
        let holds = Python::holder(style, &one);
        for other in [&two, &node] {
            assert_eq!(try_lock(&open(other), style), Err(libc::EAGAIN), "{style}");
        }
        let mut waits = Python::waiter(style, &node);
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        holds.end();
        assert_eq!(waits.line(), "locked", "{style}");
        say(format_args!("{style}: a node got it {:?} after a guest's unlock", began.elapsed()));
        let mut guest = Python::waiter(style, &two);
        std::thread::sleep(Duration::from_millis(100));
        waits.end();
        assert_eq!(guest.line(), "locked", "{style}");
        assert_eq!(try_lock(&open(&node), style), Err(libc::EAGAIN), "{style}");
        guest.end();
    }
    // They are listed, and a server that ends in good order leaves none.
    let holds = Python::holder("flock", &one);
    let listed = covey_tests::program::covey_ok(&["locks", &world.shared.address]).stdout;
    assert!(listed.contains("flock") && listed.contains("held"), "{listed}");
    let address = world.shared.address.clone();
    let World { guests: [first, second], server, shared, place } = world;
    holds.end();
    first.end();
    second.end();
    let listed = covey_tests::program::covey_ok(&["locks", &address]).stdout;
    assert!(listed.contains("No node holds a lock"), "{listed}");
    server.end();
    drop((shared, place));
}

/// A server whose node has lost its session answers with errors, and never with what was true before. When it
/// has joined again, guests go on, and locks of the lost session are told of.
#[test]
#[ignore = "minutes: make test-shared"]
fn a_server_that_lost_its_session_shows_nothing_old() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    let world = World::new(Shared::with(requires_server!(), 1, &["-o", "locks=fleet"]));
    let (node, guest) = (world.shared.path(0, "f"), world.guests[0].join("f"));
    fs::write(&node, "old").unwrap();
    assert_eq!(fs::read_to_string(&guest).unwrap(), "old");
    let mine = open(&guest);
    try_lock(&mine, "flock").unwrap();
    world.server.signal(libc::SIGSTOP);
    fs::write(&node, "new").unwrap();
    std::thread::sleep(Duration::from_secs(17));
    until("the lock ended with the session", || try_lock(&open(&node), "flock").is_ok());
    world.server.signal(libc::SIGCONT);
    let mut errors = 0;
    until("it has joined again", || match fs::read_to_string(&guest) {
        Ok(text) => {
            assert_eq!(text, "new");
            true
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
            errors += 1;
            false
        }
    });
    say(format_args!("{errors} errors before it had joined again"));
    assert_eq!(try_lock(&mine, "flock"), Err(libc::EIO));
    drop(mine);
    until("the file was closed", || try_lock(&open(&guest), "flock").is_ok());
    fs::write(&guest, "again").unwrap();
    assert_eq!(fs::read_to_string(&node).unwrap(), "again");
    world.end();
}
