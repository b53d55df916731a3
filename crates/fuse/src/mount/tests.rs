use super::*;

#[test]
fn a_line_of_the_mount_table_is_read() {
    let line = br"36 35 98:7 /part\040c /mnt/a\040b rw,noatime shared:1 - fuse.covey /vol\134x rw,user_id=1000,group_id=0,allow_other";
    let mounted = table::line(line).unwrap();
    assert_eq!((&*mounted.path, &*mounted.root), (Path::new("/mnt/a b"), Path::new("/part c")));
    assert!(!mounted.read_only);
    assert!(table::line(b"37 36 0:51 / /a ro,relatime - fuse.covey /v rw").unwrap().read_only);
    assert_eq!(mounted.dev, libc::makedev(98, 7));
    assert_eq!((mounted.kind.as_str(), mounted.source.as_str()), ("fuse.covey", r"/vol\x"));
    assert_eq!(mounted.user, Some(1000));
    assert!(mounted.is_fuse());
    assert!(table::line(b"").is_none());
}

#[test]
fn a_source_with_a_comma_cannot_smuggle_options() {
    let flags = MountFlags { source: r"a,suid\b".into(), ..MountFlags::default() };
    assert!(helper::options(&flags).ends_with(r"fsname=a\,suid\\b"));
}

#[test]
fn a_mountpoint_that_cannot_be_used_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let absent = check_mountpoint(&dir.path().join("absent")).unwrap_err();
    assert!(absent.to_string().contains("mkdir -p"), "{absent}");
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let no_dir = check_mountpoint(&file).unwrap_err();
    assert!(no_dir.to_string().contains("not a directory"), "{no_dir}");
    assert!(check_mountpoint(dir.path()).is_ok());
}

/// A mount that is never served, so any request to it waits. `None` if this machine cannot make one.
fn unserved(path: &Path) -> Option<(Device, Mount)> {
    if !is_root() || !Device::exists() {
        println!("no root or no /dev/fuse: skipped");
        return None;
    }
    let flags = MountFlags { source: "stuck".into(), ..MountFlags::default() };
    Some(mount(path, &flags, libc::S_IFDIR | 0o755).unwrap())
}

/// A daemon that did not answer was called dead after ten seconds, and its mount was removed. It may only be
/// stopped.
#[test]
fn regression_a_stuck_daemon_is_silent_and_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let Some((device, mount)) = unserved(&path) else { return };
    let began = base::time::monotonic();
    let within = Duration::from_millis(300);
    let life = find(&path).unwrap().life(Deadline::after(within));
    let took = began.elapsed();
    drop(device);
    let dead = find(&path).unwrap().life(Deadline::after(Duration::from_secs(60)));
    mount.unmount(Unmount::Lazy).unwrap();
    assert_eq!((life, dead), (Life::Silent, Life::Dead));
    assert!(took >= within && took < Duration::from_secs(120), "{took:?}");
}

#[test]
fn a_connection_is_ended_by_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let Some((device, mount)) = unserved(&path) else { return };
    let found = find(&path).unwrap();
    let ended = abort(found.dev);
    let life = found.life(Deadline::after(Duration::from_secs(60)));
    mount.unmount(Unmount::Lazy).unwrap();
    drop(device);
    ended.unwrap();
    assert_eq!(life, Life::Dead);
}
