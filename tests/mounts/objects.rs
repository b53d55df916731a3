//! `covey import s3://BUCKET/PREFIX`: the real program, a real S3 server in this process, and a proxy that
//! changes what happens between the two.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_run, environment};
use covey_tests::{Finished, Need, Rng, Volume, requires};
use s3server::{BUCKET, Canned, Fault, Proxy, Rule, Server};

struct World {
    server: Server,
    proxy: Proxy,
    volume: Volume,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(seed: u64) -> World {
        environment(s3server::environment());
        let server = Server::start();
        let proxy = Proxy::start(server.address(), seed);
        let folder = covey_tests::scratch();
        let volume = Volume::below(folder.path(), &[]);
        World { server, proxy, volume, _folder: folder }
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let file = self.server.folder().join(key);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    fn arguments(&self, prefix: &str, to: &Path, more: &[&str]) -> Vec<String> {
        let (from, endpoint) = (format!("s3://{BUCKET}/{prefix}"), self.proxy.endpoint());
        let first = ["import", &from, to.to_str().unwrap(), "--endpoint", &endpoint, "--json"];
        first.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }

    fn import(&self, prefix: &str, to: &Path, more: &[&str]) -> Finished {
        covey_run(&self.arguments(prefix, to, more))
    }

    /// The place in the volume while it is not mounted.
    fn closed(&self, inner: &str) -> PathBuf {
        PathBuf::from(format!("{}:/{inner}", self.volume.source.display()))
    }
}

fn skipped(done: &Finished) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let list = done.json()["skipped"].as_array().unwrap().clone();
    list.iter().map(|one| (text(&one["path"]), text(&one["why"]))).collect()
}

/// Thousands of small objects and a large one arrive as they are, in a mounted volume and in a closed one.
/// Nothing is copied a second time.
#[test]
fn what_a_bucket_holds_is_imported_once() {
    requires!(Need::Covey, Need::Root);
    let world = World::new(1);
    let mut rng = Rng::new(5);
    let large = rng.bytes((40 << 20) + 77);
    world.put("set/large.bin", &large);
    for n in 0..3000 {
        world.put(&format!("set/part {}/f{n}", n % 10), format!("object {n}").as_bytes());
    }
    let must_be_there = |root: &Path| {
        assert!(std::fs::read(root.join("large.bin")).unwrap() == large);
        for n in 0..3000 {
            let found = std::fs::read(root.join(format!("part {}/f{n}", n % 10))).unwrap();
            assert_eq!(found, format!("object {n}").as_bytes());
        }
        let source = std::fs::metadata(world.server.folder().join("set/large.bin")).unwrap();
        assert_eq!(std::fs::metadata(root.join("large.bin")).unwrap().mtime(), source.mtime());
    };
    let first = world.import("set", &world.closed("closed"), &[]);
    assert_eq!((first.code(), first.json()["files"].as_u64()), (0, Some(3001)), "{first:?}");
    let mounted = world.volume.mount();
    must_be_there(&mounted.join("closed"));
    let to = mounted.join("set");
    let second = world.import("set/", &to, &[]);
    assert_eq!((second.code(), second.json()["files"].as_u64()), (0, Some(3001)), "{second:?}");
    must_be_there(&to);
    let gets = world.server.counts().get;
    std::fs::remove_file(to.join("part 3/f3")).unwrap();
    world.put("set/part 4/f4", b"changed");
    let third = world.import("set", &to, &[]);
    assert_eq!((third.code(), skipped(&third).len()), (1, 1), "{third:?}");
    assert_eq!((third.json()["files"].as_u64(), third.json()["already"].as_u64()), (Some(1), Some(2999)));
    assert_eq!(world.server.counts().get - gets, 1);
    let fourth = world.import("set", &to, &["--overwrite"]);
    assert_eq!((fourth.code(), fourth.json()["files"].as_u64()), (0, Some(1)), "{fourth:?}");
    assert_eq!(std::fs::read(to.join("part 4/f4")).unwrap(), b"changed");
    mounted.umount();
    world.volume.must_be_clean();
}

/// The command is killed again and again. Every file that is there is whole, and the last run takes the rest.
#[test]
fn a_killed_import_goes_on() {
    requires!(Need::Covey, Need::Root);
    let world = World::new(2);
    let mut rng = Rng::new(6);
    let files: Vec<(String, Vec<u8>)> = (0..400)
        .map(|n| {
            let size = if n % 40 == 7 { (9 << 20) + n } else { 1 + n * 29 % 20_000 };
            (format!("{}/f{n}", n % 3), rng.bytes(size as usize))
        })
        .collect();
    files.iter().for_each(|(key, bytes)| world.put(&format!("k/{key}"), bytes));
    world.proxy.add(Rule::new(Fault::Wait(Duration::from_millis(30))).chance(0.5));
    let mounted = world.volume.mount();
    let to = mounted.join("k");
    for round in 0..5 {
        let mut command = covey();
        command.args(world.arguments("k", &to, &[])).stdout(std::process::Stdio::null());
        let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        let present = || files.iter().filter(|(key, _)| to.join(key).exists()).count();
        std::thread::sleep(Duration::from_millis(300 + round * 250));
        // On a busy machine no run may have come so far yet that a file is there.
        let until = Instant::now() + Duration::from_secs(60);
        while round == 4 && present() == 0 && child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "nothing is imported");
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The daemon may still take what the command had sent.
        let until = Instant::now() + Duration::from_secs(10);
        let mut before = present();
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(300));
            match present() {
                now if now == before => break,
                now => before = now,
            }
        }
        for (key, bytes) in files.iter().filter(|(key, _)| to.join(key).exists()) {
            assert!(std::fs::read(to.join(key)).unwrap() == *bytes, "{key} is not whole");
        }
    }
    world.proxy.faults().clear();
    let last = world.import("k", &to, &[]);
    assert_eq!(last.code(), 0, "{last:?}");
    let (new, already) = (last.json()["files"].as_u64().unwrap(), last.json()["already"].as_u64().unwrap());
    assert!(new + already == 400 && already > 0, "{new} and {already}");
    files.iter().for_each(|(key, bytes)| assert!(std::fs::read(to.join(key)).unwrap() == *bytes, "{key}"));
    mounted.umount();
    world.volume.must_be_clean();
}

/// Objects that change between the listing and the read are named, and nothing of them is there.
#[test]
fn what_changes_meanwhile_is_named() {
    requires!(Need::Covey);
    let world = World::new(3);
    world.put("c/large", &Rng::new(7).bytes(30 << 20));
    world.put("c/small", b"before");
    world.put("c/stays", b"stays");
    let large = Rng::new(8).bytes(30 << 20);
    // The first GET is the listing. Its answer is held back while the objects change.
    world.proxy.add(Rule::new(Fault::Hold).only_gets().times(1));
    let arguments = world.arguments("c", &world.closed("c"), &[]);
    let importing = std::thread::spawn(move || covey_run(&arguments));
    let until = Instant::now() + Duration::from_secs(60);
    while world.proxy.faults().held() == 0 {
        assert!(Instant::now() < until, "the bucket is not listed");
        std::thread::sleep(Duration::from_millis(10));
    }
    world.put("c/large", &large);
    std::fs::remove_file(world.server.folder().join("c/small")).unwrap();
    world.proxy.faults().clear();
    let done = importing.join().unwrap();
    let named: Vec<String> = skipped(&done).into_iter().map(|(path, _)| path).collect();
    let place = format!("s3://{BUCKET}/c");
    assert_eq!(
        (done.code(), named),
        (1, vec![format!("{place}/large"), format!("{place}/small")]),
        "{done:?}"
    );
    let mounted = world.volume.mount();
    let mut there: Vec<_> =
        std::fs::read_dir(mounted.join("c")).unwrap().map(|e| e.unwrap().file_name()).collect();
    there.sort();
    assert_eq!(there, ["stays"]);
    mounted.umount();
}

/// Keys that cannot be paths are left out by name, and the rest is imported.
#[test]
fn bad_keys_are_listed() {
    requires!(Need::Covey);
    let world = World::new(4);
    let keys = ["b/a//b", "b/../up", "b/.", "b/n\0l", "b/dir", "b/dir/f", "b/marker/", "b/&<é"];
    let long = format!("b/{}", "x".repeat(300));
    let listed =
        keys.iter().copied().chain([&*long]).map(|key| (key.to_owned(), 0, "e".to_owned())).collect();
    world.proxy.add(Rule::new(Fault::Answer(Canned::Listing(listed))));
    let done = world.import("b", &world.closed("b"), &[]);
    let named: Vec<String> = skipped(&done).into_iter().map(|(path, _)| path).collect();
    let bad = ["a//b", "../up", ".", "n\0l", "dir", &long[2..]];
    let bad: Vec<String> = bad.iter().map(|key| format!("s3://{BUCKET}/b/{key}")).collect();
    assert_eq!((done.code(), named), (1, bad), "{done:?}");
    let mounted = world.volume.mount();
    for there in ["dir/f", "&<é"] {
        let about = std::fs::metadata(mounted.join("b").join(there)).unwrap();
        assert!(about.is_file() && about.mtime() == 1_767_323_045, "{there}: {}", about.mtime());
    }
    assert!(std::fs::metadata(mounted.join("b/marker")).unwrap().is_dir());
    assert!(!mounted.join("up").exists());
    mounted.umount();
}

/// Each mistake is one line that says what to do.
#[test]
fn mistakes_say_what_to_do() {
    requires!(Need::Covey);
    let world = World::new(5);
    world.put("m/f", b"x");
    let says = |done: Finished, code: &str, what: &str| {
        assert_ne!(done.code(), 0, "{done:?}");
        assert_eq!(done.json()["error"]["code"], code, "{done:?}");
        assert!(done.stderr.contains(what), "{what}: {done:?}");
    };
    let to = world.closed("m");
    let import = |canned: Canned| {
        world.proxy.faults().clear();
        world.proxy.add(Rule::new(Fault::Answer(canned)));
        world.import("m", &to, &[])
    };
    says(import(Canned::UnknownKey), "origin-keys", "check AWS_ACCESS_KEY_ID");
    says(import(Canned::BadSignature), "origin-keys", "check the secret");
    says(import(Canned::AccessDenied), "origin-denied", "to get and list objects");
    says(import(Canned::NoSuchBucket), "origin-bucket", "correct the URL");
    says(import(Canned::WrongRegion("eu-west-1".to_owned())), "origin-bucket", "--region eu-west-1");
    world.proxy.faults().clear();
    world.proxy.down();
    says(world.import("m", &to, &[]), "origin-away", "check the endpoint");
    world.proxy.up();
    says(world.import("nothing", &to, &[]), "not-found", "check the bucket and the prefix");
    says(covey_run(&["import", "s3://b", to.to_str().unwrap(), "--json"]), "usage", "3 to 222 characters");
    let folder = covey_run(&["import", "/usr", to.to_str().unwrap(), "--region", "x", "--json"]);
    says(folder, "usage", "leave --endpoint and --region out");
}
