//! Claims of two machines on one folder. Locks of flock(2) are not part of these tests: they hold on one
//! machine only.

use super::*;
use crate::folder;
use crate::manifest::{Descriptor, Image, Platform};
use crate::place::OnMount;

/// A process of another machine.
fn other() -> Owner {
    Owner { host: "other".to_owned(), boot: "another-run".to_owned(), ..Owner::me() }
}

fn names(place: &OnMount) -> Vec<String> {
    place.list(Path::new("")).unwrap()
}

/// The lock held on one machine only. A second import, on another machine, removed what the first one was
/// about to name.
#[test]
fn regression_another_machine_imports_nothing_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let place = OnMount::new(folder.path());
    let theirs = Claim::take_as(&place, None, &other()).unwrap();
    fs::create_dir_all(folder.path().join(".new-1/layers")).unwrap();
    let refused = place.lock().err().unwrap();
    assert!(refused.code == "in-use" && refused.in_one_line().contains("of other"), "{refused}");
    // Nor does a volume's folder that is not mounted, which has no lock at all.
    assert_eq!(Claim::take(&place, None).err().unwrap().code, "in-use");
    assert!(folder.path().join(".new-1/layers").exists());
    theirs.check().unwrap();
    drop(theirs);
    let ours = place.lock().unwrap();
    ours.check().unwrap();
    let image = Image {
        manifest: Descriptor::of("", b"manifest"),
        kept: Vec::new(),
        platform: Platform::here(),
        layers: Vec::new(),
    };
    let named = folder::Named::new("app:1".to_owned(), &image, "test".to_owned());
    folder::plan(&place, &image, &named, false).unwrap();
    assert!(!folder.path().join(".new-1").exists(), "what is left of an import that has ended is removed");
    drop(ours);
    assert_eq!(names(&place), [".import"]);
}

/// The lock was held after its end, if another thread started a program at this moment: the forked process
/// had the file open too.
#[test]
fn regression_a_folder_is_free_although_a_program_is_being_started() {
    let folder = tempfile::tempdir().unwrap();
    let place = OnMount::new(folder.path());
    let ours = place.lock().unwrap();
    let _child = base::trial::Forked::new().unwrap();
    assert_eq!(place.lock().err().unwrap().code, "in-use");
    drop(ours);
    place.lock().unwrap();
}

#[test]
fn a_claim_without_a_sign_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let place = OnMount::new(folder.path());
    let theirs = Claim::take_as(&place, None, &other()).unwrap();
    let now = base::time::now();
    let ago = |seconds| Timestamp::from_parts(now.seconds() - seconds, 0);
    place.touch(Path::new(NAME), ago(STALE - 60)).unwrap();
    assert_eq!(Claim::take(&place, None).err().unwrap().code, "in-use");
    place.touch(Path::new(NAME), ago(STALE + 60)).unwrap();
    let ours = Claim::take(&place, None).unwrap();
    // The first one finds out, and leaves the new claim alone.
    assert_eq!(theirs.check().unwrap_err().code, "in-use");
    drop(theirs);
    ours.check().unwrap();
    assert_eq!(names(&place), [NAME]);
    drop(ours);
    assert!(names(&place).is_empty());
}

#[test]
fn the_claim_of_a_process_of_this_machine_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = OnMount::new(folder.path());
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let gone = Owner { pid: child.id(), begun: Some(1), ..Owner::me() };
    child.wait().unwrap();
    let text = serde_json::to_string(&gone).unwrap();
    assert!(place.claim(Path::new(NAME), &text).unwrap());
    assert!(!place.claim(Path::new(NAME), "another").unwrap());
    // For another machine the same number means nothing.
    assert_eq!(Claim::take_as(&place, None, &other()).err().unwrap().code, "in-use");
    // Another process replaces it at this moment.
    let turn = format!("{NAME}-{}", &Digest::of(text.as_bytes()).hex()[..16]);
    assert!(place.claim(Path::new(&turn), "x").unwrap());
    assert_eq!(Claim::take(&place, None).err().unwrap().code, "in-use");
    place.remove(Path::new(&turn)).unwrap();
    let ours = Claim::take(&place, None).unwrap();
    // This process lives, so its claim counts.
    assert_eq!(Claim::take(&place, None).err().unwrap().code, "in-use");
    drop(ours);
    assert!(names(&place).is_empty());
}
