//! `covey fsck` and `covey locks` of a shared volume.

use std::fs::{self, File};

use covey_tests::program::{Finished, covey, run, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};

use super::publish::{LIMIT, fill};

fn fsck(place: &str) -> Finished {
    run(covey().args(["fsck", "--json", place]), LIMIT)
}

/// The check finds nothing while nodes work, and finds a row that was damaged, a link count that is wrong and
/// a total that is wrong.
#[test]
fn fsck_finds_damaged_rows_of_a_shared_volume() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    fill(&shared.path(0, ""), 1);
    fill(&shared.path(1, "second"), 2);
    fs::remove_file(shared.path(1, "dir/file6")).unwrap();
    let open = File::open(shared.path(0, "dir/file7")).unwrap();
    fs::remove_file(shared.path(1, "dir/file7")).unwrap();
    let mountpoint = shared.nodes[0].mountpoint.display().to_string();
    for place in [&shared.address, &mountpoint] {
        let done = fsck(place);
        let found = done.json();
        assert!(done.code() == 0 && found["findings"].as_array().unwrap().is_empty(), "{found}");
        assert!(found["sound"].as_bool().unwrap() && found["inodes"].as_u64().unwrap() > 20, "{found}");
    }
    drop(open);
    // The working nodes are not asked: only the database is.
    let sql = |text: &str| drop(shared.server.sql(text));
    let of_kind = |tag: &str| format!("substring(k from 1 for 1) = '\\x{tag}'");
    sql("create table kept as select * from covey_kv");
    let back = || sql("delete from covey_kv; insert into covey_kv select * from kept");
    let first = |rows: &str| format!("k = (select k from covey_kv where {rows} order by k limit 1)");
    let inode = first(&format!("{} and k > '\\x010000000000000001'", of_kind("01")));
    let bytes = first(&of_kind("10"));
    // One of the rows over which the total `bytes` is spread.
    let total = first("k >= '\\x006279746573' and k < '\\x006279746574'");
    for damage in [
        format!("update covey_kv set v = '\\x00' where {inode}"),
        format!("delete from covey_kv where {inode}"),
        format!("update covey_kv set v = '\\x0000000000000001' where {bytes}"),
        format!("delete from covey_kv where {}", of_kind("02")),
        format!("update covey_kv set v = '\\x0000000000001000' where {total}"),
    ] {
        sql(&damage);
        let done = fsck(&shared.address);
        assert!(done.code() == 1 && done.stdout.starts_with('{'), "{damage}: {done:?}");
        let found = done.json();
        assert!(!found["sound"].as_bool().unwrap() && found["damage_left"].as_u64() > Some(0), "{found}");
        back();
        assert_eq!(fsck(&shared.address).code(), 0, "{damage}");
    }
}

#[test]
fn locks_of_all_nodes_are_listed() {
    requires!(Need::Covey);
    let mut shared = Shared::with(requires_server!(), 2, &["-o", "locks=fleet"]);
    let locks = |shared: &Shared, node: usize| {
        run_ok(covey().args(["locks", "--json"]).arg(shared.path(node, "")), LIMIT).json()
    };
    assert_eq!(locks(&shared, 0), serde_json::json!([]));
    fs::create_dir(shared.path(0, "dir")).unwrap();
    fs::write(shared.path(0, "dir/a"), "a").unwrap();
    fs::write(shared.path(0, "b"), "b").unwrap();
    let [a, b] = [shared.path(0, "dir/a"), shared.path(1, "b")]
        .map(|path| File::options().read(true).write(true).open(path).unwrap());
    a.lock().unwrap();
    let range = lock_range(&b, 10, 5);
    assert!(range, "a range of b is locked");
    let found = locks(&shared, 1);
    let rows = found.as_array().unwrap();
    let row = |path: &str| rows.iter().find(|row| row["path"] == path).unwrap_or_else(|| panic!("{found}"));
    assert_eq!(rows.len(), 2, "{found}");
    let (first, second) = (row("/dir/a"), row("/b"));
    assert_eq!(
        (&first["style"], &first["kind"], &first["node"]),
        (&"flock".into(), &"write".into(), &1.into())
    );
    assert_eq!((&first["start"], &first["end"]), (&0.into(), &serde_json::Value::Null));
    assert_eq!(
        (&second["style"], &second["start"], &second["end"]),
        (&"fcntl".into(), &10.into(), &14.into())
    );
    assert!(rows.iter().all(|row| row["alive"] == true && row["session"] == 1), "{found}");
    let text = run_ok(covey().args(["locks", &shared.address]), LIMIT).stdout;
    assert!(text.contains("/dir/a") && text.contains("whole file") && text.contains("10-14"), "{text}");
    // The session of a killed node lasts a little; its lock is listed until another program takes it.
    shared.nodes[0].kill();
    drop(a);
    let end = std::time::Instant::now() + LIMIT;
    while locks(&shared, 1).as_array().unwrap().iter().any(|row| row["node"] == 1 && row["alive"] == true) {
        assert!(std::time::Instant::now() < end, "the session of a killed node should end");
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    drop(b);
}

/// Locks a range for writing, as fcntl(2) does for an open file description.
fn lock_range(file: &File, start: i64, len: i64) -> bool {
    use std::os::fd::AsRawFd;
    let range = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and `range` is a flock that lives through the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) == 0 }
}
