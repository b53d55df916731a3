//! What is typed of a fleet, and what does not go together.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use peer::arriving::Verify;
use peer::fleet::Finding;
use peer::id::Zone;
use peer::members::Contact;
use peer::secret::Secret;
use peer::tls::Tls;

use crate::error::{Failure, Result};

/// The share of a node that says nothing.
const WEIGHT: u16 = 100;

/// How what comes from other nodes is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Checked {
    /// By the blob's name: nobody can deceive.
    #[default]
    Blake3,
    /// By the sender's checksums: for nodes that trust one another.
    Crc,
}

impl From<Checked> for Verify {
    fn from(checked: Checked) -> Verify {
        match checked {
            Checked::Blake3 => Verify::Blake3,
            Checked::Crc => Verify::Crc,
        }
    }
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Checked::Blake3 => "blake3",
            Checked::Crc => "crc",
        })
    }
}

/// How a node finds who has a blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Found {
    /// The blob's tracker knows.
    #[default]
    Tracker,
    /// Every node has a table of all copies: to be measured against trackers.
    Table,
}

impl From<Found> for Finding {
    fn from(found: Found) -> Finding {
        match found {
            Found::Tracker => Finding::Tracker,
            Found::Table => Finding::Table,
        }
    }
}

/// With what connections to other nodes are encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct TlsOptions {
    /// Encrypt what goes over connections to other nodes: this node's certificate, PEM; all nodes do, or none
    #[arg(long, value_name = "FILE", env = "COVEY_TLS_CERT", hide_env = true)]
    pub tls_cert: Option<PathBuf>,
    /// The key to it
    #[arg(long, value_name = "FILE", env = "COVEY_TLS_KEY", hide_env = true)]
    pub tls_key: Option<PathBuf>,
    /// The certificate of the fleet's CA: who shows one that it signed is let in
    #[arg(long, value_name = "FILE", env = "COVEY_TLS_CA", hide_env = true)]
    pub tls_ca: Option<PathBuf>,
}

impl TlsOptions {
    /// Whether any of it was said.
    fn is_named(&self) -> bool {
        self.tls_cert.is_some() || self.tls_key.is_some() || self.tls_ca.is_some()
    }

    /// What the files hold; none where none was named.
    pub fn load(&self) -> Result<Option<Tls>> {
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), Some(ca)) => {
                crate::secrets::keep_from_dumps();
                Tls::from_files(certificate, key, ca).map(Some).map_err(|error| {
                    Failure::new("no-tls", "TLS between nodes cannot be used").why(error.to_string())
                })
            }
            _ => Err(Failure::usage("TLS between nodes needs three files, and some were not named")
                .why("a node shows its certificate, proves it by the key, and knows the others by the CA")
                .next("name all: --tls-cert FILE --tls-key FILE --tls-ca FILE")
                .next("docs/OPERATING.md has the commands that make them")),
        }
    }
}

/// How a node takes part in a fleet.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct FleetOptions {
    /// Join a fleet by any of its nodes; a name may have many addresses
    #[arg(long, value_name = "HOST:PORT,...", env = "COVEY_JOIN", hide_env = true)]
    pub join: Option<String>,
    /// Where the fleet reaches this node, TCP and UDP [default: a free port of 127.0.0.1, for nodes on one machine]
    #[arg(long, value_name = "ADDRESS:PORT", env = "COVEY_LISTEN", hide_env = true)]
    pub listen: Option<SocketAddr>,
    /// Where the others reach it, if that is not where it listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub advertise: Option<SocketAddr>,
    /// The file with the fleet's secret; covey fleet secret FILE makes one
    #[arg(long, value_name = "FILE", env = "COVEY_SECRET_FILE", hide_env = true)]
    pub secret_file: Option<PathBuf>,
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Where this node is: nodes of one zone give blobs to one another [default: default]
    #[arg(long, value_name = "NAME", env = "COVEY_ZONE", hide_env = true)]
    pub zone: Option<String>,
    /// This node's share of the fleet's bookkeeping, relative to the others'; 0 for none
    #[arg(long, value_name = "N", default_value_t = WEIGHT, hide_default_value = true)]
    pub weight: u16,
    /// How bytes from other nodes are checked: blake3 (against the blob's name), or crc (cheaper, for nodes that trust one another)
    #[arg(long, value_name = "HOW", default_value_t, hide_possible_values = true)]
    pub verify: Checked,
    /// How holders are found: by trackers, or by a table on every node, which is there to be measured
    #[arg(long, value_name = "HOW", default_value = "tracker", hide = true)]
    pub find: Found,
}

impl FleetOptions {
    /// Whether it is to take part at all.
    pub fn is_on(&self) -> bool {
        self.join.is_some() || self.listen.is_some()
    }

    /// What is said although it takes no part: of no use, and perhaps a mistake.
    pub fn check(&self) -> Result<()> {
        let chosen =
            self.weight != WEIGHT || self.verify != Checked::default() || self.find != Found::default();
        let named = self.secret_file.is_some() || self.advertise.is_some() || self.tls.is_named();
        // A zone is where a machine is, and may be said for all of its mounts.
        if self.is_on() || !named && !chosen {
            return Ok(());
        }
        Err(Failure::usage("a fleet's options are given, and no fleet")
            .next("join one by any of its nodes: --join HOST:PORT")
            .next("or begin one: --listen ADDRESS:PORT"))
    }

    /// What all nodes know.
    pub fn secret(&self) -> Result<Secret> {
        FleetOptions::secret_in(self.secret_file.as_deref())
    }

    /// The same from a file, if one was named.
    pub fn secret_in(file: Option<&Path>) -> Result<Secret> {
        let Some(file) = file else {
            return Err(Failure::usage("a fleet has a secret, and none was named")
                .why("only nodes that know it may ask others for blobs")
                .next("make one, once: covey fleet secret FILE; then copy FILE to every node")
                .next("name it: --secret-file FILE, or COVEY_SECRET_FILE in the environment"));
        };
        crate::secrets::keep_from_dumps();
        Secret::from_file(file).map_err(|error| {
            Failure::new("no-secret", "the fleet's secret cannot be used").why(error.to_string())
        })
    }

    /// Whom it joins by.
    pub fn contacts(&self) -> Result<Vec<Contact>> {
        Contact::parse(self.join.as_deref().unwrap_or("")).map_err(|error| Failure::usage(error.to_string()))
    }

    /// Where it listens: not beyond this machine unless somebody says so.
    pub fn listen(&self, contacts: &[Contact]) -> Result<SocketAddr> {
        if let Some(listen) = self.listen {
            if listen.ip().is_unspecified() && self.advertise.is_none() {
                return Err(Failure::usage(format!(
                    "{listen} is no address at which others could reach this node"
                ))
                .next("name one address of this machine: --listen ADDRESS:PORT")
                .next("or where they reach it: --advertise ADDRESS:PORT"));
            }
            return Ok(listen);
        }
        let is_far = |contact: &Contact| match contact {
            Contact::Address(address) => !address.ip().is_loopback(),
            Contact::Name(name) => !name.starts_with("localhost:"),
        };
        if contacts.iter().any(is_far) {
            return Err(Failure::usage(
                "the fleet is on other machines, and this node would not be reached there",
            )
            .why("nothing listens beyond this machine unless that is said")
            .next("name an address of this machine and a port: --listen ADDRESS:PORT"));
        }
        Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    /// Where it is.
    pub fn zone(&self) -> Result<Zone> {
        let named = self.zone.as_deref().map(Zone::new).transpose();
        named.map(Option::unwrap_or_default).map_err(|error| Failure::usage(error.to_string()))
    }

    /// The same as arguments.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut add = |option: &str, value: Option<OsString>| {
            args.extend(value.into_iter().flat_map(|value| [OsString::from(option), value]));
        };
        let address = |address: Option<SocketAddr>| address.map(|address| address.to_string().into());
        add("--join", self.join.clone().map(Into::into));
        add("--listen", address(self.listen));
        add("--advertise", address(self.advertise));
        add("--secret-file", self.secret_file.as_deref().map(absolute));
        add("--tls-cert", self.tls.tls_cert.as_deref().map(absolute));
        add("--tls-key", self.tls.tls_key.as_deref().map(absolute));
        add("--tls-ca", self.tls.tls_ca.as_deref().map(absolute));
        add("--zone", self.zone.clone().map(Into::into));
        add("--weight", (self.weight != WEIGHT).then(|| self.weight.to_string().into()));
        add("--verify", (self.verify != Checked::default()).then(|| self.verify.to_string().into()));
        add("--find", (self.find != Found::default()).then(|| "table".into()));
        args
    }
}

/// A daemon in the background works in another folder.
fn absolute(path: &Path) -> OsString {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).into_os_string()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        fleet: FleetOptions,
    }

    fn parse(line: &str) -> FleetOptions {
        Line::try_parse_from(line.split_whitespace()).unwrap().fleet
    }

    #[test]
    fn options_are_read_and_written_back() {
        let line = "x --join 10.0.0.1:7,nodes.example:8 --listen 10.0.0.2:9 --advertise 1.2.3.4:5 --secret-file /s \
                    --tls-cert /c --tls-key /k --tls-ca /a --zone eu-1 --weight 7 --verify crc --find table";
        let options = parse(line);
        let again = options.to_args().into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>();
        assert_eq!(parse(&format!("x {}", again.join(" "))), options);
        assert!(options.is_on() && options.contacts().unwrap().len() == 2 && options.check().is_ok());
        assert!(parse("x").to_args().is_empty() && !parse("x").is_on() && parse("x").check().is_ok());
    }

    #[test]
    fn nothing_listens_beyond_this_machine_unless_that_is_said() {
        let at = |line: &str| {
            let options = parse(line);
            options.listen(&options.contacts().unwrap()).map(|address| address.to_string())
        };
        assert_eq!(at("x --join 127.0.0.1:7").unwrap(), "127.0.0.1:0");
        assert_eq!(at("x --join localhost:7").unwrap(), "127.0.0.1:0");
        assert_eq!(at("x --join 10.0.0.1:7 --listen 10.0.0.2:7").unwrap(), "10.0.0.2:7");
        for bad in ["x --join 10.0.0.1:7", "x --join nodes.example:7", "x --listen 0.0.0.0:7"] {
            let failure = at(bad).unwrap_err();
            assert!(failure.status == 2 && failure.next[0].contains("--listen"), "{failure}");
        }
        assert!(at("x --listen 0.0.0.0:7 --advertise 10.0.0.2:7").is_ok());
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let failure = parse("x --join 127.0.0.1:7").secret().unwrap_err();
        assert!(failure.to_string().contains("covey fleet secret"), "{failure}");
        for alone in ["--secret-file /s", "--verify crc", "--find table", "--weight 7", "--tls-cert /c"] {
            assert_eq!(parse(&format!("x {alone}")).check().unwrap_err().status, 2, "{alone}");
        }
        assert!(parse("x --zone eu-1").check().is_ok(), "a machine is in a zone also without a fleet");
        let failure = parse("x --join 127.0.0.1:7 --tls-cert /c --tls-ca /a").tls.load().unwrap_err();
        assert!(failure.status == 2 && failure.next[0].contains("--tls-key"), "{failure}");
        let failure =
            parse("x --tls-cert /none/c --tls-key /none/k --tls-ca /none/a").tls.load().unwrap_err();
        assert!(failure.to_string().contains("/none/c"), "{failure}");
        assert!(parse("x --join 127.0.0.1:7").tls.load().unwrap().is_none());
        assert!(parse("x --join nonsense").contacts().is_err());
        assert!(parse("x --zone a/b").zone().is_err());
    }
}
