//! Processes that map a snapshot on a mount share the kernel's pages of it.

use std::fs;
use std::path::Path;

use covey_tests::program::covey_ok;
use covey_tests::{Need, Volume, requires};

use super::world::{MIB, Place, Vmm, bytes};

/// The bytes of a file that processes map, each shared page divided by the number of its users.
fn pss(vmms: &[Vmm], name: &str) -> u64 {
    let of = |vmm: &Vmm| {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", vmm.pid())).unwrap();
        let ours = maps.lines().skip_while(|line| !line.ends_with(name));
        let line = ours.into_iter().find_map(|line| line.strip_prefix("Pss:")).unwrap_or("0");
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    };
    vmms.iter().map(of).sum()
}

fn map(place: &Place, file: &Path, count: usize) -> Vec<Vmm> {
    // A VMM works in the place's folder, and finds the file there.
    let link = place.path("memory");
    fs::remove_file(&link).ok();
    std::os::unix::fs::symlink(file, link).unwrap();
    let mut vmms: Vec<Vmm> = (0..count).map(|_| place.vmm("map")).collect();
    vmms.iter_mut().for_each(|vmm| vmm.at("mapped"));
    vmms
}

/// A private mapping of a file on a mount shares its pages with all others, until it writes to them.
#[test]
fn ten_mappings_of_a_file_take_the_memory_of_one() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let volume = Volume::below(&place.path(""), &[]);
    let mounted = volume.mount();
    let len = 32 * MIB;
    fs::write(mounted.join("memory"), bytes(len)).unwrap();
    let one = map(&place, &mounted.join("memory"), 1);
    let of_one = pss(&one, "/memory");
    drop(one);
    let ten = map(&place, &mounted.join("memory"), 10);
    let of_ten = pss(&ten, "/memory");
    drop(ten);
    // A clone of the file is another inode, and the kernel keeps its pages apart.
    covey_ok(&["clone", mounted.join("memory").to_str().unwrap(), mounted.join("clone").to_str().unwrap()]);
    let both = [map(&place, &mounted.join("memory"), 1), map(&place, &mounted.join("clone"), 1)];
    let of_both = pss(&both[0], "/memory") + pss(&both[1], "/clone");
    drop(both);
    covey_tests::say(format_args!("PSS of 1: {of_one}, of 10: {of_ten}, of a file and its clone: {of_both}"));
    assert!(of_one >= len as u64 * 9 / 10, "{of_one}");
    assert!(of_ten * 10 <= of_one * 13, "{of_ten} beside {of_one}");
    mounted.umount();
}
