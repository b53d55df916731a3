//! A gateway seen from outside: by `covey doctor`, and while its file of keys changes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_ok};
use covey_tests::{Need, Volume, free_port, requires, run, run_ok, scratch};
use serde_json::Value;

use super::{Gateway, PATIENCE, Unmount, WRITER, keys};

/// The findings of the doctor whose names begin with `s3`: name, level, text. Of a named gateway only: the
/// doctor looks at those of other mounts of the machine first.
fn findings(args: &[&str]) -> Vec<(String, String, String)> {
    let mut command = covey();
    command.args(["--json", "doctor"]).args(args);
    let done = run(&mut command, PATIENCE);
    let found: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or("").to_owned();
    let rows = found.as_array().unwrap().iter();
    let rows = rows.map(|row| (text(row, "name"), text(row, "level"), text(row, "found")));
    let mut rows: Vec<_> = rows.filter(|(name, ..)| name.starts_with("s3")).collect();
    let own = rows.iter().rposition(|(name, ..)| name == "s3 keys").filter(|_| args.contains(&"--s3"));
    rows.split_off(own.unwrap_or(0))
}

fn levels(found: &[(String, String, String)]) -> Vec<(&str, &str)> {
    found.iter().map(|(name, level, _)| (name.as_str(), level.as_str())).collect()
}

fn address(gateway: &Gateway) -> String {
    gateway.endpoint.replacen("http://", "", 1)
}

#[test]
fn the_doctor_asks_a_gateway_as_a_client_does() {
    requires!(Need::Covey);
    let gateway = Gateway::start(&["data=mem:".to_owned()], &[]);
    let file = gateway.folder.path().join("keys.toml");
    let look = |file: &Path| findings(&["--s3", &address(&gateway), "--s3-keys", file.to_str().unwrap()]);
    let found = look(&file);
    let all = [("s3 keys", "ok"), ("s3", "ok"), ("s3 secrets", "ok"), ("s3 clock", "ok")];
    assert_eq!(levels(&found), all, "{found:?}");
    assert!(found[1].2.contains("for the buckets data"), "{found:?}");
    let others = scratch();
    let other = others.path().join("other.toml");
    fs::write(&other, fs::read_to_string(&file).unwrap().replace("0123456789", "9876543210")).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
    let found = look(&other);
    assert_eq!(levels(&found)[1], ("s3", "wrong"), "{found:?}");
    assert!(found[1].2.contains("does not accept"), "{found:?}");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(levels(&look(&other)), [("s3 keys", "wrong")]);
    let place = address(&gateway);
    let secure = format!("https://{place}");
    let found = findings(&["--s3", &secure, "--s3-keys", file.to_str().unwrap()]);
    assert_eq!(levels(&found)[1], ("s3", "wrong"), "plain HTTP is not TLS: {found:?}");
    let kept = keys(others.path());
    gateway.end();
    let found = findings(&["--s3", &place, "--s3-keys", kept.to_str().unwrap()]);
    assert!(found[1].2.contains("nothing listens"), "{found:?}");
}

#[test]
fn the_doctor_reads_a_certificate() {
    requires!(Need::Covey, Need::Program("openssl"));
    let folder = scratch();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (days, level) in [("2", "note"), ("90", "ok")] {
        let mut openssl = Command::new("openssl");
        openssl.args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            days,
            "-subj",
            "/CN=localhost",
        ]);
        openssl.args(["-addext", "subjectAltName=DNS:localhost", "-out", &at("cert"), "-keyout", &at("key")]);
        run_ok(&mut openssl, PATIENCE);
        let gateway =
            Gateway::start(&["data=mem:".to_owned()], &["--tls-cert", &at("cert"), "--tls-key", &at("key")]);
        let file = gateway.folder.path().join("keys.toml");
        let found = findings(&["--s3", &gateway.endpoint, "--s3-keys", file.to_str().unwrap()]);
        assert_eq!(levels(&found).last(), Some(&("s3 certificate", level)), "{found:?}");
        let plain = gateway.endpoint.replacen("https", "http", 1);
        let found = findings(&["--s3", &plain, "--s3-keys", file.to_str().unwrap()]);
        assert_eq!(levels(&found)[1], ("s3", "wrong"), "{found:?}");
        gateway.end();
    }
}

#[test]
fn the_doctor_looks_at_the_endpoint_of_a_mount() {
    requires!(Need::Covey);
    let folder = scratch();
    let volume = Volume::below(&folder.path().join("data"), &[]);
    let mountpoint = folder.path().join("data/mnt");
    let file = keys(folder.path());
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = covey();
    command.arg("mount").arg("-d").arg(&volume.source).arg(&mountpoint);
    command.args(["--s3", &address, "--s3-bucket", "data", "--s3-keys"]).arg(&file).stdin(Stdio::null());
    run_ok(&mut command, PATIENCE);
    let guard = Unmount(&mountpoint);
    let found = findings(&[]);
    let own: Vec<_> = found.iter().filter(|(.., found)| found.contains(&address)).collect();
    assert!(own.iter().any(|(name, level, _)| name == "s3" && level == "ok"), "{found:?}");
    covey_ok(&["umount".as_ref(), mountpoint.as_os_str()]);
    drop(guard);
    volume.must_be_clean();
}

#[test]
fn keys_are_read_again_and_a_broken_file_changes_nothing() {
    requires!(Need::Covey);
    let gateway = Gateway::start(&["data=mem:".to_owned()], &[]);
    let file = gateway.folder.path().join("keys.toml");
    let others = scratch();
    let old = keys(others.path());
    let accepts = |file: &Path| {
        let found = findings(&["--s3", &address(&gateway), "--s3-keys", file.to_str().unwrap()]);
        levels(&found).contains(&("s3", "ok"))
    };
    let becomes = |what: &str, is: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is() {
            assert!(began.elapsed() < PATIENCE, "{what}: {}", gateway.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let text = fs::read_to_string(&file).unwrap().replace(WRITER[1], "another secret of sixteen");
    let new = others.path().join("new.toml");
    fs::write(&new, &text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    // `any` of the doctor takes the first key by name, so only the writer's key may differ.
    let only = |text: &str| text.split("\n\n").next().unwrap().replace("\"*\"", "data");
    fs::write(&file, text).unwrap();
    becomes("the new keys are in force", &|| gateway.log().contains("was read again"));
    let writers = others.path().join("writers.toml");
    fs::copy(&new, &writers).unwrap();
    fs::write(&writers, only(&fs::read_to_string(&new).unwrap())).unwrap();
    assert!(accepts(&writers), "{}", gateway.log());
    fs::write(&writers, only(&fs::read_to_string(&old).unwrap())).unwrap();
    assert!(!accepts(&writers), "the old secret is not accepted any more");
    fs::write(&file, "[[key]]\naccess_key = 1").unwrap();
    becomes("the log names the broken file", &|| gateway.log().contains("stay in force"));
    fs::write(&writers, only(&fs::read_to_string(&new).unwrap())).unwrap();
    assert!(accepts(&writers), "{}", gateway.log());
    gateway.end();
}
