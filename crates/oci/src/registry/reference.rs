//! References: `HOST/NAME:TAG` or `HOST/NAME@DIGEST`, as every program that pulls images reads them.

use std::fmt;

use api::error::{Failure, Result};

use crate::digest::Digest;

/// What a reference without a host means, and the host that serves it.
const DEFAULT: &str = "docker.io";
const DEFAULT_HOST: &str = "registry-1.docker.io";

/// A reference, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The registry, with its port if it has one.
    pub host: String,
    /// The repository.
    pub repository: String,
    /// The tag. `latest` if there is none.
    pub tag: String,
    /// The digest, which counts more than the tag.
    pub digest: Option<Digest>,
}

impl Reference {
    /// Parses a reference. A first part without a dot and a port is no host but a part of the name.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Reference> {
        let bad = |why: &str| {
            Failure::usage(format!("{text:?} is no reference of an image")).why(why.to_owned()).next(
                "write HOST/NAME:TAG or HOST/NAME@sha256:DIGEST, for example docker.io/library/debian:12",
            )
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                let digest = Digest::parse(digest).ok_or_else(|| bad("what follows the @ is no digest"))?;
                (rest, Some(digest))
            }
            None => (text, None),
        };
        let (host, rest) = match rest.split_once('/') {
            Some((host, rest)) if host == "localhost" || host.contains(['.', ':']) => (host, rest),
            _ => (DEFAULT, rest),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, tag),
            _ => (rest, "latest"),
        };
        let of = |text: &str, more: &str| {
            text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c)) && !text.is_empty()
        };
        if !of(host, "-._:[]") {
            return Err(bad("its host is no name"));
        }
        let parts = |name: &str| name.split('/').all(|part| of(part, "-._") && !part.starts_with('.'));
        if name.chars().any(|c| c.is_ascii_uppercase()) || !parts(name) {
            return Err(bad("its name has lower-case letters, digits, - . _ and / only"));
        }
        if !of(tag, "-._") || tag.len() > 128 {
            return Err(bad("its tag has letters, digits, - . and _ only"));
        }
        let official = host == DEFAULT && !name.contains('/');
        let repository = if official { format!("library/{name}") } else { name.to_owned() };
        Ok(Reference { host: host.to_owned(), repository, tag: tag.to_owned(), digest })
    }

    /// Whether the registry is on this machine. Only then it is spoken to without TLS.
    pub fn is_local(&self) -> bool {
        let host = match self.host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => &self.host,
        };
        is_loopback(host)
    }

    /// The address of the registry, without a `/` at its end.
    pub fn base(&self) -> String {
        let host = if self.host == DEFAULT { DEFAULT_HOST } else { &self.host };
        format!("{}://{host}", if self.is_local() { "http" } else { "https" })
    }
}

/// Whether a host is this machine itself.
pub fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        match self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => write!(f, ":{}", self.tag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_as_elsewhere() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let cases = [
            ("debian", "docker.io/library/debian:latest"),
            ("debian:12", "docker.io/library/debian:12"),
            ("some/app", "docker.io/some/app:latest"),
            ("docker.io/library/debian", "docker.io/library/debian:latest"),
            ("localhost/app:1", "localhost/app:1"),
            ("127.0.0.1:5000/a/b/c:x_1", "127.0.0.1:5000/a/b/c:x_1"),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            ("ghcr.io/a/b", "ghcr.io/a/b:latest"),
        ];
        for (text, whole) in cases {
            assert_eq!(Reference::parse(text).unwrap().to_string(), whole, "{text}");
        }
        let pinned = Reference::parse(&format!("ghcr.io/a/b:1@{digest}")).unwrap();
        assert_eq!(pinned.to_string(), format!("ghcr.io/a/b@{digest}"));
        for bad in
            ["", "UPPER", "a:b:c", "a@sha256:00", "a//b", "a/../b", "host.x/", "a:t ag", "a?b", "h.x/%2e"]
        {
            assert!(Reference::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_this_machine_is_spoken_to_without_tls() {
        let base = |text: &str| Reference::parse(text).unwrap().base();
        assert_eq!(base("debian"), "https://registry-1.docker.io");
        assert_eq!(base("registry.example:5000/a"), "https://registry.example:5000");
        assert_eq!(base("127.0.0.1.example.org/a"), "https://127.0.0.1.example.org");
        assert_eq!(base("localhost:5000/a"), "http://localhost:5000");
        assert_eq!(base("127.0.0.1:5000/a"), "http://127.0.0.1:5000");
        assert_eq!(base("[::1]:5000/a"), "http://[::1]:5000");
    }
}
