//! Secrets arrive where they are needed, and are seen nowhere else.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use covey_tests::{Need, requires, requires_server};
use csi::proto::controller::{CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest};
use csi::proto::identity::Empty;
use csi::proto::node::StageRequest;
use csi::proto::{Texts, Volume, mode};
use tonic::{Code, Status};

use super::kills::{kill_daemon, until_all_live};
use super::rig::{Driver, PASSWORD, capability, shared_volume, texts};

const WRONG: &str = "wr0ng-s3cret";

fn create(driver: &Driver, address: &str, secrets: Texts) -> Result<CreateVolumeResponse, Status> {
    let call = CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        volume_capabilities: vec![capability(mode::SINGLE_NODE_WRITER)],
        parameters: texts(&[("volume", address)]),
        secrets,
        ..CreateVolumeRequest::default()
    };
    driver.call("Controller/CreateVolume", call)
}

/// The password reaches the database. It is in no argument of a process, no line of a log, no record and no
/// error, and its file is gone with the mount.
#[test]
fn a_password_is_used_and_seen_nowhere() {
    requires!(Need::Root, Need::Covey);
    let server = requires_server!();
    server.sql("alter role locked superuser");
    let mut driver = Driver::with(&["--metrics", "127.0.0.1:0"]);
    let address = shared_volume(&server, "locked", driver.folder.path());
    let none = create(&driver, &address, Texts::new()).unwrap_err();
    assert!(none.message().contains("password"), "{none:?}");
    let wrong = create(&driver, &address, texts(&[("PGPASSWORD", WRONG)])).unwrap_err();
    assert!(
        wrong.message().contains("refuses the password") && !wrong.message().contains(WRONG),
        "{wrong:?}"
    );
    let known = create(&driver, &address, texts(&[(PASSWORD, "x")])).unwrap_err();
    assert!(known.code() == Code::InvalidArgument && !known.message().contains(PASSWORD), "{known:?}");

    let secrets = texts(&[("PGPASSWORD", PASSWORD)]);
    let volume = create(&driver, &address, secrets.clone()).unwrap().volume.unwrap();
    let stage = StageRequest { secrets: secrets.clone(), ..driver.stage_call(&volume) };
    driver.call::<_, Empty>("Node/NodeStageVolume", stage).unwrap();
    driver.publish(&volume, "pod", false).unwrap();
    fs::write(driver.path("pod/a"), b"one").unwrap();

    let files = driver.state("secrets");
    assert!(!files.is_empty());
    for file in files {
        let about = fs::metadata(&file).unwrap();
        assert_eq!((about.mode() & 0o777, about.uid()), (0o600, 0), "{}", file.display());
    }
    assert_eq!(fs::metadata(driver.path("state/secrets")).unwrap().mode() & 0o777, 0o700);
    let mut seen = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        seen += usize::from(contains(&words, driver.folder.path().as_os_str().as_encoded_bytes()));
        assert!(!contains(&words, PASSWORD.as_bytes()) && !contains(&words, WRONG.as_bytes()));
    }
    assert!(seen >= 2, "the driver and its daemon");
    let secret = driver.path("state/secrets");
    search(driver.folder.path(), &secret, &mut |path, bytes| {
        for word in [PASSWORD, WRONG] {
            assert!(!contains(bytes, word.as_bytes()), "{} holds a password", path.display());
        }
    });

    driver.unpublish(&volume, "pod").unwrap();
    driver.unstage(&volume).unwrap();
    let call = DeleteVolumeRequest { volume_id: volume.volume_id.clone(), secrets };
    driver.call::<_, Empty>("Controller/DeleteVolume", call).unwrap();
    driver.end();
    assert_eq!(driver.state("secrets"), Vec::<std::path::PathBuf>::new());
}

/// A new password was thrown away while the source was mounted. When the daemon died, only the old one was
/// known, and nothing could be mounted again.
#[test]
fn regression_a_new_password_is_kept_for_the_next_mount() {
    requires!(Need::Root, Need::Covey);
    let server = requires_server!();
    server.sql("alter role locked superuser");
    let mut driver = Driver::new();
    let address = shared_volume(&server, "locked", driver.folder.path());
    let [one, two] = ["one", "two"].map(|id| Volume {
        volume_id: id.to_owned(),
        volume_context: texts(&[("volume", &address)]),
        ..Volume::default()
    });
    let stage = |volume: &Volume, password: &str| {
        let secrets = texts(&[("PGPASSWORD", password)]);
        driver.call::<_, Empty>("Node/NodeStageVolume", StageRequest { secrets, ..driver.stage_call(volume) })
    };
    stage(&one, PASSWORD).unwrap();
    driver.publish(&one, "pod1", false).unwrap();
    server.sql("alter role locked password 'second-s3cret'");
    stage(&two, "second-s3cret").unwrap();
    driver.publish(&two, "pod2", false).unwrap();
    fs::write(driver.path("pod1/a"), b"one").unwrap();
    fs::File::open(driver.path("pod1/a")).unwrap().sync_all().unwrap();
    kill_daemon(&driver);
    until_all_live(&driver, &["pod1", "pod2"]);
    assert_eq!(fs::read(driver.path("pod2/a")).unwrap(), b"one");
    // A wrong one keeps the right one for a second try.
    stage(&one, WRONG).unwrap();
    kill_daemon(&driver);
    until_all_live(&driver, &["pod1", "pod2"]);
    for (volume, target) in [(&one, "pod1"), (&two, "pod2")] {
        driver.unpublish(volume, target).unwrap();
        driver.unstage(volume).unwrap();
    }
    driver.end();
    assert_eq!(driver.state("secrets"), Vec::<std::path::PathBuf>::new());
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

/// Calls `each` with every file below a folder, other than those of secrets and of mounts.
fn search(folder: &Path, except: &Path, each: &mut dyn FnMut(&Path, &[u8])) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, about) = (entry.path(), entry.metadata().unwrap());
        if path == except {
            continue;
        }
        if about.is_dir() {
            search(&path, except, each);
        } else if about.is_file() && about.len() < 64 << 20 {
            each(&path, &fs::read(&path).unwrap());
        }
    }
}

/// Figures count calls by how they ended.
#[test]
fn calls_are_counted() {
    requires!(Need::Root, Need::Covey);
    let driver = Driver::with(&["--metrics", "127.0.0.1:0"]);
    driver.delete("nothing").unwrap();
    driver.delete("").unwrap_err();
    let log = driver.log();
    let address = log.lines().find_map(|line| line.split("metrics at http://").nth(1)).unwrap();
    let host = address.trim_end_matches("/metrics");
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    use std::io::{Read, Write};
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    for line in [
        "covey_csi_calls_total{method=\"DeleteVolume\",code=\"Ok\"} 1",
        "covey_csi_calls_total{method=\"DeleteVolume\",code=\"InvalidArgument\"} 1",
        "covey_csi_call_duration_seconds_count{method=\"DeleteVolume\"} 2",
        "covey_csi_mounts 0",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
}

/// The keys of a store, and the secret of a fleet: only the secret of the call has them.
#[test]
fn a_tree_in_a_store_is_read_in_a_fleet_with_the_keys_of_the_call() {
    requires!(Need::Root, Need::Covey);
    let store = s3server::Server::start();
    let endpoint = format!("http://{}", store.address());
    let mut driver = Driver::with(&["--address", "127.0.0.1"]);
    let with_keys = |args: &[&str]| {
        let mut command = covey_tests::program::covey();
        command.args(args).envs(s3server::environment());
        covey_tests::run_ok(&mut command, std::time::Duration::from_secs(60));
    };
    let text = |name: &str| driver.path(name).display().to_string();
    let origin = format!("s3://{}/csi", s3server::BUCKET);
    with_keys(&["format", &text("v"), "--origin", &origin, "--endpoint", &endpoint]);
    fs::create_dir(driver.path("m")).unwrap();
    with_keys(&["mount", "-d", &text("v"), &text("m")]);
    fs::write(driver.path("m/a"), b"one").unwrap();
    with_keys(&["publish", &text("m"), "latest"]);
    with_keys(&["umount", &text("m")]);

    let fleet = "0123456789abcdef0123456789abcdef";
    let class = texts(&[
        ("tree", &format!("{origin}@latest")),
        ("endpoint", &endpoint),
        ("region", "us-east-1"),
        ("join", "127.0.0.1:1"),
    ]);
    let volume = driver.create("t1", 0, &class).unwrap();
    let stage = |secrets: Texts| {
        driver
            .call::<_, Empty>("Node/NodeStageVolume", StageRequest { secrets, ..driver.stage_call(&volume) })
    };
    let keys = [("AWS_ACCESS_KEY_ID", s3server::KEY), ("AWS_SECRET_ACCESS_KEY", s3server::SECRET)];
    let alone = stage(texts(&keys)).unwrap_err();
    assert!(alone.message().contains("fleet-secret"), "{alone:?}");
    let wrong = [keys[0], ("AWS_SECRET_ACCESS_KEY", WRONG), ("fleet-secret", fleet)];
    let wrong = stage(texts(&wrong)).unwrap_err();
    assert!(!wrong.message().contains(WRONG) && !wrong.message().contains(fleet), "{wrong:?}");
    assert!(driver.state("secrets").is_empty() && driver.state("staged").is_empty());
    stage(texts(&[keys[0], keys[1], ("fleet-secret", fleet)])).unwrap();
    driver.publish(&volume, "pod", false).unwrap();
    assert_eq!(fs::read(driver.path("pod/a")).unwrap(), b"one");
    assert_eq!(driver.state("secrets").len(), 2, "the keys, and the fleet's secret in a file of its own");
    driver.unpublish(&volume, "pod").unwrap();
    driver.unstage(&volume).unwrap();
    assert!(driver.state("secrets").is_empty());
    let log = driver.log();
    assert!(!log.contains(s3server::SECRET) && !log.contains(fleet), "{log}");
    driver.end();
    assert_eq!(driver.mounts().len(), 0);
}
