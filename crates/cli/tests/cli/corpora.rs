//! Mounts that are frozen: a corpus, and a volume mounted with `-o frozen`.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use corpus::{Spec, content};

use crate::world::{World, covey, end_of, json, kill, soon};

/// The test and the daemon derive the files independently and exchange nothing.
#[test]
fn every_file_of_a_corpus_is_where_its_derivation_says() {
    let Some(world) = World::mountable() else { return };
    let (mnt, other) = (world.mnt(), world.path("other"));
    let spec: Spec = "corpus:9,300,5000".parse().unwrap();
    json(&["mount", "-d", "corpus:9,300,5000", mnt.to_str().unwrap()]).ok();
    let mut wanted = vec![0; 5000];
    for index in 0..spec.count {
        let name = content::derive(&spec, index, &mut wanted);
        assert_eq!(fs::read(mnt.join(&name)).unwrap(), wanted, "{name}");
    }
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 300);
    let status = world.status();
    assert_eq!(
        (status["mode"].as_str(), status["origin"].as_str()),
        (Some("frozen"), Some("corpus:9,300,5000"))
    );
    assert_eq!(
        (status["files"].as_u64(), status["bytes"].as_u64()),
        (Some(301), Some(1_500_000)),
        "{status}"
    );
    let rows = json(&[Path::new("df"), &mnt]).ok().json();
    assert_eq!((&rows[0]["alive"], rows[0]["inodes"].as_u64()), (&true.into(), Some(301)), "{rows}");
    let name = content::derive(&spec, 0, &mut wanted);
    for refused in [
        fs::write(mnt.join("new"), "x"),
        fs::write(mnt.join(&name), "x"),
        fs::remove_file(mnt.join(&name)),
        fs::rename(mnt.join(&name), mnt.join("new")),
        fs::create_dir(mnt.join("new")),
    ] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    assert_eq!(fs::metadata(mnt.join("new")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    json(&[Path::new("info"), &mnt.join(&name)]).fails(1, "not-a-volume");
    json(&[Path::new("gc"), &mnt]).fails(1, "not-a-volume");
    // The same corpus is mounted a second time. Each mount reports its own figures.
    fs::create_dir(&other).unwrap();
    json(&["mount", "-d", "corpus:9,300,5000", other.to_str().unwrap()]).ok();
    let second = json(&[Path::new("status"), &other]).ok().json();
    assert_ne!(second["volume"], status["volume"]);
    json(&[Path::new("umount"), &other]).ok();
    world.umount().ok();
    assert!(!world.is_mounted());
}

#[test]
fn what_is_no_corpus_is_refused() {
    let world = World::new();
    for words in
        ["corpus:", "corpus:1,2", "corpus:x,1,4K", "corpus:1,0,4K", "corpus:1,1,15", "corpus:1,1,4K,5"]
    {
        json(&[Path::new("mount"), Path::new(words), &world.mnt()]).fails(2, "usage");
    }
    json(&[Path::new("mount"), Path::new("corpus:1,10000000,4G"), &world.mnt()]).fails(1, "no-memory");
    json(&[Path::new("mount"), Path::new("corpus:1,1,4K"), &world.path("none")]).fails(1, "no-mountpoint");
}

/// The corpus has enough files for seconds of work, so the signal arrives in the middle of it.
#[test]
fn a_corpus_in_the_making_can_be_stopped() {
    for _ in 0..5 {
        let Some(world) = World::mountable() else { return };
        match stopped_in_the_making(&world) {
            // On a busy machine the signal may come when the corpus is there. That is an end in good order.
            0 => {}
            status => return assert_eq!(status, 130),
        }
    }
    panic!("each corpus was made before the signal came");
}

/// The exit status of a mount that is signalled while its corpus is made.
fn stopped_in_the_making(world: &World) -> i32 {
    let mut command = covey(&[Path::new("mount"), Path::new("corpus:3,10000,64K"), &world.mnt()]);
    let mut daemon = command.stderr(Stdio::null()).spawn().unwrap();
    soon("it is at work", || {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap_or_default();
        let held = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
        held.split_whitespace().next().and_then(|kib| kib.parse().ok()) > Some(60_000)
    });
    kill(daemon.id(), libc::SIGINT);
    let since = Instant::now();
    let status = end_of(&mut daemon, "a signalled mount");
    assert!(!world.is_mounted(), "a mount that was stopped should not be mounted");
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
    status
}

/// The kernel learns once that it can open, close and cache files by itself. Then no more requests arrive.
#[test]
fn exclusive_and_frozen_mounts_are_not_asked_for_what_is_warm() {
    let Some(world) = World::mountable() else { return };
    let mnt = world.mnt();
    world.mount("");
    for number in 0..20 {
        fs::write(mnt.join(number.to_string()), vec![number; 70_000]).unwrap();
    }
    world.umount().ok();
    for options in ["", "frozen"] {
        world.mount(options);
        assert_eq!(world.status()["mode"], if options.is_empty() { "exclusive" } else { "frozen" });
        let read = || {
            for number in 0..20_u8 {
                // No stat here: with writeback caching the kernel asks again for a file's blocks after a
                // close.
                let mut bytes = vec![0; 70_000];
                fs::File::open(mnt.join(number.to_string())).unwrap().read_exact(&mut bytes).unwrap();
                assert_eq!(bytes, vec![number; 70_000]);
            }
        };
        let requests = || world.status()["served"]["requests"].as_u64().unwrap();
        read();
        let before = requests();
        (0..20).for_each(|_| read());
        let came = requests() - before;
        assert!(came < 20, "{came} requests for 400 warm opens and reads on {options:?}");
        if options == "frozen" {
            assert_eq!(fs::write(mnt.join("x"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
        }
        world.umount().ok();
    }
}
