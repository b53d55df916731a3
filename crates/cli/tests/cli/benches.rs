//! `covey bench`: its result, its refusals, and that it leaves nothing behind.

use std::path::Path;
use std::process::Stdio;

use crate::world::{World, covey, end_of, json, kill, soon};

/// The names that the benchmark left in a folder.
fn left_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with(".covey-bench"))
        .collect()
}

#[test]
fn a_mount_is_measured_beside_a_plain_folder() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let done = json(&[Path::new("bench"), &world.mnt(), Path::new("--quick"), Path::new("--size=2M")]).ok();
    let report = done.json();
    assert_eq!(
        Path::new(report["beside"].as_str().unwrap()),
        world.path(""),
        "where the volume is: {report}"
    );
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 9);
    for result in results {
        let number = |name: &str| result[name].as_f64().unwrap();
        assert!(number("mount_per_second") > 0.0 && number("beside_per_second") > 0.0, "{result}");
        let (ratio, verdict) = (number("ratio"), result["verdict"].as_str().unwrap());
        let wanted = match ratio {
            _ if ratio <= number("good_to") => "good",
            _ if ratio <= number("fair_to") => "fair",
            _ => "slow",
        };
        assert_eq!((verdict, result["advice"].is_string()), (wanted, wanted == "slow"), "{result}");
    }
    assert_eq!((left_in(&world.mnt()), left_in(&world.path(""))), (vec![], vec![]));
    world.umount().ok();
}

#[test]
fn a_bench_that_is_interrupted_leaves_nothing() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let mut bench = covey(&[Path::new("bench"), &world.mnt(), Path::new("--json")]);
    let mut bench = bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    soon("the bench is at work", || {
        left_in(&world.mnt())
            .iter()
            .any(|name| std::fs::read_dir(world.mnt().join(name)).unwrap().count() > 10)
    });
    kill(bench.id(), libc::SIGINT);
    assert_eq!(end_of(&mut bench, "covey bench"), 1);
    assert_eq!((left_in(&world.mnt()), left_in(&world.path(""))), (vec![], vec![]));
    world.umount().ok();
}

#[test]
fn a_bench_says_what_it_cannot_measure() {
    let Some(world) = World::mountable() else { return };
    let bench = |more: &[&str]| {
        let mnt = world.mnt();
        let mut args = vec!["bench", mnt.to_str().unwrap(), "--quick"];
        args.extend(more);
        json(&args)
    };
    bench(&[]).fails(1, "not-mounted");
    world.mount("ro");
    bench(&[]).fails(1, "read-only");
    world.umount().ok();
    world.mount("");
    bench(&["--size=100000G"]).fails(1, "disk-full");
    bench(&["--beside", world.mnt().to_str().unwrap()]).fails(2, "usage");
    bench(&["--beside", world.path("nowhere").to_str().unwrap()]).fails(1, "not-found");
    assert_eq!(bench(&["--size=much"]).code, 2);
    assert_eq!((left_in(&world.mnt()), left_in(&world.path(""))), (vec![], vec![]));
    world.umount().ok();
}
