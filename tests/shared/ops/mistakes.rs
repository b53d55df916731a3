//! Wrong arguments: each gives a line that names the mistake, and one that says what to do.

use std::fs;

use covey_tests::program::{covey, run};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};

use super::publish::{LIMIT, publish};

#[test]
fn each_mistake_with_a_shared_volume_has_its_line() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 1);
    fs::write(shared.path(0, "file"), "1").unwrap();
    publish(&shared.path(0, ""), "nightly");
    let text = |path: std::path::PathBuf| path.display().to_string();
    let (mount, file) = (text(shared.path(0, "")), text(shared.path(0, "file")));
    let folder = text(shared.folder.path().to_owned());
    let single = text(shared.folder.path().join("single"));
    assert!(run(covey().args(["format", &single]), LIMIT).status.success());
    let with = |volume: &str| shared.address.replace("volume=work", &format!("volume={volume}"));
    let (none, new) = (with("none"), with("new"));
    let away = "postgres://covey@127.0.0.1:1,127.0.0.1:2/covey?volume=work&sslmode=disable";
    let nowhere = shared.address.replace("/covey?", "/nowhere?");
    let tree = |name: &str| format!("{}@{name}", shared.origin());
    let (nightly, unknown) = (tree("nightly"), tree("unknown"));
    let cases: &[(&[&str], i32, &str)] = &[
        (&["publish", &shared.address, "x"], 2, "covey publish MOUNTPOINT NAME"),
        (&["publish", &mount, "a/b"], 2, "no name for a published tree"),
        (&["publish", "--keep", "0", &mount, "x"], 2, "newest publication is always kept"),
        (&["publish", &file, "x"], 2, "is no folder"),
        (&["unpublish", &mount, "unknown"], 1, "no tree is published as unknown"),
        (&["restore", &unknown, &new], 1, "no tree is published as unknown"),
        (&["restore", "nightly", &new], 2, "ORIGIN@NAME"),
        (&["restore", "--take-over", &nightly, &shared.address], 1, "in use by 1 nodes"),
        (&["fsck", &none], 1, "has no volume none"),
        (&["fsck", "--repair", &shared.address], 1, "is mounted on"),
        (&["fsck", "--salvage", &mount], 2, "no log that could be salvaged"),
        (&["fsck", away], 1, "no server accepts writes"),
        (&["locks", &single], 1, "is no shared volume"),
        (&["locks", &folder], 1, "is not a Covey volume"),
        (&["locks", &none], 1, "has no volume none"),
        (&["locks", &nowhere], 1, "nowhere"),
        (&["upgrade", &single], 1, "is no shared volume"),
        (&["upgrade", &nowhere], 1, "nowhere"),
        (&["sessions", "postgres://covey@a,/covey?volume=work"], 2, "name the server"),
        (&["mount", "postgres://covey@a,b/covey?volume=w&target_session_attrs=any", "/mnt"], 2, "read-write"),
    ];
    for (args, status, says) in cases {
        let done = run(covey().args(*args), LIMIT);
        let lines: Vec<&str> = done.stderr.lines().collect();
        assert!(done.code() == *status && done.stderr.contains(says), "{args:?}: {done:?}");
        assert!(lines.first().is_some_and(|line| line.starts_with("covey: ")), "{args:?}: {done:?}");
        assert!(!done.stderr.contains("panicked") && done.stdout.is_empty(), "{args:?}: {done:?}");
    }
    // A restore that is refused leaves no volume.
    let done = run(covey().args(["fsck", &new]), LIMIT);
    assert!(done.stderr.contains("has no volume new"), "{done:?}");
}
