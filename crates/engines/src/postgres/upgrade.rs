//! Raises the version of the tables, one step after the other.
//!
//! Each step is one transaction, and adds only: a node that was mounted before goes on with the functions
//! that it knows. So a step leaves the functions of the version before it. Programs that know only the older
//! version cannot open the volumes any more.

use std::time::Duration;

use meta::engine::database::Upgraded;
use tokio_postgres::types::{ToSql, Type};

use super::admin::{connect, door, run};
use super::link::Link;
use super::{Options, Postgres, SetupError, Target, VERSION};

/// For each version from 1 on, what leads to the next one.
const STEPS: [&str; (VERSION - 1) as usize] = [
    concat!(include_str!("upgrade_2.sql"), include_str!("join.sql")),
    concat!(include_str!("upgrade_3.sql"), include_str!("join.sql"), include_str!("commit.sql")),
];
/// Attempts of one step, if another program upgrades at the same time, or a transaction is in the way.
const ATTEMPTS: u32 = 5;
/// A step waits five seconds for locks.
const STEP: Duration = Duration::from_secs(30);

/// The line about tables of another version.
pub(super) fn other_version(target: &Target, version: i32) -> SetupError {
    let advice = match version {
        _ if version > VERSION => "use a newer covey".to_owned(),
        1.. => format!("run: covey upgrade '{target}'"),
        _ => "it is damaged; restore it from a backup".to_owned(),
    };
    SetupError::Version(format!(
        "the database {} on {} has tables of version {version}, and this program knows {VERSION}; {advice}",
        target.database,
        target.server()
    ))
}

impl Postgres {
    /// Raises the version of the tables of a database, with all volumes in it. Nodes may be mounted. If it is
    /// interrupted, run it again.
    ///
    /// # Errors
    /// `Version` for tables that are newer than this program. `Missing` without tables. Otherwise one line
    /// that names the mistake and says what to do.
    pub fn upgrade(target: &Target, options: &Options) -> Result<Upgraded, SetupError> {
        let (mut link, server) = connect(&door(target, options)?, options.patience)?;
        if !server.has_tables {
            return Err(SetupError::Missing(format!(
                "the database {} on {} has no tables of Covey; create a volume with `covey format`",
                target.database,
                link.target.server()
            )));
        }
        let from = version(&mut link, options.patience)?;
        let mut at = from;
        while at != VERSION {
            let step = usize::try_from(at - 1).ok().and_then(|step| STEPS.get(step));
            at = take(&mut link, step.ok_or_else(|| other_version(target, at))?, at)?;
        }
        Ok(Upgraded { from: from.to_string(), to: VERSION.to_string() })
    }
}

fn version(link: &mut Link, limit: Duration) -> Result<i32, SetupError> {
    run(link, limit, async |client| {
        let none: &[(&(dyn ToSql + Sync), Type)] = &[];
        client.query_typed_one("select max(version) from covey_schema", none).await?.try_get(0)
    })
}

/// Takes one step from a version, or finds that another program took it. Returns the version then.
fn take(link: &mut Link, step: &str, from: i32) -> Result<i32, SetupError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let done = run(link, STEP, async |client| client.batch_execute(step).await);
        let now = version(link, STEP)?;
        match done {
            _ if now > from => return Ok(now),
            Err(error) if attempt == ATTEMPTS => return Err(error),
            _ => {}
        }
    }
}
