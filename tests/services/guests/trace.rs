//! Where the time of a guest's requests goes, as the guest sees it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::Duration;

use covey_tests::program::{covey, run};
use covey_tests::{Need, requires};

use super::world::{Guest, Place, until};

/// The numbers of a line of one request: total, to-server, server, filesystem, to-client.
fn numbers(line: &str) -> Option<[Option<f64>; 5]> {
    let (head, rest) = line.split_once(": total ").filter(|_| !line.starts_with("trace summary"))?;
    assert!(head.starts_with("trace "), "{line}");
    let rest = rest.replacen(" us,", ",", 1);
    let words: Vec<&str> = rest.split(", ").map(|part| part.rsplit(' ').next().unwrap_or("")).collect();
    let number = |at: usize| if words[at] == "?" { None } else { Some(words[at].parse().unwrap()) };
    Some([number(0), number(1), number(2), number(3), number(4)])
}

/// Reads a file again and again without the kernel's pages, and looks for names that are not there.
fn work(guest: &Guest) {
    let file = fs::File::open(guest.join("file")).unwrap();
    for round in 0..50 {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.read_exact_at(&mut [0; 4096], 0).unwrap();
        assert!(fs::metadata(guest.join(&format!("none{round}"))).is_err());
    }
}

fn check(lines: &str) -> usize {
    let mut known = 0;
    for line in lines.lines().map(|line| line.trim_start_matches("covey: ")) {
        let Some([total, there, server, filesystem, back]) = numbers(line) else { continue };
        let (total, server, filesystem) = (total.unwrap(), server.unwrap(), filesystem.unwrap());
        assert!(total >= server && server >= filesystem && filesystem > 0.0, "{line}");
        assert_eq!(there.is_some(), back.is_some(), "{line}");
        if let (Some(there), Some(back)) = (there, back) {
            assert!(there + server + back <= total + 0.3, "{line}");
            known += 1;
        }
    }
    known
}

/// Lines in the log of the program that attached, and percentiles at its end.
#[test]
fn a_guest_says_where_its_time_goes() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let on = place.unix("s");
    let server = place.serve(&["--on", &on]);
    let guest = Guest::attach(&place, "mnt", &on, &["--trace", "1"]);
    fs::write(guest.join("file"), vec![7; 100_000]).unwrap();
    work(&guest);
    until("the reads are shown", || guest.log().matches("trace read ").count() >= 50);
    let log = guest.log();
    // Both ends have the same clock here.
    assert!(check(&log) >= 50, "{log}");
    for name in ["lookup", "write", "read"] {
        assert!(log.contains(&format!("trace {name} ")), "{name}: {log}");
    }
    let logs = guest.log_path();
    guest.end();
    let log = fs::read_to_string(logs).unwrap();
    assert!(log.contains("trace summary read: 5"), "{log}");
    server.end();
}

/// `covey trace` in the guest, while others listen and when it is interrupted. Nothing is traced otherwise.
#[test]
fn covey_trace_hears_a_guests_mount() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let on = place.unix("s");
    let server = place.serve(&["--on", &on]);
    let guest = Guest::attach(&place, "mnt", &on, &[]);
    fs::write(guest.join("file"), vec![7; 100_000]).unwrap();
    let listen = |every: &str| {
        let mut command = covey();
        command.args(["trace", "--for", "3s", "--every", every]).arg(guest.path());
        let out = place.path(&format!("trace-{every}"));
        command.stdout(fs::File::create(&out).unwrap()).spawn().map(|child| (child, out)).unwrap()
    };
    let heard = || {
        let mut listeners = [listen("1"), listen("10")];
        while listeners.iter_mut().any(|(child, _)| child.try_wait().unwrap().is_none()) {
            work(&guest);
        }
        listeners.map(|(mut child, out)| {
            assert!(child.wait().unwrap().success());
            fs::read_to_string(out).unwrap()
        })
    };
    // On a busy machine there may be little to hear within three seconds.
    let mut outs = heard();
    for _ in 0..9 {
        if outs.iter().all(|out| check(out) > 20) {
            break;
        }
        outs = heard();
    }
    for out in outs {
        assert!(check(&out) > 20, "{out}");
        assert!(out.contains("trace summary read: "), "{out}");
    }
    // One that does not read what it hears delays nothing.
    let mut deaf = covey();
    deaf.args(["trace", "--for", "60s"]).arg(guest.path()).stdout(Stdio::piped());
    let mut deaf = deaf.spawn().unwrap();
    let begun = std::time::Instant::now();
    (0..60).for_each(|_| work(&guest));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    deaf.kill().unwrap();
    deaf.wait().unwrap();
    let mut wrong = covey();
    let said = run(wrong.args(["trace", "--op", "read"]).arg(guest.path()), Duration::from_secs(60));
    assert!(said.code() == 2 && said.stderr.contains("only --every and --for"), "{said:?}");
    work(&guest);
    assert!(!guest.log().contains("trace "), "{}", guest.log());
    guest.end();
    server.end();
}
