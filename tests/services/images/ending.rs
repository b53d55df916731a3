//! How an image's mount ends: what that waits for, and what it says.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, wait};
use covey_tests::{Need, requires};

use super::{Image, one_at_a_time, with_app};

const PATIENCE: Duration = Duration::from_secs(60);

/// The options of the filesystem that is mounted at a path.
fn options_at(path: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_there = |line: &&str| line.split(' ').nth(4) == path.to_str();
    let line = table.lines().find(is_there).unwrap_or_else(|| panic!("{}: {table}", path.display()));
    line.split(' ').next_back().unwrap().to_owned()
}

/// The unmount of an overlay first writes out everything that the machine has not written to the disk of its
/// upper folder, of whatever program. `covey image umount` once took more than two minutes by that, although
/// it removes what was written. With `--upper`, what was written must be on the disk.
#[test]
fn regression_the_unmount_of_a_temporary_image_waits_for_no_disk() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let (_volume, mounted) = with_app(folder.path());
    let (at, upper) = (folder.path().join("image"), folder.path().join("upper"));
    let images = mounted.join("images");
    for (more, temporary) in [(&[][..], true), (&["--upper", upper.to_str().unwrap()], false), (&[], true)] {
        let image = Image::mount("app:1", &at, &images, more);
        // Newer kernels show it as `fsync=volatile`.
        let options = options_at(&at);
        assert_eq!(
            options.split(',').any(|word| word.ends_with("volatile")),
            temporary,
            "{more:?}: {options}"
        );
        fs::write(at.join("new"), "written").unwrap();
        File::open(at.join("new")).unwrap().sync_all().unwrap();
        image.umount();
    }
    assert_eq!(fs::read_to_string(upper.join("upper/new")).unwrap(), "written");
    mounted.umount();
}

/// One command at a time mounts or unmounts images. One that waits for another says for which.
#[test]
fn an_unmount_that_waits_for_another_command_says_so() {
    requires!(Need::Covey, Need::Root);
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let said = folder.path().join("said");
    // It makes the lock's file.
    super::covey_run(&["image", "umount", "/nowhere"]);
    let lock = File::options().write(true).open("/run/covey-images/lock").unwrap();
    lock.lock().unwrap();
    fs::write("/run/covey-images/lock", format!("{}\n", std::process::id())).unwrap();
    let mut command = covey();
    command.args(["image", "umount", "/nowhere"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(File::create(&said).unwrap()).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    let waits = format!("Waiting for process {}, which mounts or unmounts an image", std::process::id());
    while !fs::read_to_string(&said).unwrap().contains(&waits) {
        assert!(Instant::now() < end, "{}", covey_tests::proc::stands(child.id()));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(child.try_wait().unwrap().is_none());
    drop(lock);
    let ended = wait(&mut child, PATIENCE);
    assert_eq!(ended.and_then(|status| status.code()), Some(1), "{ended:?}");
    assert!(fs::read_to_string(&said).unwrap().contains("no image is mounted at /nowhere"));
}

/// `covey image mount` kept all other commands of images out while it asked a store. One store that did not
/// answer made every unmount wait, also of images of other volumes.
#[test]
fn regression_a_store_that_does_not_answer_holds_up_no_other_image() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let (_volume, mounted) = with_app(folder.path());
    let images = mounted.join("images");
    let first = Image::mount("app:1", &folder.path().join("first"), &images, &[]);
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", store.local_addr().unwrap());
    let (cache, away) = (folder.path().join("cache"), folder.path().join("away"));
    let mut command = covey();
    command.args(["image", "mount", "a:1"]).arg(&away).args(["--volume", "s3://bucket/p@x", "--"]);
    command.args(["--endpoint", &endpoint, "--cache"]).arg(&cache);
    command.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut waits = command.spawn().unwrap();
    let asked = store.accept().unwrap();
    first.umount();
    Image::mount("app:1", &folder.path().join("second"), &images, &[]).umount();
    assert!(waits.try_wait().unwrap().is_none(), "it still asks its store");
    // SAFETY: the child has not been waited for, so its number is its own.
    unsafe { libc::kill(waits.id() as i32, libc::SIGINT) };
    let ended = wait(&mut waits, PATIENCE);
    assert_eq!(ended.and_then(|status| status.code()), Some(130), "{ended:?}");
    assert!(!away.exists());
    drop(asked);
    mounted.umount();
}
