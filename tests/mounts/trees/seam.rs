//! A second front end: a program that mounts a volume by the runtime alone, without the command line, and
//! speaks to it as a command does.

use std::fs;

use api::control::{ControlAddress, Request};
use api::status::{Mode, Status};
use covey_tests::{Need, requires};
use fuse::Unmount;
use node::opened::{self, Source};
use node::running::{Plan, Running};
use node::volume_dir::{Home, ORIGIN_INSIDE, VolumeDir};

#[test]
fn a_program_mounts_a_volume_without_the_command_line() {
    requires!(Need::Mount);
    let temp = tempfile::tempdir().unwrap();
    let (folder, place) = (temp.path().join("volume"), temp.path().join("mount"));
    fs::create_dir(&place).unwrap();
    VolumeDir::create(&folder, Home::from(ORIGIN_INSIDE), opened::fill).unwrap();
    for round in ["first", "second"] {
        let source = Source::Folder(VolumeDir::open(&folder).unwrap());
        let mut running = Running::start(&Plan::of(source, &place)).unwrap();
        running.go_on().unwrap();
        fs::write(place.join(round), round).unwrap();
        assert_eq!(fs::read_to_string(place.join("first")).unwrap(), "first");
        let address = ControlAddress::of_source(&folder);
        let status: Status = node::control::ask(&address, &Request::Status, &mut |_| ()).unwrap();
        assert_eq!((status.mode, status.served.unwrap().mountpoint), (Mode::Exclusive, place.clone()));
        running.handle().unmount(Unmount::Polite).unwrap();
        running.wait(&mut || ());
        assert!(!running.finish().unwrap().aborted);
    }
    assert!(fs::read_dir(&place).unwrap().next().is_none(), "nothing is mounted any more");
}
