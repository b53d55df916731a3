//! The right to publish that a volume's owner gives to a group: what its members may do, and what nobody else
//! may.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_run};
use covey_tests::{Finished, Need, Volume, requires, run};

/// One daemon at a time, so that a new socket is that of the test's own daemon.
static ONE: Mutex<()> = Mutex::new(());

/// The group that may publish, and users that exist nowhere.
const GROUP: u32 = 61_234;
const USER: u32 = 61_235;
const OTHER: u32 = 61_236;

/// A user as `setpriv` makes one.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
    groups: &'static str,
}

const MEMBER: User = User { uid: USER, gid: USER, groups: "61234" };
const BY_OWN_GROUP: User = User { uid: USER, gid: GROUP, groups: "" };
const STRANGER: User = User { uid: OTHER, gid: OTHER, groups: "61235" };

/// Runs covey as another user.
fn as_user(user: User, program: &Path, args: &[&str]) -> Finished {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid)]);
    match user.groups {
        "" => command.arg("--clear-groups"),
        groups => command.arg(format!("--groups={groups}")),
    };
    command.arg("--").arg(program).args(args).arg("--json").current_dir("/").env_remove("HOME");
    run(&mut command, Duration::from_secs(120))
}

/// A copy of the program that every user can execute.
fn program(folder: &Path) -> std::path::PathBuf {
    let copy = folder.join("covey");
    covey_tests::program::install(Path::new(covey().get_program()), &copy);
    copy
}

/// Members publish, list and unpublish. They can ask for nothing else, and others for nothing at all.
#[test]
fn members_of_the_group_publish_and_nothing_else() {
    requires!(Need::Covey, Need::Root, Need::Program("setpriv"));
    let folder = covey_tests::scratch();
    let program = program(folder.path());
    let volume = Volume::below(folder.path(), &[]);
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = sockets();
    let mounted = volume.mount_with(&["publish_group=61234"]);
    new_socket(&before);
    std::fs::create_dir(mounted.join("data")).unwrap();
    std::fs::write(mounted.join("data/file"), "one").unwrap();
    let (root, data) = (mounted.path().to_str().unwrap(), mounted.join("data"));
    let data = data.to_str().unwrap();
    for (member, name) in [(MEMBER, "by-member"), (BY_OWN_GROUP, "by-group")] {
        let done = as_user(member, &program, &["publish", data, name]);
        assert_eq!((done.code(), done.json()["name"].as_str()), (0, Some(name)), "{done:?}");
    }
    let listed = as_user(MEMBER, &program, &["published", root]);
    assert_eq!(listed.code(), 0, "{listed:?}");
    let theirs = covey_run(&["published", volume.source.to_str().unwrap(), "--json"]);
    assert_eq!(listed.json(), theirs.json(), "the same as the owner sees");
    let gone = as_user(MEMBER, &program, &["unpublish", root, "by-group"]);
    assert_eq!(gone.code(), 0, "{gone:?}");
    assert_eq!(as_user(MEMBER, &program, &["published", root]).json().as_array().unwrap().len(), 1);
    for args in [&["gc", root][..], &["flush", root], &["cache", "evict", "--all", root], &["warm", data]] {
        let refused = as_user(MEMBER, &program, args);
        assert_eq!((refused.code(), refused.json()["error"]["code"].as_str()), (1, Some("not-permitted")));
    }
    for args in [&["publish", data, "x"][..], &["unpublish", root, "by-member"], &["published", root]] {
        let refused = as_user(STRANGER, &program, args);
        assert_eq!(refused.json()["error"]["code"], "not-permitted", "{refused:?}");
        assert!(refused.stderr.contains("only members of the group 61234"), "{refused:?}");
        assert!(refused.stderr.contains("usermod -aG"), "{refused:?}");
    }
    let log = volume.log();
    assert!(log.contains("user 61235, a member of the group that may, publishes by-member"), "{log}");
    mounted.umount();
}

/// A member that speaks the protocol itself gets no further than the command.
#[test]
fn the_socket_serves_no_other_request() {
    requires!(Need::Covey, Need::Root, Need::Program("python3"));
    let folder = covey_tests::scratch();
    let volume = Volume::below(folder.path(), &[]);
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = sockets();
    let mounted = volume.mount_with(&["publish_group=61234"]);
    let script = r#"
import socket, sys
for request in ['{"op":"gc"}', '{"op":"status"}', '{"op":"info","path":"x"}', 'nonsense', '{"op":"import"}',
                '{"op":"evict","to":0}', '{"op":"clone","from":"a","to":"b"}']:
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    s.sendall(request.encode() + b"\n")
    answer = s.makefile().readline()
    print(request, answer)
    assert '"failed"' in answer, answer
"#;
    let Some(socket) = new_socket(&before) else {
        return covey_tests::say(format_args!("skipped: lacks /run/covey"));
    };
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(&socket).gid(GROUP).uid(USER).current_dir("/");
    let done = run(&mut command, Duration::from_secs(60));
    assert!(done.status.success(), "{done:?}");
    assert!(done.stdout.contains("for publications only"), "{done:?}");
    mounted.umount();
    assert!(!socket.exists());
}

/// The socket of a daemon that was just started. It listens soon after it has mounted.
fn new_socket(before: &[std::path::PathBuf]) -> Option<std::path::PathBuf> {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        let new = sockets().into_iter().find(|path| !before.contains(path));
        if new.is_some() {
            return new;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

fn sockets() -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir("/run/covey").into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(|path| path.to_string_lossy().contains("covey-publish-")).collect()
}

/// Without the option, a user is told how to get the right. Groups that do not exist are refused.
#[test]
fn without_the_right_a_user_is_told_how_to_get_it() {
    requires!(Need::Covey, Need::Root, Need::Program("setpriv"));
    let folder = covey_tests::scratch();
    let program = program(folder.path());
    let volume = Volume::below(folder.path(), &[]);
    let mounted = volume.mount();
    let root = mounted.path().to_str().unwrap();
    for args in [&["publish", root, "x"][..], &["unpublish", root, "x"], &["published", root]] {
        let refused = as_user(MEMBER, &program, args);
        assert_eq!(refused.json()["error"]["code"], "not-permitted", "{refused:?}");
        assert!(refused.stderr.contains("-o publish_group=GROUP"), "{refused:?}");
    }
    mounted.umount();
    let refused = volume.try_mount(&["publish_group=no-such-group"]).err().unwrap();
    assert!(refused.contains("there is no group no-such-group"), "{refused}");
}
