//! What programs of a guest see.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use covey_tests::{Need, requires, run_ok, say};
use vms::kit;
use vms::machine::Machine;
use vms::serve::Place;

use crate::world::{make_tree, must_hold, sums, sums_here};

/// A guest copies a tree from a folder to a volume, both over AF_VSOCK: `vsock:PORT` and `vsock:CID:PORT`.
/// Its sums are those of the host, also for another mount, and the host finds the same tree in the volume.
#[test]
#[ignore = "minutes: make test-guests"]
fn a_tree_is_the_same_on_both_sides() {
    let kit = kit!();
    let place = Place::new();
    make_tree(&place.path("data/tree"), 1, 6);
    let server = place.volume("vm", &[]);
    let _programs = place.programs("vm");
    let mut machine = Machine::boot(&kit, place.folder(), "vm", &[]);
    let none = machine.run("covey-attach vsock:2:9999 /mnt");
    assert!(none.status == 1 && none.text.contains("is `covey serve` running there?"), "{none:?}");
    machine.attach("vsock:5001 /mnt");
    machine.attach("--connections 2 --readers 4 vsock:2:5002 /mnt2");
    let wanted = sums_here(&place.path("data/tree"));
    assert_eq!(machine.ok(&sums("/mnt2/tree")), wanted);
    machine.ok("cp -a /mnt2/tree /mnt/tree");
    assert_eq!(machine.ok(&sums("/mnt/tree")), wanted);
    machine.ok("umount /mnt");
    machine.attach("vsock:5001 /mnt");
    assert_eq!(machine.ok(&sums("/mnt/tree")), wanted);
    let refused = machine.run("echo x > /mnt2/tree/d0/f1");
    assert!(refused.status != 0 && refused.text.contains("Read-only"), "{refused:?}");
    machine.ok("umount /mnt");
    server.end();
    must_hold(&place, "tree", &place.path("data/tree"));
    say(format_args!("{} sums are equal on both sides", wanted.lines().count()));
}

/// git and a compiler work on a guest's mount. They come from the host's /usr, which is a mount too.
#[test]
#[ignore = "minutes: make test-guests"]
fn git_clones_and_a_program_is_built() {
    requires!(Need::Program("git"), Need::Program("gcc"), Need::Program("make"));
    let kit = kit!();
    let place = Place::new();
    let wanted = make_repository(&place.path("data"));
    let server = place.volume("vm", &[]);
    let _programs = place.programs("vm");
    let mut machine = Machine::boot(&kit, place.folder(), "vm", &[]);
    machine.attach("vsock:5001 /mnt");
    machine.attach("vsock:5002 /mnt2");
    machine.attach("vsock:5003 /usr");
    machine.ok("git config --global safe.directory '*'; git config --global user.name t; git config --global user.email t@t");
    machine.ok("git clone -q file:///mnt2/source.git /mnt/clone");
    let check =
        "cd /mnt/clone; git fsck --strict --full 2>&1; git status --porcelain; git rev-parse HEAD HEAD^";
    assert_eq!(machine.ok(check), wanted);
    let begun = std::time::Instant::now();
    machine.ok_for("cd /mnt/clone; export PATH=/usr/bin:/bin; make -s -j2 2>&1", Duration::from_secs(240));
    let built = begun.elapsed();
    assert_eq!(machine.ok("/mnt/clone/program; cd /mnt/clone; git status --porcelain"), "66");
    machine.ok("cd /mnt/clone; echo '/* more */' >> part3.c; git commit -qam more; git gc -q; git fsck --strict 2>&1");
    machine.ok("umount /mnt");
    server.end();
    covey_tests::program::covey_ok(&["fsck", place.path("volume").to_str().unwrap()]);
    say(format_args!("git fsck is clean, and the program was built in {:.1} s", built.as_secs_f64()));
}

/// A repository of two commits with a program of twelve parts. Returns its two newest commits.
fn make_repository(data: &Path) -> String {
    let work = data.join("work");
    fs::create_dir(&work).unwrap();
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]).args(words);
        run_ok(git.current_dir(&work).env("HOME", data), Duration::from_secs(60)).stdout
    };
    git(&["init", "-q"]);
    fs::write(work.join(".gitignore"), "*.o\nprogram\n").unwrap();
    let objects: String = (0..12).map(|at| format!(" part{at}.o")).collect();
    let rule = "gcc -O1 -o $@ $^\n%.o: %.c\n\tgcc -O1 -c -o $@ $<\n";
    fs::write(work.join("Makefile"), format!("program: main.o{objects}\n\t{rule}")).unwrap();
    for at in 0..12 {
        fs::write(work.join(format!("part{at}.c")), format!("int part{at}(void) {{ return {at}; }}\n"))
            .unwrap();
    }
    git(&["add", "."]);
    git(&["commit", "-qm", "parts"]);
    let declared: String = (0..12).map(|at| format!("int part{at}(void);\n")).collect();
    let sum: String = (0..12).map(|at| format!(" + part{at}()")).collect();
    let main =
        format!("#include <stdio.h>\n{declared}int main(void) {{ printf(\"%d\\n\", 0{sum}); return 0; }}\n");
    fs::write(work.join("main.c"), main).unwrap();
    git(&["add", "."]);
    git(&["commit", "-qm", "main"]);
    git(&["clone", "-q", "--bare", work.to_str().unwrap(), data.join("source.git").to_str().unwrap()]);
    git(&["rev-parse", "HEAD", "HEAD^"]).trim_end().to_owned()
}

/// The guest's kernel checks permissions, with all groups of a process: a user reads by a supplementary
/// group, may give a file of its own to that group, and nothing else.
#[test]
#[ignore = "minutes: make test-guests"]
fn supplementary_groups_count() {
    let kit = kit!();
    let place = Place::new();
    let server = place.volume("vm", &[]);
    let mut machine = Machine::boot(&kit, place.folder(), "vm", &[]);
    machine.attach("vsock:5001 /mnt");
    machine
        .ok("cd /mnt; chmod 755 .; echo secret > f; chgrp shared f; chmod 640 f; mkdir open; chmod 777 open");
    machine.ok("cd /mnt; mkdir team; chgrp shared team; chmod 2770 team");
    let by = |user: &str, what: &str| format!("cd /; su -s /bin/sh {user} -c '{what}'");
    assert_eq!(machine.ok(&by("staff", "id -G")), "2000 3000");
    assert_eq!(machine.ok(&by("staff", "cat /mnt/f")), "secret");
    machine.ok(&by("staff", "echo x > /mnt/team/mine"));
    assert_eq!(machine.ok("stat -c %g /mnt/team/mine"), "3000", "the folder's group is inherited");
    machine.ok(&by("staff", "echo x > /mnt/open/mine; chgrp shared /mnt/open/mine"));
    for (user, what) in [
        ("nobody", "cat /mnt/f"),
        ("nobody", "ls /mnt/team"),
        ("staff", "chgrp daemon /mnt/open/mine"),
        ("staff", "echo x >> /mnt/f"),
        ("nobody", "chmod 666 /mnt/open/mine"),
    ] {
        let done = machine.run(&by(user, what));
        let refused = done.text.contains("denied") || done.text.contains("not permitted");
        assert!(done.status != 0 && refused, "{user}: {what}: {done:?}");
    }
    machine.ok("umount /mnt");
    server.end();
}
