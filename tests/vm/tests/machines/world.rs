//! What the tests have in common: trees with sums, and a look at the volume from the host.

use std::path::Path;

use covey_tests::{Rng, Volume, tree};
use vms::serve::Place;

/// Makes a tree of files of many sizes, links and modes.
pub fn make_tree(root: &Path, seed: u64, dirs: usize) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let mut rng = Rng::new(seed);
    for dir in 0..dirs {
        let dir = root.join(format!("d{dir}"));
        std::fs::create_dir_all(&dir).unwrap();
        for file in 0..20 {
            let path = dir.join(format!("f{file}"));
            let len = [0, 1, 511, 4096, 70_000, 1 << 20, 2_500_001][rng.below(7) as usize];
            std::fs::write(&path, rng.bytes(len)).unwrap();
            let mode = 0o600 | rng.below(0o177) as u32;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::fs::hard_link(dir.join("f0"), dir.join("again")).unwrap();
        symlink("f1", dir.join("link")).unwrap();
    }
}

/// A script that prints the sums of all files of a folder, in the order of their names.
pub fn sums(folder: &str) -> String {
    format!("cd {folder} && find . -type f | sort | xargs sha256sum; cd /")
}

/// What that script prints on the host.
pub fn sums_here(folder: &Path) -> String {
    let done = covey_tests::run_ok(
        std::process::Command::new("sh").arg("-c").arg(sums(folder.to_str().unwrap())),
        std::time::Duration::from_secs(60),
    );
    done.stdout.trim_end().to_owned()
}

/// Mounts the volume on the host, after its server has ended, and compares a folder of it with a plain one.
pub fn must_hold(place: &Place, name: &str, plain: &Path) {
    let volume = Volume::existing(place.folder());
    let mounted = volume.mount();
    let found = tree::differences("volume", &tree::read(&mounted.join(name)), "plain", &tree::read(plain));
    // cp -a in the guest copies times to the nanosecond; those of folders and links are its own.
    let found: Vec<_> = found.into_iter().filter(|line| !line.contains("time")).collect();
    assert!(found.is_empty(), "{found:#?}");
    mounted.umount();
    volume.must_be_clean();
}
