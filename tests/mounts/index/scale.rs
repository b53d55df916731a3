//! Many objects in bounded memory. The long form (`--ignored`) has a million.

use std::process::Stdio;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_ok, environment};
use covey_tests::{Need, Volume, proc, requires};

use super::lister::{Lister, key};

/// The most memory that the command may take, in KiB.
const MOST: u64 = 100 << 10;

struct Done {
    json: serde_json::Value,
    peak: u64,
    seconds: f64,
}

fn index(volume: &Volume, lister: &Lister) -> Done {
    let mut command = covey();
    let source = volume.source.to_str().unwrap();
    command.args(["index", "s3://bucket/set", source, "data", "--endpoint", &lister.endpoint, "--json"]);
    let began = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (pid, mut peak) = (child.id(), 0);
    while child.try_wait().unwrap().is_none() {
        // Zero once it has ended.
        peak = proc::peak_rss_kib(pid).max(peak);
        std::thread::sleep(Duration::from_millis(2));
    }
    let seconds = began.elapsed().as_secs_f64();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{out:?}");
    Done { json: serde_json::from_slice(&out.stdout).unwrap(), peak, seconds }
}

fn many(count: u64, page: Duration) {
    let folder = covey_tests::scratch();
    let lister = Lister::start(count, page);
    let mut variables = s3server::environment();
    variables.push(("COVEY_BUCKET_ENDPOINTS".to_owned(), lister.endpoint.clone()));
    environment(variables);
    let volume = Volume::below(folder.path(), &[]);
    let first = index(&volume, &lister);
    let pages = lister.pages();
    let again = index(&volume, &lister);
    for (what, done) in [("first", &first), ("again", &again)] {
        println!(
            "{what}: {count} objects, {:.1} s, of which {:.1} s listing ({pages} pages), {} MiB at most",
            done.seconds,
            done.json["listing_seconds"].as_f64().unwrap(),
            done.peak >> 10
        );
        assert_eq!(done.json["objects"].as_u64(), Some(count));
        assert!(done.peak > 0 && done.peak <= MOST, "{} KiB", done.peak);
    }
    assert_eq!(again.json["unchanged"].as_bool(), Some(true));
    let tree = format!("file:{}@data", volume.source.join("blobs").display());
    let listed = covey_ok(&["ls", &format!("{tree}:/part-050"), "--json"]).json();
    assert_eq!(listed.as_array().unwrap().len() as u64, count / 100);
    let first = key(count / 2, count);
    let has = |row: &serde_json::Value| first.ends_with(row["path"].as_str().unwrap());
    assert!(listed.as_array().unwrap().iter().any(has), "{first} is not there");
}

#[test]
fn a_hundred_thousand_objects_in_bounded_memory() {
    requires!(Need::Covey, Need::Root);
    many(100_000, Duration::from_millis(10));
}

#[test]
#[ignore = "takes minutes"]
fn a_million_objects_in_bounded_memory() {
    requires!(Need::Covey, Need::Root);
    many(1_000_000, Duration::from_millis(40));
}
