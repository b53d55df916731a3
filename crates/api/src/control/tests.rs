use std::fs;
use std::path::Path;

use super::*;

/// Knows no mount and accepts every program as the daemon.
pub struct Nothing;

impl Known for Nothing {
    fn check(&self, _: &UnixStream, _: &ControlAddress) -> io::Result<()> {
        Ok(())
    }

    fn place(&self, _: &ControlAddress) -> Option<PathBuf> {
        None
    }
}

struct Parrot;

impl Serve for Parrot {
    fn serve(&self, request: Request, tick: &mut dyn FnMut(Tick)) -> Result<serde_json::Value> {
        match request {
            Request::Gc => {
                (1..=3).for_each(|done| tick(Tick { done, of: 3, what: "x".into() }));
                Ok(serde_json::json!(42))
            }
            Request::Flush => panic!("as a handler might"),
            other => Err(Failure::usage(format!("{other:?}")).next("nothing")),
        }
    }

    fn watch(&self, _: &Wish, wire: &Wire<'_>) -> Result<serde_json::Value> {
        let mut notes = 0;
        while wire.heard(Duration::from_millis(1)) == Heard::Nothing {
            notes += u64::from(wire.note(&notes));
        }
        Ok(serde_json::json!(notes))
    }
}

#[test]
fn one_who_looks_on_hears_notes_until_he_says_stop() {
    let temp = tempfile::tempdir().unwrap();
    let address = ControlAddress::of_source(temp.path());
    let _listener = Listener::start(address.clone(), Arc::new(Parrot)).unwrap();
    let request = Request::Watch { wish: Wish::Stats { interval_ms: 1 } };
    let asked = Asked::ask(&Nothing, &address, &request).unwrap();
    let stopper = asked.stopper().unwrap();
    let mut notes = 0_u64;
    let said: u64 = asked
        .hear(&mut |_| (), &mut |_| {
            notes += 1;
            if notes == 3 {
                stopper.stop();
            }
        })
        .unwrap();
    assert!(notes >= 3 && said == notes, "{notes} of {said}");
    let hasty = Asked::ask(&Nothing, &address, &request).unwrap();
    hasty.stopper().unwrap().stop();
    assert!(hasty.hear::<u64>(&mut |_| (), &mut |_| ()).is_ok(), "also when it comes with the request");
}

fn ask_all(address: &ControlAddress) {
    let mut ticks = 0;
    let answer: u32 = ask(&Nothing, address, &Request::Gc, &mut |tick| ticks += tick.done).unwrap();
    assert_eq!((answer, ticks), (42, 6));
    let failed = ask::<u32>(&Nothing, address, &Request::Status, &mut |_| ()).unwrap_err();
    assert_eq!((failed.status, failed.next.len()), (2, 1), "{failed}");
    assert_eq!(ask::<String>(&Nothing, address, &Request::Gc, &mut |_| ()).unwrap_err().code, "no-answer");
}

#[test]
fn a_daemon_answers_and_outlives_a_panic_of_a_handler() {
    let temp = tempfile::tempdir().unwrap();
    let deep = temp.path().join("d".repeat(120));
    fs::create_dir(&deep).unwrap();
    let id = base::random::u64();
    for address in [
        ControlAddress::of_source(temp.path()),
        ControlAddress::of_source(&deep),
        ControlAddress::of_source(Path::new(&format!("mem:{id:x}"))),
    ] {
        let listener = Listener::start(address.clone(), Arc::new(Parrot)).unwrap();
        ask_all(&address);
        assert_eq!(
            ask::<u32>(&Nothing, &address, &Request::Flush, &mut |_| ()).unwrap_err().code,
            "no-answer"
        );
        ask_all(&address);
        drop(listener);
        assert_eq!(ask::<u32>(&Nothing, &address, &Request::Gc, &mut |_| ()).unwrap_err().code, "no-answer");
    }
}

/// Tells a process of these tests that it is the one with few descriptors.
const FEW: &str = "COVEY_TEST_FEW_FILES";
const OUT_OF_FILES: &str = "control::tests::regression_a_daemon_that_ran_out_of_files_hears_again";

/// A caller that could not be accepted ended the control socket for good.
#[test]
fn regression_a_daemon_that_ran_out_of_files_hears_again() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    if std::env::var_os(FEW).is_none() {
        // The limit is that of a process, and this one runs other tests.
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        let done = own.args([OUT_OF_FILES, "--exact", "--nocapture"]).env(FEW, "1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let address = ControlAddress::of_source(temp.path());
    let _listener = Listener::start(address.clone(), Arc::new(Parrot)).unwrap();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut all: Vec<fs::File> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    assert!(all.len() < 64);
    // The daemon has one in hand for the next caller. The caller gets one, and none is left after that.
    let waiting = loop {
        drop(all.pop().unwrap());
        if let Ok(stream) = address.connect() {
            break stream;
        }
    };
    std::thread::sleep(Duration::from_millis(200));
    drop((all, waiting));
    ask_all(&address);
}

/// A caller that sent a byte now and then kept its place for good.
#[test]
fn regression_a_request_has_one_deadline() {
    let temp = tempfile::tempdir().unwrap();
    let address = ControlAddress::of_source(temp.path());
    let patience = Duration::from_millis(500);
    let _listener = Listener::with_patience(address.clone(), Arc::new(Parrot), patience).unwrap();
    let begin = base::time::monotonic();
    let mut slow = address.connect().unwrap();
    while slow.write_all(b" ").is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begin.elapsed() >= patience, "{:?}", begin.elapsed());
    // On a busy machine a request may come too late for this daemon.
    let is_answered = || ask::<u32>(&Nothing, &address, &Request::Gc, &mut |_| ()).is_ok();
    assert!((0..10).any(|_| is_answered()), "it answers no more");
}

#[test]
fn a_dead_daemons_socket_is_no_obstacle() {
    let temp = tempfile::tempdir().unwrap();
    let address = ControlAddress::of_source(temp.path());
    drop(address.bind().unwrap());
    let _listener = Listener::start(address.clone(), Arc::new(Parrot)).unwrap();
    ask_all(&address);
}

/// A command that came between the mount and the listener was told that the daemon does not answer.
#[test]
fn regression_a_daemon_that_listens_a_moment_later_is_heard() {
    // Each time the daemon listens a little later. On a busy machine that may be much later.
    let heard = (0..20).find_map(|_| {
        let temp = tempfile::tempdir().unwrap();
        let address = ControlAddress::of_source(temp.path());
        let begin = base::time::monotonic();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| ask::<u32>(&Nothing, &address, &Request::Gc, &mut |_| ()));
            std::thread::sleep(Duration::from_millis(30));
            let _listener = Listener::start(address.clone(), Arc::new(Parrot)).unwrap();
            let is_late = begin.elapsed() > Duration::from_millis(200);
            let heard = asks.join().unwrap();
            (heard.is_ok() || !is_late).then_some(heard)
        })
    });
    assert_eq!(heard.expect("it listens in time").unwrap(), 42);
}

/// Says where the daemon of the parent listens.
const THERE: &str = "COVEY_TEST_DAEMON";
const OTHER: &str = "control::tests::regression_one_process_does_not_keep_others_from_the_daemon";

/// A dashboard, which others may read, had all places of the control socket, and commands of root got none.
#[test]
fn regression_one_process_does_not_keep_others_from_the_daemon() {
    if let Some(folder) = std::env::var_os(THERE) {
        ask_all(&ControlAddress::of_source(std::path::Path::new(&folder)));
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let address = ControlAddress::of_source(temp.path());
    let patience = Duration::from_secs(600);
    let _listener = Listener::with_patience(address.clone(), Arc::new(Parrot), patience).unwrap();
    let silent: Vec<_> = (0..100).map(|_| address.connect().unwrap()).collect();
    let mut other = std::process::Command::new(std::env::current_exe().unwrap());
    let done = other.args([OTHER, "--exact", "--nocapture"]).env(THERE, temp.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    // This process is told why it gets no more.
    let mut answer = String::new();
    let mut last = silent.last().unwrap();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("too many requests"), "{answer}");
}
