//! Following a name while parts of the fleet fail: a node shows the complete old tree or the complete new
//! one, and an open file stays as it was.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const FOLLOW: &str = "--follow=0.2";

/// The contents of the `n`th published tree: two files from the same moment, each larger than a blob.
fn contents(n: u64) -> [(&'static str, Vec<u8>); 3] {
    let mut rng = Rng::new(500 + n);
    [("stamp", n.to_string().into_bytes()), ("left", rng.bytes(5 << 20)), ("right", rng.bytes(5 << 20))]
}

/// The contents of a mount at one moment: its stamp is read before and after, and there is no result if it
/// changed. A read error is not a mixture.
fn look(at: &Path) -> Option<(u64, [std::io::Result<Vec<u8>>; 2])> {
    let stamp = || fs::read_to_string(at.join("stamp")).ok()?.parse().ok();
    let before = stamp()?;
    let read = ["left", "right"].map(|name| fs::read(at.join(name)));
    (stamp() == Some(before)).then_some((before, read))
}

/// The daemon process that has a mount of this test; `mount -d` left it in the background.
fn daemon_of(at: &Path) -> i32 {
    let words = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let at = at.as_os_str().as_encoded_bytes();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| words(*pid).split(|byte| *byte == 0).any(|word| word == at);
    pids.into_iter().find(is_it).unwrap()
}

/// The store fails and recovers, and the node through which both joined is killed, while trees are published.
#[test]
fn followers_see_whole_trees_whatever_fails() {
    requires!(Need::Covey);
    let world = World::new();
    let mounted = world.volume.mount();
    let publish = |n: u64| {
        for (name, bytes) in contents(n) {
            fs::write(mounted.join(name), bytes).unwrap();
        }
        covey_ok(&["publish", mounted.join("").to_str().unwrap(), "latest"]);
    };
    publish(1);
    let proxy = Proxy::start(world.server.address(), 6);
    let first = world.mount("a", None, &[FOLLOW]);
    let second =
        world.mount_by(&proxy.endpoint(), "b", Some(&first.address()), &[FOLLOW, "-o", "deadline=5"]);
    soon("they see each other", || first.nodes() == 2 && second.nodes() == 2);
    let (ends, seen) = (AtomicBool::new(false), std::sync::Mutex::new(std::collections::BTreeSet::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::SeqCst) {
                let Some((stamp, read)) = look(&second.at) else { continue };
                let [_, left, right] = contents(stamp);
                for (read, (name, bytes)) in read.into_iter().zip([left, right]) {
                    assert!(
                        read.is_err() || read.is_ok_and(|read| read == bytes),
                        "{name} is not tree {stamp}'s"
                    );
                }
                seen.lock().unwrap().insert(stamp);
            }
        });
        let until = |n: u64| soon(&format!("tree {n} is shown"), || seen.lock().unwrap().contains(&n));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(1);
            // On a busy machine a read may have missed its deadline.
            let is_here = || fs::read(second.at.join("left")).is_ok_and(|read| read == contents(1)[1].1);
            soon("it has the first tree", is_here);
            let open = fs::File::open(second.at.join("left")).unwrap();
            // The store is unreachable for the second node: it need not notice the new tree, and must keep
            // reading its own data.
            proxy.down();
            publish(2);
            std::thread::sleep(Duration::from_secs(2));
            assert!(fs::read(second.at.join("left")).unwrap() == contents(1)[1].1, "what it has");
            proxy.up();
            until(2);
            // Half of all answers are errors, and the peer that has the third tree is killed.
            proxy.add(Rule::new(Fault::Status(500)).chance(0.5));
            publish(3);
            soon("the first shows it", || {
                first.at.join("stamp").exists() && fs::read(first.at.join("stamp")).unwrap() == b"3"
            });
            // SAFETY: kill(2) takes two numbers. The process is this test's daemon.
            unsafe { libc::kill(daemon_of(&first.at), libc::SIGKILL) };
            until(3);
            proxy.faults().clear();
            publish(4);
            until(4);
            let mut old = vec![0; 5 << 20];
            open.read_exact_at(&mut old, 0).unwrap();
            assert!(old == contents(1)[1].1, "an open file is what it was");
        }));
        ends.store(true, Ordering::SeqCst);
        outcome.unwrap_or_else(|why| std::panic::resume_unwind(why));
    });
    mounted.umount();
}
