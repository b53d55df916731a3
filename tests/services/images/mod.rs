//! Container images, from their import to a container that runs.
//!
//! Images are made here byte by byte, or by the programs that people use (umoci, skopeo), and compared with
//! what these programs unpack. The overlays are the kernel's.

mod build;
mod containerd;
mod ending;
mod mistakes;
mod registry;
mod removal;
mod running;
mod secure;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use build::{Layout, here, layer};
use covey_tests::program::{covey, covey_ok, covey_run};
use covey_tests::{Finished, Mounted, Need, Volume, requires, run_ok, tree};

/// Tests that mount images take turns, so that what is left over is one test's own.
static ONE: Mutex<()> = Mutex::new(());

/// A mounted volume whose folder `images` has the image `app:1`: a file `f` with `1`.
fn with_app(folder: &Path) -> (Volume, Mounted) {
    let layout = Layout::new(&folder.join("app"));
    layout.image("1", &here(), &[layer(&[(b'0', "f", b"1")])]);
    let volume = Volume::below(folder, &[]);
    let mounted = volume.mount();
    import(&layout.source("1"), &mounted.join("images"), &[]);
    (volume, mounted)
}

/// Waits for other tests of images to end.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Imports an image, which must succeed.
pub fn import(source: &str, dest: &Path, more: &[&str]) -> Finished {
    let dest = dest.to_str().unwrap();
    covey_ok(&[&["import", source, dest, "--json"], more].concat())
}

/// An image that is mounted, and unmounted when it is dropped.
pub struct Image(pub PathBuf);

impl Image {
    /// Mounts it.
    pub fn mount(name: &str, at: &Path, volume: &Path, more: &[&str]) -> Image {
        let words = ["image", "mount", name, at.to_str().unwrap(), "--volume", volume.to_str().unwrap()];
        covey_ok(&[&words[..], more].concat());
        Image(at.to_owned())
    }

    /// Unmounts it, which must succeed.
    pub fn umount(self) -> Finished {
        let done = covey_run(&["image", "umount", self.0.to_str().unwrap()]);
        assert_eq!(done.code(), 0, "{done:?}");
        std::mem::forget(self);
        done
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = covey().args(["image", "umount"]).arg(&self.0).output();
    }
}

/// What is below a folder: each path with its bytes or its target.
fn contents(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            let whole = root.join(&path);
            let about = whole.symlink_metadata().unwrap();
            let shown = path.display();
            all.push(if about.is_dir() {
                format!("{shown}/")
            } else if about.is_symlink() {
                format!("{shown} -> {}", fs::read_link(&whole).unwrap().display())
            } else if about.file_type().is_char_device() {
                format!("{shown} device {}", about.rdev())
            } else {
                format!("{shown} = {}", fs::read_to_string(&whole).unwrap())
            });
            if about.is_dir() {
                folders.push(path);
            }
        }
    }
    all.sort();
    all
}

/// Layers that hide, replace and add, the lowest first.
fn three_layers() -> [Vec<u8>; 3] {
    let lowest = layer(&[
        (b'5', "a", b""),
        (b'0', "a/gone", b"1"),
        (b'0', "a/stays", b"1"),
        (b'5', "b", b""),
        (b'0', "b/hidden", b"1"),
        (b'0', "c", b"1"),
        (b'5', "d", b""),
        (b'0', "d/low", b"1"),
        (b'5', "e", b""),
        (b'0', "e/gone", b"1"),
    ]);
    let middle = layer(&[
        (b'5', "a", b""),
        (b'0', "a/.wh.gone", b""),
        (b'5', "b", b""),
        (b'0', "b/.wh..wh..opq", b""),
        (b'0', "b/new", b"2"),
        (b'1', "b/twice", b"b/new"),
        (b'2', "l", b"a/stays"),
        (b'0', ".wh.d", b""),
        (b'5', "d", b""),
        (b'0', "d/high", b"2"),
    ]);
    // The folder e is not listed: it stays what it is below.
    let highest = layer(&[(b'0', "c", b"3"), (b'0', ".wh.none", b""), (b'0', "e/.wh.gone", b"")]);
    [lowest, middle, highest]
}

/// Whiteouts, opaque folders and links of three layers, as the kernel shows them. Imported into a volume that
/// is mounted, and into one that is not.
#[test]
fn layers_stack_as_they_should() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let [lowest, middle, highest] = three_layers();
    // A layer that is there twice is a folder for each place: what it leaves out is that of the layers below.
    layout.image("1", &here(), &[lowest, highest.clone(), middle, highest]);
    let volume = Volume::below(folder.path(), &[]);
    let closed = format!("{}:/closed", volume.source.display());
    let first = import(&layout.source("1"), Path::new(&closed), &[]).json();
    assert_eq!((&first["layers"], &first["new_layers"]), (&4.into(), &4.into()), "{first}");
    let mounted = volume.mount();
    import(&layout.source("1"), &mounted.join("open"), &["--name", "other:x"]);
    let expected = [
        "a/",
        "a/stays = 1",
        "b/",
        "b/new = 2",
        "b/twice = 2",
        "c = 3",
        "d/",
        "d/high = 2",
        "e/",
        "l -> a/stays",
    ];
    for (place, name) in [("closed", "app:1"), ("open", "other:x")] {
        let image = Image::mount(name, &folder.path().join("image"), &mounted.join(place), &[]);
        assert_eq!(contents(&image.0), expected, "{place}");
        let (new, twice) =
            (image.0.join("b/new").metadata().unwrap(), image.0.join("b/twice").metadata().unwrap());
        assert_eq!(
            (new.ino(), new.nlink(), new.uid(), new.gid(), new.mode() & 0o7777),
            (twice.ino(), 2, 3, 4, 0o755)
        );
        assert_eq!((new.mtime(), new.mtime_nsec()), (1_600_000_000, 5));
        let kept = image.0.join("e").metadata().unwrap();
        assert_eq!(
            (kept.uid(), kept.gid(), kept.mtime(), kept.mtime_nsec()),
            (3, 4, 1_600_000_000, 5),
            "{place}"
        );
        let seen = tree::node(&image.0.join("a/stays"));
        assert_eq!(
            seen.xattrs.get(std::ffi::OsStr::new("user.of")).map(Vec::as_slice),
            Some(&b"a/stays"[..])
        );
        image.umount();
        assert!(!folder.path().join("image").exists(), "what the mount has made is gone");
    }
    mounted.umount();
    volume.must_be_clean();
}

/// A layer is imported once, and files of different layers that are equal are stored once.
#[test]
fn what_images_share_is_stored_once() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let (shared, large) = (vec![b's'; 2_000_000], covey_tests::Rng::new(5).bytes(3_000_000));
    let below = layer(&[(b'0', "shared", &shared), (b'0', "large", &large)]);
    // The same large file in another layer, with another neighbour.
    let again = layer(&[(b'0', "other", b"x"), (b'0', "copied/large", &large)]);
    layout.image("1", &here(), &[below.clone(), layer(&[(b'0', "one", b"1")])]);
    layout.image("2", &here(), &[below, again]);
    let volume = Volume::below(folder.path(), &[]);
    let mounted = volume.mount();
    let images = mounted.join("images");
    let new = |tag: &str| import(&layout.source(tag), &images, &[]).json()["new_layers"].clone();
    assert_eq!((new("1"), new("1"), new("2")), (2.into(), 0.into(), 1.into()));
    let listed = covey_ok(&["image", "ls", images.to_str().unwrap(), "--json"]).json();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|row| row["name"].clone()).collect();
    assert_eq!(names, ["app:1", "app:2"]);
    assert_eq!(fs::read_dir(images.join("layers")).unwrap().count(), 3);
    mounted.umount();
    // 3 MB of large (once), 2 MB of shared, sums and rows.
    covey_ok(&["gc", volume.source.to_str().unwrap()]);
    let stored = volume.blob_bytes();
    assert!(stored < 6_500_000, "{stored} bytes are stored");
    volume.must_be_clean();
}

/// Two images had one layer above others, and a folder that it leaves out was as in the image that was
/// imported first: open to all, where the other image has a private one.
#[test]
fn regression_a_folder_that_a_layer_leaves_out_is_that_of_its_image() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let above = layer(&[(b'0', "private/key", b"key")]);
    for (tag, uid) in [("one", 11), ("two", 12)] {
        layout.image(tag, &here(), &[build::layer_of(uid, 0, &[(b'5', "private", b"")]), above.clone()]);
    }
    let volume = Volume::below(folder.path(), &[]);
    let mounted = volume.mount();
    for tag in ["one", "two"] {
        import(&layout.source(tag), &mounted.join("images"), &["--name", tag]);
    }
    for (tag, uid) in [("one", 11), ("two", 12)] {
        let image = Image::mount(tag, &folder.path().join(tag), &mounted.join("images"), &[]);
        assert_eq!(fs::metadata(image.0.join("private")).unwrap().uid(), uid, "{tag}");
        assert_eq!(fs::read(image.0.join("private/key")).unwrap(), b"key");
        image.umount();
    }
    mounted.umount();
    volume.must_be_clean();
}

/// The manifest and the config are kept byte for byte, under their digests.
#[test]
fn digests_stay_what_they_were() {
    requires!(Need::Covey, Need::Root);
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let manifest = layout.image("1", &here(), &[layer(&[(b'0', "f", b"1")])]);
    let digest = manifest["digest"].as_str().unwrap();
    let bytes = fs::read(layout.blob_path(digest)).unwrap();
    let parsed: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let config = fs::read(layout.blob_path(parsed["config"]["digest"].as_str().unwrap())).unwrap();
    let volume = Volume::below(folder.path(), &[]);
    let place = format!("{}:/images", volume.source.display());
    let done = import(&layout.source("1"), Path::new(&place), &[]).json();
    assert_eq!(done["manifest"], digest);
    let inside = format!("{place}/blobs/{}", digest.replace(':', "/"));
    assert_eq!(covey_ok(&["cat", &inside]).stdout.as_bytes(), bytes);
    for name in ["app:1", digest] {
        let shown = covey_ok(&["image", "config", name, "--volume", &place]).stdout;
        assert_eq!(shown.as_bytes(), config, "{name}");
    }
    let missing = covey_run(&["image", "config", "app:2", "--volume", &place]);
    assert_eq!(missing.code(), 1);
    assert!(missing.stderr.contains("there are: app:1"), "{missing:?}");
}

/// Adds a good image and bad ones.
fn bad_images(layout: &Layout, outside: &Path) {
    let good = layer(&[(b'0', "f", b"good")]);
    layout.image("good", &here(), std::slice::from_ref(&good));
    layout.image("escapes", &here(), &[good.clone(), layer(&[(b'0', "../../x", b"1")])]);
    layout.image("absolute", &here(), &[layer(&[(b'0', "/x", b"1")])]);
    layout.image(
        "through",
        &here(),
        &[layer(&[(b'2', "l", outside.as_os_str().as_bytes()), (b'0', "l/x", b"1")])],
    );
    layout.image("root", &here(), &[layer(&[(b'0', ".wh..wh..opq", b"")])]);
    layout.image("elsewhere", "s390x", &[layer(&[(b'0', "g", b"1")])]);
    // The last layer is damaged when the first one has arrived.
    let damaged = layer(&[(b'0', "h", b"damaged")]);
    layout.image("damaged", &here(), &[layer(&[(b'0', "i", b"1")]), damaged.clone()]);
    let path = layout.blob_path(&oci::digest::Digest::of(&damaged).to_string());
    let mut bytes = damaged;
    bytes[600] ^= 1;
    fs::write(path, bytes).unwrap();
    let cut = layer(&[(b'0', "j", b"cut")]);
    layout.image("cut", &here(), std::slice::from_ref(&cut));
    fs::write(layout.blob_path(&oci::digest::Digest::of(&cut).to_string()), &cut[..900]).unwrap();
}

/// What is wrong with an image ends its import, with a code and a reason, and nothing of it stays.
#[test]
fn a_bad_image_leaves_nothing() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    bad_images(&layout, &outside);
    let cases = [
        ("escapes", "refused", "leads out of the layer"),
        ("absolute", "refused", "absolute"),
        ("through", "refused", "through a symbolic link"),
        ("root", "refused", "hides the whole image"),
        ("elsewhere", "other-platform", "it is for linux/s390x"),
        ("damaged", "damaged", "not what its digest says"),
        ("cut", "damaged", "not what its digest says"),
        ("none", "not-found", "the tags good, "),
    ];
    let volume = Volume::below(folder.path(), &[]);
    let closed = format!("{}:/images", volume.source.display());
    import(&layout.source("good"), Path::new(&closed), &[]);
    let refuse = |place: &str, shown: &dyn Fn() -> String| {
        let before = shown();
        for (tag, code, why) in cases {
            let done = covey_run(&["import", &layout.source(tag), place, "--json"]);
            assert_eq!(done.code(), 1, "{tag}: {done:?}");
            assert_eq!(done.json()["error"]["code"], code, "{tag}: {done:?}");
            assert!(done.stderr.contains(why), "{tag}: {done:?}");
            assert_eq!(shown(), before, "{tag}");
        }
    };
    refuse(&closed, &|| covey_ok(&["ls", "-lR", &closed]).stdout);
    let mounted = volume.mount();
    let open = mounted.join("images");
    // The file that is locked stays.
    fs::write(open.join(".import"), "").unwrap();
    refuse(open.to_str().unwrap(), &|| format!("{:?}", contents(&open)));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    import(&layout.source("elsewhere"), &open, &["--platform", "linux/s390x"]);
    // A name that means another image is not replaced by mistake.
    let other = covey_run(&[
        "import",
        &layout.source("elsewhere"),
        open.to_str().unwrap(),
        "--name",
        "app:good",
        "--platform",
        "linux/s390x",
        "--json",
    ]);
    assert_eq!(other.json()["error"]["code"], "exists", "{other:?}");
    // What a killed import left is removed by the next one.
    fs::create_dir_all(open.join(".new-0123/layers/x")).unwrap();
    import(
        &layout.source("elsewhere"),
        &open,
        &["--name", "app:good", "--platform", "linux/s390x", "--overwrite"],
    );
    assert!(!open.join(".new-0123").exists());
    mounted.umount();
    volume.must_be_clean();
}

/// The same tree as another program unpacks, from the same image, also through an archive of docker save.
#[test]
fn the_tree_is_the_one_that_umoci_unpacks() {
    requires!(
        Need::Covey,
        Need::Root,
        Need::Mount,
        Need::Program("umoci"),
        Need::Program("skopeo"),
        Need::Program("setfattr")
    );
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let script = r#"
        set -e
        umoci init --layout app; umoci new --image app:0
        umoci unpack --image app:0 one
        cd one/rootfs; mkdir -p bin etc/deep/er opt/old var/empty
        head -c 3000000 /dev/urandom > bin/large; chmod 4755 bin/large; ln bin/large bin/hard; ln -s large bin/soft
        echo a > etc/a; echo b > etc/b; echo c > etc/deep/er/c; echo x > opt/old/x
        chown 12:34 etc/a; chmod 1777 var/empty; setfattr -n user.note -v hello etc/a; mkfifo etc/pipe
        mknod etc/null c 1 3; touch -d 2001-02-03T04:05:06.789 etc/b
        cd ../..; umoci repack --image app:1 one
        umoci unpack --image app:1 two; cd two/rootfs
        rm etc/a etc/deep/er/c; rm -r opt/old; mkdir opt/old; echo y > opt/old/y; rm -r var/empty; echo f > var/empty
        cd ../..; umoci repack --image app:2 two
        umoci unpack --image app:2 unpacked
        skopeo copy -q oci:app:2 docker-archive:app.tar:host/app:two
        mkdir saved; tar -xf app.tar -C saved
        for layer in $(find saved -name '*.tar' -type f); do gzip -n $layer; mv $layer.gz $layer; done
        tar -cf packed.tar -C saved .
    "#;
    run_ok(Command::new("sh").args(["-c", script]).current_dir(folder.path()), Duration::from_secs(120));
    let volume = Volume::below(folder.path(), &[]);
    let mounted = volume.mount();
    let images = mounted.join("images");
    let source = |scheme: &str, rest: &str| format!("{scheme}:{}/{rest}", folder.path().display());
    import(&source("oci", "app:2"), &images, &[]);
    let other = import(&source("docker-archive", "app.tar"), &images, &[]).json();
    assert_eq!(
        (&other["name"], &other["new_layers"]),
        (&"docker.io/host/app:two".into(), &0.into()),
        "the same layers"
    );
    // `docker save` may leave the layers as the registry had them.
    let packed = import(&source("docker-archive", "packed.tar"), &mounted.join("packed"), &[]).json();
    assert_eq!((&packed["name"], &packed["new_layers"]), (&"docker.io/host/app:two".into(), &2.into()));
    let mut unpacked = tree::read(&folder.path().join("unpacked/rootfs"));
    for name in ["app:2", "docker.io/host/app:two"] {
        let image = Image::mount(name, &folder.path().join("image"), &images, &[]);
        let mut ours = tree::read(&image.0);
        // An overlay counts each folder as one name.
        for all in [&mut unpacked, &mut ours] {
            all.values_mut()
                .filter(|node| node.mode & libc::S_IFMT == libc::S_IFDIR)
                .for_each(|node| node.nlink = 1);
        }
        let found = tree::differences("umoci", &unpacked, "covey", &ours);
        assert!(found.is_empty(), "{name}: {found:#?}");
        image.umount();
    }
    mounted.umount();
}
