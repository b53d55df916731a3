//! What a failure means: whether to try again, and the line for a person.
//!
//! Messages name the server, the database and the user, and repeat the server's own message. They never hold
//! the password: no part of the client puts it into an error.

use std::error::Error as _;
use std::fmt;

use meta::store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, SqlState};

use super::target::Target;
use crate::pool;

/// What to do about a server that refuses changes, and is no standby.
pub(super) const READ_ONLY: &str =
    "turn default_transaction_read_only off, for the server, the database or the user";

/// A request that did not succeed.
pub(super) type Failure = pool::Failure<Grow>;

/// The server rolled a commit back, and asks for it with all its rows in the list of rows to insert.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Grow(String);

impl Failure {
    /// Why none of several servers can be used. If one of them may serve later, all are tried again.
    pub(super) fn of_all(failures: Vec<Failure>) -> Failure {
        let is_crowded = failures.iter().any(|failure| matches!(failure, Failure::Crowded(_)));
        let may_pass = failures.iter().any(|failure| !matches!(failure, Failure::Store(_)));
        let line = |failure: Failure| match failure.into_store() {
            StoreError::Unavailable(why) => why,
            error => error.to_string(),
        };
        let why = failures.into_iter().map(line).collect::<Vec<_>>().join("; and ");
        let why = format!("no server accepts writes: {why}");
        match may_pass {
            // To connect asks for nothing else.
            true if is_crowded => Failure::Crowded(why),
            true => Failure::Lost(why),
            false => Failure::refused(why),
        }
    }

    /// Whether another client may have created the same tables at the same time.
    pub(super) fn is_race(&self) -> bool {
        match self {
            Failure::Store(StoreError::Unavailable(why)) => why.contains("(23505") || why.contains("(42P07"),
            _ => true,
        }
    }
}

/// An error and its causes, in one line.
struct Causes<'a>(&'a Error);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(&text)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            let cause_text = cause.to_string();
            // Some errors repeat their cause in their own text.
            if !text.contains(&cause_text) {
                write!(f, ": {cause_text}")?;
            }
            next = cause.source();
        }
        Ok(())
    }
}

/// What an error of the client means.
pub(super) fn explain(target: &Target, error: &Error) -> Failure {
    match error.as_db_error() {
        Some(error) => from_server(target, error),
        None => from_client(target, error),
    }
}

fn from_client(target: &Target, error: &Error) -> Failure {
    let (text, server) = (Causes(error).to_string(), target.server());
    if text.contains("password missing") {
        return Failure::refused(format!(
            "the server {server} wants a password for user {}; give it in PGPASSFILE, PGPASSWORD or COVEY_PG_PASSWORD",
            target.user
        ));
    }
    if text.contains("does not support TLS") {
        return Failure::refused(format!(
            "the server {server} has no TLS; turn it on there (ssl = on), or use sslmode=disable in a network that you trust"
        ));
    }
    if text.contains("certificate") {
        return Failure::refused(format!(
            "the server {server} shows a certificate that is not accepted ({text}); name the right authority with sslrootcert, and the server as its certificate does"
        ));
    }
    if text.contains("failed to lookup address") {
        return Failure::Lost(format!(
            "the host {} has no address ({text}); check its name and this machine's DNS",
            target.host
        ));
    }
    Failure::Lost(format!(
        "the server {server} does not answer ({text}); check that PostgreSQL runs there and that this machine may reach it"
    ))
}

fn from_server(target: &Target, error: &DbError) -> Failure {
    let (said, code, server) = (error.message(), error.code().code(), target.server());
    let (user, database) = (&target.user, &target.database);
    let (refused, again) = (Failure::refused, Failure::Again);
    match code {
        "55P03" => again(format!(
            "another transaction holds rows or tables of the database {database} on {server} ({said}); look for it in pg_stat_activity, and see lock_timeout of user {user}"
        )),
        "40001" | "40P01" => again(format!(
            "the database {database} on {server} is too busy with the same rows ({said}); look for long transactions in pg_stat_activity"
        )),
        "CV002" => Failure::Own(Grow(format!(
            "the same rows of the database {database} on {server} are created and removed all the time ({said})"
        ))),
        "28P01" => refused(format!(
            "the server {server} refuses the password of user {user}; check PGPASSFILE, PGPASSWORD or COVEY_PG_PASSWORD"
        )),
        "28000" => refused(format!(
            "the server {server} does not admit user {user} ({said}); check the user's name, and pg_hba.conf on the server"
        )),
        "3D000" => refused(format!(
            "there is no database {database} on {server}; create it (createdb {database}), or name another one"
        )),
        "42501" => refused(format!(
            "user {user} may not do this in the database {database} on {server} ({said}); grant it: covey doctor names the rights that are missing"
        )),
        "42P01" | "42883" | "42704" | "42703" => refused(format!(
            "the database {database} on {server} holds no volume of this version ({said}); create one with `covey format`"
        )),
        "53100" => Failure::Store(StoreError::NoSpace(format!(
            "the disk of the server {server} is full ({said}); free some of it, or give it more"
        ))),
        "53200" => again(format!(
            "the server {server} has too little memory ({said}); give it more, or lower its work_mem and max_connections"
        )),
        "53400" | "54000" | "54001" => refused(format!(
            "the server {server} refuses, because the request passes a limit of its settings ({said}); raise that limit for user {user}"
        )),
        // Nothing was asked yet.
        "53300" => Failure::Crowded(format!(
            "the server {server} has no free connection ({said}); raise max_connections, the user's or the database's limit, or mount with fewer connections (-o lanes=N)"
        )),
        "25006" => Failure::Lost(format!(
            "the server {server} refuses changes ({said}); name the server that accepts them, or {}",
            READ_ONLY
        )),
        "CV001" => Failure::Store(StoreError::Damaged(format!("the counter {said}; run `covey fsck`"))),
        "XX001" | "XX002" => Failure::Store(StoreError::Damaged(format!(
            "the database {database} on {server} reports damage: {said}; restore it from a backup"
        ))),
        "57014" => again(format!(
            "the server {server} ended a statement ({said}); raise statement_timeout for user {user}, or see what ends it"
        )),
        "25P03" | "57P05" => Failure::Lost(format!(
            "the server {server} ended a connection that was idle ({said}); raise idle_session_timeout and idle_in_transaction_session_timeout for user {user}"
        )),
        "57P04" => refused(format!("the database {database} on {server} was removed ({said})")),
        "57P01" | "57P02" | "57P03" => Failure::Lost(format!(
            "the server {server} is stopping or starting ({said}); it is tried again until it runs"
        )),
        _ if code.starts_with("08") => {
            Failure::Lost(format!("the connection to the server {server} broke ({said}); check the network"))
        }
        _ => refused(format!("the database {database} on {server} refuses ({code}: {said})")),
    }
}

/// Whether the server lacks a table or a function.
pub(super) fn is_missing(error: &Error) -> bool {
    error.code() == Some(&SqlState::UNDEFINED_TABLE)
}
