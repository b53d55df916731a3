//! The look itself: what the endpoint answers to a key and to a wrong secret, its clock, its certificate.

use std::io::ErrorKind;
use std::path::Path;

use api::text::span;
use gateway::keyring::Keyring;

use crate::cmd::doctor::probe::{self, Place, Seen};
use crate::cmd::doctor::{Check, note, ok, wrong};

/// The difference of the clocks from which on requests are refused, in seconds.
const SKEW_MAX: i64 = 900;
/// From this difference on, it is a note.
const SKEW_NOTED: i64 = 60;
/// A certificate that ends sooner is a note, in seconds.
const SOON: i64 = 14 * 86_400;

/// The findings for an endpoint. `start`: how it is started.
pub(super) fn look(place: Place<'_>, keys: &Path, start: &str) -> Vec<Check> {
    let ring = match Keyring::read(keys) {
        Ok(ring) => ring,
        Err(failure) => {
            let why = failure.why.first().map(|why| format!(" ({why})")).unwrap_or_default();
            return vec![wrong("s3 keys", format!("{}{why}", failure.what), failure.next.join("; or "))];
        }
    };
    let shown = keys.display();
    let mut checks = vec![ok("s3 keys", format!("{shown}: {} keys, closed to other users", ring.count()))];
    let Some((key, secret)) = ring.any() else { return checks };
    let seen = match probe::list_buckets(place, key, secret) {
        Ok(seen) => seen,
        Err(error) => {
            checks.push(unreached(place, &error, start));
            return checks;
        }
    };
    checks.push(answered(place, key, keys, &seen));
    if seen.status == 200 {
        let other = format!("{secret}x");
        checks.extend(probe::list_buckets(place, key, &other).ok().map(|seen| refused(key, &seen)));
    }
    checks.extend(seen.ahead.map(|ahead| clock(place, ahead)));
    checks.extend(seen.certificate_ends.map(|ends| certificate(place, ends - base::time::now().seconds())));
    checks
}

fn unreached(place: Place<'_>, error: &std::io::Error, start: &str) -> Check {
    let address = place.address;
    let why = api::error::plain(error);
    match error.kind() {
        ErrorKind::InvalidInput => {
            wrong("s3", format!("{address} is no address: {why}"), "write HOST:PORT, like 127.0.0.1:9878")
        }
        ErrorKind::ConnectionRefused => {
            wrong("s3", format!("nothing listens on {address}"), format!("start it: {start}"))
        }
        ErrorKind::InvalidData => wrong(
            "s3",
            format!("{address} does not speak {}: {why}", if place.tls { "TLS" } else { "plain HTTP" }),
            "name it with https:// if it has a certificate, and without if it has none",
        ),
        _ => wrong(
            "s3",
            format!("{address} does not answer: {why}"),
            "check the address, its firewall, and whether the program still runs",
        ),
    }
}

fn answered(place: Place<'_>, key: &str, keys: &Path, seen: &Seen) -> Check {
    let address = place.address;
    match (seen.status, seen.code.as_deref()) {
        (200, _) if seen.buckets.is_empty() => note(
            "s3",
            format!("{address} accepts the key {key}, which may use none of its buckets"),
            format!("name a bucket for it in {}", keys.display()),
        ),
        (200, _) => {
            ok("s3", format!("{address} accepts the key {key} for the buckets {}", seen.buckets.join(", ")))
        }
        (_, Some("InvalidAccessKeyId" | "SignatureDoesNotMatch")) => wrong(
            "s3",
            format!("{address} does not accept the key {key} of {}", keys.display()),
            "name the file that it was started with; if the file has just changed, its log says whether it was read",
        ),
        (_, Some("RequestTimeTooSkewed")) => {
            wrong("s3", format!("{address} refuses requests of this machine: the clocks differ"), SET_CLOCK)
        }
        (status, code) => wrong(
            "s3",
            format!("{address} answers {status} {}", code.unwrap_or("without an S3 error")),
            "check that this is the address of a Covey S3 endpoint; its log says more",
        ),
    }
}

fn refused(key: &str, seen: &Seen) -> Check {
    match seen.status {
        403 => ok("s3 secrets", format!("a wrong secret of {key} is refused")),
        status => wrong(
            "s3 secrets",
            format!(
                "a wrong secret of {key} is answered {status}: whatever listens there checks no signatures"
            ),
            "let no client use it, and look at what listens at this address",
        ),
    }
}

const SET_CLOCK: &str = "timedatectl set-ntp true   (as root, on the machine whose clock is wrong)";

fn clock(place: Place<'_>, ahead: i64) -> Check {
    let off = span(ahead.unsigned_abs() as f64);
    let side = if ahead > 0 { "ahead of" } else { "behind" };
    let found = format!("this machine is {off} {side} {}", place.address);
    match ahead.abs() {
        little if little <= SKEW_NOTED => ok("s3 clock", format!("agrees with that of {}", place.address)),
        more if more <= SKEW_MAX => note("s3 clock", found, SET_CLOCK),
        _ => wrong("s3 clock", format!("{found}, which refuses requests signed at a wrong time"), SET_CLOCK),
    }
}

fn certificate(place: Place<'_>, left: i64) -> Check {
    let address = place.address;
    let mend = "renew it, and start the endpoint again: it reads the certificate at its start";
    let time = span(left.unsigned_abs() as f64);
    match left {
        ..=0 => wrong("s3 certificate", format!("that of {address} ended {time} ago"), mend),
        1..=SOON => note("s3 certificate", format!("that of {address} ends in {time}"), mend),
        _ => ok("s3 certificate", format!("that of {address} is valid for {time}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::doctor::Level;

    const PLACE: Place<'static> = Place { address: "127.0.0.1:1", tls: false };

    #[test]
    fn each_answer_is_a_finding_that_says_what_to_do() {
        let answer = |status, code: Option<&str>| {
            let seen = Seen { status, code: code.map(str::to_owned), ..Seen::default() };
            answered(PLACE, "K", Path::new("/k"), &seen)
        };
        for (status, code, says) in [
            (403, Some("InvalidAccessKeyId"), "does not accept"),
            (403, Some("RequestTimeTooSkewed"), "clocks differ"),
            (404, None, "answers 404"),
        ] {
            let check = answer(status, code);
            assert!(check.level == Level::Wrong && check.found.contains(says), "{check:?}");
            assert!(check.mend.is_some());
        }
        assert_eq!(answer(200, None).level, Level::Note);
        assert_eq!(refused("K", &Seen { status: 200, ..Seen::default() }).level, Level::Wrong);
        let levels = |left: [i64; 3]| left.map(|left| certificate(PLACE, left).level);
        assert_eq!(levels([0, 86_400, 30 * 86_400]), [Level::Wrong, Level::Note, Level::Ok]);
        let levels = |ahead: [i64; 3]| ahead.map(|ahead| clock(PLACE, ahead).level);
        assert_eq!(levels([-1000, 300, 5]), [Level::Wrong, Level::Note, Level::Ok]);
    }
}
