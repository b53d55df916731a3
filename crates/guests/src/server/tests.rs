use stream::attach::greet::{Greeted, Trouble, greet};

use super::*;
use crate::testing::{Gated, PATIENCE};

struct World {
    _folder: tempfile::TempDir,
    _server: Server,
    address: Address,
    secret: Secret,
    lines: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new(greeting: Duration) -> World {
        World::of(|options| options.greeting = greeting)
    }

    /// A server with a secret.
    fn of(set: impl FnOnce(&mut Options)) -> World {
        let folder = tempfile::tempdir().unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&lines);
        let mut options =
            Options::new("test", b"test", Arc::new(move |line: &str| log.lock().push(line.to_owned())));
        let secret = Secret::from_text(&Secret::generate_text()).unwrap();
        options.secret = Some(secret.clone());
        set(&mut options);
        let mut server = Server::start(Gated::new(), options).unwrap();
        let address = server.listen(&Address::Unix(folder.path().join("s"))).unwrap();
        World { _folder: folder, _server: server, address, secret, lines }
    }

    fn connect(&self) -> Socket {
        let socket = Socket::connect(&self.address, PATIENCE).unwrap();
        socket.limit(Some(PATIENCE), Some(PATIENCE)).unwrap();
        socket
    }

    fn greet(&self) -> Result<Greeted, Trouble> {
        greet(&self.address, &Keys::new(Some(&self.secret)), [0; 16], 0)
    }
}

/// Both ends of many connections are in this process.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Connections that had no secret and said nothing took the places of all guests.
#[test]
fn regression_strangers_lock_no_guest_out() {
    allow_many_files();
    let world = World::new(PATIENCE);
    let silent: Vec<Socket> = (0..1100).map(|_| world.connect()).collect();
    let greeted = world.greet().unwrap_or_else(|trouble| panic!("{}", trouble.text));
    assert_eq!(greeted.welcome.found, Found::New);
    let mut room = vec![0; PAYLOAD_MAX];
    let first = silent[0].cloned().unwrap();
    assert!(matches!(Receiver::new(first).receive(&mut room), Err(Lost::Closed)), "the oldest is cut");
    let lines = world.lines.lock().clone();
    assert!(lines.len() <= 3, "the log is not filled: {lines:?}");
}

/// A stranger that sent a byte now and then kept its place for hours.
#[test]
fn regression_a_greeting_has_one_deadline() {
    let world = World::new(Duration::from_secs(1));
    // Before the server can have seen the connection.
    let begin = base::time::monotonic();
    let slow = world.connect();
    while slow.send_bytes(b"C").is_ok() {
        assert!(begin.elapsed() < PATIENCE / 2, "it is still there");
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(begin.elapsed() >= Duration::from_millis(900));
    assert!(world.lines.lock().iter().any(|line| line.contains("did not greet within 1 s")));
}

/// A client began sessions and left them. Each was remembered for a minute, and kept the other guests out.
#[test]
fn regression_sessions_that_were_left_give_their_places_up() {
    allow_many_files();
    let world = World::of(|options| {
        (options.sharing, options.guests) = (Sharing::Many, 16);
        options.linger = PATIENCE;
    });
    let greeted = || world.greet().map_err(|trouble| trouble.text);
    let held: Vec<_> = (0..16).map(|_| greeted().unwrap_or_else(|why| panic!("{why}"))).collect();
    assert!(greeted().is_err_and(|why| why.contains("16 guests are attached")), "they are connected");
    drop(held);
    let begin = base::time::monotonic();
    while let Err(why) = greeted() {
        assert!(begin.elapsed() < PATIENCE / 2, "{why}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One that left before it mounted holds nothing, and is soon forgotten.
#[test]
fn regression_a_session_that_was_not_used_is_not_remembered_for_long() {
    let world = World::of(|options| options.linger = 10 * PATIENCE);
    drop(world.greet().unwrap_or_else(|trouble| panic!("{}", trouble.text)));
    let begin = base::time::monotonic();
    while let Err(trouble) = world.greet() {
        assert!(begin.elapsed() < PATIENCE, "{}", trouble.text);
        std::thread::sleep(Duration::from_millis(50));
    }
}
