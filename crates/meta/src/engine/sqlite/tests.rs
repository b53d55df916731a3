use std::fs;

use super::*;

fn put(k: &str, v: &[u8]) -> Commit {
    Commit { puts: vec![(Key::from_bytes(k.as_bytes()), v.into())], ..Commit::default() }
}

fn sample(path: &Path) {
    let sqlite = Sqlite::open(path).unwrap();
    for n in 0..50 {
        sqlite.commit(put(&format!("row {n}"), &[n; 900])).unwrap();
    }
}

fn message(path: &Path) -> String {
    Sqlite::open(path).err().unwrap().to_string()
}

#[test]
fn rows_and_position_survive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.db");
    let first = Sqlite::open(&path).unwrap();
    assert_eq!(first.applied().unwrap(), Position::default());
    let position = Position { segment: 7, seq: u64::MAX };
    let rows = [(Key::from_bytes(b"a"), Some(Value::from([1u8].as_slice())))];
    first.apply(rows.iter().map(|(key, row)| (key, row)), position).unwrap();
    let id = first.log_id();
    drop(first);
    let again = Sqlite::open(&path).unwrap();
    assert_eq!(again.applied().unwrap(), position);
    assert_eq!(again.log_id(), id);
    assert_eq!(again.get(&rows[0].0).unwrap(), rows[0].1);
    assert_eq!(again.integrity().unwrap(), Vec::<String>::new());
}

#[test]
fn a_file_that_is_not_a_covey_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.db");
    fs::write(&path, [7u8; 9000]).unwrap();
    assert!(message(&path).contains("is not a database"), "{}", message(&path));
    assert_eq!(fs::read(&path).unwrap(), [7u8; 9000], "it is left as it was");
    fs::remove_file(&path).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("create table theirs(x)").unwrap();
    drop(other);
    assert!(message(&path).contains("another program's database"), "{}", message(&path));
    let nowhere = folder.path().join("not/there.db");
    assert!(message(&nowhere).contains("check that its folder exists"), "{}", message(&nowhere));
}

#[test]
fn a_newer_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.db");
    sample(&path);
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 2).unwrap();
    let message = message(&path);
    assert!(message.contains("format 2") && message.contains("version of covey"), "{message}");
}

#[test]
fn a_truncated_file_is_refused_at_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.db");
    sample(&path);
    let whole = fs::read(&path).unwrap();
    for left in [whole.len() - 1, whole.len() / 2, 4096, 5000, 100] {
        fs::write(&path, &whole[..left]).unwrap();
        let error = Sqlite::open(&path).err();
        assert!(matches!(error, Some(StoreError::Damaged(_))), "{left} of {}: {error:?}", whole.len());
        assert!(error.unwrap().to_string().contains("covey fsck"));
    }
}

#[test]
fn damaged_pages_are_found_and_never_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.db");
    sample(&path);
    let mut bytes = fs::read(&path).unwrap();
    for page in bytes.chunks_exact_mut(4096).skip(6) {
        page[..64].fill(0xA5);
    }
    fs::write(&path, bytes).unwrap();
    let sqlite = Sqlite::open(&path).unwrap();
    let found = sqlite.integrity().unwrap();
    assert!(!found.is_empty());
    let all = KeyRange { start: Key::from_bytes(b""), end: Key::from_bytes(b"z") };
    assert!(matches!(sqlite.scan(&all, 1000), Err(StoreError::Damaged(_))));
}

#[test]
fn a_program_that_holds_the_file_is_named_as_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.db");
    let sqlite = Sqlite::open(&path).unwrap();
    sqlite.writer.lock().busy_timeout(Duration::from_millis(10)).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("begin immediate").unwrap();
    match sqlite.commit(put("a", b"b")) {
        Err(CommitError::Store(StoreError::Unavailable(what))) => {
            assert!(what.contains("locked by another program"), "{what}")
        }
        other => panic!("{other:?}"),
    }
    other.execute_batch("rollback").unwrap();
    sqlite.commit(put("a", b"b")).unwrap();
}

#[test]
fn the_log_of_sqlite_stays_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.db");
    let sqlite = Sqlite::open(&path).unwrap();
    for round in 0..60u64 {
        let row = |n: u64| {
            (
                Key::from_bytes(&(n * 7919 % 65_536).to_be_bytes()),
                Some(Value::from([round as u8; 500].as_slice())),
            )
        };
        let rows: Vec<_> = (0..2000).map(|n| row(n + round * 2000)).collect();
        sqlite.apply(rows.iter().map(|(key, row)| (key, row)), Position { segment: 0, seq: round }).unwrap();
    }
    let log = wal_path(&path).metadata().unwrap().len();
    assert!(log < WAL_KEPT + (16 << 20), "{log} bytes");
    sqlite.checkpoint().unwrap();
    assert_eq!(wal_path(&path).metadata().unwrap().len(), 0);
}
