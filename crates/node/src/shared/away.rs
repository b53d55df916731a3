//! What a command is told when the database of a shared volume cannot be reached.
//!
//! The operations of the mount answer with error numbers. `EIO` says neither that the database is away nor
//! whether anything was changed. Here a failure of a request gets that from what the node knows
//! ([`meta::shared::outage`]), in the same words for all commands.

use std::time::Instant;

use api::control::{Request, TrashOrder};
use api::error::Failure;
use api::text::span;
use engines::Address;
use meta::shared::outage::{self, Away};

use super::Shared;

/// The codes of failures that an outage can explain.
const EXPLAINED: [&str; 3] = ["io", "origin", "no-database"];

/// How the errors of names begin that an outage gives: [`StoreError`](meta::store::StoreError).
const OUTAGES: [&str; 2] =
    ["the volume's names cannot be reached: ", "this node may no longer change the volume: "];

/// When a request began, on the thread that serves it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    at: Instant,
    changes: u64,
    may_change: bool,
}

impl Begun {
    /// Notes that a request begins now.
    pub(crate) fn now(may_change: bool) -> Begun {
        Begun { at: base::time::monotonic(), changes: outage::changes(), may_change }
    }

    /// Returns the failure, or what is known of the outage that the request met.
    pub(crate) fn explain(self, shared: &Shared, address: &str, failure: Failure) -> Failure {
        let met = Met {
            away: shared.outage.seen(self.at),
            no_space: shared.outage.refused().filter(|refused| refused.is_full).map(|refused| refused.why),
            in_session: shared.term.lasts(),
            may_change: self.may_change,
            has_changed: outage::changes() != self.changes,
        };
        met.told(address, base::time::monotonic(), failure)
    }
}

/// What a request met.
#[derive(Clone, Debug)]
struct Met {
    away: Option<Away>,
    /// The database has no space: its words.
    no_space: Option<String>,
    in_session: bool,
    /// Whether the request was to change something.
    may_change: bool,
    /// Whether the request has changed something, or may have.
    has_changed: bool,
}

impl Met {
    fn told(self, address: &str, now: Instant, failure: Failure) -> Failure {
        if failure.status == 1
            && failure.code == "disk-full"
            && let Some(why) = self.no_space
        {
            let told = format!("{} has no space: {why}", named(address));
            return Failure {
                code: "database-full".into(),
                why: vec![told],
                next: vec![format!("make space there, then run the same command again; {}", shows(address))],
                ..failure
            };
        }
        if failure.status != 1 || !EXPLAINED.contains(&failure.code.as_ref()) {
            return failure;
        }
        let lasts = self.away.as_ref().is_some_and(|away| !away.is_over);
        let told = match self.away {
            Some(Away { since, why, is_over: false }) => {
                let since = span(now.saturating_duration_since(since).as_secs_f64());
                format!("{} has not answered this node for at least {since}: {why}", named(address))
            }
            Some(Away { why, .. }) => {
                format!("{} did not answer this node for a while: {why}", named(address))
            }
            None if !self.in_session => {
                "this node's session in the volume has ended; it joins again by itself".to_owned()
            }
            None => return failure,
        };
        let mut whys = vec![told];
        // What the mount says of it adds nothing; another cause does.
        let is_other = |why: &String| failure.code != "io" && !OUTAGES.iter().any(|of| why.starts_with(of));
        whys.extend(failure.why.into_iter().filter(is_other));
        if self.may_change {
            whys.push(match self.has_changed {
                false => "nothing was changed".to_owned(),
                true => "it is not known whether all of it was done, a part, or nothing".to_owned(),
            });
        }
        let next = match (lasts, self.may_change && self.has_changed) {
            (true, false) => again(address),
            (true, true) => format!(
                "when the database answers, look whether it was done, and run the same command again if not; {}",
                shows(address)
            ),
            (false, false) => "run the same command again".to_owned(),
            (false, true) => "look whether it was done, and run the same command again if not".to_owned(),
        };
        Failure { code: "no-database".into(), why: whys, next: vec![next], ..failure }
    }
}

/// Whether a request changes what users see of the volume.
pub(crate) fn may_change(request: &Request) -> bool {
    match request {
        Request::Clone { .. }
        | Request::SetQuota { .. }
        | Request::RemoveQuota { .. }
        | Request::Publish { .. }
        | Request::Unpublish { .. }
        | Request::Import(_) => true,
        Request::Trash { order } => *order != TrashOrder::List,
        Request::Status
        | Request::Metrics
        | Request::Info { .. }
        | Request::Hint { .. }
        | Request::Quotas { .. }
        | Request::Published { .. }
        | Request::Gc
        | Request::Flush
        | Request::Settle { .. }
        | Request::CopyNames { .. }
        | Request::HandOver
        | Request::Evict { .. }
        | Request::Warm { .. }
        | Request::WarmReads { .. }
        | Request::Peers
        | Request::Heat { .. }
        | Request::Holders { .. }
        | Request::Watch { .. } => false,
    }
}

/// The failure of a command that asks a database itself, and cannot reach it. `what` says what was wanted.
pub(crate) fn unreached(what: &str, address: &str, why: String) -> Failure {
    Failure::new("no-database", what).why(why).next(again(address))
}

/// What to do when it is away.
fn again(address: &str) -> String {
    format!("run the same command again when the database answers; {}", shows(address))
}

fn shows(address: &str) -> String {
    format!("covey doctor '{address}' shows whether it does")
}

/// The database in a sentence.
fn named(address: &str) -> String {
    let servers = Address::parse(address).map(|address| address.servers()).unwrap_or_default();
    match &*servers {
        [] => "the database of the volume".to_owned(),
        servers => {
            let servers: Vec<String> = servers.iter().map(|(host, port)| shown(host, *port)).collect();
            format!("the database of the volume, at {},", servers.join(" and "))
        }
    }
}

fn shown(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meta::store::StoreError;

    use super::*;

    const ADDRESS: &str = "postgres://covey@db1,db2:5433/covey?volume=w";

    fn met(may_change: bool, has_changed: bool) -> Met {
        let since = base::time::monotonic();
        let away =
            Some(Away { since, why: "the server db1:5432 does not answer".to_owned(), is_over: false });
        Met { away, no_space: None, in_session: false, may_change, has_changed }
    }

    fn told(met: Met) -> String {
        let now = base::time::monotonic() + Duration::from_secs(75);
        let failure = Failure::io("cannot clone /a", &std::io::Error::from_raw_os_error(libc::EIO));
        let told = met.told(ADDRESS, now, failure);
        assert_eq!((told.code.as_ref(), told.status), ("no-database", 1));
        let text = told.to_string();
        assert!(text.starts_with("covey: cannot clone /a\n") && !text.contains("input/output"), "{text}");
        text
    }

    #[test]
    fn an_outage_is_named_with_its_time_and_what_was_changed() {
        let read = told(met(false, true));
        for part in ["at db1:5432 and db2:5433,", "1 min 15 s", "covey doctor 'postgres://covey@db1"] {
            assert!(read.contains(part), "{part}: {read}");
        }
        assert!(!read.contains("changed") && !read.contains("known"), "{read}");
        assert!(told(met(true, false)).contains("nothing was changed"));
        let unknown = told(met(true, true));
        assert!(unknown.contains("not known whether") && unknown.contains("look whether it was done"));
        let over = Met {
            away: met(true, false).away.map(|away| Away { is_over: true, ..away }),
            ..met(true, false)
        };
        assert!(told(over).contains("did not answer this node for a while"));
        assert!(told(Met { away: None, ..met(true, false) }).contains("session in the volume has ended"));
    }

    /// A database without space was called a full disk of this machine.
    #[test]
    fn regression_a_database_without_space_is_named() {
        let now = base::time::monotonic();
        let failure = || Failure::io("cannot clone /a", &std::io::Error::from_raw_os_error(libc::ENOSPC));
        let full = Met { away: None, no_space: Some("its quota is used up".to_owned()), ..met(true, false) };
        let text = full.told(ADDRESS, now, failure()).to_string();
        assert!(text.contains("at db1:5432") && text.contains("no space: its quota is used up"), "{text}");
        assert!(!text.contains("on that disk"), "{text}");
        let own = Met { away: None, ..met(true, false) }.told(ADDRESS, now, failure()).to_string();
        assert!(own.contains("on that disk"), "{own}");
    }

    #[test]
    fn what_has_another_cause_stays() {
        let well = Met { away: None, in_session: true, ..met(true, true) };
        let other = Failure::new("exists", "there is one");
        let wrong = Failure::usage("no such word");
        let broken = Failure::new("io", "cannot read").why("input/output error");
        for (met, failure) in [(met(true, true), other), (met(true, true), wrong), (well, broken)] {
            let before = failure.to_string();
            assert_eq!(met.told(ADDRESS, base::time::monotonic(), failure).to_string(), before);
        }
        for error in [StoreError::Unavailable("x".to_owned()), StoreError::Fenced("x".to_owned())] {
            let failure = Failure::new("origin", "cannot publish").why(error.to_string());
            assert_eq!(met(true, true).told(ADDRESS, base::time::monotonic(), failure).why.len(), 2);
        }
        let origin = Failure::new("origin", "cannot publish").why("the store is away too");
        assert!(met(true, true).told(ADDRESS, base::time::monotonic(), origin).why.len() == 3);
    }
}
