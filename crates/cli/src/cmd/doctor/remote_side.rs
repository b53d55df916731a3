//! What a remote origin requires of this machine: a clock that agrees with the store's clock.
//!
//! Requests are signed with the time. Stores refuse a request whose time differs from theirs by more
//! than [`SKEW_MAX`]. The header of each answer contains the store's time.

use api::status::Status;
use api::text::span;
use fuse::mount::Mounted;
use node::volume_dir::VolumeDir;
use origin::{Environment, Remote, Spec};

use super::{Check, note, ok, wrong};

/// The largest difference in seconds that every store accepts. Most stores allow 15 minutes, some 5.
const SKEW_MAX: i64 = 300;
/// From this difference in seconds on, it is a note.
const SKEW_NOTED: i64 = 30;

const MEND: &str = "timedatectl set-ntp true   (as root; or set it: date -s '2026-01-31 12:00')";

/// Compares the clock with that of the volume's store, if it has one. An unreachable store is reported by
/// another check.
pub fn clock(dir: &VolumeDir) -> Option<Check> {
    let Ok(Spec::Remote(spec)) = node::origins::spec(dir) else { return None };
    let ahead = Remote::clock_ahead(&spec, &Environment::process()).ok()??;
    Some(judge(ahead, &spec.to_string()))
}

/// Whether traffic to the store is not encrypted.
pub fn clear(endpoint: Option<&str>) -> Option<Check> {
    let line = node::origins::clear_line(endpoint)?;
    let found = line.split(';').next().unwrap_or(&line).to_owned();
    Some(note(
        "store's endpoint",
        found,
        "name an endpoint with https://: --endpoint URL, or \"endpoint\" in the volume's covey.json",
    ))
}

/// Findings for each kind of request that a mount's origin refuses, and for an origin that was unusable at
/// mount time.
pub fn of_mount(mount: &Mounted, status: &Status) -> Vec<Check> {
    let Some(remote_side) = &status.remote_side else { return Vec::new() };
    let place = mount.path.display();
    let refused = remote_side.requests.refusing.iter().map(|refusal| {
        let found = format!(
            "that of {place} refuses {} for {}: {}",
            refusal.what,
            span(refusal.seconds as f64),
            refusal.why
        );
        wrong("origin", found, mend(&refusal.cause))
    });
    let away = remote_side.away.iter().map(|away| {
        let found =
            format!("that of {place} could not be used for {}: {}", span(away.seconds as f64), away.why);
        wrong(
            "origin",
            found,
            "nothing, if it comes back by itself: it is looked for, and used then without a new mount",
        )
    });
    refused.chain(away).collect()
}

/// The command or advice for a refusal.
fn mend(cause: &str) -> &'static str {
    match cause {
        "clock" => MEND,
        "rights" => "give these keys the right, or mount with others; what is not refused goes on",
        _ => "renew the keys: those of a file are read again by themselves, others by a new mount",
    }
}

fn judge(ahead: i64, place: &str) -> Check {
    let off = span(ahead.unsigned_abs() as f64);
    let side = if ahead > 0 { "ahead of" } else { "behind" };
    if ahead.abs() <= SKEW_NOTED {
        return ok("store's clock", format!("agrees with that of {place}"));
    }
    if ahead.abs() <= SKEW_MAX {
        return note("store's clock", format!("this machine is {off} {side} {place}"), MEND);
    }
    wrong(
        "store's clock",
        format!("this machine is {off} {side} {place}, which refuses requests signed at a wrong time"),
        MEND,
    )
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn regression_an_endpoint_in_the_clear_is_a_finding() {
        let level = |endpoint| clear(Some(endpoint)).map(|check| check.level);
        assert_eq!(level("http://10.0.0.1:9000"), Some(Level::Note));
        assert_eq!((level("https://10.0.0.1"), level("http://127.0.0.1:1")), (None, None));
        assert!(clear(None).is_none());
    }

    #[test]
    fn minutes_are_wrong_and_seconds_are_not() {
        let level = |ahead| judge(ahead, "s3://b/p").level;
        assert_eq!([0, -30, 31, -300].map(level), [Level::Ok, Level::Ok, Level::Note, Level::Note]);
        assert_eq!([301, -86_400].map(level), [Level::Wrong, Level::Wrong]);
        let found = judge(-3600, "s3://b/p").found;
        assert!(found.contains("behind s3://b/p"), "{found}");
    }
}
