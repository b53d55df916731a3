//! Command-line arguments of a fleet.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use fetch::Verify;
use node::fleet::lender;
use node::fleet::options::{FleetOptions, TlsOptions, WEIGHT};

use super::Reach;

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

/// With what connections to other nodes are encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Tls {
    /// Encrypt what goes over connections to other nodes: this node's certificate, PEM; all nodes do, or none
    #[arg(long, value_name = "FILE", env = "COVEY_TLS_CERT", hide_env = true)]
    tls_cert: Option<PathBuf>,
    /// The key to it
    #[arg(long, value_name = "FILE", env = "COVEY_TLS_KEY", hide_env = true)]
    tls_key: Option<PathBuf>,
    /// The certificate of the fleet's CA: who shows one that it signed is let in
    #[arg(long, value_name = "FILE", env = "COVEY_TLS_CA", hide_env = true)]
    tls_ca: Option<PathBuf>,
}

impl Tls {
    /// The form that crate `node` takes.
    pub fn options(&self) -> TlsOptions {
        let Tls { tls_cert, tls_key, tls_ca } = self.clone();
        TlsOptions { tls_cert, tls_key, tls_ca }
    }
}

/// How a node takes part in a fleet.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Fleet {
    /// Join a fleet by any of its nodes; a name may have many addresses
    #[arg(long, value_name = "HOST:PORT,...", env = "COVEY_JOIN", hide_env = true)]
    join: Option<String>,
    /// Where the fleet reaches this node, TCP and UDP [default: a free port of 127.0.0.1, for nodes on one
    /// machine]
    #[arg(long, value_name = "ADDRESS:PORT", env = "COVEY_LISTEN", hide_env = true)]
    listen: Option<SocketAddr>,
    /// Where the others reach it, if that is not where it listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    advertise: Option<SocketAddr>,
    /// The file with the fleet's secret; covey fleet secret FILE makes one
    #[arg(long, value_name = "FILE", env = "COVEY_SECRET_FILE", hide_env = true)]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    tls: Tls,
    /// Where this node is: nodes of one zone give blobs to one another [default: default]
    #[arg(long, value_name = "NAME", env = "COVEY_ZONE", hide_env = true)]
    zone: Option<String>,
    /// Share of the fleet's bookkeeping that this node does, relative to the others'; 0 for none
    #[arg(long, value_name = "N", default_value_t = WEIGHT, hide_default_value = true)]
    weight: u16,
    /// How bytes from other nodes are checked: blake3 (against the blob's name), or crc (cheaper, for nodes
    /// that trust one another)
    #[arg(long, value_name = "HOW", default_value_t, hide_possible_values = true)]
    verify: Checked,
    /// Answer in this interface's driver which blobs this node has, also while the daemon is busy or stopped
    #[arg(long, value_name = "INTERFACE")]
    xdp: Option<String>,
}

impl Fleet {
    /// The form that crate `node` takes.
    pub fn options(&self) -> FleetOptions {
        let Fleet { join, listen, advertise, secret_file, tls, zone, weight, verify, xdp } = self.clone();
        FleetOptions {
            join,
            listen,
            advertise,
            secret_file,
            tls: tls.options(),
            zone,
            weight,
            verify: verify.into(),
            xdp,
        }
    }
}

/// Converts the options back to arguments.
pub fn to_args(options: &FleetOptions) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: Option<OsString>| {
        args.extend(value.into_iter().flat_map(|value| [OsString::from(option), value]));
    };
    let address = |address: Option<SocketAddr>| address.map(|address| address.to_string().into());
    add("--join", options.join.clone().map(Into::into));
    add("--listen", address(options.listen));
    add("--advertise", address(options.advertise));
    add("--secret-file", options.secret_file.as_deref().map(absolute));
    add("--tls-cert", options.tls.tls_cert.as_deref().map(absolute));
    add("--tls-key", options.tls.tls_key.as_deref().map(absolute));
    add("--tls-ca", options.tls.tls_ca.as_deref().map(absolute));
    add("--zone", options.zone.clone().map(Into::into));
    add("--weight", (options.weight != WEIGHT).then(|| options.weight.to_string().into()));
    add("--xdp", options.xdp.clone().map(Into::into));
    add("--verify", (options.verify != Verify::default()).then(|| "crc".into()));
    args
}

/// Makes a path absolute, because a background daemon has another working directory.
fn absolute(path: &Path) -> OsString {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).into_os_string()
}

/// With what a disk is lent.
#[derive(Debug, clap::Args)]
pub struct Lent {
    /// The origin whose published trees the fleet reads: s3://BUCKET/PREFIX
    #[arg(long, value_name = "ORIGIN")]
    origin: String,
    #[command(flatten)]
    reach: Reach,
    /// The folder of its cache; made if it is absent
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Bytes of the disk for blobs, like 500G [default: most of what is free]
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    #[command(flatten)]
    fleet: Fleet,
}

impl Lent {
    /// The form that crate `node` takes.
    pub fn options(&self) -> lender::Options {
        lender::Options {
            origin: self.origin.clone(),
            reach: self.reach.reach(),
            cache: self.cache.clone(),
            size: self.size.clone(),
            fleet: self.fleet.options(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        fleet: Fleet,
    }

    fn parse(line: &str) -> FleetOptions {
        Line::try_parse_from(line.split_whitespace()).unwrap().fleet.options()
    }

    #[test]
    fn options_are_read_and_written_back() {
        let line = "x --join 10.0.0.1:7,nodes.example:8 --listen 10.0.0.2:9 --advertise 1.2.3.4:5 --secret-file /s \
                    --tls-cert /c --tls-key /k --tls-ca /a --zone eu-1 --weight 7 --verify crc --xdp eth0";
        let options = parse(line);
        let again = to_args(&options).into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>();
        assert_eq!(parse(&format!("x {}", again.join(" "))), options);
        assert!(options.is_on() && options.contacts().unwrap().len() == 2 && options.check().is_ok());
        assert!(to_args(&parse("x")).is_empty() && !parse("x").is_on() && parse("x").check().is_ok());
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
        for alone in ["--secret-file /s", "--verify crc", "--weight 7", "--tls-cert /c"] {
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
