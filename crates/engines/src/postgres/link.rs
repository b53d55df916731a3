//! One connection to the server, used by one thread at a time.
//!
//! The client library is asynchronous. Each connection has a runtime of its own that runs on the thread that
//! uses the connection, and only while it is used. So there is no hand-over between threads, and no thread of
//! its own. Every use has a deadline of the caller's: a server that was stopped, or a proxy that holds the
//! request, would otherwise block the caller for ever. After a missed deadline the connection is dropped.
//!
//! A connection is used outside of tokio's own threads only, as the stores of names in general.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, Config, Error, config::SslMode};

use super::errors::{self, Failure, explain};
use super::incarnation::{self, Opened};
use super::secrets;
use super::target::{Target, TlsMode};
use super::tls::Tls;
use crate::secrets::Secrets;

/// How long a connection may take to be closed politely.
const CLOSE: Duration = Duration::from_millis(100);
/// How long it may take to tell the server that an answer is not needed any more.
const CANCEL: Duration = Duration::from_millis(500);

/// A connection whose bytes are not confirmed for so long is given up. It outlives the request that opened
/// it.
const UNHEARD: Duration = Duration::from_secs(10);
/// Whether a server is a standby, and whether it refuses changes.
const READ_ONLY: &str = "select pg_is_in_recovery(), current_setting('transaction_read_only')::bool";

/// How to reach a database.
pub(super) struct Door {
    /// The database's address.
    pub(super) target: Target,
    /// The database's servers, each as an address of its own.
    servers: Vec<Target>,
    /// The server that was found to accept writes last.
    chosen: AtomicUsize,
    secrets: Secrets,
    tls: Tls,
    /// The database to which all connections must lead.
    pub(super) opened: Opened,
}

impl Door {
    /// Reads the certificates that the address names.
    pub(super) fn new(target: Target, secrets: Secrets) -> Result<Door, Failure> {
        let tls = Tls::new(&target).map_err(Failure::refused)?;
        let (servers, chosen, opened) = (target.servers(), AtomicUsize::new(0), Opened::default());
        Ok(Door { servers, chosen, target, secrets, tls, opened })
    }

    /// Returns the database's servers, each as an address of its own.
    pub(super) fn servers(&self) -> &[Target] {
        &self.servers
    }

    fn config(&self, target: &Target, limit: Duration) -> Result<Config, Failure> {
        let mut config = Config::new();
        config.host(&target.host).port(target.port).user(&target.user).dbname(&target.database);
        config.application_name("covey").connect_timeout(limit).tcp_user_timeout(UNHEARD);
        config.keepalives_idle(Duration::from_secs(30)).keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(3);
        config.ssl_mode(match target.tls {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyFull => SslMode::Require,
        });
        if let Some(password) = secrets::find(&self.secrets, target).map_err(Failure::refused)? {
            config.password(password);
        }
        Ok(config)
    }
}

type Running = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// An open connection.
pub(super) struct Link {
    /// The server.
    pub(super) target: Target,
    /// The server's place among the servers of the address.
    server: usize,
    /// Gone only while this is dropped.
    runtime: Option<Runtime>,
    client: Option<Client>,
    /// Moves the bytes. Gone once the connection is closed.
    running: Option<Running>,
    tls: Tls,
}

impl Link {
    /// Connects to the server that accepts writes, within a time limit. A single server is taken as it is.
    pub(super) fn open(door: &Door, limit: Duration) -> Result<Link, Failure> {
        let count = door.servers.len();
        if count == 1 {
            return Link::open_at(door, 0, limit)?.of_the_opened(door, limit);
        }
        let (first, end) = (door.chosen.load(Ordering::Acquire), base::time::monotonic() + limit);
        let mut failures = Vec::new();
        for step in 0..count {
            let server = (first + step) % count;
            // A server that does not answer leaves time for the others.
            let left = end.saturating_duration_since(base::time::monotonic());
            let share = left / u32::try_from(count - step).unwrap_or(1);
            match Link::open_writable(door, server, share).and_then(|link| link.of_the_opened(door, share)) {
                Ok(link) => {
                    // If another lane has found another server since this one began, that is newer: this
                    // server may have hung until now, and been replaced.
                    return match door.chosen.compare_exchange(
                        first,
                        server,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    ) {
                        Err(chosen) if chosen != server => Err(Failure::Lost(format!(
                            "the server {} was given up for another one",
                            link.target.server()
                        ))),
                        _ => Ok(link),
                    };
                }
                Err(failure) => failures.push(failure),
            }
        }
        Err(Failure::of_all(failures))
    }

    fn open_writable(door: &Door, server: usize, limit: Duration) -> Result<Link, Failure> {
        let mut link = Link::open_at(door, server, limit)?;
        let (is_standby, is_read_only) = link.run(limit, async |client| {
            let row = client.query_typed_one(READ_ONLY, &[]).await?;
            Ok::<(bool, bool), Error>((row.try_get(0)?, row.try_get(1)?))
        })?;
        let server = link.target.server();
        match (is_standby, is_read_only) {
            (true, _) => Err(Failure::Lost(format!("the server {server} is a read-only standby"))),
            (_, true) => {
                Err(Failure::Lost(format!("the server {server} refuses changes; {}", errors::READ_ONLY)))
            }
            _ => Ok(link),
        }
    }

    /// The connection, if it leads to the database that the store has opened.
    fn of_the_opened(mut self, door: &Door, limit: Duration) -> Result<Link, Failure> {
        if door.opened.is_set() {
            let found = self.run(limit, async |client| incarnation::ask(client).await)?;
            door.opened.meet(&self.target, &found)?;
        }
        Ok(self)
    }

    /// Whether another server was found to accept writes since this connection was made. Then this one may
    /// not do so any more, and may show what was.
    pub(super) fn is_outdated(&self, door: &Door) -> bool {
        self.server != door.chosen.load(Ordering::Acquire)
    }

    /// Connects to one of the servers, whether it accepts writes or not.
    pub(super) fn open_at(door: &Door, server: usize, limit: Duration) -> Result<Link, Failure> {
        let target = door.servers.get(server).unwrap_or(&door.target);
        let config = door.config(target, limit)?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| Failure::refused(format!("this machine refuses a connection: {error}")))?;
        let connecting = async { tokio::time::timeout(limit, config.connect(door.tls.clone())).await };
        match runtime.block_on(connecting) {
            Ok(Ok((client, running))) => Ok(Link {
                target: target.clone(),
                server,
                runtime: Some(runtime),
                client: Some(client),
                running: Some(Box::pin(running)),
                tls: door.tls.clone(),
            }),
            failed => {
                // The look-up of a name cannot be stopped; it must not hold up this thread.
                runtime.shutdown_background();
                Err(match failed {
                    Ok(Err(error)) => explain(target, &error),
                    _ => late(target, limit),
                })
            }
        }
    }

    /// Makes a request, within a time limit. After `Lost` the connection is of no use.
    pub(super) fn run<T>(
        &mut self,
        limit: Duration,
        work: impl AsyncFnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let target = &self.target;
        let (Some(runtime), Some(client)) = (&self.runtime, &self.client) else {
            return Err(closed(target));
        };
        let running = &mut self.running;
        let mut last_words = None;
        let done = runtime.block_on(async {
            let mut work = pin!(work(client));
            let both = poll_fn(|cx| {
                if let Some(connection) = running
                    && let Poll::Ready(end) = connection.as_mut().poll(cx)
                {
                    *running = None;
                    last_words = end.err();
                }
                work.as_mut().poll(cx)
            });
            tokio::time::timeout(limit, both).await
        });
        match done {
            Ok(Ok(done)) => Ok(done),
            // Why it closed is known to the connection, not to the request.
            Ok(Err(error)) if error.is_closed() => match last_words {
                Some(error) => Err(explain(target, &error)),
                None => Err(closed(target)),
            },
            Ok(Err(error)) => Err(explain(target, &error)),
            Err(_) => {
                let failure = late(target, limit);
                self.cancel();
                Err(failure)
            }
        }
    }

    /// Asks the server to stop working on the request.
    fn cancel(&mut self) {
        if let (Some(runtime), Some(client)) = (&self.runtime, &self.client) {
            let token = client.cancel_token();
            let tls = self.tls.clone();
            // If it fails, the server ends the request at its own limits.
            let _ = runtime.block_on(async { tokio::time::timeout(CANCEL, token.cancel_query(tls)).await });
        }
        self.running = None;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.client.take());
        let Some(runtime) = self.runtime.take() else { return };
        if let Some(running) = self.running.take() {
            // Says goodbye, so that the server does not log a broken connection.
            let _ = runtime.block_on(async { tokio::time::timeout(CLOSE, running).await });
        }
        runtime.shutdown_background();
    }
}

fn closed(target: &Target) -> Failure {
    Failure::Lost(format!(
        "the server {} closed the connection; check that PostgreSQL runs there",
        target.server()
    ))
}

fn late(target: &Target, limit: Duration) -> Failure {
    Failure::Lost(format!(
        "the server {} did not answer within {:.1} s; check that PostgreSQL runs there and is not overloaded",
        target.server(),
        limit.as_secs_f64()
    ))
}
