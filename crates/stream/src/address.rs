//! Addresses: where a server listens, and where a guest connects.
//!
//! | text | server | guest |
//! |---|---|---|
//! | `unix:PATH` | a socket at this path | the same |
//! | `tcp:HOST:PORT` | this address | the same |
//! | `vsock:PORT` | AF_VSOCK, from every guest | the host (CID 2) |
//! | `vsock:CID:PORT` | - | the machine with this CID |
//! | `vsock:PATH:PORT` | a unix socket at `PATH_PORT`, where Firecracker and vhost-device-vsock connect | - |

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The CID of the host, as a guest sees it.
pub const HOST_CID: u32 = 2;

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
    /// A port of AF_VSOCK. Without a CID: the host's, or where a server listens.
    Vsock {
        /// The machine.
        cid: Option<u32>,
        /// The port.
        port: u32,
    },
    /// The unix socket of a virtual machine's vsock device, and the port.
    VsockUnix {
        /// The path without the port.
        path: PathBuf,
        /// The port.
        port: u32,
    },
}

impl Address {
    /// The path of the unix socket, if it is one.
    pub fn unix_path(&self) -> Option<PathBuf> {
        match self {
            Address::Unix(path) => Some(path.clone()),
            Address::VsockUnix { path, port } => {
                let mut name = path.clone().into_os_string();
                name.push(format!("_{port}"));
                Some(name.into())
            }
            Address::Tcp(_) | Address::Vsock { .. } => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(host) => write!(f, "tcp:{host}"),
            Address::Vsock { cid: Some(cid), port } => write!(f, "vsock:{cid}:{port}"),
            Address::Vsock { cid: None, port } => write!(f, "vsock:{port}"),
            Address::VsockUnix { path, port } => write!(f, "vsock:{}:{port}", path.display()),
        }
    }
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no address: write unix:PATH, tcp:HOST:PORT, vsock:PORT, vsock:CID:PORT or vsock:PATH:PORT")]
pub struct NoAddress(String);

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Address, NoAddress> {
        let wrong = || NoAddress(text.chars().filter(|c| !c.is_control()).collect());
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        match kind {
            "unix" if !rest.is_empty() => Ok(Address::Unix(PathBuf::from(rest))),
            "tcp" => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
                port.parse::<u16>().map_err(|_| wrong())?;
                if host.is_empty() { Err(wrong()) } else { Ok(Address::Tcp(rest.to_owned())) }
            }
            "vsock" => match rest.rsplit_once(':') {
                None => Ok(Address::Vsock { cid: None, port: number(rest)? }),
                Some((path, port)) if path.contains('/') => {
                    Ok(Address::VsockUnix { path: Path::new(path).to_owned(), port: number(port)? })
                }
                Some((cid, port)) => Ok(Address::Vsock { cid: Some(number(cid)?), port: number(port)? }),
            },
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_text() {
        for text in [
            "unix:/run/a.sock",
            "tcp:127.0.0.1:9000",
            "tcp:[::1]:9000",
            "vsock:7",
            "vsock:3:7",
            "vsock:/run/v.sock:7",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let fire: Address = "vsock:/run/v.sock:5001".parse().unwrap();
        assert_eq!(fire.unix_path(), Some(PathBuf::from("/run/v.sock_5001")));
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_forms() {
        for text in [
            "",
            "unix:",
            "/run/a",
            "tcp:host",
            "tcp::1",
            "tcp:h:99999",
            "vsock:",
            "vsock:x",
            "vsock:1:2:3",
            "x:1",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("unix:PATH"), "{text}: {error}");
        }
    }
}
