//! `covey image rm`: what it removes, and what it leaves to images that are mounted.

use std::fs;
use std::path::Path;

use covey_tests::program::{covey_ok, covey_run};
use covey_tests::{Need, Volume, requires};

use super::build::{Layout, here, layer};
use super::{Image, import, one_at_a_time};

/// The layers that other images use stay, also on this machine those of a mounted image, which is named.
#[test]
fn an_image_is_removed_with_what_only_it_uses() {
    requires!(Need::Covey, Need::Root, Need::Mount);
    let _one = one_at_a_time();
    let folder = covey_tests::scratch();
    let layout = Layout::new(&folder.path().join("app"));
    let below = layer(&[(b'0', "below", b"1")]);
    layout.image("1", &here(), &[below.clone(), layer(&[(b'0', "one", b"1")])]);
    layout.image("2", &here(), &[below, layer(&[(b'0', "two", b"2")])]);
    let volume = Volume::below(folder.path(), &[]);
    let mounted = volume.mount();
    let images = mounted.join("images");
    for tag in ["1", "2"] {
        import(&layout.source(tag), &images, &[]);
    }
    import(&layout.source("1"), &images, &["--name", "other"]);
    let at = images.to_str().unwrap();
    let layers = || fs::read_dir(images.join("layers")).unwrap().count();
    // Another name of the same image keeps its layers.
    let done = covey_ok(&["image", "rm", "other", "--volume", at, "--json"]).json();
    assert_eq!((&done["names"][0], done["layers"].as_array().unwrap().len()), (&"other".into(), 0), "{done}");
    let image = Image::mount("app:1", &folder.path().join("image"), &images, &[]);
    let busy = covey_run(&["image", "rm", "app:1", "--volume", at, "--json"]);
    assert_eq!((busy.code(), &busy.json()["error"]["code"]), (1, &"in-use".into()), "{busy:?}");
    assert!(busy.stderr.contains(image.0.to_str().unwrap()), "{busy:?}");
    assert_eq!(fs::read_to_string(image.0.join("one")).unwrap(), "1");
    assert_eq!(layers(), 3, "nothing is removed");
    // An image beside it may go.
    covey_ok(&["image", "rm", "app:2", "--volume", mounted.path().to_str().unwrap()]);
    assert_eq!((layers(), fs::read_to_string(image.0.join("below")).unwrap()), (2, "1".to_owned()));
    image.umount();
    let done = covey_ok(&["image", "rm", "app:1", "--volume", at, "--json"]).json();
    assert_eq!(done["layers"].as_array().unwrap().len(), 2, "{done}");
    assert_eq!((layers(), fs::read_dir(images.join("blobs/sha256")).unwrap().count()), (0, 0));
    let gone = covey_run(&["image", "rm", "app:1", "--volume", at, "--json"]);
    assert_eq!((gone.code(), &gone.json()["error"]["code"]), (1, &"not-found".into()), "{gone:?}");
    let tree = covey_run(&["image", "rm", "app:1", "--volume", "file:/nowhere@images"]);
    assert!(tree.code() == 2 && tree.stderr.contains("publish that again"), "{tree:?}");
    let wrong =
        covey_run(&["image", "rm", "app:1", "--volume", mounted.join("images/names").to_str().unwrap()]);
    assert!(wrong.code() == 1 && wrong.stderr.contains("is no folder of images"), "{wrong:?}");
    mounted.umount();
    // The same in a volume that is not mounted. A kill has left a layer that nothing names.
    let closed = format!("{}:/images", volume.source.display());
    import(&layout.source("1"), Path::new(&closed), &[]);
    import(&layout.source("2"), Path::new(&closed), &[]);
    let name = format!("{closed}/names/app:2.json");
    assert!(covey_ok(&["cat", &name]).stdout.contains("app:2"));
    covey_ok(&["image", "rm", "app:2", "--volume", &closed]);
    let left = covey_ok(&["image", "ls", &closed, "--json"]).json();
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
    let mounted = volume.mount();
    fs::remove_file(mounted.join("images/names/app:1.json")).unwrap();
    let done = covey_ok(&["image", "rm", "app:1", "--volume", mounted.join("images").to_str().unwrap()]);
    assert!(done.stdout.contains("was removed before"), "{done:?}");
    assert_eq!(fs::read_dir(mounted.join("images/layers")).unwrap().count(), 0);
    mounted.umount();
    volume.must_be_clean();
}
