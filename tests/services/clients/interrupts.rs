//! Ctrl-C while a command opens a store or a registry that accepts connections and says nothing.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_ok, wait};
use covey_tests::{Need, requires};

/// Longer than anything here should take on a busy machine, and shorter than the limits of the store's client
/// together, which are more than a minute.
const SOON: Duration = Duration::from_secs(40);

/// No signal was taken while a store or a database did not answer, so a daemon went on for a minute and more.
/// And `covey mount -d` ended at once, while its daemon mounted later.
#[test]
fn regression_a_command_that_opens_its_source_ends_at_a_signal() {
    requires!(Need::Covey, Need::Root);
    let folder = covey_tests::scratch();
    let (at, socket) = (folder.path().join("at"), folder.path().join("s"));
    std::fs::create_dir(&at).unwrap();
    let (at, on) = (at.to_str().unwrap(), format!("unix:{}", socket.display()));
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    store.set_nonblocking(true).unwrap();
    let endpoint = format!("http://{}", store.local_addr().unwrap());
    let cache = folder.path().join("cache").display().to_string();
    let volume = folder.path().join("volume").display().to_string();
    covey_ok(&["format", &volume]);
    let (image, images) = (format!("docker://{}/a:1", &endpoint[7..]), format!("{volume}:/images"));
    let store_of = ["--endpoint", &endpoint, "--cache", &cache];
    let keys = folder.path().join("keys").display().to_string();
    std::fs::write(&keys, "[[key]]\naccess_key = \"someone\"\nsecret_key = \"0123456789abcdef\"\nbuckets = { \"*\" = \"write\" }\n").unwrap();
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
    let image_of =
        [&["image", "mount", "a:1", at, "--volume", "s3://bucket/p@x", "--"], &store_of[..]].concat();
    let cases: [(&[&str], &[&str]); 7] = [
        (&image_of, &[]),
        (&["s3", "--keys", &keys, "--listen", "127.0.0.1:0", "data=s3://bucket/p@x"], &store_of),
        (&["mount", "s3://bucket/p@x", at], &store_of),
        (&["mount", "-d", "s3://bucket/p@x", at], &store_of),
        (&["serve", "s3://bucket/p@x", "--on", &on], &store_of),
        (&["memory-server", "s3://bucket/p@x:/f", "--on", &on], &store_of),
        (&["import", &image, &images], &[]),
    ];
    for ((case, more), signal) in cases.into_iter().zip([libc::SIGINT, libc::SIGTERM].into_iter().cycle()) {
        let mut command = covey();
        command.args(case).args(more);
        command.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut asked = loop {
            if let Ok((asked, _)) = store.accept() {
                break asked;
            }
            assert!(child.try_wait().unwrap().is_none(), "{case:?} ended before it asked");
            std::thread::sleep(Duration::from_millis(5));
        };
        asked.set_nonblocking(false).unwrap();
        // SAFETY: the child has not been waited for, so its number is its own.
        unsafe { libc::kill(child.id() as i32, signal) };
        let begun = Instant::now();
        let ended = wait(&mut child, SOON);
        child.kill().ok();
        child.wait().unwrap();
        assert!(ended.is_some_and(|status| !status.success()), "{case:?}: {ended:?}");
        // The process that has asked is gone too.
        asked.set_read_timeout(Some(SOON)).unwrap();
        let mut request = Vec::new();
        let closed = asked.read_to_end(&mut request);
        assert!(closed.is_ok() && begun.elapsed() < SOON, "{case:?}: {closed:?}");
        assert!(!covey_tests::proc::is_fuse_mount(at.as_ref()) && !socket.exists(), "{case:?}");
    }
}
