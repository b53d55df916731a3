//! What `covey status` and `covey stats` say of a guest's mount, in the guest.

use std::fs;

use covey_tests::program::{covey_ok, covey_run};
use covey_tests::{Need, requires};

use super::world::{Guest, Place, Proxy, until};

fn status(guest: &Guest) -> serde_json::Value {
    let out = covey_ok(&["status", guest.path().to_str().unwrap(), "--json"]).stdout;
    serde_json::from_str(&out).unwrap()
}

/// `covey status` says where the server is, whether it answers and since when, and what was asked of it.
#[test]
fn covey_status_shows_a_guests_connection() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--many", "--locks", "server"]);
    let proxy = Proxy::start(&place);
    let guest = Guest::attach(&place, "mnt", proxy.address(), &["--connections", "2", "--wait", "1"]);
    fs::write(guest.join("f"), vec![1; 100_000]).unwrap();
    assert_eq!(fs::read(guest.join("f")).unwrap().len(), 100_000);
    until("both connections are up", || status(&guest)["connections"] == 2);
    let shown = status(&guest);
    for (name, wanted) in [
        ("guest", serde_json::json!(true)),
        ("address", proxy.address().into()),
        ("connected", true.into()),
        ("connections_wanted", 2.into()),
        ("reconnects", 0.into()),
        ("written_bytes", 100_000.into()),
        ("in_flight", 0.into()),
        ("slots", 128.into()),
        ("protocol", 1.into()),
        ("features", serde_json::json!(["times", "locks", "about"])),
        ("locks", "server".into()),
        ("sharing", "many".into()),
        ("server", format!("covey {}", env!("CARGO_PKG_VERSION")).into()),
    ] {
        assert_eq!(shown[name], wanted, "{name} in {shown}");
    }
    assert!(shown["requests"].as_u64().unwrap() >= 4 && shown["since_seconds"].as_f64().unwrap() > 0.0);
    assert!(shown["read_bytes"].as_u64().unwrap() >= 100_000, "{shown}");
    proxy.lose_requests();
    proxy.cut();
    until("requests fail", || status(&guest)["failing"] == true);
    let text = covey_ok(&["status", guest.path().to_str().unwrap()]).stdout;
    assert!(text.contains("no, for") && text.contains("EIO") && text.contains(proxy.address()), "{text}");
    // Without a path it is among all mounts, and does not hold the others up.
    let all = covey_run(&["status"]).stdout;
    assert!(all.contains(proxy.address()), "{all}");
    proxy.heal();
    until("it is connected again", || status(&guest)["connected"] == true);
    assert_eq!(status(&guest)["reconnects"], 1);
    guest.end();
    server.end();
}

#[test]
fn covey_stats_shows_what_a_guest_does() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&[]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    // On a busy machine this thread may do nothing for one of the intervals, but not each time.
    let shown = (0..20).any(|_| {
        let path = guest.path().to_str().unwrap().to_owned();
        let watcher = std::thread::spawn(move || {
            covey_ok(&["stats", &path, "--interval", "200ms", "--count", "4", "--json"]).stdout
        });
        while !watcher.is_finished() {
            fs::write(guest.join("f"), vec![1; 50_000]).unwrap();
            fs::remove_file(guest.join("f")).unwrap();
        }
        let out = watcher.join().unwrap();
        let lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        assert_eq!(lines.len(), 4, "{out}");
        assert!(lines.iter().all(|line| line["connected"] == true), "{out}");
        println!("{out}");
        let writes = |line: &serde_json::Value| line["requests"]["write"].as_u64().unwrap() > 0;
        lines.iter().all(|line| writes(line) && line["written_bytes"] != 0)
    });
    assert!(shown, "no list shows the writes in each of its lines");
    guest.end();
    server.end();
}

/// What only the server's machine knows is refused, with where to ask.
#[test]
fn what_a_guests_mount_cannot_answer_says_so() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&[]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    let path = guest.path().to_str().unwrap();
    for words in [&["fsck", path][..], &["heat", path], &["top", path, "--count", "1"], &["gc", path]] {
        let done = covey_run(words);
        assert!(done.code() != 0 && done.stderr.contains("is a guest's mount"), "{words:?}: {done:?}");
        assert!(done.stderr.contains("covey serve"), "{words:?}: {done:?}");
    }
    guest.end();
    server.end();
}
