//! Quotas of folders on a volume that several nodes write to.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, Rng, requires, requires_server};

const PATIENCE: Duration = Duration::from_secs(120);
/// A node knows before this what the others use: it looks whenever it renews its session, every 3 s. The rest
/// is for a busy machine.
const LATE: Duration = Duration::from_secs(60);

/// Bytes and files that count for a folder's quota.
fn used(folder: &Path) -> (u64, u64) {
    let said = run_ok(covey().args(["--json", "quota", "ls"]).arg(folder), PATIENCE);
    let all: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let own = |quota: &&serde_json::Value| quota["path"].as_str().map(Path::new) == Some(folder);
    let quota = all.as_array().unwrap().iter().find(own).unwrap_or_else(|| panic!("{all}"));
    (quota["bytes"].as_u64().unwrap(), quota["files"].as_u64().unwrap())
}

fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn all_nodes_count_for_one_quota() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    fs::create_dir_all(shared.path(0, "team/sub")).unwrap();
    let bytes = Rng::new(3).bytes(2 << 20);
    // What is there counts, whichever node made it.
    for node in 0..2 {
        fs::write(shared.path(node, &format!("team/sub/{node}")), &bytes[..1 << 20]).unwrap();
    }
    run_ok(
        covey().args(["quota", "set", "--bytes", "8M", "--files", "40"]).arg(shared.path(1, "team")),
        PATIENCE,
    );
    assert_eq!(used(&shared.path(1, "team")), (2 << 20, 3));
    assert_eq!(used(&shared.path(0, "team")), (2 << 20, 3));

    // The other node knows of the quota by now.
    let fill = |node: usize| {
        let mut file = fs::File::create(shared.path(node, &format!("team/fill{node}"))).unwrap();
        (0..40).find_map(|_| file.write_all(&bytes[..256 << 10]).err())
    };
    let failed = fill(0).expect("10 MiB do not fit into 8");
    assert_eq!(failed.raw_os_error(), Some(libc::EDQUOT), "{failed}");
    eventually("the other node learns that the room is used up", || {
        let added = fs::OpenOptions::new().append(true).open(shared.path(1, "team/sub/1"));
        let failed = added.and_then(|mut file| file.write_all(&bytes[..300 << 10])).err();
        failed.and_then(|error| error.raw_os_error()) == Some(libc::EDQUOT)
    });
    fs::remove_file(shared.path(1, "team/fill0")).unwrap();
    fs::OpenOptions::new().write(true).open(shared.path(1, "team/sub/1")).unwrap().set_len(1 << 20).unwrap();
    for node in 0..2 {
        eventually("what was removed counts no longer", || used(&shared.path(node, "team")) == (2 << 20, 3));
    }

    // Both make files at the same time. What is too much is bounded, and the counters are exact at rest.
    let makers: Vec<_> = (0..2)
        .map(|node| {
            let folder = shared.path(node, "team");
            std::thread::spawn(move || {
                let began = Instant::now();
                let mut made = 0;
                loop {
                    let is_made = fs::write(folder.join(format!("{node}-{made}")), "x").is_ok();
                    made += u64::from(is_made);
                    if !is_made && fs::read_dir(&folder).unwrap().count() + 2 >= 40 {
                        return made;
                    }
                    assert!(began.elapsed() < LATE, "node {node} makes files still: {made}");
                    std::thread::sleep(Duration::from_millis(50));
                }
            })
        })
        .collect();
    let made: u64 = makers.into_iter().map(|maker| maker.join().unwrap()).sum();
    let there = fs::read_dir(shared.path(0, "team")).unwrap().count() as u64 + 2;
    assert_eq!(made + 3, there);
    assert!(there >= 40, "{there} files");
    eventually("the counters are exact", || used(&shared.path(0, "team")).1 == there);
    assert_eq!(used(&shared.path(1, "team")).1, there);
    assert!(fs::write(shared.path(1, "team/more"), "x").is_err());

    let moved = fs::rename(shared.path(0, "team/sub/0"), shared.path(0, "out"));
    assert_eq!(moved.err().and_then(|error| error.raw_os_error()), Some(libc::EXDEV));
    run_ok(covey().args(["quota", "rm"]).arg(shared.path(0, "team")), PATIENCE);
    eventually("the other node knows that too", || fs::write(shared.path(1, "team/more"), "x").is_ok());
    let checked = run_ok(covey().args(["fsck", &shared.address]), PATIENCE);
    assert!(checked.stdout.contains("sound"), "{checked:?}");
}
