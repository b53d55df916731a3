//! What users do wrong with images, and disks that are full: nothing half-made stays, and a second try works.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use covey_tests::program::{covey_ok, covey_run};
use covey_tests::{Need, Volume, requires, run_ok};

use super::build::{Layout, here, layer};
use super::{Image, import, one_at_a_time, with_app};

/// A damaged manifest was named, with the advice to import the image again with --overwrite. That import said
/// that everything was there already, and the image stayed damaged.
#[test]
fn regression_an_image_that_is_damaged_is_mended_by_an_import() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let manifest = layout.image("1", &here(), &[layer(&[(b'0', "f", b"1")])]);
    let volume = Volume::below(folder.path(), &[]);
    let mounted = volume.mount();
    let images = mounted.join("images");
    import(&layout.source("1"), &images, &[]);
    let at = images.to_str().unwrap();
    let digest = manifest["digest"].as_str().unwrap();
    let (blob, name) = (images.join("blobs").join(digest.replace(':', "/")), images.join("names/app:1.json"));
    let config = || covey_run(&["image", "config", "app:1", "--volume", at]);
    for (file, bytes) in [(&blob, &b"short"[..]), (&blob, &[b'x'; 10_000]), (&name, b"")] {
        fs::write(file, bytes).unwrap();
        let damaged = config();
        assert_eq!(damaged.code(), 1, "{damaged:?}");
        let done = covey_ok(&["import", &layout.source("1"), at, "--overwrite"]);
        assert!(done.stdout.starts_with("Imported app:1"), "{done:?}");
        assert_eq!(config().code(), 0);
    }
    let done = covey_ok(&["import", &layout.source("1"), at]);
    assert!(done.stdout.contains("is there already"), "{done:?}");
    mounted.umount();
}

/// On a full disk, a mount with --upper left an empty file that says which image the folder is for. Every
/// later mount was refused, because the folder was for another image.
#[test]
fn regression_a_mount_that_fails_leaves_the_users_folder_as_it_was() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let (_volume, mounted) = with_app(folder.path());
    let images = mounted.join("images");
    let small = Disk::new(&folder.path().join("small"));
    fs::write(small.0.join("fill"), vec![1; 1 << 20]).unwrap_err();
    let (at, upper) = (folder.path().join("image"), small.0.join("upper"));
    let mount = |upper: &Path, at: &Path| {
        let (upper, at) = (upper.to_str().unwrap(), at.to_str().unwrap());
        covey_run(&["image", "mount", "app:1", at, "--volume", images.to_str().unwrap(), "--upper", upper])
    };
    let full = mount(&upper, &at);
    assert!(full.code() == 1 && full.stderr.contains("no space left"), "{full:?}");
    assert!(!upper.exists() && !at.exists(), "nothing stays");
    fs::remove_file(small.0.join("fill")).unwrap();
    // A mountpoint that is a file.
    fs::write(small.0.join("file"), "mine").unwrap();
    fs::create_dir(&upper).unwrap();
    let file = mount(&upper, &small.0.join("file"));
    assert!(file.code() != 0 && fs::read(small.0.join("file")).unwrap() == b"mine", "{file:?}");
    assert_eq!(fs::read_dir(&upper).unwrap().count(), 0, "the folder is as it was");
    Image::mount("app:1", &at, &images, &["--upper", upper.to_str().unwrap()]).umount();
    mounted.umount();
}

/// The mount of the layers undid the `nodev` of a published tree.
#[test]
fn regression_devices_of_an_image_do_nothing() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let (_volume, mounted) = with_app(folder.path());
    let image = Image::mount("app:1", &folder.path().join("image"), &mounted.join("images"), &[]);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = image.0.to_str().unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == Some(place)).unwrap();
    let options = line.split(' ').nth(5).unwrap();
    assert!(options.split(',').any(|option| option == "nodev"), "{line}");
    image.umount();
    mounted.umount();
}

/// A small disk.
struct Disk(std::path::PathBuf);

impl Disk {
    fn new(at: &Path) -> Disk {
        fs::create_dir(at).unwrap();
        let mut mount = Command::new("mount");
        run_ok(mount.args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(at), Duration::from_secs(20));
        Disk(at.to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}
