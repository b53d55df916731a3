//! Configuration files, environment variables and the command line. The more specific source wins. Errors
//! name file and line.

use std::fs;
use std::path::Path;

use crate::world::{Done, World, alone, covey, json, run_command};

/// Runs covey with its own configuration.
fn with(config: &Path, args: &[&Path], variables: &[(&str, &str)]) -> Done {
    let mut command = covey(args);
    command.arg("--json").env("COVEY_CONFIG", config).envs(variables.iter().copied());
    run_command(&mut command)
}

fn value_of<'a>(report: &'a serde_json::Value, key: &str) -> (&'a str, &'a str) {
    let settings = report["settings"].as_array().unwrap();
    let found = settings.iter().find(|setting| setting["key"] == key).unwrap();
    (found["value"].as_str().unwrap_or("-"), found["from"].as_str().unwrap())
}

#[test]
fn every_value_says_where_it_comes_from() {
    let world = World::new();
    let home = world.path("config");
    fs::create_dir_all(home.join("covey")).unwrap();
    let user = home.join("covey/covey.toml");
    fs::write(
        &user,
        "[mount]\ncommit = 3\nreaders = 2\n\n[log]\nlevel = \"warn\"\n[volume.\"/srv/x\"]\ncommit = 9\n",
    )
    .unwrap();
    let show = |args: &[&str]| {
        let mut command = covey(args);
        command.arg("--json").env_remove("COVEY_CONFIG").env("XDG_CONFIG_HOME", &home);
        command.env("COVEY_FUSE_READERS", "7").env("COVEY_MOUNT_OPTIONS", "deadline=5");
        run_command(&mut command).ok().json()
    };
    let report = show(&["config"]);
    let line = |number: u32| format!("{}, line {number}", user.display());
    for (key, value, from) in [
        ("commit", "3", line(2)),
        ("readers", "7", "COVEY_FUSE_READERS".to_owned()),
        ("deadline", "5", "COVEY_MOUNT_OPTIONS".to_owned()),
        ("level", "warn", line(6)),
        ("transport", "auto", "default".to_owned()),
        ("metrics", "-", "default".to_owned()),
    ] {
        assert_eq!(value_of(&report, key), (value, from.as_str()), "{key}");
    }
    assert_eq!(value_of(&show(&["config", "/srv/x"]), "commit"), ("9", line(8).as_str()));
    assert!(report["files"].as_array().unwrap().iter().any(|file| file["read"] == true), "{report}");
    let example = run_command(&mut covey(&["config", "--example"])).ok().out;
    fs::write(&user, example).unwrap();
    assert_eq!(value_of(&show(&["config"]), "commit").1, "default", "the example sets nothing");
}

#[test]
fn a_wrong_file_stops_a_mount_and_nothing_else() {
    let world = World::formatted();
    let config = world.path("covey.toml");
    fs::write(&config, "[mount]\n# so far so good\ncomit = 5\n").unwrap();
    let done = with(&config, &[Path::new("mount"), &world.volume(), &world.mnt()], &[]);
    done.fails(2, "configuration");
    assert!(done.err.contains("covey.toml, line 3") && done.err.contains("did you mean commit?"), "{done:?}");
    with(&config, &[Path::new("umount"), Path::new("--stale"), &world.mnt()], &[]).ok();
    with(&config, &[Path::new("status"), &world.volume()], &[]).ok();
    with(&world.path("none.toml"), &[Path::new("config")], &[]).fails(1, "not-found");
    fs::write(&config, "[origin]\nsecret_access_key = \"hush-hush\"\n").unwrap();
    let done = with(&config, &[Path::new("config")], &[]);
    done.fails(2, "configuration");
    assert!(!format!("{done:?}").contains("hush"), "{done:?}");
    // `covey doctor` reports it too.
    let mut doctor = covey(&[Path::new("doctor"), Path::new("--json")]);
    let done = run_command(alone(doctor.env("COVEY_CONFIG", &config), world.folder()));
    assert!(done.code == 1 && done.out.contains("line 2"), "{done:?}");
}

/// A background mount is another process. The configuration that it reads must not override the command line.
#[test]
fn regression_what_is_typed_wins_in_the_background_too() {
    let Some(world) = World::mountable() else { return };
    let config = world.path("covey.toml");
    let volume = world.volume();
    fs::write(&config, format!("[volume.\"{}\"]\nro = true\nreaders = 3\n", volume.display())).unwrap();
    let mnt = world.mnt();
    let mode = |args: &[&str], variables: &[(&str, &str)]| {
        let mut all = vec![Path::new("mount"), Path::new("-d"), &volume, &mnt];
        all.extend(args.iter().map(Path::new));
        with(&config, &all, variables).ok();
        let status = world.status();
        world.umount().ok();
        status["mode"].as_str().unwrap().to_owned()
    };
    assert_eq!(mode(&[], &[]), "read-only");
    assert_eq!(mode(&["-o", "rw"], &[]), "exclusive");
    assert_eq!(mode(&[], &[("COVEY_MOUNT_OPTIONS", "rw")]), "exclusive");
    assert_eq!(mode(&["--config", ""], &[("COVEY_MOUNT_OPTIONS", "frozen")]), "frozen");
    assert_eq!(mode(&["--config", "", "-o", "rw"], &[]), "exclusive");
    json(&[Path::new("status"), &volume]).ok();
}
