//! Looks for mistakes in how a cluster is reached and set up, for `covey doctor`.

use std::time::Duration;

use etcd_client::{GetOptions, StatusResponse, Txn, TxnOp};

use super::admin::{connect, find, too_old};
use super::errors::{FULL, Failure};
use super::link::Link;
use super::pool::Pool;
use super::request::{Ask, is, look};
use super::{Checked, Etcd, FORMAT, Level, Options, SetupError, Target};
use crate::check::latency;

/// A larger share of the quota is worth a warning, in percent.
const USED_MAX: i64 = 80;
/// What a member takes if it does not tell.
const QUOTA: i64 = 2 << 30;
/// A larger share of unused space in the file is worth a warning, in percent. A small file does not matter.
const WASTE_MAX: i64 = 50;
const WASTE_MIN: i64 = 512 << 20;
/// More old revisions than this are worth a warning.
const OLD_MAX: i64 = 1_000_000;
/// A cluster with fewer revisions need not have been compacted yet.
const YOUNG: i64 = 50_000;

impl Etcd {
    /// Checks a cluster and the volume in it, in an order in which a mistake explains the ones behind it.
    /// After a bad finding about the connection, nothing more can be checked.
    pub fn check(target: &Target, options: &Options) -> Vec<Checked> {
        let pool = match connect(target, options, 1) {
            Ok(pool) => pool,
            Err(error) => return vec![Checked::bad("connection", &error)],
        };
        let mut found = members(&pool, options.patience);
        let mut note = |what: &'static str, result: Result<Checked, SetupError>| match result {
            Ok(checked) => found.push(checked),
            Err(error) => found.push(Checked::bad(what, &error)),
        };
        note("volume", volume(&pool));
        let ask = [Ask::Key(super::layout::volume_count(&target.prefix))];
        note("changes", changes(&pool));
        note("latency", latency("a nearer cluster", || Ok(look(&pool, &ask, 0).map(drop)?)));
        note("old revisions", old_revisions(&pool));
        found
    }
}

/// Each member of the address: whether it answers, knows a leader, and has space.
fn members(pool: &Pool, limit: Duration) -> Vec<Checked> {
    let servers = &pool.door.target.servers;
    let limit = limit.div_f64(servers.len().max(1) as f64);
    let mut found = Vec::new();
    for (at, (host, port)) in servers.iter().enumerate() {
        let name = format!("{host}:{port}");
        let asked = Link::open_at(&pool.door, at, limit).and_then(|mut link| {
            link.run(&pool.door, limit, async |mut wires| wires.maintenance.status().await)
        });
        match asked.map_err(Failure::into_store) {
            Ok(status) => found.extend(member(&name, &status)),
            Err(error) => {
                // The others carry on.
                let line = format!("the member {name} does not serve: {error}");
                found.push(Checked { what: "connection", level: Level::Warning, line });
            }
        }
    }
    found
}

fn member(name: &str, status: &StatusResponse) -> Vec<Checked> {
    let mut found = Vec::new();
    let version = status.version();
    if let Some(line) = too_old(name, version) {
        found.push(Checked { what: "server", level: Level::Bad, line });
    } else if status.leader() == 0 {
        let line =
            format!("the member {name} knows no leader; check that most members run and reach one another");
        found.push(Checked { what: "server", level: Level::Bad, line });
    } else {
        found.push(Checked::good("server", format!("{name} is etcd {version}, and knows the leader")));
    }
    let alarms: Vec<&str> = status.errors().iter().map(String::as_str).collect();
    if alarms.iter().any(|alarm| alarm.contains("NOSPACE")) {
        let line = format!("{name} accepts no changes: its database reached its quota; {FULL}");
        found.push(Checked { what: "space", level: Level::Bad, line });
        return found;
    }
    if let Some(alarm) = alarms.first() {
        let line = format!("{name} has a problem ({alarm}); look at its log and at `etcdctl alarm list`");
        found.push(Checked { what: "server", level: Level::Bad, line });
    }
    found.push(space(name, status));
    found
}

fn space(name: &str, status: &StatusResponse) -> Checked {
    let (size, used) = (status.db_size().max(1), status.raft_used_db_size());
    let (quota, told) = match status.db_size_quota() {
        0 => (QUOTA, " (the default; this version does not tell its own)"),
        quota => (quota, ""),
    };
    let mib = |bytes: i64| bytes >> 20;
    let (used_of_quota, percent) = (size.saturating_mul(100) / quota, 100 - used.saturating_mul(100) / size);
    let line = format!("the database of {name} has {} MiB of a quota of {} MiB{told}", mib(size), mib(quota));
    if used_of_quota > USED_MAX {
        return Checked::judged("space", false, line, FULL);
    }
    let line = format!("{line}, {percent} % of it unused");
    let is_good = percent <= WASTE_MAX || size < WASTE_MIN;
    Checked::judged("space", is_good, line, "defragment each member, one after the other (etcdctl defrag)")
}

fn volume(pool: &Pool) -> Result<Checked, SetupError> {
    let found = find(pool)?;
    let target = &pool.door.target;
    let line = format!("the volume {} is there, number {} of format {FORMAT}", target.volume, found.number);
    Ok(Checked::good("volume", line))
}

/// Whether the user may write, and the cluster takes it. Nothing is written: the check of the transaction
/// fails.
fn changes(pool: &Pool) -> Result<Checked, SetupError> {
    let target = &pool.door.target;
    let key = super::layout::volume(&target.prefix, &target.volume);
    let txn = Txn::new().when([is(key.clone(), "none")]).and_then([TxnOp::put(key, "none", None)]);
    pool.ask(async |mut wires| wires.kv.txn(txn.clone()).await)?;
    Ok(Checked::good("changes", "the cluster accepts changes of this user".to_owned()))
}

/// etcd does not tell whether it compacts by itself. So the check looks whether old revisions can be read.
fn old_revisions(pool: &Pool) -> Result<Checked, SetupError> {
    let key = super::layout::volume_count(&pool.door.target.prefix);
    let (now, _) = look(pool, &[Ask::Key(key.clone())], 0)?;
    let is_kept = |at: i64| {
        let options = GetOptions::new().with_revision(at).with_count_only();
        pool.ask(async |mut wires| wires.kv.get(key.clone(), Some(options.clone())).await).is_ok()
    };
    let advice =
        "turn on automatic compaction: --auto-compaction-mode=periodic --auto-compaction-retention=1h";
    let what = "old revisions";
    if now > YOUNG && is_kept(1) {
        let line = format!("none of {now} revisions was ever compacted, so the database only grows");
        return Ok(Checked::judged(what, false, line, advice));
    }
    if now > OLD_MAX && is_kept(now - OLD_MAX) {
        let line = format!("more than {OLD_MAX} old revisions are kept");
        return Ok(Checked::judged(what, false, line, advice));
    }
    Ok(Checked::good(what, format!("revision {now}; old ones are not piling up")))
}
