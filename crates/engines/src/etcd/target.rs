//! Where a volume's names are: the address of an etcd cluster, and the volume's name in it.
//!
//! ```text
//!   etcd://[USER@]HOST[:PORT][,HOST[:PORT]...]/[PREFIX]?volume=NAME[&sslmode=verify-full]
//!          [&sslrootcert=FILE][&sslcert=FILE&sslkey=FILE]
//! ```
//!
//! The servers are members of one cluster, in any order; any of them serves. `PREFIX` is before all keys that
//! Covey writes, so several programs may share a cluster. The address holds no password, because other users
//! of the machine can read a program's arguments. [`super::Secrets`] finds the password.

use std::fmt;
use std::path::PathBuf;

use super::SetupError;
use crate::url::{NAME_MAX, bad, check_volume, decoded, encoded, host_and_port, is_name, shown};

/// The port of a server that names none.
const PORT: u16 = 2379;
/// The prefix of an address that names none.
const PREFIX: &str = "covey";
const FORM: &str = "etcd://HOST:2379/?volume=NAME";
const PASSWORD: &str = "it holds a password, which other users could read in the list of processes; take it out and use ETCD_PASSFILE or ETCD_PASSWORD";

/// How a connection is protected, as in `sslmode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Without TLS.
    #[default]
    Disable,
    /// With TLS. The certificate must be signed by a known authority and be for the server's name.
    VerifyFull,
}

/// A parsed address. Its text form can be parsed again, and holds no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The user, if the cluster has authentication turned on.
    pub user: Option<String>,
    /// Members of the cluster: host and port.
    pub servers: Vec<(String, u16)>,
    /// What all keys begin with.
    pub prefix: String,
    /// The volume's name: 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub volume: String,
    /// How the connection is protected.
    pub tls: TlsMode,
    /// A file in PEM with the authorities to accept; none: those of the system.
    pub root_cert: Option<PathBuf>,
    /// Files in PEM with this node's own certificate and its key, for a cluster that asks for them.
    pub cert: Option<(PathBuf, PathBuf)>,
}

/// The parts that a query may name.
#[derive(Default)]
struct Query {
    volume: String,
    tls: TlsMode,
    root_cert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Query {
    fn set(&mut self, pair: &str) -> Result<(), SetupError> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value)?;
        match name {
            "volume" => self.volume = value,
            "sslmode" => {
                self.tls = match value.as_str() {
                    "disable" => TlsMode::Disable,
                    "verify-full" => TlsMode::VerifyFull,
                    _ => return Err(bad(&format!("sslmode={value} is none of disable and verify-full"))),
                };
            }
            "sslrootcert" => self.root_cert = Some(value.into()),
            "sslcert" => self.cert = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            "password" => return Err(bad(PASSWORD)),
            other => {
                return Err(bad(&format!(
                    "{other} is not known here; it takes volume, sslmode, sslrootcert, sslcert and sslkey"
                )));
            }
        }
        Ok(())
    }
}

impl Target {
    /// Reads an address.
    ///
    /// # Errors
    /// [`SetupError::Target`] says what is wrong with it. The message shows no password.
    pub fn parse(text: &str) -> Result<Target, SetupError> {
        let rest = text.strip_prefix("etcd://").ok_or_else(|| bad("it must begin with etcd://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last `@`, so that a password with an `@` in it is noticed as one.
        let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        if user.is_some_and(|user| user.contains(':')) {
            return Err(bad(PASSWORD));
        }
        let (servers, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let servers = servers.split(',').map(|server| host_and_port(server, PORT));
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let mut named = Query::default();
        query.split('&').filter(|pair| !pair.is_empty()).try_for_each(|pair| named.set(pair))?;
        let cert = match (named.cert, named.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(bad("sslcert and sslkey belong together: name both files")),
        };
        let prefix = decoded(prefix)?;
        let target = Target {
            user: user.map(decoded).transpose()?.filter(|user| !user.is_empty()),
            servers,
            prefix: if prefix.is_empty() { PREFIX.to_owned() } else { prefix },
            volume: named.volume,
            tls: named.tls,
            root_cert: named.root_cert,
            cert,
        };
        target.complete()
    }

    fn complete(self) -> Result<Target, SetupError> {
        if self.servers.iter().any(|(host, _)| host.is_empty()) {
            return Err(bad(&format!("name the server: {FORM}")));
        }
        if self.servers.iter().any(|(host, _)| host.contains('/')) {
            return Err(bad(&format!("a server is a name or an address, not a path: {FORM}")));
        }
        check_volume(&self.volume)?;
        if self.prefix.len() > NAME_MAX || !self.prefix.split('/').all(is_name) {
            return Err(bad(&format!(
                "the prefix {:?} must have 1 to {NAME_MAX} letters, digits, dots, underscores, hyphens and slashes between them",
                self.prefix
            )));
        }
        if self.tls == TlsMode::Disable && (self.root_cert.is_some() || self.cert.is_some()) {
            return Err(bad("sslrootcert, sslcert and sslkey need sslmode=verify-full, which turns TLS on"));
        }
        Ok(self)
    }

    /// The servers, for messages: `host:port`, or several.
    pub(super) fn server(&self) -> String {
        let each: Vec<String> = self.servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        each.join(", ")
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("etcd://")?;
        if let Some(user) = &self.user {
            write!(f, "{}@", encoded(user))?;
        }
        let servers: Vec<String> = self.servers.iter().map(|(host, port)| shown(host, *port)).collect();
        write!(f, "{}/{}?volume={}", servers.join(","), self.prefix, self.volume)?;
        if self.tls == TlsMode::VerifyFull {
            f.write_str("&sslmode=verify-full")?;
        }
        if let Some(path) = &self.root_cert {
            write!(f, "&sslrootcert={}", encoded(&path.to_string_lossy()))?;
        }
        if let Some((cert, key)) = &self.cert {
            let (cert, key) = (encoded(&cert.to_string_lossy()), encoded(&key.to_string_lossy()));
            write!(f, "&sslcert={cert}&sslkey={key}")?;
        }
        Ok(())
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
        let target = Target::parse("etcd://a,b:7/?volume=a-1").unwrap();
        assert_eq!(target.servers, [("a".to_owned(), 2379), ("b".to_owned(), 7)]);
        assert_eq!((target.prefix.as_str(), target.tls, &target.user), ("covey", TlsMode::Disable, &None));
        assert_eq!(target.to_string(), "etcd://a:2379,b:7/covey?volume=a-1");
        assert_eq!(Target::parse("etcd://a?volume=v").unwrap().to_string(), "etcd://a:2379/covey?volume=v");
        for text in [
            "etcd://me@[::1]:7/x/y.z?volume=a&sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem",
            "etcd://a:1,b:2/p?volume=A.b_c&sslmode=verify-full&sslcert=%2Fc&sslkey=%2Fk",
            "etcd://m%40e@h:2379/covey?volume=a",
        ] {
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn each_mistake_has_its_line() {
        let name = format!("etcd://h/?volume={}", "n".repeat(65));
        for (text, says) in [
            ("etc://h/", "begin with etcd://"),
            ("etcd:///p?volume=a", "name the server"),
            ("etcd://h,/?volume=a", "name the server"),
            ("etcd://%2Frun/?volume=a", "not a path"),
            ("etcd://h/", "name the volume: ...?volume=NAME"),
            ("etcd://h/?volume=a%20b", "letters, digits"),
            (&name, "1 to 64"),
            ("etcd://h:0/?volume=a", "from 1 to 65535"),
            ("etcd://h//a?volume=a", "the prefix"),
            ("etcd://h/a%00?volume=a", "not text"),
            ("etcd://h/a b?volume=a", "the prefix"),
            ("etcd://h/?volume=a&sslmode=require", "none of disable and verify-full"),
            ("etcd://h/?volume=a&sslrootcert=/x", "need sslmode=verify-full"),
            ("etcd://h/?volume=a&sslmode=verify-full&sslcert=/x", "belong together"),
            ("etcd://h/?volume=a&options=x", "options is not known"),
            ("etcd://h/?volume=%4", "hexadecimal"),
        ] {
            let message = refused(text);
            assert!(message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn a_password_is_refused_and_never_shown() {
        for text in [
            "etcd://u:s3cret@h/?volume=a",
            "etcd://u:s3cr@t@h/?volume=a",
            "etcd://u@h/?volume=a&password=s3cret",
        ] {
            let message = refused(text);
            assert!(message.contains("ETCD_PASSFILE or ETCD_PASSWORD"), "{message}");
            assert!(!message.contains("s3cr"), "{message}");
        }
    }
}
