//! Where a volume's names are: the address of a database, and the volume's name in it.
//!
//! ```text
//!   postgres://USER@HOST[:PORT][,HOST[:PORT]...]/DATABASE?volume=NAME[&sslmode=MODE][&sslrootcert=FILE]
//! ```
//!
//! Several servers are a primary and its standbys, in any order. The one that accepts writes is used, as with
//! `target_session_attrs=read-write` of PostgreSQL's own programs.
//!
//! `HOST` may be a folder with a Unix socket, written with `%2F` for `/`. The address holds no password,
//! because other users of the machine can read a program's arguments. [`super::Secrets`] finds the password.

use std::fmt;
use std::path::PathBuf;

use super::SetupError;
use crate::url::{bad, check_volume, decoded, encoded, host_and_port, shown};

/// The port of a server that names none.
const PORT: u16 = 5432;
const PASSWORD: &str = "it holds a password, which other users could read in the list of processes; take it out and use PGPASSFILE, PGPASSWORD or COVEY_PG_PASSWORD";

/// How a connection is protected, as in `sslmode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Without TLS.
    Disable,
    /// With TLS if the server has it. The server's certificate is not checked.
    #[default]
    Prefer,
    /// With TLS. The server's certificate is not checked.
    Require,
    /// With TLS. The certificate must be signed by a known authority and be for the server's name.
    VerifyFull,
}

impl TlsMode {
    /// All of them.
    const ALL: [TlsMode; 4] = [TlsMode::Disable, TlsMode::Prefer, TlsMode::Require, TlsMode::VerifyFull];

    /// The word in an address.
    pub fn word(self) -> &'static str {
        match self {
            TlsMode::Disable => "disable",
            TlsMode::Prefer => "prefer",
            TlsMode::Require => "require",
            TlsMode::VerifyFull => "verify-full",
        }
    }
}

/// A parsed address. Its text form can be parsed again, and holds no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The database's user.
    pub user: String,
    /// The server's name or address, or the folder of its Unix socket.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// Further servers, one of which may accept writes instead: host and port.
    pub more: Vec<(String, u16)>,
    /// The database.
    pub database: String,
    /// The volume's name: 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub volume: String,
    /// How the connection is protected.
    pub tls: TlsMode,
    /// A file in PEM with the authorities to accept; none: those of the system. Only with
    /// [`TlsMode::VerifyFull`].
    pub root_cert: Option<PathBuf>,
}

impl Target {
    /// Reads an address.
    ///
    /// # Errors
    /// [`SetupError::Target`] says what is wrong with it. The message shows no password.
    pub fn parse(text: &str) -> Result<Target, SetupError> {
        let rest = text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"));
        let rest = rest.ok_or_else(|| bad("it must begin with postgres://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last `@`, so that a password with an `@` in it is noticed as one.
        let (user, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        if user.contains(':') {
            return Err(bad(PASSWORD));
        }
        let (server, database) = rest.split_once('/').unwrap_or((rest, ""));
        let mut servers = server.split(',').map(|text| host_and_port(text, PORT));
        let (host, port) = servers.next().unwrap_or_else(|| Ok((String::new(), PORT)))?;
        let more = servers.collect::<Result<Vec<_>, _>>()?;
        let mut target = Target {
            user: decoded(user)?,
            host,
            port,
            more,
            database: decoded(database)?,
            volume: String::new(),
            tls: TlsMode::default(),
            root_cert: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            target.set(pair)?;
        }
        target.complete()
    }

    fn set(&mut self, pair: &str) -> Result<(), SetupError> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value)?;
        match name {
            "volume" => self.volume = value,
            "sslmode" => {
                let mode = TlsMode::ALL.into_iter().find(|mode| mode.word() == value);
                self.tls = mode.ok_or_else(|| {
                    bad(&format!("sslmode={value} is none of disable, prefer, require and verify-full"))
                })?;
            }
            "sslrootcert" => self.root_cert = Some(value.into()),
            // What is always meant.
            "target_session_attrs" if matches!(value.as_str(), "read-write" | "primary") => {}
            "target_session_attrs" => {
                return Err(bad(&format!(
                    "target_session_attrs={value} gives a server that may refuse writes; write read-write, or leave it out"
                )));
            }
            "password" => return Err(bad(PASSWORD)),
            other => {
                return Err(bad(&format!(
                    "{other} is not known here; it takes volume, sslmode and sslrootcert"
                )));
            }
        }
        Ok(())
    }

    fn complete(self) -> Result<Target, SetupError> {
        if self.user.is_empty() {
            return Err(bad("name the database's user: postgres://USER@HOST/DATABASE?volume=NAME"));
        }
        if self.hosts().any(str::is_empty) {
            return Err(bad("name the server: postgres://USER@HOST/DATABASE?volume=NAME"));
        }
        if self.database.is_empty() {
            return Err(bad("name the database: postgres://USER@HOST/DATABASE?volume=NAME"));
        }
        check_volume(&self.volume)?;
        if self.root_cert.is_some() && self.tls != TlsMode::VerifyFull {
            return Err(bad("sslrootcert needs sslmode=verify-full, which checks the server's certificate"));
        }
        if self.hosts().any(|host| host.starts_with('/'))
            && matches!(self.tls, TlsMode::Require | TlsMode::VerifyFull)
        {
            return Err(bad(&format!(
                "sslmode={} needs a server's name: a Unix socket has no TLS",
                self.tls.word()
            )));
        }
        Ok(self)
    }

    fn hosts(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.host.as_str()).chain(self.more.iter().map(|(host, _)| host.as_str()))
    }

    /// Each server as an address of its own, in their order.
    pub fn servers(&self) -> Vec<Target> {
        let one = |(host, port): (String, u16)| Target { host, port, more: Vec::new(), ..self.clone() };
        std::iter::once((self.host.clone(), self.port)).chain(self.more.iter().cloned()).map(one).collect()
    }

    /// The server, for messages: `host:port`, or several.
    pub(super) fn server(&self) -> String {
        let more = self.more.iter().map(|(host, port)| format!(", {host}:{port}"));
        format!("{}:{}", self.host, self.port) + &more.collect::<String>()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, database) = (encoded(&self.user), encoded(&self.database));
        write!(f, "postgres://{user}@{}", shown(&self.host, self.port))?;
        self.more.iter().try_for_each(|(host, port)| write!(f, ",{}", shown(host, *port)))?;
        write!(f, "/{database}?volume={}", self.volume)?;
        if self.tls != TlsMode::default() {
            write!(f, "&sslmode={}", self.tls.word())?;
        }
        match &self.root_cert {
            Some(path) => write!(f, "&sslrootcert={}", encoded(&path.to_string_lossy())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Target::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn addresses_are_read_and_written() {
        let target = Target::parse("postgres://me@db.example/names?volume=a-1").unwrap();
        assert_eq!((target.host.as_str(), target.port, target.tls), ("db.example", 5432, TlsMode::Prefer));
        let two = Target::parse("postgres://me@a,b:7/n?volume=v&target_session_attrs=read-write").unwrap();
        let servers: Vec<String> = two.servers().iter().map(Target::server).collect();
        assert_eq!((servers, two.server()), (vec!["a:5432".into(), "b:7".into()], "a:5432, b:7".to_owned()));
        for text in [
            "postgres://me@db.example:5432/names?volume=a-1",
            "postgres://me@[::1]:7/names?volume=a&sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem",
            "postgres://u@a:5432,b:5433,[::1]:7/d?volume=a",
            "postgres://m%40e@%2Frun%2Fpostgresql:5432/a%20b?volume=A.b_c&sslmode=disable",
        ] {
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn each_mistake_has_its_line() {
        let name = format!("postgres://u@h/d?volume={}", "n".repeat(65));
        for (text, says) in [
            ("mysql://u@h/d", "begin with postgres://"),
            ("postgres://h/d?volume=a", "name the database's user"),
            ("postgres://u@/d?volume=a", "name the server"),
            ("postgres://u@h?volume=a", "name the database:"),
            ("postgres://u@h/d", "name the volume: ...?volume=NAME"),
            ("postgres://u@h/d?volume=a%20b", "letters, digits"),
            (&name, "1 to 64"),
            ("postgres://u@h:0/d?volume=a", "from 1 to 65535"),
            ("postgres://u@h,/d?volume=a", "name the server"),
            ("postgres://u@h,i:x/d?volume=a", "from 1 to 65535"),
            ("postgres://u@h,i/d?volume=a&target_session_attrs=any", "may refuse writes"),
            ("postgres://u@h,%2Frun/d?volume=a&sslmode=require", "Unix socket"),
            ("postgres://u@h/d?volume=a&sslmode=verify-ca", "none of disable, prefer"),
            ("postgres://u@h/d?volume=a&sslrootcert=/x", "needs sslmode=verify-full"),
            ("postgres://u@%2Frun/d?volume=a&sslmode=require", "Unix socket"),
            ("postgres://u@h/d?volume=a&options=x", "options is not known"),
            ("postgres://u@h/d?volume=%4", "hexadecimal"),
            ("postgres://u@h/d?volume=%ff", "not text"),
        ] {
            let message = refused(text);
            assert!(message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn a_password_is_refused_and_never_shown() {
        for text in [
            "postgres://u:s3cret@h/d?volume=a",
            "postgres://u:s3cr@t@h/d?volume=a",
            "postgres://u@h/d?volume=a&password=s3cret",
        ] {
            let message = refused(text);
            assert!(message.contains("PGPASSFILE, PGPASSWORD or COVEY_PG_PASSWORD"), "{message}");
            assert!(!message.contains("s3cr"), "{message}");
        }
    }
}
