//! `covey bundle`: what it holds, and that it holds no secret.

use std::fs;
use std::path::Path;

use crate::world::{World, alone, covey, run_command};

/// Each secret is planted in another place, so that a leak shows where it comes from.
const PLANTED: [(&str, &str); 11] = [
    ("variable", "geheim-variable-1"),
    ("token", "geheim-token-2"),
    ("file", "geheim+file/3"),
    ("log", "geheim-log-4"),
    ("json", "geheim-json-5"),
    ("address", "geheim-address-6"),
    ("signature", "geheimsignature7"),
    ("config", "geheim-config-8"),
    ("shape", "AKIAGEHEIMGEHEIM0009"),
    ("key", "geheim-pem-10"),
    ("known", "geheim-known-11"),
];

fn planted(name: &str) -> &'static str {
    PLANTED.iter().find(|(known, _)| *known == name).unwrap().1
}

/// All texts of a bundle, joined.
fn texts(path: &Path) -> String {
    String::from_utf8_lossy(&zstd::decode_all(fs::File::open(path).unwrap()).unwrap()).into_owned()
}

/// Plants secrets in the log, the configuration, the volume's file, the user's credentials and the
/// environment.
fn plant(world: &World) {
    let volume = world.volume();
    let log = format!(
        "2026-01-01T00:00:00Z info  all is well\nsecret_access_key={}\nretry: {{\"token\": \"{}\"}}\n\
         GET https://user:{}@host/a?X-Amz-Signature={}&x=1\nid {} refused\nthe words {}, {}, {} and {} without a name\n\
         -----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\nlast line\n",
        planted("log"),
        planted("json"),
        planted("address"),
        planted("signature"),
        planted("shape"),
        planted("known"),
        planted("file"),
        planted("variable"),
        planted("token"),
        planted("key"),
    );
    fs::write(volume.join("covey.log"), log).unwrap();
    fs::create_dir_all(world.path("home/.aws")).unwrap();
    let credentials = format!("[default]\naws_secret_access_key = {}\n", planted("file"));
    fs::write(world.path("home/.aws/credentials"), credentials).unwrap();
    fs::write(world.path("covey.toml"), format!("[origin]\npassword = \"{}\"\n", planted("config"))).unwrap();
}

fn bundle(world: &World, what: &Path, out: &Path) -> crate::world::Done {
    let mut command = covey(&[Path::new("bundle"), what, Path::new("-o"), out, Path::new("--json")]);
    command.env("HOME", world.path("home")).env("COVEY_CONFIG", world.path("covey.toml"));
    command.env("AWS_SECRET_ACCESS_KEY", planted("variable")).env("AWS_SESSION_TOKEN", planted("token"));
    command.env("SOME_PASSWORD", planted("known")).env("AWS_REGION", "eu-central-1");
    run_command(alone(&mut command, world.folder()))
}

#[test]
fn a_bundle_holds_what_a_report_needs_and_no_secret() {
    let world = World::formatted();
    plant(&world);
    let out = world.path("report.tar.zst");
    let done = bundle(&world, &world.volume(), &out).ok().json();
    let names: Vec<&str> =
        done["holds"].as_array().unwrap().iter().map(|held| held["name"].as_str().unwrap()).collect();
    for name in [
        "covey.txt",
        "doctor.json",
        "environment.txt",
        "machine/kernel.txt",
        "machine/memory.txt",
        "machine/mounts.txt",
        "machine/limits.txt",
        "settings.json",
        "settings-1.toml",
        "volume/covey.json",
        "volume/log.txt",
        "volume/status-1.json",
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    let texts = texts(&out);
    for (place, secret) in PLANTED {
        assert!(!texts.contains(secret), "the secret of the {place} is in it");
    }
    for kept in [
        "all is well",
        "last line",
        "AWS_REGION is set",
        "AWS_SECRET_ACCESS_KEY is set",
        "Linux version",
        "covey.toml, line 2",
    ] {
        assert!(texts.contains(kept), "{kept} is missing");
    }
    assert!(!texts.contains("eu-central-1"), "values of variables stay");
    assert!(!format!("{done}").contains("geheim"));
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    bundle(&world, &world.volume(), &out).fails(1, "exists");
    bundle(&world, &world.volume(), &world.path("report.zip")).fails(2, "usage");
    bundle(&world, &world.path("none"), &world.path("b.tar.zst")).fails(1, "not-found");
    assert!(!world.path("b.tar.zst").exists(), "nothing half-made is left");
}

#[test]
fn a_mount_is_looked_on_at_for_five_seconds() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    fs::write(world.mnt().join("a"), vec![1; 100_000]).unwrap();
    let out = world.path("report.tar.zst");
    plant(&world);
    bundle(&world, &world.mnt(), &out).ok();
    let texts = texts(&out);
    for kept in [
        "covey_uptime_seconds",
        "\"requests_by_kind\"",
        "status-2.json",
        "p99_ns",
        "command-line.txt",
        "covey-control",
    ] {
        assert!(texts.contains(kept), "{kept} is missing");
    }
    for (place, secret) in PLANTED {
        assert!(!texts.contains(secret), "the secret of the {place} is in it");
    }
    world.umount().ok();
}

/// A killed daemon leaves a dead mount. Users report that first, so a dead mount must have a bundle.
#[test]
fn regression_a_dead_mount_has_a_bundle() {
    let Some(world) = World::mountable() else { return };
    let pid = world.mount("");
    crate::world::kill_and_wait(pid);
    crate::world::soon("it is dead", || fs::metadata(world.mnt()).is_err());
    let out = world.path("report.tar.zst");
    let mut bundle = covey(&[Path::new("bundle"), &world.mnt(), Path::new("-o"), &out]);
    run_command(alone(&mut bundle, world.folder())).ok();
    let texts = texts(&out);
    assert!(
        texts.contains("stale-mount") && texts.contains("volume/log.txt") && texts.contains("mounted "),
        "{texts}"
    );
}

/// Bundles are made when things do not work, so a damaged volume must not prevent one.
#[test]
fn a_damaged_volume_has_a_bundle_too() {
    let world = World::formatted();
    fs::write(world.volume().join("meta/names.db"), "no database").unwrap();
    let out = world.path("report.tar.zst");
    let mut bundle = covey(&[Path::new("bundle"), &world.volume(), Path::new("-o"), &out]);
    run_command(alone(&mut bundle, world.folder())).ok();
    assert!(texts(&out).contains("\"error\""));
}
