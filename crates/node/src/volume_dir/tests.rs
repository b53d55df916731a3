use super::*;

fn make(path: &Path) -> VolumeDir {
    VolumeDir::create(path, ORIGIN_INSIDE, |_| Ok(())).unwrap()
}

fn me() -> Holder {
    Holder { pid: std::process::id(), does: "test".to_owned(), mountpoint: None }
}

#[test]
fn a_volume_is_made_and_opened() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("deep/er");
    let made = make(&path);
    let opened = VolumeDir::open(&path).unwrap();
    assert_eq!(made.format(), opened.format());
    assert_eq!(opened.format().id.len(), 32);
    assert_eq!(opened.origin(), format!("file:{}", opened.path().join("blobs").display()));
    let again = VolumeDir::create(&path, ORIGIN_INSIDE, |_| Ok(())).unwrap_err();
    assert!(again.what.contains("already"), "{again}");
}

#[test]
fn what_is_no_volume_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    assert_eq!(VolumeDir::open(&temp.path().join("none")).unwrap_err().code, "not-found");
    let empty = VolumeDir::open(temp.path()).unwrap_err();
    assert!(empty.code == "not-a-volume" && empty.next[0].contains("covey format"), "{empty}");
    fs::write(temp.path().join("thesis.tex"), "years of work").unwrap();
    let full = VolumeDir::create(temp.path(), ORIGIN_INSIDE, |_| Ok(())).unwrap_err();
    assert!(full.why[0].contains("thesis.tex"), "{full}");
    assert_eq!(VolumeDir::open(&temp.path().join("thesis.tex")).unwrap_err().code, "not-a-volume");
}

/// Any user who could write to the folder could remove the lock. Any user who could read the lock could hold
/// it.
#[test]
fn regression_others_neither_write_nor_lock() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("v");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    let volume = make(&path);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&path), 0o755);
    fs::write(path.join("lock"), "").unwrap();
    fs::set_permissions(path.join("lock"), Permissions::from_mode(0o644)).unwrap();
    let lock = volume.lock(&me()).unwrap();
    assert_eq!((mode(&path.join("lock")), volume.holder().unwrap()), (0o600, Some(me())));
    drop(lock);
    fs::remove_file(path.join("lock")).unwrap();
    std::os::unix::fs::symlink(temp.path().join("elsewhere"), path.join("lock")).unwrap();
    assert!(volume.lock(&me()).is_err() && !temp.path().join("elsewhere").exists());
}

#[test]
fn a_newer_format_is_named_and_a_torn_file_too() {
    let temp = tempfile::tempdir().unwrap();
    let file = make(&temp.path().join("v")).path().join("covey.json");
    fs::write(&file, "{\"format\": 7, \"shape\": \"unheard of\"}").unwrap();
    let newer = VolumeDir::open(&temp.path().join("v")).unwrap_err();
    assert!(newer.code == "newer-format" && newer.what.contains("format 7"), "{newer}");
    for torn in ["", "{\"form", "{\"format\": 1}"] {
        fs::write(&file, torn).unwrap();
        assert_eq!(VolumeDir::open(&temp.path().join("v")).unwrap_err().code, "damaged", "{torn:?}");
    }
}

#[test]
fn a_failed_format_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("v");
    let failed = VolumeDir::create(&path, ORIGIN_INSIDE, |_| Err(Failure::new("disk-full", "full")));
    assert_eq!(failed.unwrap_err().code, "disk-full");
    assert!(!path.exists());
}

#[test]
fn only_one_holds_it_and_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let volume = make(&temp.path().join("v"));
    assert_eq!(volume.holder().unwrap(), None);
    let lock = volume.lock(&me()).unwrap();
    let refused = volume.lock(&me()).unwrap_err();
    assert!(refused.why[0].contains(&format!("process {}", std::process::id())), "{refused}");
    let mounted = Holder { mountpoint: Some("/mnt/x".into()), ..me() };
    assert!(volume.in_use(Some(mounted)).next[0].contains("covey umount /mnt/x"));
    assert_eq!(volume.holder().unwrap(), Some(me()));
    assert!(!volume.wait_free(Duration::from_millis(30)).unwrap());
    drop(lock);
    assert!(volume.wait_free(Duration::ZERO).unwrap());
    // A daemon whose mount is gone is about to release the lock.
    let closing = volume.lock(&Holder { mountpoint: Some("/mnt/x".into()), ..me() }).unwrap();
    let waiting = std::thread::spawn(move || volume.lock(&me()).map(drop));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished());
    drop(closing);
    waiting.join().unwrap().unwrap();
}

/// The lock was held after its end, if another thread started a program at this moment: the forked process
/// had the file open too. The next command was refused, by a process that was gone.
#[test]
fn regression_a_volume_is_free_although_a_program_is_being_started() {
    let temp = tempfile::tempdir().unwrap();
    let volume = make(&temp.path().join("v"));
    let lock = volume.lock(&me()).unwrap();
    let _child = base::trial::Forked::new().unwrap();
    drop(lock);
    assert_eq!(volume.holder().unwrap(), None);
    let _lock = volume.lock(&me()).unwrap();
    assert_eq!(volume.holder().unwrap(), Some(me()));
}
