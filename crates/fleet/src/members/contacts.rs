//! The addresses through which a node joins, as given by a person: addresses, and names that have one address
//! or many.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// A valid `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// An address.
    Address(SocketAddr),
    /// A name, which is looked up repeatedly.
    Name(String),
}

/// The text is not a valid `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' names no node to join: write HOST:PORT, like 10.0.0.7:7171 or nodes.example:7171")]
pub struct NoContact(String);

impl Contact {
    /// Parses one `HOST:PORT`, or several separated by commas.
    ///
    /// # Errors
    /// [`NoContact`] names the first invalid one.
    pub fn parse(text: &str) -> Result<Vec<Contact>, NoContact> {
        text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(Contact::one).collect()
    }

    fn one(text: &str) -> Result<Contact, NoContact> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return if address.port() == 0 || address.ip().is_unspecified() {
                Err(NoContact(text.to_owned()))
            } else {
                Ok(Contact::Address(address))
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| NoContact(text.to_owned()))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let host_fine = (1..=253).contains(&host.len()) && host.chars().all(plain);
        // A host that looks like an address and is not one is no name either.
        let numbers = host.chars().all(|c| c.is_ascii_digit() || c == '.');
        let port_fine = port.parse::<u16>().is_ok_and(|port| port != 0);
        if host_fine && port_fine && !numbers {
            Ok(Contact::Name(text.to_owned()))
        } else {
            Err(NoContact(text.to_owned()))
        }
    }

    /// Returns the contact's current addresses. Asks the resolver for a name, which can take many seconds.
    ///
    /// # Errors
    /// The name has none, or the resolver does not answer.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Contact::Address(address) => Ok(vec![*address]),
            Contact::Name(name) => Ok(name.to_socket_addrs()?.collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contacts_are_addresses_and_names() {
        let read = Contact::parse("10.0.0.1:7, [::1]:8,nodes.example:9").unwrap();
        let address = |text: &str| Contact::Address(text.parse().unwrap());
        assert_eq!(
            read,
            [address("10.0.0.1:7"), address("[::1]:8"), Contact::Name("nodes.example:9".into())]
        );
        assert_eq!(Contact::parse(""), Ok(vec![]));
        for bad in [
            "10.0.0.1",
            "10.0.0.1:0",
            "0.0.0.0:7",
            "300.0.0.1:7",
            "a b:7",
            ":7",
            "name:",
            "name:99999",
            "http://a:1",
        ] {
            assert!(Contact::parse(bad).is_err(), "{bad}");
        }
        assert!(
            Contact::Name("localhost:7".into()).addresses().unwrap().iter().all(|a| a.ip().is_loopback())
        );
    }
}
